package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/seeded"
)

// Of two requests that overlap, the second one's unit has come back by itself as soon as that of
// the first has been given back.
func TestSettle_OfTwoThatOverlap(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket} {
		clock := newClock()
		lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock})
		judge := freeJudge(t, lim, func() int { return 1 })
		first := decide(judge)
		clock.Advance(3 * time.Second)
		second := decide(judge)
		clock.Advance(2400 * time.Millisecond)
		first.Settle(200)
		clock.Advance(2600 * time.Millisecond) // 8 s
		require.True(t, lim.AllowN("k", 9))
		clock.Advance(500 * time.Millisecond)
		second.Settle(200)
		assert.Equal(t, 1, lim.Peek("k", 0).Remaining, "%v: 9 units, of which half a one has come back", algorithm)
	}
}

// However many requests of a key are open at once, and whenever they end: those that turn out to
// cost nothing leave no more than there would be without them. Under the window algorithms it is
// the same to the unit.
func TestSettle_OfManyThatOverlap(t *testing.T) {
	limit := sluice.PerMinute(200)
	for _, c := range []sluice.Config{
		{Limit: limit}, {Algorithm: sluice.TokenBucket, Limit: limit}, {Algorithm: sluice.LeakyBucket, Limit: limit},
		{Algorithm: sluice.TokenBucket, Refill: sluice.RefillInterval, Limit: sluice.PerSecond(5).WithBurst(200)},
		{Algorithm: sluice.FixedWindow, Limit: limit}, {Algorithm: sluice.SlidingWindow, Limit: limit}, {Algorithm: sluice.SlidingLog, Limit: limit},
	} {
		t.Run(fmt.Sprintf("%v/%v", c.Algorithm, c.Refill), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range 100 {
				clock := newClock()
				c.Clock = clock
				lim, without := newLimiter(t, c), newLimiter(t, c)
				judge := freeJudge(t, lim, func() int { return 1 + rng.IntN(5) })
				var open []*httplimit.Verdict
				for range 60 {
					switch rng.IntN(4) {
					case 0:
						open = append(open, decide(judge))
					case 1:
						if n := 1 + rng.IntN(20); lim.AllowN("k", n) {
							without.Charge("k", n)
						}
					case 2:
						clock.Advance(time.Duration(rng.Int64N(int64(8 * time.Second))))
					case 3:
						if len(open) > 0 {
							i := rng.IntN(len(open))
							open[i].Settle(200)
							open = append(open[:i], open[i+1:]...)
						}
					}
				}
				for _, v := range open {
					v.Settle(200)
				}
				got, want := lim.Peek("k", 0), without.Peek("k", 0)
				switch c.Algorithm {
				case sluice.FixedWindow, sluice.SlidingWindow, sluice.SlidingLog:
					require.Equal(t, want, got)
				default:
					require.LessOrEqual(t, got.Remaining, want.Remaining)
					require.GreaterOrEqual(t, got.ResetAfter, want.ResetAfter)
				}
			}
		})
	}
}

// freeJudge judges requests that cost nothing in the end.
func freeJudge(t *testing.T, lim *sluice.Limiter, cost func() int) *httplimit.Judge {
	t.Helper()
	return httplimit.Must(httplimit.NewJudge(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return cost() }}},
		Settle:   func(*http.Request, int) int { return 0 },
	}))
}

func decide(judge *httplimit.Judge) *httplimit.Verdict {
	return judge.Decide(http.Header{}, httptest.NewRequest(http.MethodGet, "/", nil))
}
