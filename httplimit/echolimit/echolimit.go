// Package echolimit puts the limits of httplimit in front of echo's handlers (echo v5).
//
// echo.WrapMiddleware(limit) limits as well, but handlers that return an error are
// answered by echo once all middlewares are done: httplimit.Config.Settle is then told
// 200 for every failure, so that a limit on failed logins, say, does not count any.
package echolimit

import (
	"bufio"
	"errors"
	"net"
	"net/http"

	"github.com/labstack/echo/v5"

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
// httplimit.ByPattern counts by the path of the route, without a method, such as /items/:id, which
// echo sets as the request's Pattern. In Echo.Pre there is none yet.
func New(c httplimit.Config) (echo.MiddlewareFunc, error) {
	judge, err := httplimit.New(c)
	if err != nil {
		return nil, err
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			v := judge.Decide(c.Response().Header(), c.Request())
			if !v.Allowed {
				v.Answer(c.Response())
				return nil
			}
			c.SetRequest(v.Request())
			return serve(c, next, v)
		}
	}, nil
}

// serve calls the handler and settles the cost of the request.
func serve(c *echo.Context, next echo.HandlerFunc, v *httplimit.Verdict) (err error) {
	w := c.Response()
	rec := &recorder{ResponseWriter: w}
	if resp, ok := w.(*echo.Response); ok {
		resp.ResponseWriter = v.Writer(resp.ResponseWriter)
	} else {
		rec.ResponseWriter = v.Writer(w)
		c.SetResponse(rec)
		defer c.SetResponse(w)
	}
	panicked := true
	defer func() {
		resp, status := echo.ResolveResponseStatus(rec.ResponseWriter, err)
		switch {
		case resp != nil && resp.Committed:
		case rec.status != 0:
			status = rec.status
		case panicked:
			status = http.StatusInternalServerError
		case err != nil && resp != nil:
			resp.Before(func() { v.Settle(resp.Status) })
			v.End() // perhaps nobody answers
			return
		case err == nil && c.Request().Context().Err() != nil:
			status = httplimit.StatusClientGone
		}
		v.Settle(status)
	}()
	err = next(c)
	panicked = false
	return err
}

// A recorder notes the status of a response that goes to a middleware further out. That one may hold
// it back until all is done, as echo's Gzip does with short ones and those without a body.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) note(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	w.note(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(b []byte) (int, error) {
	w.note(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (w *recorder) Flush() { _ = w.FlushError() }

// http.ResponseController calls FlushError.
func (w *recorder) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) {
		w.note(http.StatusOK)
	}
	return err
}

// Hijack implements http.Hijacker.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap is for http.ResponseController, and for echo.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
