package sluice

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A reservation is a reservation and its model.
type reservation struct {
	r *Reservation
	e *oracle.Event
}

// A reservationTracer drives one key and its model through a random trace.
type reservationTracer struct {
	*trace
	l     *Limiter
	k     Key
	model *oracle.Reservations
	open  []reservation
	used  []*oracle.Event // all reservations
	taken []*oracle.Event // with reservations, of TakeAll
	takes []keptCharge

	older          bool // calls at older times, instead of changes of the limit
	evicts         bool // another key takes the room of the one
	lost           int  // reservations of evicted keys that were settled
	exact, settled int
}

// reservationLimits have whole and uneven intervals, down to less than a ns, where the
// rounding shows.
var reservationLimits = []Limit{
	PerSecond(1).WithBurst(1), PerSecond(1).WithBurst(3), PerSecond(10).WithBurst(5), PerSecond(3).WithBurst(4), PerMinute(7).WithBurst(2),
	Per(7, 10).WithBurst(4), Per(2, 3).WithBurst(5), Per(3, 2).WithBurst(7), Per(1, 1).WithBurst(6), Per(5, 7).WithBurst(1), Per(1000, 999).WithBurst(3),
}

func newReservationTracer(tb testing.TB, rng *rand.Rand, disturbed, evicts bool) *reservationTracer {
	at := start
	if rng.IntN(3) == 0 {
		at = time.Unix(0, rng.Int64N(20))
	}
	c := Config{Algorithm: bucketAlgorithms[rng.IntN(len(bucketAlgorithms))], Limit: reservationLimits[rng.IntN(len(reservationLimits))], TTL: 1, Shards: 1}
	if disturbed {
		c.TTL = math.MaxInt64 // a sweep may forgive what an older time still sees
	}
	if evicts {
		c.MaxKeys = 1
	}
	tr := &reservationTracer{trace: &trace{TB: tb, Rng: rng, Cfg: c, Clock: NewManualClock(at)}, evicts: evicts, older: disturbed && rng.IntN(2) == 0}
	tr.Cfg.Clock = tr.Clock
	tr.l = mustNew(tb, tr.Cfg)
	tr.k = tr.l.Key("k")
	tr.model = oracle.NewReservations(oracleConfig(tr.Cfg))
	return tr
}

// full is the tick from which the key is fresh, as the limiter has it.
func (tr *reservationTracer) full() (full uint64) {
	tr.l.update(tr.k.id, func(p *policy, key state) uint64 {
		full = p.bucket().full(key.word)
		return key.word
	})
	s, _ := tr.l.policyOf(tr.k.id).bucket().turns()
	return max(full, s.tick(tr.Clock.Now()))
}

// look compares what the key owes.
func (tr *reservationTracer) look() {
	now := tr.Clock.Now()
	tr.Equal(fromOracle(tr.model.Peek(now, 0)), tr.k.Peek(0), "Peek")
	if tr.k.Peek(0).ResetAfter > 0 {
		tr.Equal(tr.model.TAT().Uint64(), tr.full(), "what is owed")
	}
	tr.model.Rest(now)
}

func (tr *reservationTracer) advance() {
	unit := int64(tr.Cfg.Limit.interval())
	gaps := []int64{0, 0, 0, 0, 1, unit / 2, unit, unit - 1, unit + 1, 2 * unit, 1 + tr.Rng.Int64N(3*unit), tr.Rng.Int64N(10*unit) + 1}
	d := gaps[tr.Rng.IntN(len(gaps))]
	if d > 0 {
		tr.Clock.Advance(time.Duration(d))
	}
	tr.look()
}

func (tr *reservationTracer) cost() int {
	b := tr.Cfg.Limit.burst()
	costs := []int{1, 1, 1, 2, b, 1 + tr.Rng.IntN(b), 0, b + 1, -1}
	return costs[tr.Rng.IntN(len(costs))]
}

func (tr *reservationTracer) reserve() {
	now, cost, most := tr.Clock.Now(), tr.cost(), int64(math.MaxInt64)
	if tr.Rng.IntN(4) == 0 {
		most = tr.Rng.Int64N(5*int64(tr.Cfg.Limit.interval())) - 1
	}
	if wait, out := tr.peekSlot(now, cost); out == oracle.Reserved && tr.Rng.IntN(4) == 0 {
		most = wait - tr.Rng.Int64N(2) // just enough, or 1 ns short of it
	}
	wait, e, out := tr.model.Reserve(now, int64(cost), most)
	tr.Note("reserve %d within %d: %d, %d", cost, most, wait, out)
	r, err := tr.k.Reserve(cost, time.Duration(most))
	want := []error{nil, ErrNegativeCost, ErrCostExceedsBurst, ErrQueueFull, ErrWouldExceedDeadline}[out]
	tr.Equal(want, err, "error")
	if err == nil {
		tr.Equal(time.Duration(wait), r.Delay(), "Delay")
		tr.open = append(tr.open, reservation{r, e})
		tr.used = append(tr.used, e)
	}
	tr.look()
}

// peekSlot is what the model would say, were there no hurry.
func (tr *reservationTracer) peekSlot(now int64, cost int) (wait int64, out oracle.Outcome) {
	wait, e, out := tr.model.Reserve(now, int64(cost), math.MaxInt64)
	tr.model.Undo(e)
	return wait, out
}

func (tr *reservationTracer) settle(debts bool) {
	if len(tr.open) == 0 {
		return
	}
	i := tr.Rng.IntN(len(tr.open))
	rc := tr.open[i]
	if tr.Rng.IntN(3) > 0 { // else it is settled again some time
		tr.open = slices.Delete(tr.open, i, i+1)
	}
	now, actual := tr.Clock.Now(), 0
	switch tr.Rng.IntN(5) {
	case 0:
		actual = rc.r.cost
	case 1:
		actual = tr.Rng.IntN(rc.r.cost + 1)
	case 2:
		if actual = -1; debts {
			actual = rc.r.cost + tr.Rng.IntN(3)
		}
	}
	b := tr.model.Settle(rc.e, now, int64(actual))
	tr.Note("settle %d at slot %d of %d: [%v, %v]", actual, rc.e.Slot(), rc.r.cost, b.Least, b.Most)
	if actual == 0 && tr.Rng.IntN(2) == 0 {
		rc.r.Cancel()
	} else {
		rc.r.Settle(actual)
	}
	tr.settled++
	if actual == 0 && rc.e.Ended() && rc.r.cost > 0 {
		tr.lost++
	}
	if b.Least.Cmp(b.Most) == 0 {
		tr.exact++
	}
	// If the key is fresh, it does not matter since when.
	if full := tr.full(); !tr.model.Observe(full, b) && (tr.k.Peek(0).ResetAfter > 0 || b.Least.Uint64() > full) {
		require.Fail(tr.TB, "not within bounds", "owes %d\n%s", full, tr)
	}
	tr.look()
}

func (tr *reservationTracer) take() {
	now, cost := tr.Clock.Now(), tr.cost()
	if tr.older && tr.Rng.IntN(4) == 0 {
		now = max(0, now-tr.Rng.Int64N(4*int64(tr.Cfg.Limit.interval())))
	}
	want := tr.model.Take(now, int64(cost))
	tr.Note("take %d at %d: %v", cost, now, want.Allowed)
	tr.Equal(fromOracle(want), tr.k.TakeAt(now, cost), "Take")
	if want.Allowed {
		tr.takes = append(tr.takes, keptCharge{time.Duration(now), max(cost, 0)})
	}
	tr.look()
}

// takeReservations takes two charges of the key at once, one of them perhaps of 0, for reservations.
func (tr *reservationTracer) takeReservations() {
	now, cost := tr.Clock.Now(), tr.cost()
	charges := []Charge{{tr.k, cost}}
	if cost >= 0 && tr.Rng.IntN(2) == 0 {
		first := tr.Rng.IntN(cost + 1)
		charges = []Charge{{tr.k, first}, {tr.k, cost - first}}
	}
	want := tr.model.Peek(now, int64(cost))
	tr.Note("take %d of %v with reservations: %v", cost, len(charges), want.Allowed)
	each, all := make([]Decision, len(charges)), make([]*Reservation, len(charges))
	got := TakeAllReservations(all, each, charges...)
	tr.Equal(want.Allowed, got.Allowed, "Allowed")
	for i, r := range all {
		tr.Equal(fromOracle(want), each[i], "Take")
		tr.Equal(want.Allowed, r != nil, "has a reservation")
		if r == nil {
			continue
		}
		tr.Equal(now, r.begins, "At")
		e := tr.model.ReserveFor(now, int64(charges[i].Cost), now)
		tr.open = append(tr.open, reservation{r, e})
		tr.taken = append(tr.taken, e)
	}
	tr.look()
}

// disturb does what a history without refunds, resets and changes does not have.
func (tr *reservationTracer) disturb() {
	now := tr.Clock.Now()
	switch tr.Rng.IntN(6) {
	case 0, 1, 2:
		n := tr.Rng.IntN(4)
		tr.Note("refund %d", n)
		tr.k.Refund(n)
		tr.model.Refund(now, int64(n))
	case 3:
		tr.Note("reset")
		tr.k.Reset()
		tr.model.Reset()
	default:
		if !tr.older {
			tr.changeLimit(now)
		}
	}
	tr.look()
}

// changeLimit changes the key's own limit, or clears it and perhaps changes all keys'.
func (tr *reservationTracer) changeLimit(now int64) {
	limit, own := reservationLimits[tr.Rng.IntN(len(reservationLimits))], tr.Rng.IntN(2) == 0
	tr.Note("limit %v own %v", limit, own)
	adopt := func(l Limit) {
		if l != tr.Cfg.Limit {
			tr.Cfg.Limit = l
			tr.model.SetLimit(now, oracleConfig(tr.Cfg))
		}
	}
	if own {
		require.NoError(tr.TB, tr.l.Key("k").SetLimit(limit))
		adopt(limit)
		return
	}
	tr.l.Key("k").ClearLimit()
	adopt(tr.l.Config().Limit)
	if limit != tr.Cfg.Limit && tr.Rng.IntN(2) == 0 {
		require.NoError(tr.TB, tr.l.SetLimit(limit))
		adopt(limit)
	}
}

// step makes one random call. A disturbed trace has refunds, resets, debts and changes of
// the limit, for which WorstCase does not speak.
func (tr *reservationTracer) step(disturbed bool) {
	switch tr.Rng.IntN(12) {
	case 0, 1, 2:
		tr.reserve()
	case 3:
		tr.takeReservations()
	case 4, 5, 6:
		tr.settle(disturbed)
	case 7:
		tr.take()
	case 8:
		tr.takeReservations()
	case 9:
		if tr.l.KeyUint64(tr.Rng.Uint64N(40)).Allow() && tr.evicts {
			tr.Note("evict")
			tr.model.Evict()
		}
		if !disturbed {
			tr.l.Sweep()
		}
	case 10:
		if disturbed {
			tr.disturb()
		}
	default:
		tr.advance()
	}
}

// checkSpans demands that no closed span holds more than WorstCase of what was used, each
// unit at the time at which its call could begin; and of a LeakyBucket, that no
// reservation begins before the one ahead of it has drained.
func (tr *reservationTracer) checkSpans() {
	all := slices.Clone(tr.takes)
	for _, e := range tr.taken {
		all = append(all, keptCharge{time.Duration(e.Slot()), int(e.Used())})
	}
	var slots []keptCharge
	for _, e := range tr.used {
		slots = append(slots, keptCharge{time.Duration(e.Slot()), int(e.Used())})
	}
	byTime := func(a, b keptCharge) int { return int(max(-1, min(1, a.at-b.at))) }
	all = append(all, slots...)
	slices.SortStableFunc(all, byTime)
	for i, from := range all {
		sum := 0
		for _, to := range all[i:] {
			sum += to.n
			if d := to.at - from.at; sum > tr.l.WorstCase(d) {
				require.LessOrEqual(tr.TB, sum, tr.l.WorstCase(d), "in %v from %d\n%s", d, from.at, tr)
			}
		}
	}
	if tr.Cfg.Algorithm != LeakyBucket {
		return
	}
	s, _ := tr.l.policyOf(0).bucket().turns()
	slices.SortStableFunc(slots, byTime)
	for i := range slots[:max(0, len(slots)-1)] {
		drained := s.tick(int64(slots[i].at)) + s.ticks(slots[i].n)
		if slots[i].n > 0 && slots[i+1].n > 0 {
			require.LessOrEqual(tr.TB, drained, s.tick(int64(slots[i+1].at)), "slots too close\n%s", tr)
		}
	}
}

func TestModel_ReservationsAreExact(t *testing.T) {
	for _, kind := range []string{"plain", "disturbed", "evicted"} {
		t.Run(kind, func(t *testing.T) {
			rng := seeded.Rand(t)
			disturbed, evicts := kind == "disturbed", kind == "evicted"
			exact, settled, lost := 0, 0, 0
			for range depth.Ops() / 100 {
				tr := newReservationTracer(t, rng, disturbed, evicts)
				for range 60 {
					tr.step(disturbed)
				}
				if kind == "plain" {
					tr.checkSpans()
				}
				exact, settled, lost = exact+tr.exact, settled+tr.settled, lost+tr.lost
			}
			t.Logf("%d of %d settlements were exact, %d of evicted keys", exact, settled, lost)
			require.Greater(t, exact, settled/2)
			if evicts {
				require.NotZero(t, lost)
			}
		})
	}
}

// reserveBoth reserves of two keys with one call, and compares with their models.
func reserveBoth(a, b *reservationTracer) {
	traces, costs := []*reservationTracer{a, b}, []int{a.cost(), b.cost()}
	most := time.Duration(math.MaxInt64)
	if a.Rng.IntN(4) == 0 {
		most = time.Duration(a.Rng.Int64N(5 * int64(a.Cfg.Limit.interval())))
	}
	var want error
	var delay int64
	for i, tr := range traces {
		wait, out := tr.peekSlot(tr.Clock.Now(), costs[i])
		err := []error{nil, ErrNegativeCost, ErrCostExceedsBurst, ErrQueueFull, ErrWouldExceedDeadline}[out]
		if err == nil && time.Duration(wait) > most {
			err = ErrWouldExceedDeadline
		}
		if delay = max(delay, wait); want == nil {
			want = err
		}
	}
	all, err := reserveAll(most, Charge{a.k, costs[0]}, Charge{b.k, costs[1]})
	for i, tr := range traces {
		tr.Note("reserve both, %d of this: %v, %d", costs[i], want, delay)
		tr.Equal(want, err, "error")
		if err == nil {
			tr.Equal(time.Duration(delay), all[i].Delay(), "Delay")
			now := tr.Clock.Now()
			e := tr.model.ReserveFor(now, int64(costs[i]), now+delay)
			tr.open = append(tr.open, reservation{all[i], e})
			tr.used = append(tr.used, e)
		}
		tr.look()
	}
}

// TestModel_WaitAllIsExact: all for the latest of the slots, or none.
func TestModel_WaitAllIsExact(t *testing.T) {
	rng := seeded.Rand(t)
	for range depth.Ops() / 200 {
		a, b := newReservationTracer(t, rng, false, false), newReservationTracer(t, rng, false, false)
		for range 40 {
			for _, tr := range []*reservationTracer{a, b} {
				if rng.IntN(2) == 0 {
					tr.step(false)
				}
			}
			reserveBoth(a, b)
		}
		a.checkSpans()
		b.checkSpans()
	}
}
