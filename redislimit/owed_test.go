package redislimit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestOwed_Covers: whoever is told of charges late, of what has not come back since, never has more
// units left from then on than whoever was told of each at once; however far the clocks are apart.
func TestOwed_Covers(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		rng := seeded.Rand(t)
		for _, v := range variants {
			for range modelCalls(t) / 100 {
				owedCovers(t, s, rng, v)
			}
		}
	})
}

func owedCovers(t *testing.T, s *server, rng *rand.Rand, v Config) {
	cfg, p := randomConfig(t, rng, v)
	for cfg.Limit.Period > 31*24*time.Hour { // times stay below 2^53
		cfg, p = randomConfig(t, rng, v)
	}
	l, _, now := pair(t, s.client, cfg)
	c := p.shape.cycle()
	alone, inParts := false, 0         // of what does not fit, less than a unit is lost
	apart := rng.Int64N(1_000_000_000) // us; others have no use for a clock
	if _, fades := p.shape.(sliding); fades {
		inParts = 1 // a unit of the window before is told as a whole one, which may not fit
	}
	switch p.shape.(type) {
	case counter, sliding, inFlight, dated:
		most := min(clocksApart, c.period/2)
		apart = rng.Int64N(2*most+1) - most
		apart = apart / stepOf(p.shape) * stepOf(p.shape)
	case firstCharge:
		alone = true // windows begin elsewhere if others charge the key as well
	case bucket:
		inParts = 1
	}
	here := func() int64 { return now.Load() - apart }
	pause := func() {
		most := []int64{1, 2, c.margin + 1, c.period, int64(cfg.Limit.Period) / micro, 3 * c.period}[rng.IntN(6)]
		now.Add(rng.Int64N(most + 1))
	}
	var o owedCharge
	owes := func(more owedCharge) {
		if o.plan == nil {
			o = more
		} else {
			o = o.plus(more, here())
		}
	}
	for range 20 {
		pause()
		n := 1 + rng.IntN(int(p.burst))
		if rng.IntN(2) == 0 {
			n = 1 + rng.IntN(int(min(p.burst, 5)))
		}
		switch rng.IntN(5) {
		case 0: // another process has a link to Redis
			if !alone && take(t, l, "at once", n).Allowed {
				require.True(t, take(t, l, "late", n).Allowed)
			}
		case 1: // Redis is to be told, and is not
			if untold := o; o.plan != nil {
				o = owedCharge{}
				untold.left(here())
				pause()
				owes(untold)
			}
		default:
			if take(t, l, "at once", n).Allowed {
				owes(newOwed(p, int64(n), here()))
			}
		}
	}
	if rng.IntN(2) == 0 {
		pause()
	}
	if o.plan != nil {
		r := l.request(p, "late")
		r.debt = o.left(here())
		_, err := l.run(ctx, r)
		require.NoError(t, err)
	}
	for range 4 {
		exact, late := take(t, l, "at once", 0).Remaining, take(t, l, "late", 0).Remaining
		require.LessOrEqual(t, late, exact+inParts, "%s %v, clocks %d us apart", variantName(cfg), cfg.Limit, apart)
		pause()
	}
}

// comesBack reports whether what Redis has not been told of comes back in a shape.
func comesBack(p *plan) bool { return p.shape.cycle() != cycle{} }

// TestOwed_ComesBack: whoever takes a quarter of a limit of windows never owes much more than half
// of it, and nothing a while later.
func TestOwed_ComesBack(t *testing.T) {
	for _, c := range variants {
		c.Limit, c.Offset = sluice.Per(100, 4*time.Second), c.Offset*1000
		p, err := newPlan(c, nil)
		require.NoError(t, err)
		o, at := newOwed(p, 3, startMicros), int64(startMicros)
		for range 100 {
			at += 480_000
			o = o.plus(newOwed(p, 3, at), at)
			most := int64(55)
			if p.inFlight() {
				most = 70 // two periods and the margin
			}
			require.True(t, !comesBack(p) || o.left(at) < most, variantName(c))
		}
		require.Positive(t, o.left(at), variantName(c))
		at += 2*4_000_000 + 2_000_000
		require.Equal(t, comesBack(p), o.left(at) == 0, variantName(c))
	}
}

// TestOwed_Limits: a burst at most, and under another limit nothing that is owed is lost.
func TestOwed_Limits(t *testing.T) {
	for _, c := range variants {
		c.Limit, c.Offset = sluice.PerHour(100), c.Offset*1000
		p, err := newPlan(c, nil)
		require.NoError(t, err)
		o := newOwed(p, 1000, startMicros)
		require.Equal(t, int64(100), o.left(startMicros), variantName(c))
		o = o.plus(newOwed(p, 70, startMicros+1000), startMicros+1000)
		require.Equal(t, int64(100), o.left(startMicros+1000), variantName(c))

		c.Limit = sluice.Per(50, 7*time.Minute)
		other, err := newPlan(c, nil)
		require.NoError(t, err)
		few := newOwed(p, 20, startMicros).plus(newOwed(other, 10, startMicros), startMicros)
		require.Equal(t, int64(30), few.left(startMicros), variantName(c))
		many := o.plus(newOwed(other, 10, startMicros), startMicros)
		require.Equal(t, int64(50), many.left(startMicros), variantName(c))
	}
}

// TestOwed_Order: of two calls the later one can have the earlier time, in the window before.
func TestOwed_Order(t *testing.T) {
	p, err := newPlan(Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(100)}, nil)
	require.NoError(t, err)
	const edge = startMicros - startMicros%3_600_000_000
	o := newOwed(p, 20, edge+2_000_000)
	o = o.plus(newOwed(p, 10, edge-2_000_000), edge-2_000_000)
	require.Equal(t, int64(30), o.left(edge+3_000_000))
}

// TestOwed_Told: Redis is told what has not come back, with a call for the key; and by itself, if
// there is anything to tell.
func TestOwed_Told(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		const period = 100 * 24 * time.Hour
		for _, c := range variants {
			c.Limit, c.Offset = sluice.Per(100, period), 0
			tier := newTier(t, newLimiter(t, s.client, c), TierConfig{Budget: patient})
			l, p := tier.router.first, tier.shared.plan.Load()
			owe := func(key string, at time.Time) {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.owe(p, tier.shared.request(p, key).key, 60, at)
			}
			left := 99 - 60
			if comesBack(p) {
				left = 99
			}
			long := time.Now().Add(-4 * period)
			owe("a", long)
			d, _ := takeFrom(t, tier, "a", 1)
			require.Equal(t, left, d.Remaining, variantName(c))
			owe("b", time.Now())
			d, _ = takeFrom(t, tier, "b", 1)
			require.Equal(t, 99-60, d.Remaining, variantName(c))

			owe("c", long)
			owe("d", time.Now())
			l.mu.Lock()
			l.send()
			l.mu.Unlock()
			(&fleet{T: t, tiers: []*Tier{tier}}).nothingOwed()
			scripts := uint64(2 + 2)
			if comesBack(p) {
				scripts--
			}
			require.Equal(t, scripts, tier.Stats().Scripts, variantName(c))
			d, _ = takeFrom(t, tier, "d", 1)
			require.Equal(t, 99-60, d.Remaining, variantName(c))
		}
	})
}

// TestOwed_NotTold: of what Redis could not be told, the time of the charge still counts.
func TestOwed_NotTold(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	tier := newTier(t, newLimiter(t, client, Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerHour(100)}), TierConfig{})
	l, p := tier.router.first, tier.shared.plan.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	begin := tier.began.Truncate(time.Hour)
	l.owe(p, "a", 60, begin)
	g := &group{request: request{plan: p, key: "a"}}
	l.takeOwed(g, begin.Add(50*time.Minute))
	require.Equal(t, int64(60), g.debt)
	require.Empty(t, l.owed)
	g.admitted = 5
	l.owedFrom = begin.Add(24 * time.Hour)
	l.notTold(g, begin.Add(50*time.Minute))
	left := func(after time.Duration) int64 {
		o := l.owed["a"]
		return o.left(tier.micros(begin.Add(after)))
	}
	require.Equal(t, int64(65), left(90*time.Minute-time.Second))
	require.Equal(t, int64(5), left(90*time.Minute+time.Second))
	require.Equal(t, int64(5), left(150*time.Minute-time.Second))
	require.Zero(t, left(150*time.Minute+time.Second))
	clear(l.owed)
}

// TestOwed_Bounded: keys of which everything has come back make room for others.
func TestOwed_Bounded(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	tier := newTier(t, newLimiter(t, client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(100)}), TierConfig{MaxKeys: 4})
	l, p := tier.router.first, tier.shared.plan.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		l.owe(p, name, 2, now)
	}
	require.Len(t, l.owed, 4)
	require.NotContains(t, l.owed, "e")
	l.owe(p, "e", 2, now.Add(2*time.Hour))
	require.Len(t, l.owed, 4)
	require.Contains(t, l.owed, "e")
	clear(l.owed)
}

// TestOwed_ToldLate: nobody waits for what Redis is told, so that it is no outage if many keys together take
// longer than the budget.
func TestOwed_ToldLate(t *testing.T) {
	bubble(t, TierConfig{Budget: 16 * time.Millisecond}, sluice.PerHour(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		const keys = 3 * breakerCalls
		fake.slow(time.Second / 2)
		l, r := tier.router.first, tier.shared
		l.mu.Lock()
		for i := range keys {
			l.owe(r.plan.Load(), r.request(r.plan.Load(), fmt.Sprint(i)).key, 1, time.Now())
		}
		l.send()
		l.mu.Unlock()
		time.Sleep(2 * time.Second)
		require.Equal(t, ModeShared, tier.Mode())
		require.Zero(t, tier.Stats().Outages)
		require.Equal(t, keys, fake.count())
	})
}

// TestOwed_Probe: a probe can get lost, so it takes nothing along of what is owed. Redis is told once it has answered one, before
// it is asked again, and without a call.
func TestOwed_Probe(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(100), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		l, r := tier.router.first, tier.shared
		name := r.request(r.plan.Load(), "a").key
		fake.slow(300 * time.Millisecond)
		breaks(tier, "a")
		takeFrom(t, tier, "a", 2)
		time.Sleep(3 * time.Second)
		require.NotZero(t, fake.count(), "probes")
		require.Equal(t, ModeDegraded, tier.Mode(), "the answers are late")
		l.mu.Lock()
		require.Equal(t, int64(2), l.owed[name].units)
		l.owe(r.plan.Load(), name, 60, time.Now())
		l.mu.Unlock()
		fake.slow(0)
		time.Sleep(longestPause)
		require.Equal(t, ModeDegraded, tier.Mode(), "others may still have to tell")
		l.mu.Lock()
		require.Empty(t, l.owed, "Redis has been told")
		l.mu.Unlock()
		time.Sleep(2 * time.Second)
		require.Equal(t, ModeShared, tier.Mode())
		d, from := takeFrom(t, tier, "a", 0)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 100-60-2, d.Remaining)
	})
}
