package httplimit_test

import (
	"testing"

	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

func TestSurface(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			limit, err := httplimit.New(surfaces.HTTPConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			url := surfaces.Listen(t, surfaces.Around(s, limit.Handler(surfaces.NewHandler(s))))
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, url)}, nil
		},
		Cannot: surfaces.HTTPCannot(map[string]string{
			"error that nobody answers":                    "handlers of net/http return none",
			"client gone and an error that nobody answers": "handlers of net/http return none",
			"streaming after the handler":                  "a response ends with its handler, unless that has hijacked the connection",
		}),
	}.Test(t)
}
