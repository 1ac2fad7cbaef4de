package sluice

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// someLimits are limits over the period of a layout.
func someLimits(c Config) (limits []Limit) {
	for _, n := range []int{1200, 700, 40, 900, 3000, 5} {
		l := Per(n, c.Limit.Period)
		if c.Algorithm <= LeakyBucket {
			l = c.Limit.WithBurst(n)
		}
		limits = append(limits, l)
	}
	if c.Algorithm == SlidingWindow && c.Offset == 0 { // one word and two by turns
		limits = append(limits, PerMinute(3_000_000))
	}
	return limits
}

// A spender knows how much has been charged to some keys.
type spender struct {
	t       *testing.T
	keys    []Key
	most    int64 // the largest burst of all limits
	charged []atomic.Int64
	back    []atomic.Int64 // given back, or about to be
	calls   atomic.Int64   // admitted
}

func (s *spender) charge(i, cost int) {
	s.calls.Add(1)
	charged := s.charged[i].Add(int64(cost))
	if left := charged - s.back[i].Load(); left > s.most {
		s.t.Errorf("%d units of key %d are spent under limits of up to %d", left, i, s.most)
	}
}

// spend makes random calls, so many at least, until some spender has been admitted one: limits that
// admit none can stay for as long as nobody else runs. What it gives back are units that it has been charged.
func (s *spender) spend(rng *rand.Rand, n int, refunds bool) {
	mine := make([]int, len(s.keys))
	for at := 0; at < n || s.calls.Load() == 0; at++ {
		i, j, cost := rng.IntN(len(s.keys)), rng.IntN(len(s.keys)), 1+rng.IntN(8)
		switch rng.IntN(6) {
		case 0:
			if s.keys[i].AllowN(cost) {
				s.charge(i, cost)
				mine[i] += cost
			}
		case 1, 2:
			if d := TakeAll(Charge{s.keys[i], cost}, Charge{s.keys[j], 1}); d.Allowed {
				s.charge(i, cost)
				s.charge(j, 1)
				mine[i] += cost
				mine[j]++
			}
		case 3:
			if k := s.keys[i]; k.Take(cost).Allowed {
				s.charge(i, cost)
				mine[i] += cost
			}
		case 4:
			s.keys[i].Peek(cost)
		case 5:
			if give := min(mine[i], 1+rng.IntN(5)); refunds && give > 0 {
				mine[i] -= give
				s.back[i].Add(int64(give))
				s.keys[i].Refund(give)
			}
		}
		if rng.IntN(32) == 0 {
			runtime.Gosched()
		}
	}
}

// TestConcurrent_ChangesLoseNothing: with the clock frozen, while the limit and those of
// keys change all the time, and tables grow and are swept, what has been charged and not
// given back is what the keys have spent in the end, exactly.
func TestConcurrent_ChangesLoseNothing(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		rng := seeded.Rand(t)
		for round := range 4 {
			limits := someLimits(c)
			c.Limit = limits[len(limits)-1]
			if c.Algorithm == SlidingLog {
				c.Limit = limits[4] // the largest: all logs have room for it
			}
			refunds := round%2 == 0
			c.Shards = 1 + 3*(round/2)
			l, _ := newFrozen(t, c)
			if refunds {
				limits = append(limits[:5], limits[6:]...) // each admits a refund of 5
			} else {
				limits = append(limits, DenyAll) // which takes none
			}
			s := &spender{t: t, charged: make([]atomic.Int64, 3), back: make([]atomic.Int64, 3)}
			for _, limit := range limits {
				s.most = max(s.most, int64(limit.burst()))
			}
			for i := range s.charged {
				s.keys = append(s.keys, l.Key(fmt.Sprint("hot", i)))
			}
			stop := churnAll([]*Limiter{l})
			changes := rand.New(rand.NewPCG(rng.Uint64(), 0))
			stopChanging := goUntil(1, func(int, int) { changeALimit(t, changes, l, s.keys, limits) })
			seeds := []uint64{rng.Uint64(), rng.Uint64(), rng.Uint64()}
			goDo(len(seeds), func(g int) { s.spend(rand.New(rand.NewPCG(seeds[g], 0)), 1500, refunds) })()
			stopChanging()
			stop()
			for _, k := range s.keys {
				k.ClearLimit()
			}
			large := Per(3_100_000, c.Limit.Period)
			if c.Algorithm == SlidingLog {
				large.Rate = 3000
			}
			require.NoError(t, l.SetLimit(large))
			for i, k := range s.keys {
				spent := s.charged[i].Load() - s.back[i].Load()
				require.Equal(t, int(spent), large.Rate-k.Peek(0).Remaining, "key %d", i)
			}
		}
	})
}

// changeALimit changes the limit, or that of a key.
func changeALimit(t *testing.T, rng *rand.Rand, l *Limiter, keys []Key, limits []Limit) {
	limit, k := limits[rng.IntN(len(limits))], keys[rng.IntN(len(keys))]
	switch rng.IntN(4) {
	case 0, 1:
		assertNoError(t, l.SetLimit(limit))
	case 2:
		assertNoError(t, k.SetLimit(limit))
	case 3:
		k.ClearLimit()
	}
	runtime.Gosched()
}

// A phase is a stretch of time in which a limit is in force: even numbers, with the one
// of that number; odd ones while it changes.
type phase struct{ atomic.Int64 }

func (p *phase) change(n int, f func(i int)) {
	f(int(p.Add(1)/2+1) % n)
	p.Add(1)
}

// TestConcurrent_CallsAfterAChangeAreDecidedByIt: a call that begins after SetLimit or
// Key.SetLimit has returned, and ends before the next begins, sees that limit, and no
// decision is one half by either.
func TestConcurrent_CallsAfterAChangeAreDecidedByIt(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		period := c.Limit.Period
		limits := []Limit{Per(10, period), DenyAll, Per(4000, period), Unlimited, Per(20_000, period)}
		c.Limit, c.Shards = limits[0], 2
		l, _ := newFrozen(t, c)
		own, plain := l.Key("own"), l.Key("plain")
		var main, key phase
		require.NoError(t, own.SetLimit(limits[0]))
		var done atomic.Bool
		stop := churnAll([]*Limiter{l})
		certain := make([]atomic.Int64, len(limits))
		changer := goDo(1, func(int) {
			for range 40 * len(limits) {
				main.change(len(limits), func(i int) { assertNoError(t, l.SetLimit(limits[i])) })
				key.change(len(limits), func(i int) { assertNoError(t, own.SetLimit(limits[i])) })
				i := int(key.Load()/2) % len(limits)
				for seen := certain[i].Load(); certain[i].Load() < seen+4; {
					runtime.Gosched()
				}
			}
			done.Store(true)
		})
		goDo(2, func(g int) {
			for n := 0; !done.Load(); n++ {
				k, p, cost := own, &key, []int{1, 5000, 11, 80_000}[n%4]
				if (n/4+g)%2 == 0 {
					k, p = plain, &main
				}
				before := p.Load()
				d := k.Take(cost)
				allowed := k.AllowN(cost)
				limit := k.Limit()
				checkWhole(t, d, cost)
				if n%64 == 0 {
					k.Reset()
				}
				certainly := before%2 == 0 && p.Load() == before
				runtime.Gosched() // or who changes limits waits for a processor most of the time
				if !certainly {
					continue
				}
				i := int(before/2) % len(limits)
				certain[i].Add(1)
				if limit != limits[i] || d.Limit != limits[i].Rate || d.Allowed && limits[i].Rate < cost || limits[i] == Unlimited && (!d.Allowed || !allowed) || allowed && cost > limits[i].Rate {
					t.Errorf("under %v (Limit says %v), cost %d: %+v, %v", limits[i], limit, cost, d, allowed)
				}
			}
		})()
		changer()
		stop()
		for i := range certain {
			require.Positive(t, certain[i].Load(), "no call was certain to be under %v", limits[i])
		}
	})
}

// checkWhole: what a decision says of the limit and of the cost goes together.
func checkWhole(t *testing.T, d Decision, cost int) {
	switch {
	case d.Allowed && cost > d.Limit, d.Allowed == (d.RetryAfter != 0), d.Remaining > d.Limit, (d.RetryAfter == Never) != (cost > d.Limit):
		t.Errorf("cost %d: %+v", cost, d)
	}
}

// TestConcurrent_MovingKeysDoNotDeadlock: charges of several keys in opposite orders, of
// all layouts, while the keys get and lose limits of their own. In the end nobody holds a
// key, and each is where it belongs.
func TestConcurrent_MovingKeysDoNotDeadlock(t *testing.T) {
	clock := NewManualClock(start)
	var lims []*Limiter
	for _, c := range everyMany {
		c.Clock, c.Shards = clock, 1
		lims = append(lims, mustNew(t, c))
	}
	names := []string{"hot0", "hot1", "hot2"}
	key := func(i int) Key { return lims[i%len(lims)].Key(names[i/len(lims)%3]) }
	stop := churnAll(lims)
	var done atomic.Bool
	owned := make([]map[string]bool, len(lims))
	const hands = 2
	movers := goDo(hands, func(g int) {
		own := (len(lims) + hands - 1 - g) / hands // each of some limiters: who owns what is known then
		for n := 0; !done.Load(); n++ {
			i := n%own*hands + g
			if owned[i] == nil {
				owned[i] = map[string]bool{}
			}
			switch name := names[n/5%3]; n % 4 {
			case 0, 1, 2:
				assertNoError(t, lims[i].Key(name).SetLimit([]Limit{Per(7, time.Minute), Unlimited, Per(600, time.Minute)}[n%3]))
				owned[i][name] = true
			case 3:
				lims[i].Key(name).ClearLimit()
				delete(owned[i], name)
				assertNoError(t, lims[i].SetLimit(Per(400+n%300, lims[i].Config().Limit.Period)))
			}
		}
	})
	goDo(3, func(g int) {
		rng := rand.New(rand.NewPCG(uint64(g), 1))
		for n := range 700 {
			var charges []Charge
			for j := range 2 + rng.IntN(6) {
				i := n + j
				if g%2 == 0 {
					i = n + 8 - j
				}
				charges = append(charges, Charge{key(i), rng.IntN(3)})
			}
			if d := TakeAll(charges...); d.Allowed != (d.Denied < 0) {
				t.Error("what was denied?")
			}
			disturb(charges[0].Key, n)
		}
	})()
	done.Store(true)
	movers()
	stop()
	for i, l := range lims {
		require.Len(t, limitsOf(l), len(owned[i]))
		for j := range l.shards {
			l.cellsOf(j, func(c *cell) { requireLetGo(t, c.policy, c.word.Load()) })
			for _, tab := range l.tablesLocked(&l.shards[j]) {
				l.eachLocked(&l.shards[j], tab, func(p *policy, e state) { requireLetGo(t, p, e.word) })
			}
		}
	}
}

// requireLetGo demands that nobody holds a word.
func requireLetGo(t *testing.T, p *policy, word uint64) {
	t.Helper()
	require.False(t, word == held || p.wide != nil && word != elsewhere && word&locked != 0, "a key was not let go")
}

// disturb does the n-th of what is no charge.
func disturb(k Key, n int) {
	switch n % 6 {
	case 0:
		k.Reset()
	case 1:
		k.Refund(2)
	case 2:
		k.Block(time.Minute)
		k.Unblock()
	case 3:
		k.lim.Sweep()
	case 4:
		k.lim.Stats()
	}
}

// TestKeyLimit_OutlivesSweepsAndFloods: neither takes the limit away, nor what the
// key has spent; nor does such a key take the room of another.
func TestKeyLimit_OutlivesSweepsAndFloods(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, c.Overflow = range overflowsOf(c) {
			c.MaxKeys, c.TTL = 8, 1
			l, clock := newFrozen(t, c)
			own := Per(77, c.Limit.Period)
			for i := range 20 {
				require.NoError(t, l.Key(fmt.Sprint("vip", i)).SetLimit(own))
				require.True(t, l.AllowN(fmt.Sprint("vip", i), 7))
			}
			require.Zero(t, l.Len())
			for i := range 500 {
				l.AllowN(fmt.Sprint("flood", i), 300)
			}
			require.LessOrEqual(t, l.Len(), 8)
			for i := range 20 {
				require.Equal(t, 70, l.Key(fmt.Sprint("vip", i)).Peek(0).Remaining)
			}
			clock.Advance(time.Hour)
			l.Sweep()
			for i := range 20 {
				require.Equal(t, own, l.Key(fmt.Sprint("vip", i)).Limit())
				require.Equal(t, 76, l.Take(fmt.Sprint("vip", i), 1).Remaining)
			}
			for i := range 20 {
				l.Key(fmt.Sprint("vip", i)).ClearLimit()
				require.LessOrEqual(t, l.Len(), 8)
			}
		}
	})
}

// TestConcurrent_TokensOfTwoLimits: one client's calls bring two limits by turns, from many
// goroutines. At one instant it is admitted exactly the larger one.
func TestConcurrent_TokensOfTwoLimits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Limit = Per(1000, c.Limit.Period)
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		keys := []Key{k}
		for _, n := range []int{40, 1200} {
			with, err := k.WithLimit(Per(n, c.Limit.Period))
			require.NoError(t, err)
			keys = append(keys, with)
		}
		var admitted atomic.Int64
		stop := churnAll([]*Limiter{l})
		stopMoving := goUntil(1, func(_, i int) {
			assertNoError(t, k.SetLimit(Per(900+i%2, c.Limit.Period)))
			k.ClearLimit()
			runtime.Gosched()
		})
		goDo(3, func(g int) {
			rng := rand.New(rand.NewPCG(uint64(g), 7))
			for range 1500 {
				k := keys[rng.IntN(len(keys))]
				switch rng.IntN(4) {
				case 0:
					if TakeAll(Charge{k, 2}, Charge{l.Key("other"), 0}).Allowed {
						admitted.Add(2)
					}
				case 1:
					if d := k.Take(3); d.Allowed {
						admitted.Add(3)
					}
				case 2:
					k.Peek(1)
				default:
					if k.Allow() {
						admitted.Add(1)
					}
				}
			}
		})()
		stopMoving()
		stop()
		for keys[2].Allow() {
			admitted.Add(1)
		}
		require.Equal(t, int64(1200), admitted.Load())
		k.Reset()
		l.Sweep()
		require.Empty(t, limitsOf(l))
	})
}
