package echov4limit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/echov4limit"
	"github.com/sluice-go/sluice/httplimit"
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
	"a response":           {func(c echo.Context) error { return c.String(401, "no") }, 401},
	"a status":             {func(c echo.Context) error { return c.NoContent(401) }, 401},
	"an error of echo's":   {func(echo.Context) error { return echo.ErrUnauthorized }, 401},
	"any error":            {func(echo.Context) error { return io.EOF }, 500},
	"the application's":    {func(echo.Context) error { return errWrongPassword }, 401},
	"a foreign error":      {func(echo.Context) error { return errForeign }, 403},
	"a response and error": {func(c echo.Context) error { _ = c.String(401, "no"); return io.EOF }, 401},
	"a panic":              {func(echo.Context) error { panic("oops") }, 500},
}

// failedLogins limits logins that fail to 3 an hour, and notes what Settle is told.
func failedLogins(t *testing.T) (c httplimit.Config, told *[]int) {
	logins, err := sluice.New(sluice.Config{Limit: sluice.PerHour(3), Clock: sluice.NewManualClock(time.Now())})
	require.NoError(t, err)
	told = new([]int)
	return httplimit.Config{
		Policies: []httplimit.Policy{{Name: "logins", Limiter: logins, Key: httplimit.ByBasicAuthUser()}},
		Explain:  true,
		Settle: func(_ *http.Request, status int) int {
			if *told = append(*told, status); status == http.StatusOK {
				return 0
			}
			return -1
		},
	}, told
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
		if d, ok := httplimit.DecisionFromContext(c.Request().Context()); !ok || d.Charges[0].Key != "bob" {
			return c.NoContent(http.StatusTeapot)
		}
		if _, password, _ := c.Request().BasicAuth(); password != "secret" {
			return fail(c)
		}
		return c.String(http.StatusOK, "welcome")
	}, middlewares...)
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	return srv.URL + "/login"
}

func login(t *testing.T, url, password string) *http.Response {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	req.SetBasicAuth("bob", password)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// Through a real server: logins that succeed are free, and three may fail, however they do.
func TestEcho_FailedLoginsAreCounted(t *testing.T) {
	for name, tt := range failures {
		for _, recovers := range []string{"outside", "inside"} {
			t.Run(name+"/recover="+recovers, func(t *testing.T) {
				c, told := failedLogins(t)
				limit, err := echov4limit.New(c)
				require.NoError(t, err)
				middlewares := []echo.MiddlewareFunc{translate, middleware.Recover(), limit}
				if recovers == "inside" {
					middlewares = []echo.MiddlewareFunc{translate, limit, middleware.Recover()}
				}
				url := newServer(t, tt.fail, middlewares...)
				var want []int
				for range 3 {
					for range 5 {
						require.Equal(t, http.StatusOK, login(t, url, "secret").StatusCode)
					}
					require.Equal(t, tt.status, login(t, url, "guess").StatusCode)
					want = append(want, 200, 200, 200, 200, 200, tt.status)
				}
				resp := login(t, url, "secret")
				assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
				assert.Equal(t, "1200", resp.Header.Get("Retry-After"))
				assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
				assert.Equal(t, want, *told)
			})
		}
	}
}

// Why there is this package: the wrapper has Settle told 200 for an error.
func TestEcho_WrapMiddlewareDoesNotSeeErrors(t *testing.T) {
	c, told := failedLogins(t)
	limit, err := httplimit.New(c)
	require.NoError(t, err)
	url := newServer(t, failures["an error of echo's"].fail, echo.WrapMiddleware(limit))
	assert.Equal(t, http.StatusUnauthorized, login(t, url, "guess").StatusCode)
	assert.Equal(t, []int{200}, *told)
}

func TestEcho_AClientThatHasGone(t *testing.T) {
	statuses := make(chan int, 1)
	c, _ := failedLogins(t)
	c.Settle = func(_ *http.Request, status int) int { statuses <- status; return 0 }
	limit, err := echov4limit.New(c)
	require.NoError(t, err)
	begun := make(chan struct{})
	url := newServer(t, func(c echo.Context) error {
		close(begun)
		<-c.Request().Context().Done()
		return nil
	}, limit)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-begun; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	req.SetBasicAuth("bob", "guess")
	_, err = http.DefaultClient.Do(req)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, httplimit.StatusClientGone, <-statuses)
}

// A handler that says nothing has succeeded, and an error that nobody answers stays charged.
func TestEcho_Silence(t *testing.T) {
	c, told := failedLogins(t)
	limit, err := echov4limit.New(c)
	require.NoError(t, err)
	url := newServer(t, func(echo.Context) error { return nil }, limit)
	assert.Equal(t, http.StatusOK, login(t, url, "guess").StatusCode)
	assert.Equal(t, []int{200}, *told)

	swallow := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { _ = next(c); return nil }
	}
	url = newServer(t, func(echo.Context) error { return io.EOF }, swallow, limit)
	for _, want := range []int{200, 200, 200, 429} {
		assert.Equal(t, want, login(t, url, "guess").StatusCode)
	}
}

func TestNew_RefusesWhatHttplimitRefuses(t *testing.T) {
	_, err := echov4limit.New(httplimit.Config{})
	var e *httplimit.ConfigError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "Config.Policies", e.Field)
}
