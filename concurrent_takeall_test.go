package sluice

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// allLayouts returns one limiter for each layout on one frozen clock, in one shard
// each, that yield while they decide: so do the TakeAll that hold keys.
func allLayouts(t *testing.T) (lims []*Limiter) {
	t.Helper()
	clock := NewManualClock(start)
	for _, c := range everyMany {
		c.Clock, c.Shards = clock, 1
		l := mustNew(t, c)
		yieldBeforeSwap(l)
		lims = append(lims, l)
	}
	rand.Shuffle(len(lims), func(i, j int) { lims[i], lims[j] = lims[j], lims[i] })
	return lims
}

// share is a 500th of the burst, which is 500 in all layouts but one.
func share(l *Limiter) int { return burstOf(l) / 500 }

// churnAll adds, resets and sweeps other keys until stop is called, so that the
// tables are replaced all the time.
func churnAll(lims []*Limiter) (stop func()) {
	return goUntil(1, func(_, i int) {
		l := lims[i%len(lims)]
		k := l.KeyUint64(uint64(i % 200))
		k.Allow()
		k.Reset()
		if i%16 == 15 {
			l.Sweep()
		}
		runtime.Gosched()
	})
}

// TestConcurrent_TakeAllSeesOneInstant: of two keys one always has most of its burst
// spent, by a goroutine that spends the other one's before it gives back the first one's.
// No TakeAll sees both with more than the rest, however it is decided.
func TestConcurrent_TakeAllSeesOneInstant(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Shards = 1
		l, _ := newFrozen(t, c)
		yieldBeforeSwap(l)
		burst := burstOf(l)
		keys, most := [2]Key{l.Key("a"), l.Key("b")}, burst*3/4
		require.True(t, keys[0].AllowN(most))
		stop := goUntil(1, func(_, n int) {
			spent, other := keys[n%2], keys[(n+1)%2]
			if !other.AllowN(most) {
				t.Error("denied what is there")
			}
			runtime.Gosched()
			spent.Refund(most)
			runtime.Gosched()
		})
		var each [2]Decision
		for n := range 2000 {
			first, second := keys[n/2%2], keys[1-n/2%2]
			cost := [...]int{burst + 1, -1, 0}[n%3]
			d := TakeAllReservations(nil, each[:], Charge{first, 0}, Charge{second, cost})
			require.LessOrEqual(t, d.Remaining, burst-most, "%+v", each)
			require.Equal(t, d.Remaining, min(each[0].Remaining, each[1].Remaining))
		}
		stop()
	})
}

// isHeld reports whether somebody holds the key's word just now.
func isHeld(k Key) bool {
	e := slotOf(k)
	if e == nil {
		return false
	}
	word := e.word.Load()
	return !isWide(k.lim) && word == held || isWide(k.lim) && word != moved && word&locked != 0
}

func moves(lims []*Limiter) (n int64) {
	for _, l := range lims {
		n += l.moves.Value()
	}
	return n
}

// TestConcurrent_TakeAllAdmitsExactlyTheBurst: with the clock frozen, calls for two
// to eight keys in any order, and calls for single ones, admit exactly the burst of
// each key, while the tables are replaced. It goes on until calls have met both words
// that are held and words that are moved.
func TestConcurrent_TakeAllAdmitsExactlyTheBurst(t *testing.T) {
	seen, moved := int64(0), int64(0)
	rounds := 0
	for ; rounds < 200 && (rounds < 3 || seen < 20 || moved < 20); rounds++ {
		lims := allLayouts(t)
		stop := churnAll(lims)
		admitted := make([]atomic.Int64, 2*len(lims)) // two keys of each limiter
		key := func(i int) Key { return lims[i/2].Key(fmt.Sprint("hot", i%2)) }
		var sightings atomic.Int64
		goDo(4, func(g int) {
			rng := rand.New(rand.NewPCG(uint64(g), uint64(rounds)))
			for n := range 1500 {
				if n%2 == g%2 { // somebody else may be holding this one
					i := rng.IntN(len(admitted))
					if isHeld(key(i)) {
						sightings.Add(1)
					}
					if cost := share(key(i).lim); key(i).AllowN(cost) {
						admitted[i].Add(int64(cost))
					}
					continue
				}
				var charges []Charge
				picked := rng.Perm(len(admitted))[:2+rng.IntN(7)]
				for _, i := range picked {
					charges = append(charges, Charge{key(i), share(key(i).lim)})
				}
				if TakeAll(charges...).Allowed {
					for j, i := range picked {
						admitted[i].Add(int64(charges[j].Cost))
					}
				}
			}
		})()
		stop()
		for i := range admitted {
			for key(i).AllowN(share(key(i).lim)) {
				admitted[i].Add(int64(share(key(i).lim)))
			}
			require.Equal(t, int64(burstOf(key(i).lim)), admitted[i].Load())
		}
		seen += sightings.Load()
		moved += moves(lims)
	}
	t.Logf("%d rounds, %d held and %d moved words met", rounds, seen, moved)
	require.Positive(t, seen, "no held word was met: the race was not run")
	require.Positive(t, moved, "no moved word was met: the race was not run")
}

// TestConcurrent_DeniedChargesAreNeverSeen: a is fresh and b is exhausted, so that no
// call for both is ever admitted. Who looks at a never sees it charged, and who
// spends it finds each unit, whatever calls for both are under way.
func TestConcurrent_DeniedChargesAreNeverSeen(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Shards = 1
		for round := range 6 {
			l, clock := newFrozen(t, c)
			other := mustNew(t, Config{Limit: PerMinute(1), Clock: clock})
			a, b := l.Key("a"), l.Key("b")
			if round%2 == 1 {
				b = other.Key("b")
			}
			require.True(t, a.Allow())
			require.True(t, b.AllowN(burstOf(b.lim)))
			yieldBeforeSwap(l)
			stop := churnAll([]*Limiter{l, other})
			stopDenying := goUntil(2, func(g, n int) {
				charges := []Charge{{a, 1 + n%burstOf(l)}, {b, 1}}
				if (g+n)%2 == 0 {
					charges[0], charges[1] = charges[1], charges[0]
				}
				if d := TakeAll(charges...); d.Allowed || d.RetryAfter == 0 {
					t.Error("admitted")
				}
				runtime.Gosched() // or one processor changes hands only while a is held
			})
			for left := burstOf(l) - 1; left > 300; left -= share(l) {
				for range 2 {
					require.Equal(t, left, a.Peek(0).Remaining, "a charge that was denied is seen")
				}
				if left%2 == 0 {
					require.True(t, a.AllowN(share(l)))
				} else {
					require.Equal(t, left-share(l), a.Take(share(l)).Remaining)
				}
				if left < burstOf(l)*3/4 {
					break
				}
			}
			stopDenying()
			stop()
		}
	})
}

// TestConcurrent_TakeAllIsOneInstant: x and y have the same budget and are only ever
// charged together. So a call for as much of both never finds that y denies and x
// does not; and of two looks one after the other, the second sees no more left.
func TestConcurrent_TakeAllIsOneInstant(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		c.Shards = 1
		rng := seeded.Rand(t)
		var denied, allowed atomic.Int64
		for round := range 10 {
			l, clock := newFrozen(t, c)
			c.Clock = clock
			lims := []*Limiter{l, l}
			if round%2 == 1 {
				lims[1] = mustNew(t, c)
			}
			for _, l := range lims[:1+round%2] {
				yieldBeforeSwap(l)
			}
			x, y := lims[0].Key("x"), lims[1].Key("y")
			stop := churnAll(lims)
			writers := goDo(2, func(g int) {
				for n := range 100 {
					charges := []Charge{{x, share(l)}, {y, share(l)}}
					if (g+n)%2 == 0 {
						charges[0], charges[1] = charges[1], charges[0]
					}
					TakeAll(charges...)
				}
			})
			seeds := []uint64{rng.Uint64(), rng.Uint64()}
			goDo(2, func(g int) {
				rng := rand.New(rand.NewPCG(seeds[g], 0))
				first, second := x, y
				if g == 1 {
					first, second = y, x
				}
				for range 200 {
					left := first.Peek(0).Remaining
					if more := second.Peek(0).Remaining; more > left {
						t.Errorf("%d left, and then %d of what was charged with it", left, more)
					}
					cost := max(1, left-rng.IntN(3)*share(l)+1) // near the edge
					switch d := TakeAll(Charge{first, cost}, Charge{second, cost}); {
					case d.Allowed:
						allowed.Add(1)
					case d.Denied != 0:
						t.Error("one of two equal keys denies")
					default:
						denied.Add(1)
					}
				}
			})()
			writers()
			stop()
			require.Equal(t, x.Peek(0), y.Peek(0))
		}
		require.Positive(t, allowed.Load(), "the looks must be near the edge")
		require.Positive(t, denied.Load(), "the looks must be near the edge")
	})
}

// TestConcurrent_TakeAllDoesNotDeadlock: calls for the same keys in opposite orders,
// over all algorithms, with everything else that takes words and locks going on. All
// that the test demands is that it ends.
func TestConcurrent_TakeAllDoesNotDeadlock(t *testing.T) {
	for round := range 4 {
		lims := allLayouts(t)
		if round%2 == 1 { // evictions, too
			for i := range lims {
				c := Config{Clock: lims[i].clock, Shards: 1, MaxKeys: 20, Limit: PerMinute(500), Algorithm: algorithms[i%len(algorithms)]}
				lims[i] = mustNew(t, c)
				yieldBeforeSwap(lims[i])
			}
		}
		stop := churnAll(lims)
		key := func(i int) Key { return lims[i%len(lims)].Key(fmt.Sprint("hot", i/len(lims))) }
		goDo(4, func(g int) {
			for n := range 300 {
				charges := make([]Charge, 2+(g+n)%7)
				for j := range charges {
					charges[j] = Charge{key((n + j) % 16), 1 + j%2}
					if g%2 == 0 {
						charges[j].Key = key((n + len(charges) - j) % 16)
					}
				}
				if n%5 == 0 {
					charges = append(charges, charges[0]) // a key twice
				}
				d := TakeAll(charges...)
				switch k := charges[n%len(charges)].Key; n % 8 {
				case 0:
					k.Reset()
				case 1, 2:
					k.Refund(1)
				case 3:
					k.lim.Sweep()
				case 4:
					k.Take(1)
				case 5:
					k.lim.KeyUint64(uint64(g*1000 + n)).Allow() // a flood of new keys
				}
				if d.Allowed != (d.Denied < 0) {
					t.Error("what was denied?")
				}
			}
		})()
		stop()
		for _, l := range lims {
			for i := range l.tableOf(0).slots {
				if !isWide(l) {
					require.NotEqual(t, uint64(reserved), l.tableOf(0).slots[i].word.Load(), "a key was not let go")
				} else {
					require.Zero(t, l.tableOf(0).slots[i].word.Load()&locked, "a key was not let go")
				}
			}
		}
	}
}

// TestConcurrent_RefundsGiveBackWhatWasCharged: whoever is admitted gives back, and
// in the end all is as it was; at no time is more left than the burst, or less than
// what can be under way.
func TestConcurrent_RefundsGiveBackWhatWasCharged(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		t.Parallel()
		const callers = 3
		c.Shards = 1
		lost := int64(0)
		for round := 0; round < 200 && (round < 5 || lost < 5); round++ {
			l, _ := newFrozen(t, c)
			other := l.Key("other")
			yieldBeforeSwap(l)
			stop := churnAll([]*Limiter{l})
			goDo(callers, func(g int) {
				for n := range 100 {
					switch {
					case n%3 == 0:
						if TakeAll(Charge{other, 1}, Charge{l.Key("k"), 2}).Allowed {
							other.Refund(1)
						}
					case !l.AllowN("k", 2):
						t.Error("denied within the burst")
					}
					if left := l.Key("k").Peek(0).Remaining; left > burstOf(l)-2 || left < burstOf(l)-2*callers {
						t.Errorf("%d left", left)
					}
					l.Key("k").Refund(1)
					l.Key("k").Refund(1)
				}
			})()
			stop()
			lost += l.lostRaces.Value() + l.moves.Value()
			require.Equal(t, Decision{Allowed: true, Limit: burstOf(l), Remaining: burstOf(l)}, l.Key("k").Peek(0))
			require.Equal(t, l.Key("k").Peek(0), other.Peek(0))
		}
		require.Positive(t, lost, "no race was run")
	})
}
