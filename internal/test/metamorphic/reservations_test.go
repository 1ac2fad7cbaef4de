package metamorphic

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// A windowCharge is one of the charges of a key in a windowReservations.
type windowCharge struct {
	now   int64
	units int                 // less than 0: given back
	r     *sluice.Reservation // nil of a plain charge
	cost  int                 // of r
	ends  int64               // when the window of the charge ends, under sluice.FixedWindowFirstCharge
}

// A windowReservations drives one key through a random trace, and compares it with the history of
// its charges in which those that have been settled were what was used.
type windowReservations struct {
	*trace
	l       *sluice.Limiter
	k       sluice.Key
	history []windowCharge
	settled int
	alike   int // settlements after which the history is met exactly
	partly  int // settlements that gave something back
}

func newWindowReservations(tb testing.TB, rng *rand.Rand, variant variant, evicts bool) *windowReservations {
	c := variant.config()
	rates := []int{1, 3, 10, 100}
	if c.Algorithm == sluice.SlidingWindow {
		rates = append(rates, 40_000) // in two words
	}
	c.Limit = sluice.Per(rates[rng.IntN(len(rates))], []time.Duration{time.Second, 7 * time.Millisecond, time.Minute}[rng.IntN(3)])
	if c.Algorithm == sluice.TokenBucketInterval && rng.IntN(2) == 0 {
		c.Limit.Burst = 1 + rng.IntN(3*c.Limit.Rate)
	}
	if c.Offset != 0 {
		c.Offset = time.Duration(rng.Int64N(int64(c.Limit.Period)))
	}
	if c.TTL, c.Shards = 1, 1; evicts {
		c.MaxKeys = 1
	}
	tr := &windowReservations{trace: &trace{TB: tb, Rng: rng, Clock: sluice.NewManualClock(start)}}
	c.Clock = tr.Clock
	tr.Cfg, tr.l = c, mustNew(tb, c)
	tr.k = tr.l.Key("k")
	return tr
}

// model is the history, replayed.
func (tr *windowReservations) model() *oracle.Model {
	m := traces.NewCounting(oracleConfig(tr.Cfg))
	for _, c := range tr.history {
		if c.units < 0 {
			m.Refund("k", c.now, int64(-c.units))
		} else {
			m.Owe("k", c.now, int64(c.units))
		}
	}
	return m
}

// look compares the key with the history: it is the same, or under TokenBucketInterval at least as
// strict.
func (tr *windowReservations) look() {
	now := tr.Clock.Now()
	got := tr.k.Peek(0)
	want := fromOracle(tr.model().Guess(guess(got)).Peek("k", now, 0))
	if tr.Cfg.Algorithm == sluice.TokenBucketInterval && want != got {
		require.LessOrEqual(tr.TB, got.Remaining, want.Remaining, "Remaining\n%s", tr)
		require.GreaterOrEqual(tr.TB, got.ResetAfter, want.ResetAfter, "ResetAfter\n%s", tr)
	} else {
		tr.Equal(want, got, "Peek")
	}
	if want == got {
		tr.alike++
	}
}

func (tr *windowReservations) take() {
	now, cost := tr.Clock.Now(), 1+tr.Rng.IntN(tr.Cfg.Limit.Capacity())
	if tr.Rng.IntN(2) == 0 {
		cost = 1 + tr.Rng.IntN(min(4, tr.Cfg.Limit.Capacity()))
	}
	if tr.Rng.IntN(3) == 0 {
		ok := tr.k.AllowN(cost)
		if tr.Note("allow %d: %v", cost, ok); ok {
			tr.history = append(tr.history, windowCharge{now: now, units: cost})
		}
		return
	}
	first := tr.Rng.IntN(cost + 1)
	costs, all := []int{first, cost - first}, make([]*sluice.Reservation, 2)
	ok := sluice.TakeAllReservations(all, nil, sluice.Charge{Key: tr.k, Cost: costs[0]}, sluice.Charge{Key: tr.k, Cost: costs[1]}).Allowed
	tr.Note("take %d: %v", costs, ok)
	for i, r := range all {
		tr.Equal(ok, r != nil, "reservation")
		if ok && costs[i] > 0 {
			tr.history = append(tr.history, windowCharge{now: now, units: costs[i], r: r, cost: costs[i], ends: now + int64(tr.k.Peek(0).ResetAfter)})
		}
	}
}

func (tr *windowReservations) settle() {
	var open []int
	for i, c := range tr.history {
		if c.r != nil {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return
	}
	c := &tr.history[open[tr.Rng.IntN(len(open))]]
	r, cost, now, actual := c.r, c.cost, tr.Clock.Now(), tr.Rng.IntN(c.cost+2)
	if tr.Rng.IntN(3) == 0 {
		actual = 0
	}
	if tr.Cfg.Algorithm == sluice.SlidingLog { // which forgets debts beyond its limit
		actual = min(actual, cost)
	}
	before, end := tr.k.Peek(0).Remaining, now+int64(tr.k.Peek(0).ResetAfter)
	r.Settle(actual)
	tr.Note("settle %d of %d", actual, cost)
	c.r = nil
	if unused := cost - min(actual, cost); tr.Cfg.Algorithm != sluice.FixedWindowFirstCharge {
		c.units -= unused
	} else if unused > 0 && c.ends == end { // a window that has begun stays, whoever has begun it
		tr.history = append(tr.history, windowCharge{now: now, units: -unused})
	}
	if actual > cost {
		tr.history = append(tr.history, windowCharge{now: now, units: actual - cost})
	}
	if tr.settled++; tr.k.Peek(0).Remaining > before {
		tr.partly++
	}
	tr.look()
	before = tr.k.Peek(0).Remaining
	r.Cancel()
	tr.Equal(before, tr.k.Peek(0).Remaining, "the second time")
}

// forget ends the history, and with it all reservations.
func (tr *windowReservations) forget(what string) {
	tr.Note(what)
	var open []*sluice.Reservation
	for _, c := range tr.history {
		if c.r != nil {
			open = append(open, c.r)
		}
	}
	tr.history = nil
	tr.take()
	for _, r := range open {
		r.Cancel()
	}
	tr.look()
}

func (tr *windowReservations) step(evicts bool) {
	switch tr.Rng.IntN(10) {
	case 0, 1, 2, 3:
		tr.take()
		tr.look()
	case 4, 5, 6:
		tr.settle()
	case 7:
		tr.l.Sweep()
		tr.look()
	case 8:
		p := int64(tr.Cfg.Limit.Period)
		tr.Clock.Advance(time.Duration([]int64{0, 1, p / 3, p - 1, p, tr.Rng.Int64N(3 * p)}[tr.Rng.IntN(6)]))
		tr.look()
	default:
		switch {
		case tr.Rng.IntN(4) > 0:
		case evicts && tr.l.Allow("another"):
			tr.forget("evicted")
		case !evicts && tr.Cfg.Algorithm != sluice.FixedWindowFirstCharge:
			tr.k.Reset()
			tr.forget("reset")
		}
	}
}

// TestModel_ReservationsOfWindowsAreExact: whatever order the reservations of a key are settled in, it
// is left as if what they gave back had never been charged.
func TestModel_ReservationsOfWindowsAreExact(t *testing.T) {
	for _, variant := range variants {
		if !variant.Windowed() && !variant.Interval {
			continue
		}
		t.Run("variant="+variant.Name(), func(t *testing.T) {
			rng := seeded.Rand(t)
			settled, partly := 0, 0
			for range depth.Ops() / 100 {
				evicts := rng.IntN(3) == 0
				tr := newWindowReservations(t, rng, variant, evicts)
				for range 40 {
					tr.step(evicts)
				}
				settled, partly = settled+tr.settled, partly+tr.partly
			}
			require.Greater(t, partly, settled/4)
		})
	}
}
