package redislimit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// fakeWindow is the counter's script, for a fakeRedis.
func (f *fakeRedis) fakeWindow(name string, arg []byte, now int64) string {
	next := func(bytes int) int64 {
		n := number(string(arg[:bytes]))
		arg = arg[bytes:]
		return n
	}
	op, k, n := next(1), next(4), next(7)
	next(7 + 4 + 7 + 7)
	burst, _, period, _ := next(7), next(7), next(7), next(7)
	var l leasing
	if op >= opLeases {
		l = leasing{lend: next(7), share: next(4), epoch: next(4), since: next(7), spent: next(7), unused: next(7)}
	}
	s := f.keys[name]
	if s == nil {
		s = &lentState{}
		f.keys[name] = s
	}
	if now/period != s.t/period {
		s.debt = 0
	}
	s.t = now
	if l.unused > 0 && l.since/period == now/period {
		s.debt -= l.unused
	}
	admitted := min(k, (burst-s.debt)/n)
	s.debt += admitted * n
	lent := int64(0)
	if l.lend > 0 && admitted == k {
		lent = min(l.lend, (burst-s.debt)/l.share)
		s.debt += lent
	}
	if s.debt > burst {
		panic("more than the limit")
	}
	reply := appendUint56(appendUint56(appendUint32(appendUint56(nil, now), admitted), s.debt), 0)
	return string(appendUint56(reply, lent))
}

// windows runs f with a tier of a limit a minute, whose leases live for a second, at the beginning of a window.
func windows(t *testing.T, rate, replicas int, f func(t *testing.T, tier *Tier, fake *fakeRedis)) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeRedis{keys: map[string]*lentState{}, trip: func() time.Duration { return 0 }}
		fake.script = fake.fakeWindow
		client := fake.client()
		defer client.Close()
		tier, err := NewTier(newLimiter(t, client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(rate)}), TierConfig{
			Replicas: replicas, Lease: Lease{Max: 1000, Life: time.Second},
		})
		require.NoError(t, err)
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		f(t, tier, fake)
		require.NoError(t, tier.Close(t.Context()))
	})
}

// TestLease_Long: a key of a window that is called once in some seconds gets leases that live for half of the window, as long as they are
// a small part of what is left.
func TestLease_Long(t *testing.T) {
	windows(t, 6000, 2, func(t *testing.T, tier *Tier, fake *fakeRedis) {
		for range 60 {
			takeFrom(t, tier, "a", 1)
			time.Sleep(time.Second)
		}
		// Leases of 1, 2, 4, 8 and 16 units come with calls 2, 4, 7, 12 and 21, and others of 16, which are not spent sooner, with calls 38 and 55.
		require.Equal(t, uint64(60-8), tier.Stats().Lease)
		require.Equal(t, 8, fake.count())
		require.Zero(t, tier.Stats().Owed)
		// The window is over: no call of its own gives back what was left.
		time.Sleep(time.Minute)
		require.Equal(t, 8, fake.count())
		require.Zero(t, tier.Stats().Leased)
		require.Zero(t, tier.Stats().Returned)
	})
}

// TestLease_LongPart: a lease that is a larger part of what is left lives for a second, and so does each lease while more than half of the loans
// are taken.
func TestLease_LongPart(t *testing.T) {
	for _, c := range []struct {
		rate, replicas int
		crowd          bool
		life           time.Duration
	}{
		{smallPart + 2, 1, false, longLife * time.Second}, // 2 units are the call and the one before, and the lease is 1
		{smallPart + 1, 1, false, time.Second},
		{smallPart + 2, 2, false, time.Second},
		{2*smallPart + 2, 2, false, longLife * time.Second},
		{1000, 2, true, time.Second},
	} {
		windows(t, max(c.rate, 60), c.replicas, func(t *testing.T, tier *Tier, fake *fakeRedis) {
			h := &loan{shard: &tier.leases.shards[0], others: int64(c.rate - 2)}
			if c.crowd {
				h.shard.loans = map[uint64]*loan{}
				for i := range uint64(tier.leases.room/2 + 1) {
					h.shard.loans[i] = &loan{}
				}
				defer clear(h.shard.loans)
			}
			require.Equal(t, int64(c.life), tier.leases.life(h, tier.terms, tier.shared.plan.Load(), 1), "%+v", c)
		})
	}
	bubble(t, TierConfig{Lease: Lease{Max: 100, Life: time.Second}}, sluice.PerMinute(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		h := &loan{shard: &tier.leases.shards[0], others: 1000}
		require.Equal(t, int64(time.Second), tier.leases.life(h, tier.terms, tier.shared.plan.Load(), 1), "units on lease of a bucket do not drain")
	})
}

// TestLease_LongBack: what is left of a long lease goes back with the next call for the key or, for want of one, after as long again, and in its
// window.
func TestLease_LongBack(t *testing.T) {
	windows(t, 6000, 2, func(t *testing.T, tier *Tier, fake *fakeRedis) {
		used := func() (units int64) {
			for _, s := range fake.keys {
				units += s.debt
			}
			return units
		}
		for range 8 { // the lease of 4 units comes with the seventh call
			takeFrom(t, tier, "a", 1)
		}
		require.Equal(t, int64(3), tier.held().left)
		require.Equal(t, int64(11), used())
		time.Sleep(longLife*time.Second - longLife*time.Second/100)
		require.Equal(t, int64(11), used())
		calls := fake.count()
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, calls+1, fake.count())
		require.Equal(t, uint64(3), tier.Stats().Returned)
	})
}

// TestLeaseEnds: the leases that end are those that are open, in their order.
func TestLeaseEnds(t *testing.T) {
	windows(t, 1_000_000, 2, func(t *testing.T, tier *Tier, fake *fakeRedis) {
		for i := range 100 {
			for range 2 + i%7 {
				takeFrom(t, tier, fmt.Sprint(i), 1)
			}
			time.Sleep(10 * time.Millisecond)
		}
		ls := tier.leases
		check := func(open int) {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			require.Len(t, ls.ends, open)
			for i, h := range ls.ends {
				require.Equal(t, i+1, h.place)
				require.Equal(t, h.back, h.due)
				require.LessOrEqual(t, ls.ends[0].due, h.due)
			}
		}
		check(100)
		time.Sleep(2 * time.Minute)
		check(0)
	})
}
