package ledger

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/ends"
)

// A plain policy has a tick of some ns, and a unit of one tick. One carries over from another, but not
// from one that is alone.
type plain struct {
	ns    int64
	alone bool
}

func (p *plain) Tick(now int64) uint64  { return uint64(now / p.ns) }
func (p *plain) Ticks(units int) uint64 { return uint64(units) }

func (p *plain) Turn(end uint64, units int) uint64 { return (end - uint64(units)) * uint64(p.ns) }

func (p *plain) Carry(from Policy) (kept, same bool) {
	old := from.(*plain)
	return !old.alone, old.ns == p.ns
}

func (p *plain) End(from Policy, end uint64, _ int64) uint64 {
	return end * uint64(from.(*plain).ns) / uint64(p.ns)
}

// reserve adds a reservation of n units of key 1 at now, when nothing else has been charged.
func reserve(lg *Ledger, p Policy, now int64, n int) (*Record, *ends.Node) {
	rec := lg.LockRecord(1, now)
	defer rec.Release()
	r := &ends.Node{At: now, Units: n}
	from := p.Tick(now)
	if rec.Len() > 0 {
		from = max(from, rec.Full())
	}
	rec.Enter(r, p, rec.Drops(), from)
	return rec, r
}

// TestRecord_LivesAsLongAsItHasReservations: whoever has found one that is dead looks for the next one.
func TestRecord_LivesAsLongAsItHasReservations(t *testing.T) {
	lg, p := New(1, 64).At(0), &plain{ns: 10}
	rec, r := reserve(lg, p, 0, 3)
	require.Same(t, rec, lg.Find(1))
	require.Equal(t, uint64(1), rec.ID())
	require.Equal(t, uint64(3), rec.Full())
	require.True(t, rec.Lock())
	rec.Remove(r)
	rec.Release()
	require.Nil(t, lg.Find(1))
	require.False(t, rec.Lock())
	next, _ := reserve(lg, p, 0, 1)
	require.NotSame(t, rec, next)
}

// TestShrink_GivesBackWhatHasNotComeBack by itself, and nothing of a key that has been dropped.
func TestShrink_GivesBackWhatHasNotComeBack(t *testing.T) {
	ls, p := New(1, 64), &plain{ns: 10}
	rec, first := reserve(ls.At(0), p, 0, 4)
	_, second := reserve(ls.At(0), p, 0, 4)
	require.Equal(t, uint64(8), rec.Full())
	require.True(t, rec.Lock())
	require.Equal(t, uint64(1), rec.Shrink(first, 0, 30), "3 of its 4 ticks have passed")
	require.Equal(t, uint64(7), rec.Full())
	require.Equal(t, uint64(3), rec.Shrink(second, 1, 30))
	require.True(t, rec.IsOf(p))
	require.False(t, rec.IsOf(&plain{ns: 10}), "policies are compared by identity")
	rec.Release()
	ls.Dropped(1)
	ls.Dropped(2)
	require.Equal(t, uint64(1), rec.Drops())
	require.False(t, rec.IsOf(p))
	ls.DropPassed(30)
	require.Nil(t, ls.Of(1).Find(1))
}

// TestRefunded_EndsAllThatItCannotTell: ends are as much sooner as has been refunded, up to a bound.
func TestRefunded_EndsAllThatItCannotTell(t *testing.T) {
	ls, p := New(1, 64), &plain{ns: 1}
	lg := ls.At(0)
	rec, _ := reserve(lg, p, 0, 4)
	require.Same(t, rec, lg.Guard(1))
	rec.Refunded(1)
	require.Equal(t, uint64(3), rec.Full())
	rec.Refunded(math.MaxUint64)
	require.Zero(t, rec.Len())
	lg.Unguard(rec)
	ls.DropPassed(0)
	require.Nil(t, lg.Find(1))
	var none *Record
	none.Refunded(1)
	none.Forget()
	none.Adopt(p, 0)
}

// TestAdopt_EndsStayAtTheirTimes: under ticks of another length they are other numbers.
func TestAdopt_EndsStayAtTheirTimes(t *testing.T) {
	lg, p := New(1, 64).At(0), &plain{ns: 10}
	rec, _ := reserve(lg, p, 0, 4)
	_, second := reserve(lg, p, 0, 4)
	records := lg.GuardAll()
	require.Equal(t, []*Record{rec}, records)
	require.Same(t, rec, RecordOf(records, 1))
	require.Nil(t, RecordOf(records, 2))
	to := &plain{ns: 5}
	lg.UnguardAll(records, func(rec *Record) { rec.Adopt(to, 0) })
	require.Equal(t, uint64(16), rec.Full(), "8 ticks of 10 ns are 16 of 5")
	require.True(t, rec.IsOf(to))
	require.True(t, rec.Lock())
	require.Equal(t, uint64(4), rec.Shrink(second, 0, 0), "its units take 4 ticks here; what is missing stays charged")
	rec.Adopt(&plain{ns: 5, alone: true}, 0)
	require.Equal(t, uint64(12), rec.Full(), "the same ticks")
	rec.Adopt(to, 0)
	require.Zero(t, rec.Len(), "nothing that it means anything under")
	rec.Release()
}

// TestTell_WakesTheFirstThatWaits, if its turn moves up: of those that wait, the ends follow the ends before them, or
// are held for a later turn until it moves up, too.
func TestTell_WakesTheFirstThatWaits(t *testing.T) {
	lg, p := New(1, 64).At(0), &plain{ns: 1}
	rec, first := reserve(lg, p, 0, 4)
	require.True(t, rec.Lock())
	defer rec.Release()
	wait := func(at int64, free bool) *ends.Node {
		r := &ends.Node{At: at, Units: 2, Wake: make(chan struct{}, 1)}
		if rec.Enter(r, p, rec.Drops(), rec.Full()); free {
			rec.Free(r)
		}
		return r
	}
	free, held := wait(4, true), wait(7, false)
	require.Equal(t, uint64(9), rec.Full())
	rec.Tell()
	require.Empty(t, free.Wake)
	require.Equal(t, uint64(1), rec.Turn(free)-rec.Turn(first)-3)
	require.False(t, rec.Hold(free), "nothing holds it")

	rec.Shrink(first, 3, 0)
	rec.Tell()
	rec.Tell()
	require.Len(t, free.Wake, 1)
	require.Empty(t, held.Wake, "it is not the first")
	require.Equal(t, uint64(3), rec.Turn(free))
	require.Equal(t, uint64(5), rec.Turn(held))
	require.Equal(t, uint64(9), rec.Full(), "held")
	free.At = 3
	rec.Begin(free)
	require.Equal(t, uint64(5), free.Least)
	rec.Tell()
	require.Len(t, held.Wake, 1)
	held.At = 5
	require.True(t, rec.Hold(held))
	require.Equal(t, uint64(7), rec.Full())
	require.Nil(t, free.Wake)
	rec.Remove(held)
	rec.Tell()
	var none *Record
	none.Tell()
}

// TestAdopt_WhatIsFreeStaysFree: its end follows the ends before it under the other policy, too.
func TestAdopt_WhatIsFreeStaysFree(t *testing.T) {
	lg, p := New(1, 64).At(0), &plain{ns: 10}
	rec, first := reserve(lg, p, 0, 4)
	require.True(t, rec.Lock())
	defer rec.Release()
	r := &ends.Node{At: 40, Units: 2, Wake: make(chan struct{}, 1)}
	rec.Enter(r, p, rec.Drops(), rec.Full())
	rec.Free(r)
	to := &plain{ns: 5}
	rec.Adopt(to, 0)
	require.Equal(t, uint64(12), rec.Full())
	require.Zero(t, r.Least)
	require.Equal(t, uint64(50), rec.Turn(r), "2 units of 5 ns before its end, 60")
	rec.Shrink(first, 0, 0)
	require.Equal(t, uint64(8), rec.Full())
}

// TestGuard_KeepsRecordsFromBeingMade: a key without one gets none until Unguard.
func TestGuard_KeepsRecordsFromBeingMade(t *testing.T) {
	ls, p := New(1, 64), &plain{ns: 1}
	lg := ls.At(0)
	for range 1000 {
		require.Nil(t, lg.Guard(1))
		var made atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			rec, r := reserve(lg, p, 0, 1)
			made.Store(true)
			require.True(t, rec.Lock())
			rec.Remove(r)
			rec.Release()
		})
		for range 3 {
			runtime.Gosched()
		}
		require.False(t, made.Load())
		require.Nil(t, lg.Find(1))
		lg.Unguard(nil)
		wg.Wait()
		require.True(t, made.Load())
		ls.DropPassed(0)
	}
}

// TestRelease_AFewRecordsStay: of keys that come again, one for each place; one that is in use makes no room.
func TestRelease_AFewRecordsStay(t *testing.T) {
	lg := New(1, 64).At(0)
	size := func() int { return lg.records.Load().Size() }
	use := func(id uint64) *Record {
		rec := lg.LockRecord(id, 0)
		rec.Release()
		return rec
	}
	for id := uint64(1); id <= 1000; id++ { // no id is 0
		use(id)
		require.Zero(t, size(), "a key that comes once")
	}
	for id := uint64(1); id <= 1000; id++ {
		use(id)
		again := use(id)
		require.LessOrEqual(t, size(), spares)
		require.Same(t, again, use(id))
	}
	const mine = 1000 // the first place, and the last key that came there
	rec := lg.Find(mine)
	require.True(t, rec.Lock())
	use(mine + spares)
	use(mine + spares)
	require.Nil(t, lg.Find(mine+spares), "its place is not free")
	rec.Release()
	require.Same(t, rec, lg.Find(mine))

	// A spare that has made room while it was not empty becomes one again, and no record is left behind.
	p := &plain{ns: 1}
	require.True(t, rec.Lock())
	r := &ends.Node{Units: 1}
	rec.Enter(r, p, rec.Drops(), 0)
	rec.Release()
	use(mine + spares)
	require.NotNil(t, lg.Find(mine+spares))
	require.Same(t, rec, lg.Find(mine))
	require.Equal(t, spares+1, size())
	require.True(t, rec.Lock())
	rec.Remove(r)
	rec.Release()
	require.Nil(t, lg.Find(mine), "the other key was the last one")
	require.Equal(t, spares, size())
}

// TestRelease_Concurrent: what stays is bounded, whoever takes whose place.
func TestRelease_Concurrent(t *testing.T) {
	ls, p := New(1, 64), &plain{ns: 1}
	lg := ls.At(0)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			for i := range uint64(20_000) {
				rec := lg.LockRecord((i*(g+1))%40, 0)
				r := &ends.Node{Units: 1}
				rec.Enter(r, p, rec.Drops(), 0)
				rec.Remove(r)
				rec.Release()
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, lg.records.Load().Size(), spares)
	ls.DropPassed(0)
	require.Zero(t, lg.records.Load().Size())
}

// TestHasRoom_CountsWhatIsOpen: of those that have come back, a few go each time.
func TestHasRoom_CountsWhatIsOpen(t *testing.T) {
	lg, p := New(1, 64).At(0), &plain{ns: 1}
	var rec *Record
	for range 5 {
		rec, _ = reserve(lg, p, 0, 1)
	}
	require.True(t, rec.Lock())
	defer rec.Release()
	require.False(t, rec.HasRoom(0, 5))
	require.True(t, rec.HasRoom(0, 6))
	require.True(t, rec.HasRoom(5, 5))
	require.Equal(t, 5-passedAtOnce, rec.Len())
	rec.DropSome(5)
	require.Equal(t, 5-2*passedAtOnce, rec.Len())
	n := 0
	lg.Each(func(*Record) { n++ })
	require.Equal(t, 1, n)
}
