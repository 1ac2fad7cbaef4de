package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

var rates = []sluice.Algorithm{
	sluice.GCRA, sluice.TokenBucket, sluice.TokenBucketInterval, sluice.LeakyBucket, sluice.FixedWindow, sluice.FixedWindowFirstCharge,
	sluice.SlidingWindow, sluice.SlidingLog,
}

// TestTransport_ChargesOfOneKeyAddUp: what a limit error asks for is the wait for the sum of the charges of a key, to the
// nanosecond; and Never for a sum that is never there.
func TestTransport_ChargesOfOneKeyAddUp(t *testing.T) {
	for _, algorithm := range rates {
		for _, fast := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/fast=%v", algorithm, fast), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					lim, other := limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(1000)}), newLimiter(t, sluice.PerHour(1000))
					part := 600
					tr := newTestTransport(t, newFakeBase(always(http.StatusOK)), TransportConfig{
						FailFast: fast, Charges: func(*http.Request) ([]sluice.Charge, error) {
							own, err := lim.Key("k").WithLimit(lim.Config().Limit)
							return []sluice.Charge{{Key: lim.Key("k"), Cost: part}, {Key: other.Key("k"), Cost: 1}, {Key: own, Cost: part}}, err
						},
					})
					ask := func() *LimitError {
						begin := time.Now()
						defer func() { require.Equal(t, begin, time.Now()) }()
						return limitError(t, sendIn(t, tr, "", 1))
					}
					e := ask()
					require.Equal(t, sluice.Never, e.RetryAfter)
					require.Equal(t, 1000, other.Key("k").Peek(0).Remaining)

					part = 500
					require.NoError(t, sendIn(t, tr, "", 0))
					part = 300
					e = ask()
					require.Positive(t, e.RetryAfter)
					require.Less(t, e.RetryAfter, 2*time.Minute)
					time.Sleep(e.RetryAfter - 1)
					require.EqualValues(t, 1, ask().RetryAfter)
					time.Sleep(time.Nanosecond)
					if algorithm == sluice.LeakyBucket && !fast { // the queue has room now, and the turn is later
						e = ask()
						time.Sleep(e.RetryAfter - 1)
						require.EqualValues(t, 1, ask().RetryAfter)
						time.Sleep(time.Nanosecond)
					}
					require.NoError(t, sendIn(t, tr, "", 1))
				})
			})
		}
	}
}

// TestTransport_ChargesWithoutRoom: a limiter that has no room for a key asks for a wait, too.
func TestTransport_ChargesWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := limiterOf(t, sluice.Config{Limit: sluice.PerMinute(6), MaxKeys: 1, Overflow: sluice.OverflowDenyNew})
		require.True(t, lim.Allow("other"))
		for _, fast := range []bool{false, true} {
			tr := newTestTransport(t, newFakeBase(always(http.StatusOK)), TransportConfig{Limiter: lim, FailFast: fast})
			e := limitError(t, sendIn(t, tr, "", 0))
			require.Equal(t, 10*time.Second, e.RetryAfter, "%v", e)

			full := limiterOf(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(6, time.Minute), MaxKeys: 1, Overflow: sluice.OverflowDenyNew})
			require.True(t, full.Allow("other"))
			e = limitError(t, sendIn(t, newTestTransport(t, newFakeBase(always(http.StatusOK)), TransportConfig{Limiter: full, FailFast: fast}), "", 0))
			require.Equal(t, time.Second, e.RetryAfter, "%v", e)
		}
	})
}

// TestTransport_ResultsAreCharges: as many requests are sent as units are charged, whatever ends while they wait; and
// those that are not sent have the error of their context, or of the limit.
func TestTransport_ResultsAreCharges(t *testing.T) {
	rng := seeded.Rand(t)
	const burst = 1000
	for _, algorithm := range append([]sluice.Algorithm{sluice.InFlight}, rates...) {
		for _, several := range []bool{false, true} {
			for round := range 20 {
				synctest.Test(t, func(t *testing.T) {
					lim := limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerHour(burst)})
					c := TransportConfig{Limiter: lim}
					if several {
						c = TransportConfig{Charges: func(*http.Request) ([]sluice.Charge, error) {
							return []sluice.Charge{{Key: lim.Key("a.test"), Cost: 1}}, nil
						}}
					}
					tr := newTestTransport(t, newFakeBase(func(int, *http.Request) *http.Response {
						return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: connection{newTrackedBody("")}}
					}), c)
					time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
					lim.Key("a.test").Block(10 * time.Millisecond)
					var mu sync.Mutex
					sent := 0
					var all sync.WaitGroup
					for range 20 {
						deadline := time.Duration(8+rng.IntN(5)) * time.Millisecond
						cancels := rng.IntN(2) == 0
						all.Go(func() {
							ctx, cancel := context.WithCancel(t.Context())
							if cancels {
								time.AfterFunc(deadline, cancel)
							} else {
								ctx, cancel = context.WithTimeout(t.Context(), deadline)
							}
							defer cancel()
							resp, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
							mu.Lock()
							defer mu.Unlock()
							switch {
							case err == nil:
								sent++
								assert.NotNil(t, resp)
							case errors.Is(err, ErrLimited):
								assert.ErrorIs(t, err, context.DeadlineExceeded)
							default:
								assert.Equal(t, ctx.Err(), err)
							}
						})
					}
					all.Wait()
					require.Equal(t, burst-sent, freeUnits(lim), "%v, several=%v, round %d", algorithm, several, round)
				})
			}
		}
	}
}

// A connection is a body that can be written to, and so does not end with the context.
type connection struct{ *trackedBody }

func (connection) Write(b []byte) (int, error) { return len(b), nil }
