package logins

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/httplimit"
)

// A Framework is one whose middleware is tested: H are its handlers, M its middlewares.
type Framework[H, M any] struct {
	New func(httplimit.Config) (M, error)
	// Serve starts a server behind the middlewares, the first of them outermost, and returns the address of a
	// login. The login demands that the limit has decided, as Limited tells; it welcomes Right, and else calls fail.
	Serve func(t *testing.T, fail H, middlewares ...M) (url string)
	// Failures are the ways in which a login can fail.
	Failures map[string]Failure[H]
	// Outer are the middlewares further out that those failures need, in turn; Recovers, from panics, stands
	// right outside of the limit and right inside.
	Outer    [][]M
	Recovers M
	// Silent says nothing.
	Silent H
	// Waits closes begun, and says nothing once the client has gone; nil if the framework does not tell.
	Waits func(begun chan<- struct{}) H
	// Pattern is ByPattern's key at the login.
	Pattern string
	// Unanswered is an error that nobody answers, within Swallows; the zero value if there is no such thing.
	Unanswered Failure[H]
	Swallows   []M
}

// A Failure is a handler that fails, and the status that the client sees then.
type Failure[H any] = struct {
	Fail   H
	Status int
}

// Test demands of the middleware all that holds for every framework, each through a real server.
func (f Framework[H, M]) Test(t *testing.T) {
	t.Run("FailedLoginsAreCounted", func(t *testing.T) {
		for name, failure := range f.Failures {
			for i, outer := range f.Outer {
				for _, inside := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/outer=%d/recovers inside=%v", name, i, inside), func(t *testing.T) {
						f.threeMayFail(t, failure, outer, inside)
					})
				}
			}
		}
	})
	t.Run("SilenceIsSuccess", f.silence)
	t.Run("AClientThatHasGone", f.gone)
	t.Run("AnErrorThatNobodyAnswers", f.unanswered)
	t.Run("AtOnceUntilTheEnd", f.ends)
	t.Run("ByPattern", f.patterns)
	t.Run("NewRefusesWhatHttplimitRefuses", f.refuses)
}

// limit returns the middleware, and the statuses that Settle is told.
func (f Framework[H, M]) limit(t *testing.T) (limit M, told *[]int) {
	c, told := Config(t)
	limit, err := f.New(c)
	require.NoError(t, err)
	return limit, told
}

// threeMayFail: logins that succeed are free, three may fail, however they do, and Settle is told so.
func (f Framework[H, M]) threeMayFail(t *testing.T, failure Failure[H], outer []M, inside bool) {
	limit, told := f.limit(t)
	inner := []M{f.Recovers, limit}
	if inside {
		inner = []M{limit, f.Recovers}
	}
	url := f.Serve(t, failure.Fail, slices.Concat(outer, inner)...)
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
		require.Equal(t, failure.Status, Fail(t, url))
		want = append(want, 200, 200, 200, 200, 200, failure.Status)
	}
	resp := succeed()
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	assert.Equal(t, "1200", resp.Header.Get("Retry-After"))
	assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	assert.Equal(t, want, *told, "the handler is not called")
}

// silence: a handler that says nothing has succeeded.
func (f Framework[H, M]) silence(t *testing.T) {
	limit, told := f.limit(t)
	assert.Equal(t, http.StatusOK, Fail(t, f.Serve(t, f.Silent, limit)))
	assert.Equal(t, []int{200}, *told)
}

// gone: a request whose client has gone is no success.
func (f Framework[H, M]) gone(t *testing.T) {
	if f.Waits == nil {
		return
	}
	c, _ := Config(t)
	told := make(chan int, 1)
	c.Settle = func(_ *http.Request, status int) int { told <- status; return 0 }
	limit, err := f.New(c)
	require.NoError(t, err)
	begun := make(chan struct{})
	url := f.Serve(t, f.Waits(begun), limit)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err = try(ctx, url, "guess")
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, httplimit.StatusClientGone, <-told)
}

// unanswered: an error that nobody answers stays charged.
func (f Framework[H, M]) unanswered(t *testing.T) {
	if f.Unanswered.Status == 0 {
		return
	}
	limit, told := f.limit(t)
	url := f.Serve(t, f.Unanswered.Fail, append(f.Swallows, limit)...)
	for range 3 {
		assert.Equal(t, f.Unanswered.Status, Fail(t, url))
	}
	assert.Equal(t, http.StatusTooManyRequests, Fail(t, url))
	assert.Empty(t, *told)
}

// refuses: the error is httplimit's.
func (f Framework[H, M]) refuses(t *testing.T) {
	_, err := f.New(httplimit.Config{})
	var e *httplimit.ConfigError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "Config.Policies", e.Field)
}
