package httplimit

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

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
		assert.Equal(t, &LimitError{Host: "a.test", Held: true, RetryAfter: 2 * time.Second, Err: errMaxWait}, limitError(t, err))
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
		assert.Equal(t, &LimitError{Host: "a.test", Held: true, RetryAfter: 2 * time.Second, Err: errMaxWait}, limitError(t, err))
		assert.Equal(t, 2*time.Second, time.Since(base.start))
		assert.True(t, lim.Allow("a.test"), "a request that was not sent was charged")
	})
}
