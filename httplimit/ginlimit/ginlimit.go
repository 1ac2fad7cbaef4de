// Package ginlimit puts the limits of httplimit in front of gin's handlers.
//
// gin has no wrapper for middlewares of net/http that can keep its handlers from being
// called, and its handlers do not write to the http.ResponseWriter of such a middleware.
package ginlimit

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sluice-go/sluice/httplimit"
)

// New returns a middleware. The error is httplimit.New's.
//
// Functions of the Config, such as a key, see the http.Request, and not the one that a middleware in
// front has Set in the gin.Context. Have that middleware put it into the request, too:
//
//	c.Request = c.Request.WithContext(...)
//
// httplimit.Config.Settle is told the status that the client gets. It is asked when the
// handlers are done or, where they have only noted an error (gin.Context.Error), when a
// middleware further out answers that; and not at all where none does, so that the request
// stays charged. A handler that panics has status 500 if it has written nothing. A
// connection that was taken over counts as 200.
//
// httplimit.ByPattern counts by the path of the route, without a method, such as /items/:id: the
// middleware sets it as the request's Pattern. A path without a route has none.
func New(c httplimit.Config) (gin.HandlerFunc, error) {
	judge, err := httplimit.New(c)
	if err != nil {
		return nil, err
	}
	return func(c *gin.Context) {
		if path := c.FullPath(); path != "" {
			c.Request.Pattern = path
		}
		v := judge.Decide(c.Writer.Header(), c.Request)
		if !v.Allowed {
			v.Answer(c.Writer)
			c.Abort()
			return
		}
		c.Request = v.Request()
		w := v.Writer(c.Writer)
		if _, same := w.(gin.ResponseWriter); !same { // writers need not be comparable
			c.Writer = &hijacker{c.Writer, w}
		}
		serve(c, v)
	}, nil
}

// serve calls the handlers and settles the cost of the request.
func serve(c *gin.Context, v *httplimit.Verdict) {
	panicked := true
	defer func() {
		status := c.Writer.Status()
		switch {
		case c.Writer.Written():
		case panicked:
			status = http.StatusInternalServerError
		case status != http.StatusOK: // set, and written when all is done
		case len(c.Errors) > 0:
			c.Writer = &unanswered{c.Writer, v}
			v.End() // perhaps nobody answers
			return
		case c.Request.Context().Err() != nil:
			status = httplimit.StatusClientGone
		}
		v.Settle(status)
	}()
	c.Next()
	panicked = false
}

// A hijacker is gin's writer with the Hijack of another one.
type hijacker struct {
	gin.ResponseWriter
	by http.ResponseWriter
}

// Hijack implements http.Hijacker.
func (w *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.by).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *hijacker) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// unanswered is the writer of a response whose status a middleware further out decides.
type unanswered struct {
	gin.ResponseWriter
	verdict *httplimit.Verdict
}

// WriteHeader notes the status, which gin writes later.
func (w *unanswered) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	w.verdict.Settle(status)
}

// Write writes the status that has been noted, or 200.
func (w *unanswered) Write(b []byte) (int, error) {
	w.verdict.Settle(w.Status())
	return w.ResponseWriter.Write(b)
}

// WriteString is Write for a string.
func (w *unanswered) WriteString(s string) (int, error) {
	w.verdict.Settle(w.Status())
	return w.ResponseWriter.WriteString(s)
}

// Unwrap is for http.ResponseController.
func (w *unanswered) Unwrap() http.ResponseWriter { return w.ResponseWriter }
