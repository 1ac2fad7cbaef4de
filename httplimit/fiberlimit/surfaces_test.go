package fiberlimit_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/timeout"

	"github.com/sluice-go/sluice/httplimit/fiberlimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

func TestSurface(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			limit, err := fiberlimit.New(surfaces.HTTPConfig(s))
			if err != nil {
				return surfaces.Door{}, err
			}
			app := fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
				if errors.Is(err, surfaces.ErrUnanswered) {
					return nil
				}
				return fiber.DefaultErrorHandler(c, err)
			}})
			app.Use(func(c fiber.Ctx) error {
				defer s.Handler.Left()
				return c.Next()
			}, recover.New(), limit)
			handler := func(c fiber.Ctx) error { return end(s, c) }
			if s.TimesOut {
				handler = givesUp(s, timeout.New(handler, timeout.Config{Timeout: time.Hour}))
			}
			app.Get("/", handler)
			return surfaces.Door{Call: surfaces.CallHTTP(t, s, "http://"+serve(t, app))}, nil
		},
		Cannot: surfaces.HTTPCannot(map[string]string{
			"queue whose client goes":                               "fasthttp does not say when a client has gone",
			"streaming in the handler":                              "fiber sends a response when its handlers have returned",
			"settled: error that nobody answers":                    "fiber answers 200 where an error handler says nothing",
			"settled: client gone and an error that nobody answers": "fiber answers 200 where an error handler says nothing",
		}),
	}.Test(t)
}

// end ends a handler as it is told.
func end(s *surfaces.Setup, c fiber.Ctx) error {
	switch s.Handler.Begin() {
	case surfaces.Answered:
		return surfaces.ErrAnswered
	case surfaces.Unanswered:
		return surfaces.ErrUnanswered
	case surfaces.Panics:
		panic(surfaces.Panic)
	case surfaces.Hijacks:
		closing := s.Handler.Closing()
		c.Set("Connection", "Upgrade")
		c.Set("Upgrade", "surfaces")
		c.Status(http.StatusSwitchingProtocols)
		c.RequestCtx().Hijack(func(net.Conn) { <-closing })
		return nil
	case surfaces.TimesOut:
		closing := s.Handler.Closing()
		s.Handler.GaveUp()
		<-closing
		return nil
	case surfaces.StreamsOn:
		closing := s.Handler.Closing()
		return c.SendStreamWriter(func(w *bufio.Writer) {
			_, _ = w.WriteString("begun\n")
			_ = w.Flush()
			<-closing
		})
	}
	return c.SendStatus(http.StatusOK)
}

// givesUp ends the context of a handler that is to time out.
func givesUp(s *surfaces.Setup, next fiber.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		c.SetContext(ctx)
		s.Handler.OnGivingUp(cancel)
		return next(c)
	}
}
