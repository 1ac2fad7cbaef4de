package httplimit

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/limittest"
)

// besideAPI sends requests through a Transport to a limited API, one after another, and returns both's account of it: the
// statuses that the client got, and what the API noted. The API was never asked too early, nor kept from its promise.
func besideAPI(t *testing.T, c limittest.APIConfig, requests int, script func(*limittest.API)) (statuses []int, exchanges []limittest.Exchange) {
	t.Helper()
	c.Limiter = newLimiter(t, sluice.Per(5, 3*time.Second))
	api := limittest.NewAPI(c)
	if script != nil {
		script(api)
	}
	tr := newTestTransport(t, api, TransportConfig{MaxRetries: 3})
	for range requests {
		statuses = append(statuses, send(t, tr, "http://api.test/"))
	}
	exchanges = api.Exchanges()
	checker := limittest.NewChecker(limittest.Of(c.Limiter, 0))
	for i, e := range exchanges {
		assert.False(t, e.Early, "request %d", i)
		checker.Record(e.At, e.Key, e.Cost, e.Admitted)
	}
	require.NoError(t, checker.Err())
	return statuses, exchanges
}

// TestTransport_ObeysEachGeneration: whatever else a server sends, Retry-After is heeded in both forms; with the fields of draft 11
// nothing is denied, and those of the drafts before, and of X-RateLimit, are no reason to wait.
func TestTransport_ObeysEachGeneration(t *testing.T) {
	const requests = 40
	for generation := limittest.FieldsOff; generation <= limittest.Draft11; generation++ {
		for _, form := range []limittest.RetryAfterForm{limittest.RetryAfterSeconds, limittest.RetryAfterDate} {
			t.Run(fmt.Sprintf("generation=%d/form=%d", generation, form), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					statuses, exchanges := besideAPI(t, limittest.APIConfig{RetryAfter: form, Generation: generation}, requests, nil)
					for _, status := range statuses {
						assert.Equal(t, http.StatusOK, status)
					}
					denied := 0
					for i, e := range exchanges {
						if !e.Admitted {
							denied++
							assert.True(t, i+1 < len(exchanges) && exchanges[i+1].Admitted, "denied twice")
						}
					}
					if generation == limittest.Draft11 {
						assert.Zero(t, denied)
					} else {
						assert.Greater(t, denied, 5)
					}
				})
			})
		}
	}
}

// TestTransport_SitsOutAnOutage: a server that is down and says for how long is asked again after that, and not before.
func TestTransport_SitsOutAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		statuses, exchanges := besideAPI(t, limittest.APIConfig{RetryAfter: limittest.RetryAfterSeconds}, 2, func(api *limittest.API) {
			api.For(10*time.Second, limittest.Fault{Status: http.StatusServiceUnavailable, RetryAfter: 4 * time.Second, Latency: time.Second})
		})
		assert.Equal(t, []int{http.StatusOK, http.StatusOK}, statuses)
		assert.Equal(t, http.StatusServiceUnavailable, exchanges[1].Status)
		assert.Len(t, exchanges, 2+2, "it is asked again after 5 s, and after 10")
	})
}

// TestTransport_DoesNotRepeatALostRequest: the server has charged it, and may have done what it asked for.
func TestTransport_DoesNotRepeatALostRequest(t *testing.T) {
	api := limittest.NewAPI(limittest.APIConfig{Limiter: newLimiter(t, sluice.PerHour(2))})
	api.Next(1, limittest.Fault{Lost: true})
	tr := newTestTransport(t, api, TransportConfig{MaxRetries: 3})
	_, err := tr.RoundTrip(get(t, "http://api.test/"))
	assert.ErrorIs(t, err, limittest.ErrLost)
	assert.Len(t, api.Exchanges(), 1)
	assert.True(t, api.Exchanges()[0].Admitted)
}
