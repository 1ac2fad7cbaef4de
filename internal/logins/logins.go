// Package logins is what the tests of the middlewares for frameworks share: a login, of which three
// an hour may fail.
package logins

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// Config limits logins that fail to 3 an hour, and notes what Settle is told.
func Config(t *testing.T) (c httplimit.Config, told *[]int) {
	failed, err := sluice.New(sluice.Config{Limit: sluice.PerHour(3), Clock: sluice.NewManualClock(time.Now())})
	require.NoError(t, err)
	told = new([]int)
	return httplimit.Config{
		Policies: []httplimit.Policy{{Name: "logins", Limiter: failed, Key: httplimit.ByBasicAuthUser()}},
		Explain:  true,
		Settle: func(_ *http.Request, status int) int {
			if *told = append(*told, status); status == http.StatusOK {
				return 0
			}
			return -1
		},
	}, told
}

// Limited reports whether the limit has decided on the login of a request's context.
func Limited(ctx context.Context) bool {
	d, ok := httplimit.DecisionFromContext(ctx)
	return ok && d.Charges[0].Key == "bob"
}

// Right is the value of Authorization that lets bob in.
const Right = "Basic Ym9iOnNlY3JldA=="

// One connection a request, so that a server's shutdown waits for nobody.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func try(ctx context.Context, url, password string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth("bob", password)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}

// Fail makes a login that fails, and returns its status.
func Fail(t *testing.T, url string) int {
	t.Helper()
	resp, err := try(t.Context(), url, "guess")
	require.NoError(t, err)
	return resp.StatusCode
}

// RequireThreeMayFail demands that logins at url that succeed are free, and that three may fail,
// each with the status; and that Settle is told so.
func RequireThreeMayFail(t *testing.T, url string, status int, told *[]int) {
	t.Helper()
	succeed := func() *http.Response {
		resp, err := try(t.Context(), url, "secret")
		require.NoError(t, err)
		return resp
	}
	var want []int
	for range 3 {
		for range 5 {
			require.Equal(t, http.StatusOK, succeed().StatusCode)
		}
		require.Equal(t, status, Fail(t, url))
		want = append(want, 200, 200, 200, 200, 200, status)
	}
	resp := succeed()
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	assert.Equal(t, "1200", resp.Header.Get("Retry-After"))
	assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	assert.Equal(t, want, *told, "the handler is not called")
}

// An Order is how middlewares stand around a handler.
type Order struct {
	recoversInside bool // of the limit, what recovers from panics
	held           bool // by one further out: the status, until the body is known to be short
}

// Orders are all that there are.
var Orders = []Order{{false, false}, {false, true}, {true, false}, {true, true}}

func (o Order) String() string {
	recovers := "outside"
	if o.recoversInside {
		recovers = "inside"
	}
	return fmt.Sprintf("recover=%s/held=%v", recovers, o.held)
}

// Arrange puts middlewares into an order, from the outside in.
func Arrange[M any](o Order, holds, translates, recovers, limits M) []M {
	chain := []M{holds, translates, recovers, limits}
	if o.recoversInside {
		chain[2], chain[3] = limits, recovers
	}
	if !o.held {
		return chain[1:]
	}
	return chain
}

// Leave makes a login that fails, and goes once the handler has begun.
func Leave(t *testing.T, url string, begun <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := try(ctx, url, "guess")
	require.ErrorIs(t, err, context.Canceled)
}

// RequireRefused demands the error of a Config without policies.
func RequireRefused(t *testing.T, err error) {
	t.Helper()
	var e *httplimit.ConfigError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "Config.Policies", e.Field)
}
