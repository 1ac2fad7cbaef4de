package echolimit_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/echolimit"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/logins"
)

var (
	errWrongPassword = errors.New("wrong password")
	errForeign       = errors.New("an error of some other package")
)

// failures are the ways in which a login can fail under echo, and what the client sees.
var failures = map[string]struct {
	fail   echo.HandlerFunc
	status int
}{
	"a response":           {func(c *echo.Context) error { return c.String(401, "no") }, 401},
	"a status":             {func(c *echo.Context) error { return c.NoContent(401) }, 401},
	"an error of echo's":   {func(*echo.Context) error { return echo.ErrUnauthorized }, 401},
	"any error":            {func(*echo.Context) error { return io.EOF }, 500},
	"the application's":    {func(*echo.Context) error { return errWrongPassword }, 401},
	"a foreign error":      {func(*echo.Context) error { return errForeign }, 403},
	"a response and error": {func(c *echo.Context) error { _ = c.String(401, "no"); return io.EOF }, 401},
	"a panic":              {func(*echo.Context) error { panic("oops") }, 500},
}

// translate is a middleware that knows what the errors of others mean.
func translate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
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
	e.Logger = slog.New(slog.DiscardHandler)
	inner := e.HTTPErrorHandler
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		if errors.Is(err, errWrongPassword) {
			err = echo.ErrUnauthorized
		}
		inner(c, err)
	}
	e.GET("/login", func(c *echo.Context) error {
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

// Through a real server: logins that succeed are free, and three may fail, however they do.
func TestEcho_FailedLoginsAreCounted(t *testing.T) {
	for name, tt := range failures {
		for _, order := range logins.Orders {
			t.Run(fmt.Sprintf("%s/%v", name, order), func(t *testing.T) {
				c, told := logins.Config(t)
				limit, err := echolimit.New(c)
				require.NoError(t, err)
				holds := middleware.GzipWithConfig(middleware.GzipConfig{MinLength: 1000})
				url := newServer(t, tt.fail, logins.Arrange(order, holds, translate, middleware.Recover(), limit)...)
				logins.RequireThreeMayFail(t, url, tt.status, told)
			})
		}
	}
}

// Why there is this package: the wrapper has Settle told 200 for an error.
func TestEcho_WrapMiddlewareDoesNotSeeErrors(t *testing.T) {
	c, told := logins.Config(t)
	limit, err := httplimit.New(c)
	require.NoError(t, err)
	url := newServer(t, failures["an error of echo's"].fail, echo.WrapMiddleware(limit))
	assert.Equal(t, http.StatusUnauthorized, logins.Fail(t, url))
	assert.Equal(t, []int{200}, *told)
}

func TestEcho_AClientThatHasGone(t *testing.T) {
	statuses := make(chan int, 1)
	c, _ := logins.Config(t)
	c.Settle = func(_ *http.Request, status int) int { statuses <- status; return 0 }
	limit, err := echolimit.New(c)
	require.NoError(t, err)
	begun := make(chan struct{})
	url := newServer(t, func(c *echo.Context) error {
		close(begun)
		<-c.Request().Context().Done()
		return nil
	}, limit)
	logins.Leave(t, url, begun)
	assert.Equal(t, httplimit.StatusClientGone, <-statuses)
}

// A handler that says nothing has succeeded, and an error that nobody answers stays charged.
func TestEcho_Silence(t *testing.T) {
	c, told := logins.Config(t)
	limit, err := echolimit.New(c)
	require.NoError(t, err)
	url := newServer(t, func(*echo.Context) error { return nil }, limit)
	assert.Equal(t, http.StatusOK, logins.Fail(t, url))
	assert.Equal(t, []int{200}, *told)

	swallow := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error { _ = next(c); return nil }
	}
	url = newServer(t, func(*echo.Context) error { return io.EOF }, swallow, limit)
	for _, want := range []int{200, 200, 200, 429} {
		assert.Equal(t, want, logins.Fail(t, url))
	}
}

func TestNew_RefusesWhatHttplimitRefuses(t *testing.T) {
	_, err := echolimit.New(httplimit.Config{})
	logins.RequireRefused(t, err)
}
