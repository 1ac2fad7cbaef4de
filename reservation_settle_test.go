package sluice

import (
	"context"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/ledger"
	"github.com/sluice-go/sluice/internal/test/depth"
)

// mustReserve is a Reserve that is to succeed.
func mustReserve(t testing.TB, k Key, cost int) *Reservation {
	t.Helper()
	r, err := k.Reserve(cost, math.MaxInt64)
	require.NoError(t, err)
	return r
}

// TestCancel_DoesNotBunchLaterSlots: what comes back of a slot before another one that
// has been promised must not be handed out again beside that.
func TestCancel_DoesNotBunchLaterSlots(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(1)})
		if a == LeakyBucket {
			require.NoError(t, l.SetLimit(PerSecond(1).WithBurst(9)))
		}
		k := l.Key("k")
		require.True(t, k.Allow())
		first, second := mustReserve(t, k, 1), mustReserve(t, k, 1)
		require.Equal(t, 2*sec, second.Delay())
		first.Cancel()
		third := mustReserve(t, k, 1)
		require.Equal(t, 3*sec, third.Delay(), "%v: two units in one instant", a)
		if a != LeakyBucket {
			clock.Advance(2 * sec)
			require.False(t, k.Allow(), "%v: the unit of the instant is the second's", a)
		}
		third.Cancel()
		second.Cancel()
		clock.Advance(sec)
		require.Zero(t, k.Peek(0).ResetAfter, "%v: with the others gone, the first has come back, too", a)
	}
}

// TestReserve_SlotIsChargedAtItsNanosecond: where a tick is much less than a nanosecond,
// a call that begins in its slot begins after it by up to a tick.
func TestReserve_SlotIsChargedAtItsNanosecond(t *testing.T) {
	l := mustNew(t, Config{Limit: Per(7, 10).WithBurst(4), Clock: NewManualClock(time.Unix(0, 0))})
	k := l.Key("k")
	var at []time.Duration
	require.True(t, k.AllowN(2))
	for range 100 {
		at = append(at, mustReserve(t, k, 4).Delay())
	}
	for i := range at[1:] {
		d := at[i+1] - at[i]
		require.LessOrEqual(t, 8, l.WorstCase(d), "8 units in %v", d)
	}
}

// TestBlock_IsTheEndOfReservations, also if the limit changes meanwhile.
func TestBlock_IsTheEndOfReservations(t *testing.T) {
	for _, change := range []func(l *Limiter, to Limit) error{
		func(l *Limiter, to Limit) error { return l.SetLimit(to) },
		func(l *Limiter, to Limit) error { return l.Key("k").SetLimit(to) },
	} {
		l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(20)})
		k := l.Key("k")
		r := mustReserve(t, k, 10)
		require.True(t, k.Block(sec))
		require.NoError(t, change(l, PerMinute(1).WithBurst(20)))
		clock.Advance(10 * sec)
		require.True(t, k.AllowN(20), "fresh after the block")
		r.Cancel()
		require.False(t, k.Allow(), "what the block has forgotten came back once more")
	}
}

// TestSettle_UnlimitedKeepsNoState: a debt neither.
func TestSettle_UnlimitedKeepsNoState(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10)})
	k := l.Key("k")
	require.True(t, k.Allow())
	require.NoError(t, l.SetLimit(Unlimited))
	mustReserve(t, k, 1).Settle(6)
	require.NoError(t, l.SetLimit(PerSecond(10)))
	require.Equal(t, 9, k.Peek(0).Remaining)
}

// TestSettle_BeyondTheCostIsACharge, whatever has become of the key.
func TestSettle_BeyondTheCostIsACharge(t *testing.T) {
	for name, happens := range map[string]func(l *Limiter){
		"nothing":  func(*Limiter) {},
		"blocked":  func(l *Limiter) { l.Key("k").Block(1) },
		"for ever": func(l *Limiter) { l.Key("k").Block(Never) },
		"reset":    func(l *Limiter) { l.Key("k").Reset() },
		"denied":   func(l *Limiter) { require.NoError(t, l.SetLimit(DenyAll)) },
		"slower": func(l *Limiter) {
			limit := l.Config().Limit
			limit.Period *= 2
			require.NoError(t, l.Key("k").SetLimit(limit))
		},
	} {
		forEveryLayout(t, func(t *testing.T, c Config) {
			owes := func(end func(k Key, r *Reservation)) (all []Decision) {
				l, clock := newFrozen(t, c)
				limit := l.Config().Limit
				require.NoError(t, l.SetLimit(Unlimited)) // under which all algorithms can be reserved
				k := l.Key("k")
				if l.policyOf(0).bucket() != nil {
					require.NoError(t, l.SetLimit(limit))
				}
				r := mustReserve(t, k, 1)
				require.NoError(t, l.SetLimit(limit))
				happens(l)
				end(k, r)
				require.NoError(t, l.SetLimit(limit))
				for range 8 {
					all = append(all, k.Peek(1))
					clock.Advance(limit.Period / 4)
				}
				return all
			}
			charged := owes(func(k Key, r *Reservation) { r.Settle(1); k.Debit(3) })
			require.Equal(t, charged, owes(func(_ Key, r *Reservation) { r.Settle(4) }), name)
			if name != "for ever" {
				require.NotEqual(t, charged, owes(func(_ Key, r *Reservation) { r.Settle(1) }), name)
			}
		})
	}
}

// TestReserve_OfNothingTracksNothing, as Take of nothing.
func TestReserve_OfNothingTracksNothing(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10), MaxKeys: 1, Overflow: OverflowDenyNew, Shards: 1})
	mustReserve(t, l.Key("a"), 0)
	require.Zero(t, l.Len())
	mustReserve(t, l.Key("a"), 1)
	require.Zero(t, mustReserve(t, l.Key("b"), 0).Delay())
	require.Zero(t, l.Stats().Untracked)
}

// TestReserve_IsCounted as admitted or denied, unless there are no slots at all.
func TestReserve_IsCounted(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Stats = true
		l, _ := newFrozen(t, c)
		for _, cost := range []int{1, 2, 0, -1, math.MaxInt} {
			_, _ = l.Key("k").Reserve(cost, 0)
		}
		want := Stats{Denied: 3, Admitted: 1} // a queue makes the second one wait
		switch {
		case l.policyOf(0).bucket() == nil:
			want = Stats{Denied: 2}
		case c.Algorithm != LeakyBucket:
			want = Stats{Denied: 2, Admitted: 2}
		}
		require.Equal(t, []uint64{want.Admitted, want.Denied}, []uint64{l.Stats().Admitted, l.Stats().Denied})
	})
}

// TestCancel_DoesNotShortenABlock, whether denials block or not.
func TestCancel_DoesNotShortenABlock(t *testing.T) {
	for _, block := range []time.Duration{0, 30 * sec} {
		l, clock := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(20), BlockFor: block})
		k := l.Key("k")
		require.True(t, k.AllowN(4))
		r, debt := mustReserve(t, k, 10), mustReserve(t, k, 1)
		require.True(t, k.Block(sec))
		r.Cancel()
		require.Equal(t, 15*sec, k.Peek(1).RetryAfter)
		for range 2 {
			debt.Settle(9)
			require.Equal(t, 23*sec, k.Peek(1).RetryAfter)
		}
		clock.Advance(23 * sec)
		require.Equal(t, 20, k.Peek(0).Remaining)
	}
}

// changing is a GCRA that lets something happen between a decision and its swap.
type changing struct {
	*gcra
	meanwhile func()
}

func (c *changing) charge(word uint64, now int64, cost int) (uint64, bool) {
	defer func(f func()) {
		if c.meanwhile = nil; f != nil {
			f()
		}
	}(c.meanwhile)
	return c.gcra.charge(word, now, cost)
}

// TestWait_LimitChangesBeforeTheSwap: the charge has not been made then.
func TestWait_LimitChangesBeforeTheSwap(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10)})
	k := l.Key("k")
	require.True(t, k.Allow())
	alg := &changing{gcra: l.policyOf(0).alg.(*gcra)}
	setAlgorithm(l, alg, nil)
	alg.meanwhile = func() {
		setAlgorithm(l, alg.gcra, nil)
		require.NoError(t, l.SetLimit(PerSecond(10)))
	}
	require.NoError(t, k.Wait(context.Background(), 1))
	require.Equal(t, 8, k.Peek(0).Remaining, "admitted, but not charged")
}

// TestWait_CancelledIsNotAdmitted: a wait is counted once.
func TestWait_CancelledIsNotAdmitted(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(1), Stats: true})
	k := l.Key("k")
	require.True(t, k.Allow())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- k.Wait(ctx, 1) }()
	for k.Peek(0).ResetAfter < 2*sec {
		runtime.Gosched()
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	s := l.Stats()
	require.Equal(t, []uint64{1, 0}, []uint64{s.Admitted, s.Denied})
}

// TestLedger_ForgetsAbandonedReservations, and gives their memory back.
func TestLedger_ForgetsAbandonedReservations(t *testing.T) {
	if splits() {
		return // small tables take more memory than reservations
	}
	skipUnderRace(t)
	n := depth.Of(100_000, 100_000, 1_000_000)
	l, clock := newFrozen(t, Config{Limit: PerSecond(1_000_000).WithBurst(100)})
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for i := range 64 {
		mustReserve(t, l.KeyUint64(uint64(i)), 1)
	}
	before := heap()
	for i := range n {
		id := uint64(i)
		if i%10 > 0 {
			id %= 64
		}
		mustReserve(t, l.KeyUint64(id), 1)
	}
	clock.Advance(time.Hour)
	l.Sweep()
	require.Zero(t, openReservations(l))
	require.Less(t, heap()-before, n*2, "bytes kept of abandoned reservations")
	runtime.KeepAlive(l)
}

// eachRecord calls f for the record of each key that has one.
func eachRecord(l *Limiter, f func(rec *ledger.Record)) {
	for i := range l.shards {
		l.ledgers.At(i).Each(f)
	}
}

// recordsOf is how many keys have a record.
func recordsOf(l *Limiter) (n int) {
	eachRecord(l, func(*ledger.Record) { n++ })
	return n
}

// openReservations is how many are in the ledgers.
func openReservations(l *Limiter) (n int) {
	eachRecord(l, func(rec *ledger.Record) { n += rec.Len() })
	return n
}

// TestWorstCase_WithBlocks: what a denied call does to its key is beside the limit.
func TestWorstCase_WithBlocks(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		plain := mustNew(t, c)
		c.BlockFor = sec
		require.Equal(t, plain.WorstCase(time.Minute), mustNew(t, c).WorstCase(time.Minute))
	})
}

// TestSettle_DebtIsBounded by what a word can tell, and is paid back.
func TestSettle_DebtIsBounded(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(10)})
		k := l.Key("k")
		r := mustReserve(t, k, 3)
		r.Settle(45)
		require.Equal(t, 4500*ms, k.Peek(0).ResetAfter)
		r.Settle(0)
		r.Cancel()
		require.Equal(t, 4500*ms, k.Peek(0).ResetAfter, "only the first counts")
		clock.Advance(10 * sec)
		require.NoError(t, l.SetLimit(PerDay(10))) // so that 2^31 units, too, are more than time
		for range 3 {
			mustReserve(t, k, 1).Settle(math.MaxInt)
			require.False(t, k.Peek(1).Allowed)
			require.Equal(t, Never, k.Peek(1).RetryAfter, "%v", a)
			_, err := k.Reserve(1, math.MaxInt64)
			require.Error(t, err)
			k.Reset()
		}
	}
}

// TestReservation_ForgottenIsNotGivenBack: what Refund, Reset and Unblock have made
// undone does not come back a second time.
func TestReservation_ForgottenIsNotGivenBack(t *testing.T) {
	for _, a := range bucketAlgorithms {
		for name, forget := range map[string]func(k Key){
			"refund":  func(k Key) { k.Refund(10) },
			"reset":   Key.Reset,
			"unblock": func(k Key) { k.Block(1); k.Unblock() },
		} {
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(20)})
			k := l.Key("k")
			r := mustReserve(t, k, 10)
			forget(k)
			require.True(t, k.AllowN(15))
			r.Cancel()
			require.Equal(t, 5, k.Peek(0).Remaining, "%v, %s", a, name)
		}
	}
}

// TestReservation_SurvivesChanges of the limit, sweeps and growth.
func TestReservation_SurvivesChanges(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, clock := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(20), TTL: 1})
		k := l.Key("k")
		require.True(t, k.AllowN(4))
		r, later := mustReserve(t, k, 10), mustReserve(t, k, 2)
		require.NoError(t, l.SetLimit(PerSecond(2).WithBurst(30)))
		require.NoError(t, l.Key("k").SetLimit(PerSecond(4).WithBurst(40)))
		l.Key("k").ClearLimit()
		require.NoError(t, l.SetLimit(Unlimited))
		require.NoError(t, l.SetLimit(PerSecond(2).WithBurst(30)))
		for i := range uint64(500) {
			l.KeyUint64(i).Allow()
		}
		clock.Advance(3 * sec)
		l.Sweep()
		require.Equal(t, 1, l.Len())
		later.Cancel()
		require.Equal(t, 4*sec, k.Peek(0).ResetAfter)
		r.Settle(3)
		left := sec / 2 // 7 units of 2 a second
		if a == LeakyBucket {
			left = 5 * sec / 2 // its slot begins in 1 s
		}
		require.Equal(t, left, k.Peek(0).ResetAfter, "%v", a)
		clock.Advance(left)
		require.Equal(t, 1, l.Sweep())
	}
}

// TestReservation_MovesToAKeysOwnLimit, and counts there as many units.
func TestReservation_MovesToAKeysOwnLimit(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerSecond(10).WithBurst(20)})
	k := l.Key("k")
	require.True(t, k.AllowN(4))
	r := mustReserve(t, k, 10)
	require.NoError(t, k.SetLimit(PerSecond(1).WithBurst(20)))
	r.Settle(3)
	require.Equal(t, 7*sec, k.Peek(0).ResetAfter)
}

// TestSettle_OfALogWithALongerPeriodThanWhenItWasCharged: the units count for the new period, so the reservation
// outlasts the old one, and a sweep does not drop it.
func TestSettle_OfALogWithALongerPeriodThanWhenItWasCharged(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerSecond(10)})
	r := mustTake(t, l.Key("k"), 4)
	require.NoError(t, l.SetLimit(Per(10, 7*time.Second)))
	clock.Advance(5 * time.Second)
	l.Sweep()
	require.Equal(t, 6, l.Key("k").Peek(0).Remaining)
	r.Settle(1)
	require.Equal(t, 9, l.Key("k").Peek(0).Remaining)
}

// TestExtend_IsCutAtTheLimit: a reservation grows as far as there is room, and is settled as one.
func TestExtend_IsCutAtTheLimit(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k, unit := l.Key("k"), burstOf(l)/10
		for _, used := range []int{0, 1, 3, 4, 6, 8, 9} {
			k.Reset()
			r := mustTake(t, k, 3*unit)
			require.True(t, r.Extend(4*unit))
			require.False(t, r.Extend(4*unit), "there are 3 left")
			require.True(t, r.Extend(unit))
			require.False(t, r.Extend(0))
			r.Settle(used * unit)
			require.Equal(t, burstOf(l)-used*unit, k.Peek(0).Remaining, "%d used", used)
			require.False(t, r.Extend(1), "it is settled")
			r.Settle(0)
			require.Equal(t, burstOf(l)-used*unit, k.Peek(0).Remaining)
			require.LessOrEqual(t, openReservations(l), 3)
		}
		require.False(t, (*Reservation)(nil).Extend(1))
	})
}

// TestExtend_KeepsTheKeysLimit: also a limit that a call has brought.
func TestExtend_KeepsTheKeysLimit(t *testing.T) {
	l, _ := newFrozen(t, Config{Limit: PerHour(2)})
	k, err := l.Key("k").WithLimit(PerHour(10))
	require.NoError(t, err)
	r := mustTake(t, k, 3)
	require.True(t, r.Extend(5))
	require.Equal(t, 2, k.Peek(0).Remaining)
	r.Settle(4)
	require.Equal(t, 6, k.Peek(0).Remaining)
}

// TestConcurrent_ExtendMeetsSettle: whichever comes first, no unit is lost.
func TestConcurrent_ExtendMeetsSettle(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		for range 100 {
			k.Reset()
			r := mustTake(t, k, 2)
			goDo(3, func(g int) {
				if g == 2 {
					r.Settle(1)
				} else {
					r.Extend(1)
				}
			})()
			require.Equal(t, burstOf(l)-1, k.Peek(0).Remaining)
		}
	})
}
