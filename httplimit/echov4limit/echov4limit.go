// Package echov4limit puts the limits of httplimit in front of echo's handlers (echo v4; for
// v5 there is echolimit).
//
// echo.WrapMiddleware(limit) limits as well, but handlers that return an error are
// answered by echo once all middlewares are done: httplimit.Config.Settle is then told
// 200 for every failure, so that a limit on failed logins, say, does not count any.
package echov4limit

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/sluice-go/sluice/httplimit"
)

// New returns a middleware. The error is httplimit.New's.
//
// Functions of the Config, such as a key, see the http.Request, and not the one that a middleware in
// front has Set in the echo.Context. Have that middleware put it into the request, too:
//
//	c.SetRequest(c.Request().WithContext(...))
//
// httplimit.Config.Settle is told the status that the client gets, whether the handler
// has written it, echo's error handler makes it of an error that the handler returns, or
// a middleware further out does. It is asked when the handler is done or, where its error
// is still to be answered, when the status is known; and not at all where nobody answers
// the error, so that the request stays charged. A handler that panics has status 500 if it
// has written nothing. A connection that was taken over counts as 200. Config.Skip sees the
// path, but no path values.
//
// httplimit.ByPattern counts by the path of the route, without a method, such as /items/:id: the
// middleware sets it as the request's Pattern. In Echo.Pre there is none yet.
func New(c httplimit.Config) (echo.MiddlewareFunc, error) {
	judge, err := httplimit.New(c)
	if err != nil {
		return nil, err
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if path := c.Path(); path != "" {
				c.Request().Pattern = path
			}
			v := judge.Decide(c.Response().Header(), c.Request())
			if !v.Allowed {
				v.Answer(c.Response())
				return nil
			}
			c.SetRequest(v.Request())
			c.Response().Writer = v.Writer(c.Response().Writer)
			return serve(c, next, v)
		}
	}, nil
}

// serve calls the handler and settles the cost of the request.
func serve(c echo.Context, next echo.HandlerFunc, v *httplimit.Verdict) (err error) {
	panicked := true
	defer func() {
		resp := c.Response()
		status := resp.Status
		switch {
		case resp.Committed:
		case panicked:
			status = http.StatusInternalServerError
		case err != nil:
			resp.Before(func() { v.Settle(resp.Status) })
			v.End() // perhaps nobody answers
			return
		case c.Request().Context().Err() != nil:
			status = httplimit.StatusClientGone
		}
		v.Settle(status)
	}()
	err = next(c)
	panicked = false
	return err
}
