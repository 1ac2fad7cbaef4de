package echov4limit_test

import (
	"errors"
	"io"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/sluice-go/sluice/httplimit/echov4limit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

func TestSurface(t *testing.T) { surface().Test(t) }

func TestSurface_BehindGzip(t *testing.T) { surface(holds).Test(t) }

// surface is the middleware, behind others.
func surface(outer ...echo.MiddlewareFunc) surfaces.Surface {
	return surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			limit, err := echov4limit.New(surfaces.HTTPConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			e := echo.New()
			e.Logger.SetOutput(io.Discard)
			answer := e.DefaultHTTPErrorHandler
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				if !errors.Is(err, surfaces.ErrUnanswered) {
					answer(err, c)
				}
			}
			e.Use(append(outer, middleware.Recover(), limit)...)
			e.GET("/", func(c echo.Context) error { return surfaces.ServeHTTP(s, c.Response()) })
			url := surfaces.Listen(t, surfaces.Around(s, e))
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, url)}, nil
		},
		Cannot: surfaces.HTTPCannot(map[string]string{
			"streaming after the handler": "a response ends with its handler, unless that has hijacked the connection",
			"timeout":                     "echo v4 reuses the context of a handler that its Timeout has given up on, which is a data race; its ContextTimeout waits for the handler",
		}),
	}
}
