package logins

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// atOnce returns a middleware for two logins at once.
func (f Framework[H, M]) atOnce(t *testing.T, change func(*httplimit.Config)) (limit M, left func() int) {
	atOnce, err := sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour)})
	require.NoError(t, err)
	c := httplimit.Config{Explain: true, Policies: []httplimit.Policy{{Name: "at-once", Limiter: atOnce, Key: httplimit.ByBasicAuthUser()}}}
	change(&c)
	limit, err = f.New(c)
	require.NoError(t, err)
	return limit, func() int { return atOnce.Key("bob").Peek(0).Remaining }
}

func unchanged(*httplimit.Config) {}

// ends: whatever becomes of a login, it is no longer counted then.
func (f Framework[H, M]) ends(t *testing.T) {
	handlers := []H{f.Silent}
	for _, failure := range f.Failures {
		handlers = append(handlers, failure.Fail)
	}
	if f.Unanswered.Status != 0 {
		handlers = append(handlers, f.Unanswered.Fail)
	}
	boom := func(c *httplimit.Config) { c.OnDecision = func(*http.Request, httplimit.Decision) { panic("boom") } }
	for _, change := range []func(*httplimit.Config){unchanged, boom} {
		for _, handler := range handlers {
			for _, outer := range append(f.Outer, f.Swallows) {
				limit, left := f.atOnce(t, change)
				url := f.Serve(t, handler, slices.Concat([]M{f.Recovers}, outer, []M{limit})...)
				for range 3 {
					require.NotEqual(t, http.StatusTooManyRequests, Fail(t, url))
				}
				require.Eventually(t, func() bool { return left() == 2 }, 10*time.Second, time.Millisecond)
			}
		}
	}
}

// patterns: the request has the pattern of its route.
func (f Framework[H, M]) patterns(t *testing.T) {
	seen := make(chan string, 1)
	limit, _ := f.atOnce(t, func(c *httplimit.Config) {
		c.Policies = append(c.Policies, httplimit.Policy{Name: "pattern", Limiter: c.Policies[0].Limiter, Key: httplimit.ByPattern()})
		c.OnDecision = func(_ *http.Request, d httplimit.Decision) { seen <- fmt.Sprint(d.Charges, d.KeyError) }
	})
	Fail(t, f.Serve(t, f.Silent, limit))
	assert.Contains(t, <-seen, "{pattern "+f.Pattern+" 1}")
}
