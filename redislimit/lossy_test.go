package redislimit

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// lossy returns a client of s whose connections end now and then in the place of an answer, while maybe is called, and
// never again once it is called with 0.
func lossy(t *testing.T, s *server) (p *proxy, client *redis.Client, maybe func(r *rand.Rand, one int)) {
	p = newProxy(t, s.addr)
	client = redis.NewClient(&redis.Options{Addr: p.addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return p, client, func(r *rand.Rand, one int) { p.loses.Store(one > 0 && r.IntN(one) == 0) }
}

const thousandDays = 1000 * 24 * time.Hour // so that nothing comes back meanwhile

// TestLossy_Settle: requests that estimate 10, and of which 3 count, leave no less than 3 each, and no more than 10, whatever
// answers are lost, of the charge or of what Settle gives back.
func TestLossy_Settle(t *testing.T) {
	s := anyServer(t)
	for _, tiered := range []bool{false, true} {
		r := seeded.Rand(t)
		_, client, maybe := lossy(t, s)
		shared := newLimiter(t, client, Config{Limit: sluice.Per(10_000, thousandDays)})
		var remote httplimit.Remote = shared
		var tier *Tier
		if tiered {
			tier = newTier(t, shared, TierConfig{Replicas: 1, Budget: patient})
			remote = tier
		}
		limit, err := httplimit.New(httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Remote: remote, Key: byPath, Cost: func(*http.Request) int { return 10 }}},
			Settle:   func(*http.Request, int) int { return 3 },
		})
		require.NoError(t, err)
		served := 0
		handler := limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			served++
			maybe(r, 4) // of what Settle asks
		}))
		const calls = 120
		for range calls {
			maybe(r, 4)
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/k", nil))
		}
		maybe(r, 0)
		if tier != nil {
			await(t, "Redis is told all", func() bool { return tier.Mode() == ModeShared && tier.Stats().Owed == 0 })
		}
		direct := newLimiter(t, s.client, Config{Limit: sluice.Per(10_000, thousandDays), Prefix: shared.prefix})
		d, err := direct.Peek(context.Background(), "/k", 0)
		require.NoError(t, err)
		spent := 10_000 - d.Remaining
		require.Greater(t, served, calls/4)
		require.GreaterOrEqual(t, spent, 3*served, "nothing is given away")
		require.LessOrEqual(t, spent, 10*calls, "nothing is charged twice")
		if !tiered {
			require.Less(t, served, calls, "some answers were lost")
		}
	}
}

// TestLossy_Leases: what was admitted, from leases or not, is spent in the end, whatever settlements are lost.
func TestLossy_Leases(t *testing.T) {
	s := anyServer(t)
	r := seeded.Rand(t)
	p, client, maybe := lossy(t, s)
	c := Config{Algorithm: sluice.FixedWindow, Limit: sluice.Per(1_000_000_000, thousandDays)}
	shared := newLimiter(t, client, c)
	tier, err := NewTier(shared, TierConfig{Replicas: 1, Budget: patient, Lease: Lease{Max: 50}})
	require.NoError(t, err)
	admitted := 0
	const least = 3000
	calls := 0
	for ; calls < least || p.ended.Load() == 0 && calls < 50*least; calls++ {
		switch {
		case calls%1000 == 0: // else none may ask any more
			maybe(r, 0)
			await(t, "Redis is asked again", func() bool { return tier.Mode() == ModeShared })
		case calls%30 == 0: // calls from leases outnumber those that ask
			maybe(r, 3)
		}
		if d, err := tier.Take(context.Background(), "k", 1); err == nil && d.Allowed {
			admitted++
		}
	}
	maybe(r, 0)
	await(t, "Redis is told all", func() bool { return tier.Mode() == ModeShared && tier.Stats().Owed == 0 })
	stats := tier.Stats()
	require.NoError(t, tier.Close(context.Background()))
	c.Prefix = shared.prefix
	d, err := newLimiter(t, s.client, c).Peek(context.Background(), "k", 0)
	require.NoError(t, err)
	spent := 1_000_000_000 - d.Remaining
	require.NotZero(t, stats.Lease)
	require.NotZero(t, p.ended.Load(), "some answers were lost")
	require.GreaterOrEqual(t, spent, admitted)
	require.LessOrEqual(t, spent, 2*calls+int(stats.Lent))
}
