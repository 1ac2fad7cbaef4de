package sluice

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/oracle"
	"github.com/sluice-go/sluice/internal/seeded"
	"github.com/sluice-go/sluice/internal/traces"
)

// mustTake is a TakeAllReceipts of one charge that is to be admitted.
func mustTake(t testing.TB, k Key, cost int) *Reservation {
	t.Helper()
	var all [1]*Reservation
	require.True(t, TakeAllReceipts(all[:], nil, Charge{k, cost}).Allowed)
	return all[0]
}

// A windowCharge is one of the charges of a key in a windowReceipts.
type windowCharge struct {
	now   int64
	units int          // less than 0: given back
	r     *Reservation // nil of a plain charge
	ends  int64        // when the window of the charge ends, with AnchorFirstCharge
}

// A windowReceipts drives one key through a random trace, and compares it with the history of
// its charges in which those that have been settled were what was used.
type windowReceipts struct {
	*trace
	l       *Limiter
	k       Key
	history []windowCharge
	settled int
	alike   int // settlements after which the history is met exactly
	partly  int // settlements that gave something back
}

func newWindowReceipts(tb testing.TB, rng *rand.Rand, variant Config, evicts bool) *windowReceipts {
	c := variant
	rates := []int{1, 3, 10, 100}
	if c.Algorithm == SlidingWindow {
		rates = append(rates, 40_000) // in two words
	}
	c.Limit = Per(rates[rng.IntN(len(rates))], []time.Duration{sec, 7 * ms, time.Minute}[rng.IntN(3)])
	if c.Refill == RefillInterval && rng.IntN(2) == 0 {
		c.Limit.Burst = 1 + rng.IntN(3*c.Limit.Rate)
	}
	if c.Offset != 0 {
		c.Offset = time.Duration(rng.Int64N(int64(c.Limit.Period)))
	}
	if c.TTL, c.Shards = 1, 1; evicts {
		c.MaxKeys = 1
	}
	tr := &windowReceipts{trace: &trace{TB: tb, Rng: rng, Clock: NewManualClock(start)}}
	c.Clock = tr.Clock
	tr.Cfg, tr.l = c, mustNew(tb, c)
	tr.k = tr.l.Key("k")
	return tr
}

// model is the history, replayed.
func (tr *windowReceipts) model() *oracle.Model {
	m := traces.NewCounting(oracleConfig(tr.Cfg))
	for _, c := range tr.history {
		if c.units < 0 {
			m.Refund("k", c.now, int64(-c.units))
		} else {
			m.Debit("k", c.now, int64(c.units))
		}
	}
	return m
}

// look compares the key with the history: it is the same, or under RefillInterval at least as
// strict.
func (tr *windowReceipts) look() {
	now := tr.Clock.Now()
	got := tr.k.Peek(0)
	want := fromOracle(tr.model().Guess(guess(got)).Peek("k", now, 0))
	if tr.Cfg.Refill == RefillInterval && want != got {
		require.LessOrEqual(tr.TB, got.Remaining, want.Remaining, "Remaining\n%s", tr)
		require.GreaterOrEqual(tr.TB, got.ResetAfter, want.ResetAfter, "ResetAfter\n%s", tr)
	} else {
		tr.Equal(want, got, "Peek")
	}
	if want == got {
		tr.alike++
	}
}

func (tr *windowReceipts) take() {
	now, cost := tr.Clock.Now(), 1+tr.Rng.IntN(tr.Cfg.Limit.burst())
	if tr.Rng.IntN(2) == 0 {
		cost = 1 + tr.Rng.IntN(min(4, tr.Cfg.Limit.burst()))
	}
	if tr.Rng.IntN(3) == 0 {
		ok := tr.k.AllowN(cost)
		if tr.Note("allow %d: %v", cost, ok); ok {
			tr.history = append(tr.history, windowCharge{now: now, units: cost})
		}
		return
	}
	first := tr.Rng.IntN(cost + 1)
	all := make([]*Reservation, 2)
	ok := TakeAllReceipts(all, nil, Charge{tr.k, first}, Charge{tr.k, cost - first}).Allowed
	tr.Note("take %d and %d: %v", first, cost-first, ok)
	for _, r := range all {
		tr.Equal(ok, r != nil, "receipt")
		if ok && r.cost > 0 {
			tr.history = append(tr.history, windowCharge{now: now, units: r.cost, r: r, ends: now + int64(tr.k.Peek(0).ResetAfter)})
		}
	}
}

func (tr *windowReceipts) settle() {
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
	r, now, actual := c.r, tr.Clock.Now(), tr.Rng.IntN(c.r.cost+2)
	if tr.Rng.IntN(3) == 0 {
		actual = 0
	}
	if tr.Cfg.Algorithm == SlidingLog { // which forgets debts beyond its limit
		actual = min(actual, r.cost)
	}
	before, end := tr.k.Peek(0).Remaining, now+int64(tr.k.Peek(0).ResetAfter)
	r.Settle(actual)
	tr.Note("settle %d of %d", actual, r.cost)
	c.r = nil
	if unused := r.cost - min(actual, r.cost); tr.Cfg.Anchor != AnchorFirstCharge {
		c.units -= unused
	} else if unused > 0 && c.ends == end { // a window that has begun stays, whoever has begun it
		tr.history = append(tr.history, windowCharge{now: now, units: -unused})
	}
	if actual > r.cost {
		tr.history = append(tr.history, windowCharge{now: now, units: actual - r.cost})
	}
	if tr.settled++; tr.k.Peek(0).Remaining > before {
		tr.partly++
	}
	tr.look()
	before = tr.k.Peek(0).Remaining
	r.Cancel()
	tr.Equal(before, tr.k.Peek(0).Remaining, "the second time")
}

// forget ends the history, and with it all receipts.
func (tr *windowReceipts) forget(what string) {
	tr.Note(what)
	var open []*Reservation
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

func (tr *windowReceipts) step(evicts bool) {
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
		case !evicts && tr.Cfg.Anchor != AnchorFirstCharge:
			tr.k.Reset()
			tr.forget("reset")
		}
	}
}

// TestModel_ReceiptsOfWindowsAreExact: whatever order the receipts of a key are settled in, it
// is left as if what they gave back had never been charged.
func TestModel_ReceiptsOfWindowsAreExact(t *testing.T) {
	for _, variant := range variants {
		if !variant.Algorithm.windowed() && variant.Refill != RefillInterval {
			continue
		}
		t.Run("variant="+variantName(variant), func(t *testing.T) {
			rng := seeded.Rand(t)
			settled, partly := 0, 0
			for range depth.Ops() / 100 {
				evicts := rng.IntN(3) == 0
				tr := newWindowReceipts(t, rng, variant, evicts)
				for range 40 {
					tr.step(evicts)
				}
				settled, partly = settled+tr.settled, partly+tr.partly
			}
			require.Greater(t, partly, settled/4)
		})
	}
}

// TestTakeAllReceipts_Overlapping: many requests of one key are open at once, and all succeed
// in the end. Time that nobody has used while they were open is not saved up for later.
func TestTakeAllReceipts_Overlapping(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		c.Limit.Rate, c.Limit.Period, c.Offset = 10, 10*sec, 0
		if c.Limit.Burst != 0 {
			c.Limit.Burst = 10
		}
		for _, back := range []bool{false, true} {
			l, clock := newFrozen(t, c)
			k := l.Key("k")
			var open []*Reservation
			for range 10 {
				open = append(open, mustTake(t, k, 1))
			}
			clock.Advance(3 * sec)
			for i := range open {
				if back {
					i = len(open) - 1 - i
				}
				open[i].Cancel()
			}
			assert.Equal(t, 10, k.Peek(0).Remaining, "all of it has come back")
			require.True(t, k.AllowN(10))
			for _, r := range open {
				r.Cancel()
			}
			assert.Zero(t, k.Peek(0).Remaining)
		}
	})
}

// TestTakeAllReceipts_AcrossLimits: a change that leaves the windows as they are leaves the
// receipts good.
func TestTakeAllReceipts_AcrossLimits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		for name, change := range map[string]func(l *Limiter, to Limit) error{
			"all": func(l *Limiter, to Limit) error { return l.SetLimit(to) },
			"own": func(l *Limiter, to Limit) error { return l.SetKeyLimit("k", to) },
		} {
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			r, other := mustTake(t, k, 5), mustTake(t, k, 2)
			to := c.Limit
			if to.Burst != 0 {
				to.Burst *= 2
			} else {
				to.Rate *= 2
			}
			require.NoError(t, change(l, to))
			r.Settle(1)
			assert.Equal(t, to.Capacity()-1-2, k.Peek(0).Remaining, name)
			require.NoError(t, change(l, DenyAll))
			other.Cancel()
			require.NoError(t, change(l, to))
			assert.Equal(t, to.Capacity()-1, k.Peek(0).Remaining, name)

			third := mustTake(t, k, 4)
			to.Period *= 3
			require.NoError(t, change(l, to))
			left := k.Peek(0).Remaining
			third.Cancel()
			assert.GreaterOrEqual(t, k.Peek(0).Remaining, left, name)
			assert.LessOrEqual(t, k.Peek(0).Remaining, to.Capacity()-1, name)
		}
	})
}

// TestTakeAllReceipts_NilAndEmpty: there is a receipt for each charge that was made, and for
// none else; one of nothing gives nothing back, and can still be charged.
func TestTakeAllReceipts_NilAndEmpty(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		c.Shadow = true
		shadow, _ := newFrozen(t, c)
		k, other := l.Key("k"), l.Key("other")
		most := c.Limit.Capacity()
		all, each := make([]*Reservation, 4), make([]Decision, 4)
		all[0], all[3] = &Reservation{}, &Reservation{}
		d := TakeAllReceipts(all, each, Charge{k, 1}, Charge{other, most + 1})
		assert.False(t, d.Allowed)
		assert.Equal(t, 1, d.Denied)
		assert.True(t, each[0].Allowed)
		assert.Nil(t, all[0])
		assert.Nil(t, all[1])
		assert.NotNil(t, all[3], "what is beyond the charges is left alone")
		assert.Zero(t, l.Len(), "a denial tracks nothing")

		shadow.AllowN("k", most)
		d = TakeAllReceipts(all, each, Charge{k, 0}, Charge{shadow.Key("k"), 1}, Charge{other, 2})
		assert.True(t, d.Allowed)
		assert.True(t, d.WouldDeny)
		assert.Nil(t, all[1], "nothing was charged")
		all[0].Cancel()
		assert.Equal(t, most, k.Peek(0).Remaining)
		all[0] = nil
		all[2].Settle(3)
		assert.Equal(t, most-3, other.Peek(0).Remaining)

		require.NoError(t, l.SetLimit(Unlimited))
		mustTake(t, k, 5).Cancel()
		mustTake(t, k, 5).Settle(7)
		require.NoError(t, l.SetLimit(c.Limit))
		assert.Equal(t, most, k.Peek(0).Remaining)

		assert.True(t, TakeAllReceipts(nil, nil).Allowed)
		assert.True(t, TakeAllReceipts(nil, nil, Charge{k, 1}).Allowed, "without a place for the receipt")
		assert.Equal(t, most-1, k.Peek(0).Remaining)
	})
}

// TestTakeAllReceipts_WithoutRoom: a key that is admitted without state has nothing to give
// back, and one that is denied for want of room no receipt.
func TestTakeAllReceipts_WithoutRoom(t *testing.T) {
	for _, o := range []Overflow{OverflowAdmitNew, OverflowDenyNew} {
		l, _ := newFrozen(t, Config{Limit: PerSecond(10), MaxKeys: 1, Shards: 1, Overflow: o})
		require.True(t, l.Allow("first"))
		all := make([]*Reservation, 1)
		require.Equal(t, o == OverflowAdmitNew, TakeAllReceipts(all, nil, Charge{l.Key("k"), 3}).Allowed)
		require.Equal(t, o == OverflowAdmitNew, all[0] != nil)
		if all[0] != nil {
			all[0].Cancel()
		}
		require.Equal(t, 10, l.Peek("k", 0).Remaining)
		require.Equal(t, 9, l.Peek("first", 0).Remaining)
	}
}

// TestTakeAllReceipts_LeavesNoRecords once all have been settled, nor after denials.
func TestTakeAllReceipts_LeavesNoRecords(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		k := l.Key("k")
		var open []*Reservation
		for range 5 {
			open = append(open, mustTake(t, k, 1))
		}
		require.NotNil(t, l.ledgers.of(k.id).find(k.id))
		for _, r := range open {
			r.Settle(1)
		}
		require.Nil(t, l.ledgers.of(k.id).find(k.id))
		require.False(t, TakeAllReceipts(nil, nil, Charge{k, -1}).Allowed)
		require.Nil(t, l.ledgers.of(k.id).find(k.id))
	})
}

// TestConcurrent_ReceiptsGiveBackWhatTheyTook: goroutines take and give back at once, with a
// clock that stands still, while tables grow and keys get limits of their own. In the end all is
// there, and never has more been admitted than there was.
func TestConcurrent_ReceiptsGiveBackWhatTheyTook(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		keys := []Key{l.Key("a"), l.Key("b")}
		most := c.Limit.Capacity()
		goDo(4, func(g int) {
			for i := range 300 {
				first, second := keys[g%2], keys[(g+1)%2]
				all := make([]*Reservation, 2)
				d := TakeAllReceipts(all, nil, Charge{first, 1}, Charge{second, 2})
				if d.Allowed {
					all[0].Cancel()
					all[1].Cancel()
				}
				switch {
				case g == 0 && i%10 == 0:
					_ = first.SetLimit(c.Limit)
					first.ClearLimit()
				case g == 1:
					l.KeyUint64(uint64(i)).Allow()
				}
			}
		})()
		for _, k := range keys {
			require.Equal(t, most, k.Peek(0).Remaining)
		}
	})
}

// TestTakeAllReceipts_ManyCharges: more than fit into its own space, each with its receipt.
func TestTakeAllReceipts_ManyCharges(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		var charges []Charge
		for i := range 30 {
			charges = append(charges, Charge{l.KeyUint64(uint64(i % 20)), 1})
		}
		all := make([]*Reservation, len(charges))
		require.True(t, TakeAllReceipts(all, nil, charges...).Allowed)
		for i, r := range all {
			require.NotNil(t, r, "charge %d", i)
			r.Cancel()
		}
		for _, charge := range charges {
			require.Equal(t, c.Limit.Capacity(), charge.Key.Peek(0).Remaining)
		}
	})
}

// TestTakeAllReceipts_AfterABlock that is over, and that nobody has swept: its end is not taken
// for what the key owes.
func TestTakeAllReceipts_AfterABlock(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, clock := newFrozen(t, c)
		k := l.Key("k")
		k.Allow()
		require.True(t, k.Block(sec))
		clock.Advance(k.Peek(0).ResetAfter + sec)
		most := c.Limit.Capacity()
		first, second := mustTake(t, k, 2), mustTake(t, k, 3)
		first.Cancel()
		require.Equal(t, most-3, k.Peek(0).Remaining)
		second.Cancel()
		require.Equal(t, most, k.Peek(0).Remaining)
	})
}

// TestTakeAllReceipts_OfUnitsThatWereRefunded: what a log has struck out is not given back a second
// time, and units of other times are left alone.
func TestTakeAllReceipts_OfUnitsThatWereRefunded(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: SlidingLog, Limit: PerMinute(10)})
	k := l.Key("k")
	require.True(t, k.AllowN(3))
	clock.Advance(sec)
	r := mustTake(t, k, 4)
	k.Refund(3)
	require.Equal(t, 6, k.Peek(0).Remaining)
	other := mustTake(t, k, 0)
	r.Cancel()
	require.Equal(t, 7, k.Peek(0).Remaining, "one unit of its own was left")
	other.Cancel()
	r = mustTake(t, k, 2)
	k.Refund(2)
	clock.Advance(sec)
	require.True(t, k.Allow())
	r.Cancel()
	require.Equal(t, 6, k.Peek(0).Remaining, "none was left")
}
