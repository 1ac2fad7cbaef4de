// Package fiberlimit puts the limits of httplimit in front of fiber's handlers (fiber v3).
//
// fiber's adaptor for middlewares of net/http limits as well, but is no safe way to count by
// a request's words. It keeps the last of several fields of one name, where fiber's own
// Get returns the first: with two API keys in each request, a client is counted under one
// and served by the other. And httplimit.Config.Settle is told 200 for every response.
package fiberlimit

import (
	"net/http"

	"github.com/gofiber/fiber/v3"

	"github.com/sluice-go/sluice/httplimit"
)

// New returns a middleware. The error is httplimit.New's.
//
// Functions of the Config are given a request with all that came in its header, with the values of
// the fiber.Ctx's context, and with an empty body. It may be kept: nothing of it is used
// again by fiber. As for fiber's handlers, the trailer of a body that has been read is part of
// the header; only Forwarded, by which a client could name another one, is left out.
//
// A request gets status 400 if its target is no URI, or one in which fiber reads another path,
// as /login in /login#1. Fiber also takes /Login/ for /login, unless fiber.Config says
// otherwise: a Key that is made of the path has to, too.
//
// Each process of fiber's prefork has limiters of its own. Share the limit by a Policy with a
// Remote.
//
// httplimit.Config.Settle is told the status that the client gets. For an error that a
// handler returns, the middleware calls the error handler of the app, as fiber's logger
// does; so a middleware that makes other errors of errors belongs behind this one. A
// handler that panics has status 500, a connection that was taken over the status that has
// been set, which is 200 if there is none. fasthttp does not say when a client has gone: in a
// httplimit.Config.Queue its request keeps its place until it passes or has waited for as long as it may.
// Config.Skip sees the path, but no path values.
//
// What a policy of sluice.InFlight has charged stays in use until fasthttp has sent the response, with a body that is a stream
// (SendStreamWriter, SendFile), and until the handler of a connection that was taken over (Hijack) has returned: with
// fasthttp's KeepHijackedConns, have that handler wait for the connection's end.
//
// httplimit.ByPattern counts by the path that the middleware has been registered with, without a method: the path of the
// route, such as /items/:id, for app.Get(path, limit, handler), and the prefix for app.Use.
//
// With httplimit.Config.Explain, httplimit.DecisionFromContext finds the decision in the
// context of the fiber.Ctx.
func New(c httplimit.Config) (fiber.Handler, error) {
	judge, err := httplimit.New(c)
	if err != nil {
		return nil, err
	}
	return func(c fiber.Ctx) error {
		r, err := newRequest(c)
		if err != nil {
			return fiber.ErrBadRequest
		}
		w := newResponse(c)
		v := judge.Decide(w.header, r)
		if !v.Allowed {
			v.Answer(w)
			return nil
		}
		w.writeHeader()
		if v.Request() != r {
			c.SetContext(v.Request().Context())
		}
		return serve(c, v)
	}, nil
}

// serve calls the handlers and settles the cost of the request.
func serve(c fiber.Ctx, v *httplimit.Verdict) error {
	panicked := true
	defer func() {
		status := c.Response().StatusCode()
		if panicked {
			status = http.StatusInternalServerError
		}
		if c.Response().IsBodyStream() || c.RequestCtx().Hijacked() {
			// fasthttp closes it with the request, once the response is sent or the hijack handler is done; or, if the connection
			// is to be closed, it may drop the handler, and the hold with it. By a key of its own: another limit may have one.
			h := v.Hold()
			c.RequestCtx().SetUserValue(h, h)
		}
		v.Settle(status)
	}()
	if err := c.Next(); err != nil {
		if err = c.App().ErrorHandler(c, err); err != nil {
			_ = c.SendStatus(http.StatusInternalServerError) // as fiber does; it never fails
		}
	}
	panicked = false
	return nil
}
