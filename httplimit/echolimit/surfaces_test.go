package echolimit_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/sluice-go/sluice/httplimit/echolimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

func TestSurface(t *testing.T) { surface().Test(t) }

func TestSurface_BehindGzip(t *testing.T) { surface(holds).Test(t) }

// surface is the middleware, behind others.
func surface(outer ...echo.MiddlewareFunc) surfaces.Surface {
	return surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			limit, err := echolimit.New(surfaces.HTTPConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			e := echo.New()
			e.Logger = slog.New(slog.DiscardHandler)
			answer := e.HTTPErrorHandler
			e.HTTPErrorHandler = func(c *echo.Context, err error) {
				if !errors.Is(err, surfaces.ErrUnanswered) {
					answer(c, err)
				}
			}
			e.Use(append(outer, middleware.Recover(), limit)...)
			e.GET("/", func(c *echo.Context) error { return surfaces.ServeHTTP(s, c.Response()) })
			url := surfaces.Listen(t, surfaces.Around(s, e))
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, url)}, nil
		},
		Cannot: surfaces.HTTPCannot(map[string]string{
			"streaming after the handler": "a response ends with its handler, unless that has hijacked the connection",
			"timeout":                     "echo's ContextTimeout waits for the handler",
		}),
	}
}
