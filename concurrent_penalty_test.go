package sluice

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// races adds up what the races of several rounds have met.
type races struct{ lost, moved uint64 }

func (r *races) add(l *Limiter) {
	r.lost += uint64(l.lostRaces.Value())
	r.moved += uint64(l.moves.Value())
}

// enough reports whether the rounds have met what they are for. On one processor a lock bit
// is hardly ever met otherwise, so that a charge of a wide key loses no race.
func (r *races) enough() bool { return r.lost > 0 && r.moved > 0 }

func (r *races) require(t *testing.T) {
	t.Helper()
	require.Positive(t, r.lost, "no swap failed: the race was not run")
	require.Positive(t, r.moved, "no decision met a moved word: the race was not run")
}

// forEveryPenalty runs f for each layout, with a block at the first denial and with
// denials that count.
func forEveryPenalty(t *testing.T, f func(t *testing.T, c Config)) {
	t.Helper()
	forEveryLayout(t, func(t *testing.T, c Config) {
		for _, penalty := range penalties[1:] {
			if penalty.CountDenied && !c.Algorithm.countsDenied() {
				continue
			}
			t.Run(fmt.Sprintf("for=%t,count=%t", penalty.BlockFor > 0, penalty.CountDenied), func(t *testing.T) {
				c := c
				if c.CountDenied = penalty.CountDenied; penalty.BlockFor > 0 {
					c.BlockFor = 1000 * time.Hour
				}
				f(t, c)
			})
		}
	})
}

// TestConcurrent_OneDenialBlocks: with the clock frozen, goroutines find a key spent, in
// all ways to call, while it moves from table to table. The limit denies one call, the
// block all others, and none is admitted.
func TestConcurrent_OneDenialBlocks(t *testing.T) {
	forEveryPenalty(t, func(t *testing.T, c Config) {
		if c.BlockFor == 0 {
			return
		}
		t.Parallel()
		var met races
		for round := 0; round < 300 && (round < 3 || !met.enough()); round++ {
			c.Shards, c.Stats = 1, true
			l, _ := newFrozen(t, c)
			hot, burst := l.Key("hot"), burstOf(l)
			require.True(t, hot.AllowN(burst))
			yieldBeforeSwap(l)
			stop := churnAll([]*Limiter{l})
			goDo(3, func(g int) {
				for n := range 40 {
					cost, allowed := 1+(g+n)%burst, false
					switch (g + n) % 4 {
					case 0:
						allowed = hot.AllowN(cost)
					case 1:
						allowed = TakeAll(Charge{hot, cost}, Charge{l.Key("other"), 1}).Allowed
					default:
						allowed = hot.Take(cost).Allowed
					}
					if hot.Peek(1).Allowed || allowed {
						t.Error("admitted")
					}
				}
			})()
			stop()
			s := l.Stats()
			require.Equal(t, uint64(1), s.Denied-s.Blocked, "denied before the block")
			require.Equal(t, uint64(3*40), s.Denied)
			require.GreaterOrEqual(t, hot.Peek(1).RetryAfter, c.BlockFor)
			require.Equal(t, burst, l.Key("other").Peek(0).Remaining, "a claim that was not denied was charged")
			met.add(l)
		}
		met.require(t)
	})
}

// TestConcurrent_PenaltiesAdmitExactlyTheBurst: the first denial comes after the last unit
// has been admitted.
func TestConcurrent_PenaltiesAdmitExactlyTheBurst(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Clock, c.Shards = NewManualClock(start), 1
		c.BlockFor = time.Hour
		if c.Limit.Rate == 100_000 {
			c.Limit.Rate = 99_000 // a whole number of hammer's calls, since the first denial ends them
		}
		var met races
		for round := 0; round < 300 && (round < 2 || !met.enough()); round++ {
			l := mustNew(t, c)
			if round%2 == 0 {
				yieldBeforeSwap(l)
			}
			hammer(t, l)
			met.add(l)
		}
		met.require(t)
	})
}

// TestConcurrent_DeniedCallsCountExactly: of a window that has a few units left, nothing is
// admitted beyond them, and calls that are too large for them use them up.
func TestConcurrent_DeniedCallsCountExactly(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if !c.Algorithm.countsDenied() {
			return
		}
		t.Parallel()
		var met races
		for round := 0; round < 300 && (round < 3 || !met.enough()); round++ {
			c.Shards, c.CountDenied = 1, true
			l, _ := newFrozen(t, c)
			hot, burst := l.Key("hot"), burstOf(l)
			require.True(t, hot.AllowN(burst-30))
			yieldBeforeSwap(l)
			stop := churnAll([]*Limiter{l})
			// Calls for 31 are denied, the first of them for good: not one unit is left.
			require.False(t, hot.AllowN(31))
			goDo(3, func(g int) {
				for n := range 30 {
					if n%2 == 0 && hot.Take(1+g*n).Allowed || n%2 == 1 && TakeAll(Charge{hot, 1}).Allowed {
						t.Error("admitted what a denied call has used up")
					}
				}
			})()
			stop()
			require.Zero(t, hot.Peek(0).Remaining)
			met.add(l)
		}
		// A denial that finds the window full leaves the word of a window as it is.
		require.Positive(t, met.moved, "no decision met a moved word: the race was not run")
	})
}

// A gate is a key that one goroutine blocks and unblocks, and what others may see of it. The
// count is odd from when Block has returned to before Unblock or Reset is called.
type gate struct {
	key   Key
	count atomic.Int64
}

const gateTime = 1000 * time.Hour

func (g *gate) swing(n int) {
	if !g.key.Block(gateTime) {
		panic("not blocked")
	}
	if n%3 == 0 {
		g.key.Block(gateTime / 2) // a shorter one changes nothing
	}
	g.count.Add(1)
	for range 1 + n%4 {
		runtime.Gosched()
	}
	g.key.Refund(1)
	g.count.Add(1)
	if n%2 == 0 {
		g.key.Unblock()
	} else {
		g.key.Reset()
	}
}

// look makes a call, and says what is wrong with the result of it.
func (g *gate) look(way, cost int) string {
	before := g.count.Load()
	var d Decision
	switch way % 5 {
	case 0:
		d.Allowed, d.RetryAfter = g.key.AllowN(cost), gateTime
	case 1:
		all := TakeAll(Charge{g.key, cost})
		d.Allowed, d.RetryAfter = all.Allowed, all.RetryAfter
	case 2:
		d = g.key.Peek(cost)
	default:
		d = g.key.Take(cost)
	}
	if g.count.Load() != before || before%2 == 0 {
		return ""
	}
	if d.Allowed || d.RetryAfter != gateTime || d.Remaining != 0 {
		return fmt.Sprintf("way %d, while blocked: %+v", way%5, d)
	}
	return ""
}

// TestConcurrent_NothingPassesABlock: with the clock frozen, between a Block that has
// returned and an Unblock or Reset that has not begun no call for the key is admitted, in
// whatever way, and all are told when the block ends. The tables grow, are swept and
// overflow meanwhile, and others refund.
func TestConcurrent_NothingPassesABlock(t *testing.T) {
	forEveryPenalty(t, func(t *testing.T, c Config) {
		t.Parallel()
		var met races
		evicted := uint64(0)
		for round := 0; round < 100 && (round < 2 || !met.enough() || evicted == 0 && !splits()); round++ {
			c.Shards = 1
			if c.BlockFor > 0 {
				c.BlockFor = time.Nanosecond
			}
			if c.MaxKeys = 0; round%2 == 1 && !splits() && c.Algorithm != InFlight {
				c.MaxKeys = 40
			}
			l, _ := newFrozen(t, c)
			yieldBeforeSwap(l)
			gates := [2]*gate{{key: l.Key("a")}, {key: l.Key("b")}}
			swingAndLook(t, l, gates[:], c.MaxKeys > 0)
			met.add(l)
			evicted += l.Stats().Evicted
		}
		met.require(t)
		require.True(t, splits() || evicted > 0 || c.Algorithm == InFlight, "nothing was evicted: the race was not run")
	})
}

func swingAndLook(t *testing.T, l *Limiter, gates []*gate, flood bool) {
	t.Helper()
	var done atomic.Bool
	swingers := goDo(len(gates), func(i int) {
		for n := range 40 {
			gates[i].swing(n)
			runtime.Gosched()
		}
	})
	fillers := goDo(1, func(int) {
		for n := uint64(0); !done.Load(); n++ {
			switch k := l.KeyUint64(n % 500); {
			case flood:
				k.Allow()
			case n%64 == 63:
				l.Sweep()
			default:
				k.Allow()
				k.Reset()
			}
			if n%16 == 0 {
				runtime.Gosched()
			}
		}
	})
	lookers := goDo(2, func(g int) {
		for n := 0; !done.Load(); n++ {
			i := (g + n) % len(gates)
			if wrong := gates[i].look(n, 1+n%3); wrong != "" {
				t.Error(wrong)
				return
			}
			counts := [2]int64{gates[0].count.Load(), gates[1].count.Load()}
			all := TakeAll(Charge{gates[g].key, 1}, Charge{gates[1-g].key, 1})
			for i, before := range counts {
				if gates[i].count.Load() == before && before%2 == 1 && all.Allowed {
					t.Error("TakeAll admitted with a blocked key")
				}
			}
			gates[i].key.Refund(1)
			runtime.Gosched()
		}
	})
	swingers()
	done.Store(true)
	lookers()
	fillers()
	for _, g := range gates {
		g.key.Reset()
		require.True(t, g.key.Allow(), "a key was left blocked")
	}
}

// TestConcurrent_BlocksOfSeveralAddUp: of blocks by several goroutines the longest holds,
// in whatever order they come, and so it does against the blocks of denials.
func TestConcurrent_BlocksOfSeveralAddUp(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.BlockFor = time.Hour
		for round := range 20 {
			l, _ := newFrozen(t, c)
			k, burst := l.Key("k"), burstOf(l)
			yieldBeforeSwap(l)
			stop := churnAll([]*Limiter{l})
			goDo(3, func(g int) {
				for n := range 20 {
					k.Block(gateTime - time.Duration((g+n+round)%20)*time.Hour)
					if d := k.Take(burst); d.Allowed || d.RetryAfter < gateTime-19*time.Hour {
						t.Errorf("%+v", d)
					}
				}
			})()
			stop()
			want := Decision{Limit: burst, RetryAfter: gateTime, ResetAfter: gateTime}
			require.Equal(t, want, k.Peek(1))
		}
	})
}
