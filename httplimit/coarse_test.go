package httplimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// busy returns a coarse clock that is read by others all the time, so that it does not
// park, after which it would be exact. Its refreshes do not fall on whole seconds.
func busy(t *testing.T) *sluice.CoarseClock {
	clock := sluice.NewCoarseClock(7 * time.Millisecond)
	clock.Now()
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				clock.Now()
			case <-done:
				tick.Stop()
				return
			}
		}
	}()
	return clock
}

// Whoever does what a header says is not denied again, at whatever time between two
// refreshes of a coarse clock the denial comes.
func TestCoarseClock_ObedientClientsAreAdmitted(t *testing.T) {
	for _, algorithm := range everyAlgorithm {
		for _, policies := range []int{1, 2} {
			t.Run(fmt.Sprintf("algorithm=%v/policies=%d", algorithm, policies), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clock := busy(t)
					var d httplimit.Decision
					c := httplimit.Config{
						Policies: []httplimit.Policy{
							{Name: "p", Limiter: newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerSecond(1), Clock: clock}), Key: byHeader("User")},
							{Name: "exact", Limiter: gcra(t, sluice.PerHour(10_000), sluice.SystemClock()), Key: oneKey},
						}[:policies],
						Headers: httplimit.Headers{
							RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11, XLimit: true, XRemaining: true, XReset: httplimit.ResetDelta, XRetryAfter: true,
						},
						OnDecision: func(_ *http.Request, got httplimit.Decision) { d = got },
					}
					handler := wrap(t, c, ok200)
					c.Headers = httplimit.Headers{}
					bare := wrap(t, c, ok200)
					waits := map[string]func(h http.Header) time.Duration{
						"Retry-After":       func(h http.Header) time.Duration { return wholeSeconds(t, h.Get("Retry-After")) },
						"X-RateLimit-Reset": func(h http.Header) time.Duration { return wholeSeconds(t, h.Get("X-RateLimit-Reset")) },
						"RateLimit": func(h http.Header) time.Duration {
							limits, err := parseSFList(h.Get("RateLimit"))
							require.NoError(t, err)
							return time.Duration(limits[0].params["t"].(int64)) * time.Second
						},
						"Decision": func(http.Header) time.Duration { return d.RetryAfter },
					}
					for phase := range 14 {
						for name, wait := range waits {
							user := fmt.Sprint(name, phase)
							time.Sleep(time.Duration(phase) * time.Millisecond / 2)
							w := get(handler, "User", user)
							for w.Code == http.StatusOK {
								w = get(handler, "User", user)
							}
							time.Sleep(wait(w.Header()))
							require.Equal(t, http.StatusOK, get(handler, "User", user).Code, "%s after %v", name, wait(w.Header()))
							w = get(bare, "User", user+"b")
							for w.Code == http.StatusOK {
								w = get(bare, "User", user+"b")
							}
							time.Sleep(wholeSeconds(t, w.Header().Get("Retry-After")))
							require.Equal(t, http.StatusOK, get(bare, "User", user+"b").Code)
						}
					}
				})
			})
		}
	}
}

func wholeSeconds(t *testing.T, text string) time.Duration {
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return time.Duration(n) * time.Second
}

// The same for a client that is told by a LimitError.
func TestCoarseClock_LimitErrorSaysWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := busy(t)
		for _, algorithm := range everyAlgorithm {
			for phase := range 14 {
				lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerSecond(1), Clock: clock})
				two := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerSecond(2), Clock: clock})
				both := func(*http.Request) ([]sluice.Charge, error) {
					return []sluice.Charge{{Key: two.Key("both"), Cost: 1}, {Key: two.Key("both"), Cost: 1}}, nil
				}
				for _, c := range []httplimit.TransportConfig{{Limiter: lim, FailFast: true}, {Limiter: lim, MaxWait: 1}, {Charges: both, FailFast: true}, {Charges: both, MaxWait: 1}} {
					tr, err := httplimit.NewTransport(roundTrips{}, c)
					require.NoError(t, err)
					time.Sleep(time.Duration(phase) * time.Millisecond / 2)
					req, err := http.NewRequest(http.MethodGet, "http://a.test/", nil)
					require.NoError(t, err)
					for err == nil {
						_, err = tr.RoundTrip(req)
					}
					var e *httplimit.LimitError
					require.True(t, errors.As(err, &e))
					time.Sleep(e.RetryAfter)
					_, err = tr.RoundTrip(req)
					assert.NoError(t, err, "%v, MaxWait %v, FailFast %v, phase %d", algorithm, c.MaxWait, c.FailFast, phase)
				}
			}
		}
	})
}

type roundTrips struct{}

func (roundTrips) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}}, nil
}
