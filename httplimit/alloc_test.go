//go:build !race

// The race detector allocates where the program does not.

package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// nothing is a ResponseWriter that allocates nothing once its header map has grown.
type nothing struct{ header http.Header }

func (w nothing) Header() http.Header       { return w.header }
func (nothing) WriteHeader(int)             {}
func (nothing) Write(b []byte) (int, error) { return len(b), nil }

func TestMiddleware_AllocationsOfAnAdmittedRequest(t *testing.T) {
	user := func(r *http.Request) (string, error) { return r.RemoteAddr, nil }
	cost := func(r *http.Request) int { return 1 }
	two := httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11}
	for _, tt := range []struct {
		name   string
		change func(*httplimit.Config)
		want   float64
	}{
		{"headers off", func(*httplimit.Config) {}, 0},
		{"all hooks", func(c *httplimit.Config) {
			c.Skip = func(*http.Request) bool { return false }
			c.OnDecision = func(_ *http.Request, d httplimit.Decision) { _ = d.Remaining }
			c.OnDenied = func(http.ResponseWriter, *http.Request, httplimit.Decision) {}
			c.OnKeyError = httplimit.KeyErrorSkip
			c.OnCountedTwice = func(*http.Request) {}
		}, 0},
		{"queue", func(c *httplimit.Config) {
			c.Queue = sluice.Must(httplimit.NewQueue(httplimit.QueueConfig{MaxWaiting: 9, MaxPerKey: 3, MaxWait: time.Second}))
		}, 0},
		// The charges, the Decision in the context, the context, and the request.
		{"explained", func(c *httplimit.Config) { c.Explain = true }, 4},
		// The slice of all values, and RateLimit; RateLimit-Policy is made once.
		{"both fields", func(c *httplimit.Config) { c.Headers = two }, 2},
		// The slice, and each but the remainder, which may be below 100.
		{"X fields", func(c *httplimit.Config) {
			c.Headers = httplimit.Headers{XLimit: true, XRemaining: true, XReset: httplimit.ResetUnix}
		}, 4},
	} {
		for n := 1; n <= 8; n++ {
			t.Run(fmt.Sprintf("%s/policies=%d", tt.name, n), func(t *testing.T) {
				var c httplimit.Config
				for i := range n {
					limit := sluice.Per(1<<20, 365*24*time.Hour)
					c.Policies = append(c.Policies, httplimit.Policy{
						Name:    fmt.Sprint("policy ", i),
						Limiter: newLimiter(t, sluice.Config{Limit: limit, Algorithm: sluice.Algorithm(i % 6), Shadow: i == 5}),
						Key:     user, Cost: cost,
					})
				}
				tt.change(&c)
				served := 0
				handler := wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				w := nothing{http.Header{}}
				allocs := testing.AllocsPerRun(100, func() {
					clear(w.header)
					handler.ServeHTTP(w, r)
				})
				assert.Equal(t, 101, served)
				assert.Equal(t, tt.want, allocs)
			})
		}
	}
}

// A charge that is final is not remembered: the units of a day would take 200 bytes each.
func TestMiddleware_NoReservationIsKeptOfWhatIsFinal(t *testing.T) {
	const requests = 20_000
	for name, change := range map[string]func(*httplimit.Config){
		"settled":            func(c *httplimit.Config) { c.Settle = func(*http.Request, int) int { return 1 } },
		"settled as charged": func(c *httplimit.Config) { c.Settle = func(*http.Request, int) int { return -1 } },
		"with a remote": func(c *httplimit.Config) {
			c.Policies = append(c.Policies, httplimit.Policy{Name: "far", Remote: newFar(t, sluice.Config{Limit: sluice.PerDay(1 << 20)}), Key: oneKey})
		},
	} {
		t.Run(name, func(t *testing.T) {
			heap := func() int {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return int(m.HeapAlloc)
			}
			lim := gcra(t, sluice.PerDay(1<<20), newClock())
			c := httplimit.Config{Policies: []httplimit.Policy{{Name: "near", Limiter: lim, Key: oneKey}}}
			change(&c)
			handler := wrap(t, c, ok200)
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			handler.ServeHTTP(nothing{http.Header{}}, r)
			before := heap()
			for range requests {
				handler.ServeHTTP(nothing{http.Header{}}, r)
			}
			assert.Less(t, heap()-before, 60*requests, "bytes, of which a Remote that notes its calls takes 27")
			assert.Equal(t, 1<<20-requests-1, lim.Key("k").Peek(0).Remaining)
			runtime.KeepAlive(handler)
		})
	}
}
