package redislimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// TestHTTP_BansByDenials: replicas throttle each by itself, and count denials together. The third one bans the client everywhere.
func TestHTTP_BansByDenials(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		jail := newLimiter(t, s.client, Config{Limit: sluice.PerHour(3), BlockFor: 24 * time.Hour})
		var replicas [2]http.Handler
		for i := range replicas {
			limit, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{
				{Name: "throttle", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.Per(2, 1000*24*time.Hour)})), Key: byPath},
				{Name: "jail", Remote: jail, Key: byPath, CountsDenialsOf: "throttle"},
			}})
			require.NoError(t, err)
			replicas[i] = limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		}
		get := func(replica int) (status int, violated string) {
			w := httptest.NewRecorder()
			replicas[replica].ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/k", nil))
			return w.Code, w.Body.String()
		}
		for range 2 {
			status, _ := get(0)
			require.Equal(t, http.StatusOK, status)
		}
		for i := range 3 {
			status, violated := get(0)
			require.Equal(t, http.StatusTooManyRequests, status)
			require.Contains(t, violated, "throttle")
			require.Equal(t, i == 2, strings.Contains(violated, "jail"), violated)
		}
		status, violated := get(1)
		require.Equal(t, http.StatusTooManyRequests, status, "whose throttle has two")
		require.Contains(t, violated, "jail")
		require.NotContains(t, violated, "throttle")
		d, err := jail.Peek(context.Background(), "/k", 0)
		require.NoError(t, err)
		require.Greater(t, d.RetryAfter, 23*time.Hour)
	})
}

// Two replicas with httplimit share limits in Redis: clients together get exactly what they
// allow, and what one limit denies, or Settle gives back, does not count in the others.
func TestHTTP(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, tiered := range []bool{false, true} {
			t.Run(fmt.Sprint("tier=", tiered), func(t *testing.T) {
				const long = 1000 * 24 * time.Hour // so that nothing comes back meanwhile
				wide := newLimiter(t, s.client, Config{Limit: sluice.Per(1000, long)})
				narrow := newLimiter(t, s.client, Config{Limit: sluice.Per(30, long)})
				remote := func(l *Limiter) httplimit.Remote {
					if !tiered {
						return l
					}
					tier, err := NewTier(l, TierConfig{Replicas: 2, Budget: time.Minute})
					require.NoError(t, err)
					t.Cleanup(func() { assert.NoError(t, tier.Close(context.Background())) })
					return tier
				}
				var served atomic.Int32
				var replicas [2]http.Handler
				for i := range replicas {
					limit, err := httplimit.New(httplimit.Config{
						Policies: []httplimit.Policy{
							{Name: "wide", Remote: remote(wide), Key: byPath}, {Name: "narrow", Remote: remote(narrow), Key: byPath},
							{Name: "local", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1000)})), Key: byPath},
						},
						Settle: func(_ *http.Request, status int) int { return map[int]int{http.StatusOK: -1}[status] },
					})
					require.NoError(t, err)
					replicas[i] = limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get("Free") != "" {
							w.WriteHeader(http.StatusNoContent)
						}
						served.Add(1)
					}))
				}
				get := func(replica int, path, free string) int {
					r := httptest.NewRequest(http.MethodGet, path, nil)
					r.Header.Set("Free", free)
					w := httptest.NewRecorder()
					replicas[replica].ServeHTTP(w, r)
					return w.Code
				}
				for range 100 {
					require.Equal(t, http.StatusNoContent, get(0, "/k", "yes"))
				}
				served.Store(0)
				var group sync.WaitGroup
				for i := range 8 {
					group.Go(func() {
						for range 10 {
							get(i%2, "/k", "")
						}
					})
				}
				group.Wait()
				assert.EqualValues(t, 30, served.Load())
				d, err := wide.Peek(context.Background(), "/k", 0)
				require.NoError(t, err)
				assert.Equal(t, 970, d.Remaining)
			})
		}
	})
}

// Settle charges all that a request has cost, so that the next ones pay for it.
func TestHTTP_SettleInDebt(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		shared := newLimiter(t, s.client, Config{Limit: sluice.PerHour(10)})
		tier, err := NewTier(shared, TierConfig{Replicas: 2, Budget: time.Minute})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, tier.Close(context.Background())) })
		for path, remote := range map[string]httplimit.RemoteDebiter{"/limiter": shared, "/tier": tier} {
			limit, err := httplimit.New(httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Remote: remote, Key: byPath}},
				Settle:   func(*http.Request, int) int { return 25 },
			})
			require.NoError(t, err)
			w := httptest.NewRecorder()
			limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			require.Equal(t, http.StatusOK, w.Code)
			d, err := shared.Peek(context.Background(), path, 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			assert.Greater(t, d.RetryAfter, 90*time.Minute, "15 units are owed, and one is to come: 96 minutes")
		}
	})
}

func byPath(r *http.Request) (string, error) { return r.URL.Path, nil }

// Without Redis a Limiter has requests answered with 503, and a Tier with its share.
func TestHTTP_WithoutRedis(t *testing.T) {
	client := redis.NewClient(&redis.Options{MaxRetries: -1, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}})
	t.Cleanup(func() { client.Close() })
	shared := newLimiter(t, client, Config{Limit: sluice.PerHour(10)})
	tier, err := NewTier(shared, TierConfig{Replicas: 5})
	require.NoError(t, err)
	for remote, want := range map[httplimit.Remote][]int{shared: {503, 503, 503}, tier: {200, 200, 429}} {
		limit, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Remote: remote, Key: byPath}}})
		require.NoError(t, err)
		handler := limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for _, status := range want {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/k", nil))
			assert.Equal(t, status, w.Code)
			if status != 200 {
				assert.NotEmpty(t, w.Header().Get("Retry-After"))
			}
		}
	}
	require.NoError(t, tier.Close(context.Background()))
}

// TestRemote_InFlightIsRefused: httplimit could not end what it has begun.
func TestRemote_InFlightIsRefused(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody asks it
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	for algorithm, refused := range map[sluice.Algorithm]bool{sluice.InFlight: true, sluice.FixedWindow: false} {
		l, err := New(client, Config{Algorithm: algorithm, Limit: sluice.PerHour(2), Prefix: newPrefix()})
		require.NoError(t, err)
		for _, remote := range []httplimit.Remote{l, newTier(t, l, TierConfig{Budget: time.Millisecond})} {
			_, err := httplimit.New(httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Remote: remote, Key: byPath}}})
			if refused {
				require.ErrorContains(t, err, "nobody would give back")
			} else {
				require.NoError(t, err)
			}
		}
	}
}
