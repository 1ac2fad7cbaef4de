package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// everyInFlight ranges over the layouts of InFlight.
func everyInFlight(yield func(string, Config) bool) {
	for name, c := range everyFew {
		if c.Algorithm == InFlight {
			if !yield(name, c) {
				return
			}
		}
	}
}

// A holder is a permit of a trace, or a reservation, and how the definition sees it.
type holder struct {
	*Permit
	reservation *Reservation
	key         string
	units       int
	end         int64 // when it lapses
}

func (h *holder) Renew() error {
	if h.reservation != nil {
		return h.reservation.Renew()
	}
	return h.Permit.Renew()
}

// TestPermit_HoldersModel plays random acquisitions, releases, and renewals, in time and too late, beside a list of
// the holders: each holds its units until it ends, or until the window after that of its last renewal ends.
func TestPermit_HoldersModel(t *testing.T) {
	for name, c := range everyInFlight {
		t.Run(name, func(t *testing.T) {
			rng := seeded.Rand(t)
			denied, late := 0, 0
			for range 60 {
				before := denied
				c, unit := c, c.Limit.Rate/10
				c.TTL, c.Stats = 1, rng.IntN(2) == 0
				l, clock := newFrozen(t, c)
				var all []*holder
				used := func(key string) (n int) {
					for _, h := range all {
						if h.key == key && h.end > clock.Now() {
							n += h.units
						}
					}
					return n
				}
				end := func() int64 {
					p := int64(c.Limit.Period)
					return (clock.Now()/p + 2) * p
				}
				for step := range 200 {
					key := fmt.Sprint("k", rng.IntN(2))
					var h *holder
					if len(all) > 0 {
						h = all[rng.IntN(len(all))]
					}
					switch op := rng.IntN(10); {
					case op < 4:
						n := unit * (1 + rng.IntN(3))
						h := &holder{key: key, units: n, end: end()}
						var reservations [1]*Reservation
						var ok bool
						if op < 2 {
							ok = TakeAllReservations(reservations[:], nil, Charge{l.Key(key), n}).Allowed
							h.reservation = reservations[0]
						} else {
							p, err := l.Acquire(key, n)
							h.Permit, ok = p, err == nil
						}
						require.Equal(t, used(key)+n <= c.Limit.Rate, ok, "step %d", step)
						if ok {
							all = append(all, h)
						} else {
							denied++
						}
					case op < 6 && h != nil:
						held := h.units > 0 && h.end > clock.Now()
						if h.reservation != nil {
							h.reservation.Cancel()
						} else {
							require.Equal(t, held, h.Release() == nil, "step %d", step)
						}
						if h.units > 0 && !held {
							late++
						}
						h.units = 0
					case op < 7 && h != nil:
						held := h.units > 0 && h.end > clock.Now()
						require.Equal(t, held, h.Renew() == nil, "step %d", step)
						if held {
							h.end = end()
						} else {
							h.units = 0 // a renewal that is too late ends the permit
						}
					case op == 7:
						l.Sweep()
					case op == 8:
						clock.Advance(time.Duration(rng.Int64N(int64(c.Limit.Period))))
					}
					require.Equal(t, c.Limit.Rate-used(key), l.Key(key).Peek(0).Remaining, "step %d", step)
				}
				if c.Stats {
					require.EqualValues(t, denied-before, l.Stats().Denied)
				}
			}
			require.Positive(t, denied)
			require.Positive(t, late)
		})
	}
}

// TestRenew_OfReservations: renewals keep all units of a reservation, with the units that Extend added; under other algorithms there is
// nothing to renew.
func TestRenew_OfReservations(t *testing.T) {
	for _, c := range everyInFlight {
		l, clock := newFrozen(t, c)
		k, unit := l.Key("k"), c.Limit.Rate/10
		r := mustTake(t, k, unit)
		require.True(t, r.Extend(2*unit))
		for range 5 {
			clock.Advance(c.Limit.Period)
			require.NoError(t, r.Renew())
			require.Equal(t, 7*unit, k.Peek(0).Remaining)
		}
		r.Cancel()
		require.Equal(t, 10*unit, k.Peek(0).Remaining)
		require.ErrorIs(t, r.Renew(), ErrNotHeld)
	}
	l, clock := newFrozen(t, Config{Limit: PerSecond(1)})
	r := mustTake(t, l.Key("k"), 1)
	clock.Advance(sec)
	require.NoError(t, r.Renew())
	require.True(t, l.Allow("k"))
	require.NoError(t, (*Reservation)(nil).Renew())
}

// TestConcurrent_PermitsNeverExceedTheLimit, while tables grow, keys are swept, and the limit's Rate changes to the
// same one, which moves all keys. In the end nothing is held.
func TestConcurrent_PermitsNeverExceedTheLimit(t *testing.T) {
	for name, c := range everyInFlight {
		t.Run(name, func(t *testing.T) {
			unit := c.Limit.Rate / 5
			for range 20 {
				c.Shards, c.TTL = 1, 1
				l, _ := newFrozen(t, c)
				k := l.Key("k")
				var inUse, double, most atomic.Int64
				stop := goUntil(1, func(_, i int) {
					switch i % 3 {
					case 0:
						l.Sweep()
					case 1:
						require.NoError(t, l.SetLimit(c.Limit))
					}
					l.Allow(fmt.Sprint(i))
				})
				goDo(4, func(g int) {
					for i := range 200 {
						p, err := k.Acquire((1 + g%2) * unit)
						if err != nil {
							continue
						}
						n := inUse.Add(int64(1 + g%2))
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						if i%3 == 0 && p.Renew() != nil {
							t.Error("renewed in time")
						}
						inUse.Add(int64(-1 - g%2))
						goDo(2, func(int) { // one of two releases is the first
							if p.Release() != nil {
								double.Add(1)
							}
						})()
						double.Add(-1)
					}
				})()
				stop()
				require.LessOrEqual(t, most.Load(), int64(5))
				require.Zero(t, double.Load())
				require.Equal(t, c.Limit.Rate, k.Peek(0).Remaining)
			}
		})
	}
}

// TestConcurrent_PermitsAllComeBack, by calls that are close enough to meet between the reading of a word and its swap.
func TestConcurrent_PermitsAllComeBack(t *testing.T) {
	for name, c := range everyInFlight {
		t.Run(name, func(t *testing.T) {
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			goDo(4, func(int) {
				for range 50_000 {
					p, err := k.Acquire(1)
					if err != nil || p.Renew() != nil || p.Release() != nil {
						t.Error("there was room, and the permit was held")
						return
					}
				}
			})()
			require.Equal(t, c.Limit.Rate, k.Peek(0).Remaining)
		})
	}
}

// TestAcquire_WithoutACount: a permit for what is not counted can be released once, and changes nothing.
func TestAcquire_WithoutACount(t *testing.T) {
	minute := PerMinute(1)
	for name, c := range map[string]Config{
		"unlimited": {Algorithm: InFlight, Limit: Unlimited},
		"shadow":    {Algorithm: InFlight, Limit: minute, Shadow: true},
		"admit-new": {Algorithm: InFlight, Limit: minute, MaxKeys: 1, Overflow: OverflowAdmitNew},
	} {
		l, _ := newFrozen(t, c)
		l.Allow("other")
		if c.Shadow {
			l.Allow("k")
		}
		before := l.Stats()
		p, err := l.Acquire("k", 1)
		require.NoError(t, err, name)
		after := l.Key("k").Peek(0)
		require.NoError(t, p.Renew(), name)
		require.NoError(t, p.Release(), name)
		require.ErrorIs(t, p.Release(), ErrNotHeld, name)
		require.ErrorIs(t, p.Renew(), ErrNotHeld, name)
		require.Equal(t, after, l.Key("k").Peek(0), name)
		require.Equal(t, before.Keys, l.Stats().Keys, name)
	}
	for _, none := range []*Permit{nil, {}} {
		require.ErrorIs(t, none.Release(), ErrNotHeld)
		require.ErrorIs(t, none.Renew(), ErrNotHeld)
	}
	l, _ := newFrozen(t, Config{Algorithm: InFlight, Limit: minute})
	for _, cost := range []int{0, -1, 2} {
		p, err := l.Acquire("k", cost)
		if cost == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrDenied)
		}
		require.ErrorIs(t, p.Release(), ErrNotHeld)
	}
	require.Zero(t, l.Len())
}

// TestAcquire_OtherAlgorithms: what would give nothing back is refused, and charges nothing.
func TestAcquire_OtherAlgorithms(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		if c.Algorithm == InFlight {
			return
		}
		l, _ := newFrozen(t, c)
		l.Allow("tracked")
		before := l.Stats()
		for _, key := range []string{"tracked", "new"} {
			p, err := l.Acquire(key, 1)
			require.ErrorIs(t, err, ErrNotInFlight)
			require.ErrorIs(t, p.Release(), ErrNotHeld)
			_, err = l.Key(key).Acquire(1)
			require.ErrorIs(t, err, ErrNotInFlight)
		}
		require.Equal(t, before, l.Stats())
	})
}

// TestAcquire_ByALimitOfItsOwn: in a cell, with an override or with a limit that the call brings, and back.
func TestAcquire_ByALimitOfItsOwn(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: InFlight, Limit: AtOnce(2, time.Minute), Stats: true})
	a, _ := l.Acquire("k", 2)
	three, err := l.Key("k").WithLimit(PerMinute(3))
	require.NoError(t, err)
	b, err := three.Acquire(1)
	require.NoError(t, err)
	require.NoError(t, a.Release())
	require.NoError(t, l.Key("k").SetLimit(PerMinute(4)))
	require.Equal(t, 3, l.Key("k").Peek(0).Remaining)
	require.NoError(t, b.Renew())
	require.NoError(t, b.Release())
	c, err := l.Acquire("k", 4)
	require.NoError(t, err)

	require.NoError(t, l.Key("k").SetLimit(PerSecond(4)))
	require.ErrorIs(t, c.Release(), ErrNotHeld, "the windows are others now")
	require.Zero(t, l.Key("k").Peek(0).Remaining)
	clock.Advance(2 * time.Second)
	require.Equal(t, 4, l.Key("k").Peek(0).Remaining)
	require.Equal(t, uint64(3), l.Stats().Admitted)
}

// TestPermit_Blocked: a block forgets what is held, and a key is as if fresh after it.
func TestPermit_Blocked(t *testing.T) {
	for _, c := range everyInFlight {
		l, _ := newFrozen(t, c)
		p, err := l.Acquire("k", 2)
		require.NoError(t, err)
		require.True(t, l.Key("k").Block(1))
		_, err = l.Acquire("k", 1)
		require.ErrorIs(t, err, ErrDenied)
		require.ErrorIs(t, p.Release(), ErrNotHeld)
		l.Key("k").Unblock()
		require.Equal(t, c.Limit.Rate, l.Key("k").Peek(0).Remaining)
	}
}

// TestInFlight_EvictsNobody: a flood of new keys takes no units away from permits.
func TestInFlight_EvictsNobody(t *testing.T) {
	l, _ := newFrozen(t, Config{Algorithm: InFlight, Limit: AtOnce(1, time.Minute), MaxKeys: 8, Shards: 1})
	require.Equal(t, OverflowDenyNew, l.Config().Overflow)
	var all [8]*Permit
	for i := range all {
		p, err := l.Acquire(fmt.Sprint(i), 1)
		require.NoError(t, err)
		all[i] = p
	}
	require.Zero(t, fill(l, "flood", 1000))
	for i := range all {
		require.False(t, l.Allow(fmt.Sprint(i)))
		require.NoError(t, all[i].Release())
		require.True(t, l.Allow(fmt.Sprint(i)))
	}
}

// TestInFlight_WorstCase: no span of time bounds how often a unit is acquired and released.
func TestInFlight_WorstCase(t *testing.T) {
	for _, c := range everyInFlight {
		l, _ := newFrozen(t, c)
		for range 100 {
			p, err := l.Acquire("k", c.Limit.Rate)
			require.NoError(t, err)
			require.NoError(t, p.Release())
		}
		for _, span := range []time.Duration{0, 1, time.Hour} {
			require.Equal(t, math.MaxInt, l.WorstCase(span), "%d were admitted at once", 100*c.Limit.Rate)
		}
		require.Zero(t, l.WorstCase(-1))
		require.NoError(t, l.SetLimit(DenyAll))
		require.Zero(t, l.WorstCase(time.Hour))
	}
}

// returned is a helper that a user may have.
//
//go:noinline
func returned(k Key) (*Permit, error) {
	p, err := k.Acquire(1)
	if err != nil {
		return p, fmt.Errorf("k: %w", err)
	}
	return p, nil
}

// TestAllocs_NoneForPermits: a permit that stays in its function is in the frame of it, whatever the call comes to. A
// permit that a helper returns is one allocation.
func TestAllocs_NoneForPermits(t *testing.T) {
	for name, c := range everyInFlight {
		for _, c.BlockFor = range []time.Duration{0, time.Minute} {
			l, _ := newFrozen(t, c)
			k, full := l.Key("k"), l.Key("full")
			k.Allow()
			full.Debit(c.Limit.Rate)
			requireNoAllocs(t, "a permit of "+name, func() {
				p, _ := k.Acquire(1)
				defer p.Release()
				_ = p.Renew()
				q, _ := l.Acquire("k", 1)
				_ = q.Release()
				q, _ = full.Acquire(1)
				_ = q.Release()
			})
			require.InDelta(t, 1, leastAllocs(200, func() {
				p, _ := returned(k)
				_ = p.Release()
			}), 0, name)
			require.Equal(t, c.Limit.Rate-1, k.Peek(0).Remaining, "all is given back")
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	for _, clock := range clocks {
		b.Run("clock="+clock.name+"/of=Allow", func(b *testing.B) {
			k := mustNew(b, Config{Limit: PerSecond(1e9), Clock: clock.new()}).Key("k")
			for b.Loop() {
				k.Allow()
			}
		})
		b.Run("clock="+clock.name+"/of=AcquireAndRelease", func(b *testing.B) {
			k := mustNew(b, Config{Algorithm: InFlight, Limit: AtOnce(1000, time.Minute), Clock: clock.new()}).Key("k")
			for b.Loop() {
				p, _ := k.Acquire(1)
				_ = p.Release()
			}
		})
	}
	const keys = 1 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	b.Run("keys=1M/of=AcquireAndRelease", func(b *testing.B) {
		l := mustNew(b, Config{Algorithm: InFlight, Limit: AtOnce(1000, time.Minute), MaxKeys: -1})
		for i := range uint64(keys) {
			l.KeyUint64(i).Allow()
		}
		for b.Loop() {
			p, _ := l.KeyUint64(rng.Uint64() % keys).Acquire(1)
			_ = p.Release()
		}
	})
	// A sketch of constant memory, 4 rows of counters: it never counts too few, and does not know who has gone.
	b.Run("keys=1M/of=estimator", func(b *testing.B) {
		var rows [4][keys]atomic.Int32
		add := func(id uint64, n int32) (least int32) {
			least = math.MaxInt32
			for i := range rows {
				least = min(least, rows[i][id>>(11*i)%keys].Add(n))
			}
			return least
		}
		l := mustNew(b, Config{Limit: PerMinute(1)})
		for b.Loop() {
			id := l.KeyUint64(rng.Uint64() % keys).id
			if add(id, 1) <= 1000 {
				add(id, -1)
			}
		}
	})
}

// BenchmarkHold: an estimate over three limits, and the truth behind it, beside one Take.
func BenchmarkHold(b *testing.B) {
	tokens := mustNew(b, Config{Limit: PerSecond(1e9)})
	charges := []Charge{
		{mustNew(b, Config{Limit: PerSecond(1e9)}).Key("k"), 1}, {tokens.Key("k"), 100},
		{mustNew(b, Config{Algorithm: InFlight, Limit: AtOnce(1000, time.Minute)}).Key("k"), 1},
	}
	b.Run("of=Take", func(b *testing.B) {
		for b.Loop() {
			charges[1].Key.Take(1)
		}
	})
	b.Run("of=TakeAll", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			if n%1000 == 0 {
				charges[2].Key.Reset()
			}
			TakeAll(charges...)
		}
	})
	b.Run("of=ReservationsAndSettle", func(b *testing.B) {
		charges[2].Key.Reset()
		var all [3]*Reservation
		for b.Loop() {
			if d := TakeAllReservations(all[:], nil, charges...); !d.Allowed {
				b.Fatal(d)
			}
			all[0].Settle(1)
			all[1].Settle(30)
			all[2].Cancel()
		}
	})
}
