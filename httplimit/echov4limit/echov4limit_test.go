package echov4limit_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/httplimit/echov4limit"
	"github.com/sluice-go/sluice/internal/test/logins"
)

var (
	errWrongPassword = errors.New("wrong password")
	errForeign       = errors.New("an error of some other package")
)

// failures are the ways in which a login can fail under echo, and what the client sees.
var failures = map[string]logins.Failure[echo.HandlerFunc]{
	"a response":           {func(c echo.Context) error { return c.String(401, "no") }, 401},
	"a status":             {func(c echo.Context) error { return c.NoContent(401) }, 401},
	"an error of echo's":   {func(echo.Context) error { return echo.ErrUnauthorized }, 401},
	"any error":            {func(echo.Context) error { return io.EOF }, 500},
	"the application's":    {func(echo.Context) error { return errWrongPassword }, 401},
	"a foreign error":      {func(echo.Context) error { return errForeign }, 403},
	"a response and error": {func(c echo.Context) error { _ = c.String(401, "no"); return io.EOF }, 401},
	"a panic":              {func(echo.Context) error { panic("oops") }, 500},
}

// translate is a middleware that knows what the errors of others mean.
func translate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if errors.Is(err, errForeign) {
			return echo.ErrForbidden
		}
		return err
	}
}

// newServer starts a server with a login, behind the middlewares.
func newServer(t *testing.T, fail echo.HandlerFunc, middlewares ...echo.MiddlewareFunc) string {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	inner := e.HTTPErrorHandler
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if errors.Is(err, errWrongPassword) {
			err = echo.ErrUnauthorized
		}
		inner(err, c)
	}
	e.GET("/login", func(c echo.Context) error {
		if !logins.Limited(c.Request().Context()) {
			return c.NoContent(http.StatusTeapot)
		}
		if c.Request().Header.Get("Authorization") != logins.Right {
			return fail(c)
		}
		return c.String(http.StatusOK, "welcome")
	}, middlewares...)
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	return srv.URL + "/login"
}

// holds is echo's own, and holds a status back until the body is known to be short.
var holds = middleware.GzipWithConfig(middleware.GzipConfig{MinLength: 1000})

func TestEcho(t *testing.T) {
	logins.Framework[echo.HandlerFunc, echo.MiddlewareFunc]{
		New: echov4limit.New, Serve: newServer, Failures: failures,
		Outer: [][]echo.MiddlewareFunc{{translate}, {holds, translate}}, Recovers: middleware.Recover(),
		Silent: func(echo.Context) error { return nil },
		Waits: func(begun chan<- struct{}) echo.HandlerFunc {
			return func(c echo.Context) error {
				close(begun)
				<-c.Request().Context().Done()
				return nil
			}
		},
		Pattern:    "/login",
		Unanswered: logins.Failure[echo.HandlerFunc]{Fail: func(echo.Context) error { return io.EOF }, Status: http.StatusOK},
		Swallows: []echo.MiddlewareFunc{func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error { _ = next(c); return nil }
		}},
	}.Test(t)
}

// Why there is this package: the wrapper has Settle told 200 for an error.
func TestEcho_WrapMiddlewareDoesNotSeeErrors(t *testing.T) {
	c, told := logins.Config(t)
	limit, err := httplimit.New(c)
	require.NoError(t, err)
	url := newServer(t, failures["an error of echo's"].Fail, echo.WrapMiddleware(limit.Handler))
	assert.Equal(t, http.StatusUnauthorized, logins.Fail(t, url))
	assert.Equal(t, []int{200}, *told)
}
