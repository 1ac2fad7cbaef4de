package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func limiterOf(t *testing.T, c sluice.Config) *sluice.Limiter {
	t.Helper()
	lim, err := sluice.New(c)
	require.NoError(t, err)
	return lim
}

// sendIn sends a request with a name, and a deadline unless it is 0.
func sendIn(t *testing.T, tr *Transport, name string, deadline time.Duration) error {
	ctx := t.Context()
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	resp, err := tr.RoundTrip(get(t, "http://a.test/"+name).WithContext(ctx))
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}

// Requests that wait for a bucket are served in order of arrival.
func TestTransport_BucketsServeInOrder(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(always(http.StatusOK))
			tr := newTestTransport(t, base, TransportConfig{Limiter: limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerSecond(1).WithBurst(10)})})
			require.True(t, tr.config.Limiter.AllowN("a.test", 10))
			var wg sync.WaitGroup
			for i := range 8 {
				if algorithm == sluice.LeakyBucket {
					time.Sleep(time.Second) // room for one in the queue
				}
				wg.Go(func() { assert.NoError(t, sendIn(t, tr, fmt.Sprint(i), 0)) })
				synctest.Wait()
			}
			wg.Wait()
			for i, req := range base.sent {
				assert.Equal(t, fmt.Sprint("/", i), req.URL.Path, "%v", algorithm)
			}
		})
	}
}

// A request that gives up leaves its slot to those that come after it, and takes nothing
// from anybody.
func TestTransport_CanceledWaitGivesItsSlotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Limiter: newLimiter(t, sluice.Per(1, 10*time.Second))})
		require.NoError(t, sendIn(t, tr, "first", 0))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		_, err := tr.RoundTrip(get(t, "http://a.test/gives-up").WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, sendIn(t, tr, "next", 0))
		assert.Equal(t, []time.Duration{0, 10 * time.Second}, base.at)
	})
}

// A LeakyBucket spaces requests evenly, and its queue is bounded.
func TestTransport_LeakyBucketIsAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{
			Limiter: limiterOf(t, sluice.Config{Algorithm: sluice.LeakyBucket, Limit: sluice.PerSecond(1).WithBurst(3)}),
		})
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, sendIn(t, tr, "0", 0)) })
		synctest.Wait()
		wg.Go(func() { assert.NoError(t, sendIn(t, tr, "1", 0)) })
		synctest.Wait()
		e := limitError(t, sendIn(t, tr, "impatient", time.Second))
		assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: 2 * time.Second, Err: context.DeadlineExceeded}, e)
		wg.Go(func() { assert.NoError(t, sendIn(t, tr, "2", 0)) })
		synctest.Wait()
		e = limitError(t, sendIn(t, tr, "too many", 0))
		assert.ErrorIs(t, e, sluice.ErrQueueFull)
		assert.Equal(t, time.Second, e.RetryAfter)
		wg.Wait()
		assert.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, base.at)
	})
}

// Algorithms without slots are waited for all the same, within the same bounds, and a charge
// that is not used is given back.
func TestTransport_AlgorithmsWithoutSlots(t *testing.T) {
	for _, c := range []sluice.Config{
		{Algorithm: sluice.FixedWindow, Limit: sluice.Per(1, 10*time.Second)},
		{Algorithm: sluice.FixedWindowFirstCharge, Limit: sluice.Per(1, 10*time.Second)},
		{Algorithm: sluice.SlidingLog, Limit: sluice.Per(1, 10*time.Second)},
		{Algorithm: sluice.TokenBucketInterval, Limit: sluice.Per(1, 10*time.Second)},
	} {
		t.Run(fmt.Sprint(c.Algorithm), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := newFakeBase(always(http.StatusOK))
				lim := limiterOf(t, c)
				tr := newTestTransport(t, base, TransportConfig{Limiter: lim, MaxWait: 20 * time.Second})
				require.NoError(t, sendIn(t, tr, "", 0))
				e := limitError(t, sendIn(t, tr, "", 10*time.Second))
				assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: 10 * time.Second, Err: context.DeadlineExceeded}, e)
				tr.config.MaxWait = 10*time.Second - 1
				e = limitError(t, sendIn(t, tr, "", 0))
				assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: 10 * time.Second, Err: fare.ErrMaxWait}, e)
				assert.Zero(t, time.Since(base.start), "it waited in vain")

				tr.config.MaxWait = 15 * time.Second
				time.AfterFunc(5*time.Second, func() { tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "6")) })
				require.NoError(t, sendIn(t, tr, "", 0))
				assert.Equal(t, []time.Duration{0, 11 * time.Second}, base.at)

				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				_, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
				assert.Equal(t, context.Canceled, err)
				assert.Equal(t, 12*time.Second, time.Since(base.start))
			})
		})
	}
}

// A blocked key is waited for until its block ends, if that fits. A wait that does not
// fit has not been denied by the limiter, and blocks nothing.
func TestTransport_BlockedKeys(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.LeakyBucket, sluice.FixedWindow, sluice.SlidingLog} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(always(http.StatusOK))
			lim := limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(1), BlockFor: time.Hour})
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim, MaxWait: time.Second})
			require.NoError(t, sendIn(t, tr, "", 0))
			limitError(t, sendIn(t, tr, "", 0))
			assert.LessOrEqual(t, lim.Key("a.test").Peek(1).RetryAfter, time.Minute, "%v: blocked by a request that was not sent", algorithm)

			require.True(t, lim.Key("a.test").Block(10*time.Minute))
			e := limitError(t, sendIn(t, tr, "", 0))
			assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: 10 * time.Minute, Err: fare.ErrMaxWait}, e)
			tr.config.MaxWait = sluice.Never
			require.NoError(t, sendIn(t, tr, "", 0))
			assert.Equal(t, []time.Duration{0, 10 * time.Minute}, base.at, "%v", algorithm)
		})
	}
}

// A request without a deadline, through a Transport without MaxWait, does not wait for ever.
func TestTransport_WaitsAMinuteWithoutADeadline(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.LeakyBucket, sluice.FixedWindow} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(always(http.StatusOK))
			lim := limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(1)})
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim})
			require.True(t, lim.Key("a.test").Block(time.Minute))
			require.NoError(t, sendIn(t, tr, "", 0))
			require.True(t, lim.Key("a.test").Block(time.Minute+1))
			e := limitError(t, sendIn(t, tr, "", 0))
			assert.ErrorIs(t, e, fare.ErrMaxWait, "%v", algorithm)
			require.NoError(t, sendIn(t, tr, "", time.Hour), "%v: the deadline says how long", algorithm)
		})
	}
}

// Nobody waits for what does not end, and no deadline is to blame for that.
func TestTransport_KeysThatAreBlockedForGood(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.FixedWindow} {
		lim := limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(1)})
		tr := newTestTransport(t, newFakeBase(always(http.StatusOK)), TransportConfig{Limiter: lim})
		require.True(t, lim.Key("a.test").Block(sluice.Never))
		e := limitError(t, sendIn(t, tr, "", 0))
		assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: sluice.Never, Err: fare.ErrNever}, e)
		assert.False(t, e.Timeout())
	}
}

// A limiter that is only tried out delays nothing, and gets back only what it was charged.
func TestTransport_Shadow(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.FixedWindow} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(always(http.StatusOK))
			lim := limiterOf(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerHour(2), Shadow: true, Stats: true})
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim})
			for range 5 {
				require.NoError(t, sendIn(t, tr, "", 0))
			}
			assert.Zero(t, base.at[4])
			assert.EqualValues(t, 3, lim.Stats().WouldDeny)
			p, err := tr.newPassage(get(t, "http://a.test/"))
			require.NoError(t, err)
			require.NoError(t, p.admit()) // would have been denied
			p.paid.Refund()
			assert.Zero(t, lim.Key("a.test").Peek(0).Remaining, "%v", algorithm)
		})
	}
}

// A limit that changes holds for what comes after.
func TestTransport_LimitThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		lim := newLimiter(t, sluice.PerSecond(1))
		tr := newTestTransport(t, base, TransportConfig{Limiter: lim})
		require.NoError(t, lim.Key("b.test").SetLimit(sluice.Unlimited))
		send(t, tr, "http://a.test/")
		send(t, tr, "http://a.test/")
		require.NoError(t, lim.SetLimit(sluice.Per(1, 10*time.Second)))
		for range 3 {
			send(t, tr, "http://b.test/")
		}
		send(t, tr, "http://a.test/")
		assert.Equal(t, time.Second, base.at[4])
		assert.Equal(t, 11*time.Second, base.at[5])
	})
}

// Requests that wait for the limiter when their host asks for a pause get their charges
// back, and are spread by the limiter when it ends.
func TestTransport_HoldDuringTheWaitForTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Limiter: newLimiter(t, sluice.PerSecond(1))})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { send(t, tr, "http://a.test/") })
		}
		synctest.Wait() // one is sent, four wait
		require.Equal(t, 1, base.count())
		tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "10"))
		wg.Wait()
		assert.Equal(t, []time.Duration{0, 10 * time.Second, 11 * time.Second, 12 * time.Second, 13 * time.Second}, base.at)
	})
}

// With a limit this slow, a charge that were not given back would show.
func TestTransport_HoldDuringTheWaitGivesTheChargeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Limiter: newLimiter(t, sluice.Per(1, 10*time.Second))})
		send(t, tr, "http://a.test/")
		time.AfterFunc(5*time.Second, func() {
			tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "6"))
		})
		send(t, tr, "http://a.test/")
		assert.Equal(t, 11*time.Second, base.at[1])
	})
}

func TestTransport_HoldThatGrowsBeyondMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{MaxWait: 3 * time.Second})
		tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "2"))
		time.AfterFunc(time.Second, func() {
			tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "3"))
		})
		_, err := tr.RoundTrip(get(t, "http://a.test/"))
		assert.Equal(t, &LimitError{Host: "a.test", Held: true, RetryAfter: 2 * time.Second, Err: fare.ErrMaxWait}, limitError(t, err))
		assert.Equal(t, 2*time.Second, time.Since(base.start))
	})
}

func TestTransport_HoldThatGrowsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{})
		tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "2"))
		time.AfterFunc(time.Second, func() {
			tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "5"))
		})
		send(t, tr, "http://a.test/")
		assert.Equal(t, 6*time.Second, base.at[0])
	})
}

// The wait for the limiter counts, too, when the host asks for a pause after it.
func TestTransport_MaxWaitCoversLimiterAndHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		lim := newLimiter(t, sluice.Per(1, 2*time.Second))
		tr := newTestTransport(t, base, TransportConfig{Limiter: lim, MaxWait: 3 * time.Second})
		send(t, tr, "http://a.test/")
		time.AfterFunc(time.Second, func() {
			tr.heed("a.test", respond(http.StatusTooManyRequests, "Retry-After", "3"))
		})
		_, err := tr.RoundTrip(get(t, "http://a.test/"))
		assert.Equal(t, &LimitError{Host: "a.test", Held: true, RetryAfter: 2 * time.Second, Err: fare.ErrMaxWait}, limitError(t, err))
		assert.Equal(t, 2*time.Second, time.Since(base.start))
		assert.True(t, lim.Allow("a.test"), "a request that was not sent was charged")
	})
}

// TestTransport_ChargesOfSeveralLimits: a request waits for a request and its tokens at once, and one that cannot have
// both in time is charged nothing. Retries are charged, too.
func TestTransport_ChargesOfSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := limiterOf(t, sluice.Config{Limit: sluice.PerSecond(1).WithBurst(2)})
		tokens := limiterOf(t, sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(100)})
		charges := func(req *http.Request) ([]sluice.Charge, error) {
			if req.URL.Path == "/none" {
				return nil, ErrNoKey
			}
			return []sluice.Charge{{Key: requests.Key("m"), Cost: 1}, {Key: tokens.Key("m"), Cost: 40}}, nil
		}
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{Charges: charges})
		begin := time.Now()
		require.NoError(t, sendIn(t, tr, "1", 0))
		require.NoError(t, sendIn(t, tr, "2", 0))
		require.Zero(t, time.Since(begin))
		var e *LimitError
		require.ErrorAs(t, sendIn(t, tr, "3", time.Second), &e)
		require.ErrorIs(t, e, context.DeadlineExceeded)
		require.Positive(t, e.RetryAfter)
		require.Equal(t, 20, tokens.Key("m").Peek(0).Remaining)
		require.ErrorIs(t, sendIn(t, tr, "none", 0), ErrNoKey)
		require.NoError(t, sendIn(t, tr, "3", 0))
		require.Equal(t, time.Now().Truncate(time.Minute), time.Now(), "with the next window of the tokens")
		require.Equal(t, 60, tokens.Key("m").Peek(0).Remaining)
		require.Equal(t, 1, requests.Key("m").Peek(0).Remaining)
		require.Len(t, base.sent, 3)

		fast := newTestTransport(t, base, TransportConfig{Charges: charges, FailFast: true})
		require.NoError(t, sendIn(t, fast, "4", 0))
		require.ErrorAs(t, sendIn(t, fast, "5", 0), &e)
		require.Equal(t, 20, tokens.Key("m").Peek(0).Remaining)

		busy := newFakeBase(denyFirst(1, http.StatusServiceUnavailable))
		time.Sleep(time.Minute)
		require.NoError(t, sendIn(t, newTestTransport(t, busy, TransportConfig{Charges: charges, MaxRetries: 1}), "6", 0))
		require.Len(t, busy.sent, 2)
		require.Equal(t, 20, tokens.Key("m").Peek(0).Remaining)
	})
	_, err := NewTransport(nil, TransportConfig{Limiter: newLimiter(t, sluice.PerSecond(1)), Charges: func(*http.Request) ([]sluice.Charge, error) { return nil, nil }})
	require.ErrorContains(t, err, "TransportConfig.Charges")
}
