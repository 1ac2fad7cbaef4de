package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/oracle"
	"github.com/sluice-go/sluice/internal/seeded"
	"github.com/stretchr/testify/require"
)

// A changer drives a limiter, the same limiter swept after every call, and their model
// through changes of the limit, with calls in between.
type changer struct {
	*trace
	lims   [2]*Limiter // as it is, and swept
	model  *oracle.Model
	limits []Limit // that it changes between
	kept   bool    // what is idle is not swept
	keys   []string

	changes, allowed, denied int

	own map[string]bool // keys with a limit of their own
}

// changeLimits draws limits of few units, or for sliding windows also so many that the
// counts take two words, over periods that often are the same.
func changeLimits(rng *rand.Rand, c Config) []Limit {
	periods := []time.Duration{999, time.Millisecond, time.Second, time.Second, 7 * time.Second, time.Minute, time.Hour, day}
	period := periods[rng.IntN(len(periods))]
	var all []Limit
	for range 3 + rng.IntN(2) {
		others := []time.Duration{period, period, period, 2 * period, period/3 + 1, 7 * period, period/2 + time.Duration(rng.Int64N(int64(2*period)))}
		l := Per(1+rng.IntN(12), others[rng.IntN(len(others))])
		switch {
		case c.Algorithm <= LeakyBucket && rng.IntN(4) > 0:
			l.Burst = 1 + rng.IntN(20)
		case c.Algorithm == SlidingWindow && rng.IntN(3) == 0 && l.Period >= time.Second:
			l.Rate = 1 + rng.IntN(3_000_000)
		case rng.IntN(6) == 0:
			l.Rate = 1 + rng.IntN(100)
		}
		all = append(all, l)
	}
	return all
}

// withPenalty draws what denied calls do.
func withPenalty(rng *rand.Rand, c Config) Config {
	if c.Algorithm.windowed() && rng.IntN(3) == 0 {
		c.CountDenied = true
	}
	if rng.IntN(3) == 0 {
		c.BlockFor = c.Limit.Period/3 + time.Duration(rng.IntN(5))
	}
	return c
}

// newChanger begins with any of its limits, or with the largest rate of them.
func newChanger(tb testing.TB, rng *rand.Rand, variant Config, clock *ManualClock, largest bool) *changer {
	c := variant
	for {
		ch := &changer{trace: &trace{TB: tb, Rng: rng, Clock: clock}, keys: []string{"a", "b", "c"}, own: map[string]bool{}}
		ch.limits = changeLimits(rng, c)
		if largest {
			slices.SortFunc(ch.limits, func(a, b Limit) int { return b.Rate - a.Rate })
		}
		c.Limit, c.Clock, c.TTL, c.Shards = ch.limits[0], clock, 1, 1+rng.IntN(20)
		if c = withPenalty(rng, c); c.CountDenied && c.Algorithm == SlidingWindow {
			// Two windows of denied calls are more than any limit. Where they are put into
			// one, only as much as the largest limit is sure to be kept.
			for i := range ch.limits {
				ch.limits[i].Period = c.Limit.Period
			}
		}
		for _, l := range ch.limits {
			// A log remembers more than what counts, and a longer period makes it count again
			// in a key that has not been swept meanwhile.
			ch.kept = ch.kept || c.Algorithm == SlidingLog && l.Period != c.Limit.Period
		}
		if variant.Offset != 0 {
			least := c.Limit.Period
			for _, l := range ch.limits {
				least = min(least, l.Period)
			}
			c.Offset = time.Duration(rng.Int64N(int64(least)))
		}
		if rng.IntN(4) == 0 {
			c.Soft = 1 + rng.IntN(5)
		} else {
			ch.limits = append(ch.limits, Unlimited, DenyAll)
		}
		valid := true
		for _, l := range ch.limits {
			c.Limit = l
			_, err := New(c)
			valid = valid && err == nil
		}
		if !valid {
			c = variant
			continue
		}
		c.Limit = ch.limits[0]
		if ch.kept {
			c.TTL = math.MaxInt64
		}
		ch.Cfg, ch.model = c, oracle.New(oracleConfig(c))
		ch.lims[0] = mustNew(tb, c)
		ch.lims[1] = mustNew(tb, c)
		return ch
	}
}

func (ch *changer) now() int64 { return ch.Clock.Now() }

// soft makes of a model's decision what Config.Soft does.
func (ch *changer) soft(o oracle.Decision, cost int) Decision {
	d := fromOracle(o)
	if n := ch.Cfg.Soft; n > 0 {
		after := d.Remaining
		if cost == 0 {
			after--
		}
		d.OverSoft = d.Allowed && after < n
		d.Limit, d.Remaining = d.Limit-n, max(0, d.Remaining-n)
	}
	return d
}

// look compares what a Peek for each key sees.
func (ch *changer) look(what string) {
	for _, key := range ch.keys {
		for _, cost := range []int{0, 1 + ch.Rng.IntN(20)} {
			want := ch.soft(ch.model.Peek(key, ch.now(), int64(cost)), cost)
			ch.Equal(want, ch.lims[0].Peek(key, cost), "Peek of "+key+" "+what)
			ch.Equal(want, ch.lims[1].Peek(key, cost), "Peek of "+key+" after a sweep "+what)
		}
	}
	ch.sweep()
}

func (ch *changer) sweep() {
	if !ch.kept {
		ch.lims[1].Sweep()
	}
}

// both does something to both limiters.
func (ch *changer) both(f func(*Limiter)) {
	f(ch.lims[0])
	f(ch.lims[1])
}

func (ch *changer) draw() Limit { return ch.limits[ch.Rng.IntN(len(ch.limits))] }

// with is the config under another limit.
func (ch *changer) with(l Limit) oracle.Config {
	c := ch.Cfg
	c.Limit = l
	return oracleConfig(c)
}

func (ch *changer) setLimit() {
	l := ch.draw()
	ch.Note("SetLimit %v", l)
	ch.both(func(lim *Limiter) {
		require.NoError(ch.TB, lim.SetLimit(l))
		require.Equal(ch.TB, l, lim.Config().Limit)
	})
	ch.model.SetLimit(ch.now(), ch.with(l))
	ch.changes++
	ch.look("after SetLimit")
}

// cost draws one for key, which may have a larger or smaller limit than others.
func (ch *changer) cost(key string) int {
	l := ch.lims[0]
	b := int(l.policyOf(0).burst)
	if ch.Rng.IntN(3) > 0 {
		b = int(l.policyOf(l.Key(key).id).burst)
	}
	costs := []int{1, 1, 1, 2, 3, b, b, b / 2, b - 1, b + 1, 0, -1, math.MaxInt, 1 + ch.Rng.IntN(20), 1 + ch.Rng.IntN(max(1, b))}
	return costs[ch.Rng.IntN(len(costs))]
}

func (ch *changer) take(key string) {
	cost := ch.cost(key)
	if left := ch.lims[0].Peek(key, 0).Remaining; ch.Rng.IntN(4) == 0 {
		cost = left + ch.Rng.IntN(2) // the edge
	}
	want := ch.soft(ch.model.Take(key, ch.now(), int64(cost)), cost)
	ch.Note("Take %s %d: %+v", key, cost, want)
	ch.Equal(want, ch.lims[0].Take(key, cost), "Take")
	ch.Equal(want, ch.lims[1].Take(key, cost), "Take after a sweep")
	if want.Allowed {
		ch.allowed++
	} else {
		ch.denied++
	}
}

// other does to key what is no decision.
func (ch *changer) other(key string) {
	switch ch.Rng.IntN(8) {
	case 0, 1, 2, 3:
		cost := ch.cost(key)
		ch.Note("Refund %s %d", key, cost)
		ch.model.Refund(key, ch.now(), int64(cost))
		ch.both(func(l *Limiter) { l.Key(key).Refund(cost) })
	case 4:
		ch.Note("Reset %s", key)
		ch.model.Reset(key)
		ch.both(func(l *Limiter) { l.Reset(key) })
	case 5:
		d := 1 + time.Duration(ch.Rng.Int64N(int64(2*ch.Cfg.Limit.Period)))
		want := ch.model.Block(key, ch.now(), int64(d))
		ch.Note("Block %s for %d", key, d)
		ch.both(func(l *Limiter) { require.Equal(ch.TB, want, l.Block(key, d), "%s", ch) })
	case 6:
		ch.Note("Unblock %s", key)
		ch.model.Unblock(key)
		ch.both(func(l *Limiter) { l.Key(key).Unblock() })
	case 7:
		ch.charge(key)
	}
}

// charge makes a debt, but none that the words of another limit have no room for, nor one on
// top of another.
func (ch *changer) charge(key string) {
	for _, l := range ch.limits {
		tight := l.Period < time.Millisecond || l.Rate > 1000 && l != Unlimited
		if tight && (ch.Cfg.Algorithm.windowed() || ch.Cfg.Algorithm == TokenBucketInterval) {
			return
		}
	}
	if ch.lims[0].Peek(key, 0).Remaining == 0 {
		return
	}
	b := int(ch.lims[0].policyOf(ch.lims[0].Key(key).id).burst)
	cost := 1 + ch.Rng.IntN(2*max(1, b))
	want := ch.soft(ch.model.Charge(key, ch.now(), int64(cost)), 0)
	ch.Note("Charge %s %d: %+v", key, cost, want)
	ch.both(func(l *Limiter) { ch.Equal(want, l.Charge(key, cost), "Charge") })
}

// takeUpTo takes as much as there is of more or less than that.
func (ch *changer) takeUpTo(key string) {
	cost := ch.cost(key)
	n, d := ch.model.TakeUpTo(key, ch.now(), int64(cost))
	asked := int(n)
	if cost > 0 {
		asked = max(asked, 1)
	}
	want := ch.soft(d, min(asked, cost))
	ch.Note("TakeUpTo %s %d: %d %+v", key, cost, n, want)
	ch.both(func(l *Limiter) {
		taken, got := l.Key(key).TakeUpTo(cost)
		ch.Equal(want, got, "TakeUpTo")
		require.Equal(ch.TB, int(n), taken, "%s", ch)
	})
}

// advance moves on, often to just before or at a moment at which something changes.
func (ch *changer) advance() {
	l := ch.limits[ch.Rng.IntN(3)] // none without periods
	period := int64(l.Period)
	edge := period - (ch.now()-int64(ch.Cfg.Offset))%period
	key := ch.keys[ch.Rng.IntN(len(ch.keys))]
	d := ch.lims[0].Peek(key, 1+ch.Rng.IntN(5))
	gaps := []int64{
		0, 0, 0, 1, int64(l.interval()), int64(l.interval()) - 1, edge, edge - 1, period, period - 1,
		period / 3, ch.Rng.Int64N(period), ch.Rng.Int64N(2*period + 1), int64(d.RetryAfter), int64(d.RetryAfter) - 1, int64(d.ResetAfter), int64(d.ResetAfter) - 1,
	}
	if gap := gaps[ch.Rng.IntN(len(gaps))]; gap > 0 && gap < int64(400*day) {
		ch.Clock.Advance(time.Duration(gap))
	}
}

func (ch *changer) step() {
	if ch.now() < start.UnixNano()+int64(20*365*day) {
		ch.advance()
	}
	key := ch.keys[ch.Rng.IntN(len(ch.keys))]
	switch ch.Rng.IntN(8) {
	case 0:
		ch.setLimit()
	case 1:
		ch.other(key)
	case 2:
		ch.takeUpTo(key)
	default:
		ch.take(key)
	}
	ch.sweep()
}

// TestModel_SetLimitIsExact compares every decision before and after changes of the
// limit with the models, and with a limiter that is swept after every call.
func TestModel_SetLimitIsExact(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variantName(variant), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			changes, allowed, denied := 0, 0, 0
			for range max(10, depth.Ops()/8000) {
				ch := newChanger(t, rng, variant, NewManualClock(start), false)
				for range 120 {
					ch.step()
				}
				changes, allowed, denied = changes+ch.changes, allowed+ch.allowed, denied+ch.denied
			}
			require.Greater(t, allowed, denied/10, "the traces must reach both")
			require.Greater(t, denied, allowed/10, "the traces must reach both")
			require.Greater(t, changes, 10)
		})
	}
}

// A planner drives one or two changers on one clock, whose keys now and then have limits
// of their own, and makes charges that mix their keys.
type planner struct {
	rng *rand.Rand
	all []*changer

	mixed int // charges of keys with limits of their own and without, admitted together
}

func newPlanner(tb testing.TB, rng *rand.Rand, variant Config) *planner {
	clock := NewManualClock(start)
	p := &planner{rng: rng, all: []*changer{newPlanChanger(tb, rng, variant, clock)}}
	if rng.IntN(2) == 0 {
		p.all = append(p.all, newPlanChanger(tb, rng, variants[rng.IntN(len(variants))], clock))
	}
	return p
}

// newPlanChanger: the logs of a limiter have room for its own largest limit, and here all
// have had it from the start.
func newPlanChanger(tb testing.TB, rng *rand.Rand, variant Config, clock *ManualClock) *changer {
	return newChanger(tb, rng, variant, clock, variant.Algorithm == SlidingLog)
}

// setKeyLimit gives key a limit of its own, or takes it away.
func (ch *changer) setKeyLimit(key string) {
	if ch.Rng.IntN(3) == 0 {
		ch.Note("ClearKeyLimit %s", key)
		ch.both(func(l *Limiter) { l.ClearKeyLimit(key) })
		ch.model.ClearKeyLimit(key, ch.now())
		delete(ch.own, key)
	} else {
		l := ch.draw()
		ch.Note("SetKeyLimit %s %v", key, l)
		ch.both(func(lim *Limiter) {
			if ch.Rng.IntN(2) == 0 {
				require.NoError(ch.TB, lim.SetKeyLimit(key, l))
			} else {
				require.NoError(ch.TB, lim.Key(key).SetLimit(l))
			}
			require.Equal(ch.TB, l, lim.Key(key).Limit())
		})
		ch.model.SetKeyLimit(key, ch.now(), ch.with(l))
		ch.own[key] = true
	}
	ch.changes++
	ch.look("after SetKeyLimit")
	ch.both(func(l *Limiter) { checkCells(ch.TB, l, ch.keys, ch.own) })
	if ch.sweep(); !ch.kept {
		busy := 0
		for _, key := range ch.keys {
			if !ch.own[key] && !ch.model.Idle(key, ch.now()) {
				busy++
			}
		}
		require.Equal(ch.TB, busy, ch.lims[1].Len(), "Len\n%s", ch)
		require.Equal(ch.TB, busy, ch.lims[1].Stats().Keys)
	}
}

// takeAll makes one charge of several keys and compares.
func (p *planner) takeAll() {
	var charges [2][]Charge
	var model []oracle.Charge
	own, plain := 0, 0
	for range p.rng.IntN(7) {
		ch := p.all[p.rng.IntN(len(p.all))]
		if ch.Cfg.Soft > 0 {
			continue // the models know nothing of it
		}
		key := ch.keys[p.rng.IntN(len(ch.keys))]
		cost := 1 + p.rng.IntN(3)
		if p.rng.IntN(3) == 0 {
			cost = ch.cost(key)
		}
		for i, l := range ch.lims {
			charges[i] = append(charges[i], Charge{l.Key(key), cost})
		}
		model = append(model, oracle.Charge{Model: ch.model, Key: key, Now: ch.now(), Cost: int64(cost)})
		ch.Note("in a TakeAll: %s %d", key, cost)
		if ch.own[key] {
			own++
		} else {
			plain++
		}
	}
	d := oracle.TakeAll(model)
	want := AllDecision{Allowed: d.Allowed, Denied: d.Denied, Remaining: int(min(d.Remaining, math.MaxInt)), RetryAfter: time.Duration(d.RetryAfter)}
	for i := range charges {
		if got := TakeAll(charges[i]...); want != got {
			s := ""
			for _, ch := range p.all {
				s += ch.String() + "\n"
			}
			require.Equal(p.all[0].TB, want, got, "TakeAll of %+v, swept %v\n%s", model, i == 1, s)
		}
	}
	if want.Allowed && own > 0 && plain > 0 {
		p.mixed++
	}
	for _, ch := range p.all {
		ch.sweep()
	}
}

// TestModel_SetKeyLimitIsExact compares every decision with the models, while keys get
// and lose limits of their own and the limiter's changes, and with a limiter that is
// swept after every call.
func TestModel_SetKeyLimitIsExact(t *testing.T) {
	for _, variant := range variants {
		t.Run(fmt.Sprint("variant=", variantName(variant)), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			changes, allowed, denied, mixed := 0, 0, 0, 0
			for range max(10, depth.Ops()/15_000) {
				p := newPlanner(t, rng, variant)
				for range 120 {
					ch := p.all[rng.IntN(len(p.all))]
					switch rng.IntN(6) {
					case 0:
						ch.setKeyLimit(ch.keys[rng.IntN(len(ch.keys))])
					case 1:
						p.takeAll()
					default:
						ch.step()
					}
				}
				ch := p.all[0]
				changes, allowed, denied, mixed = changes+ch.changes, allowed+ch.allowed, denied+ch.denied, mixed+p.mixed
			}
			require.Greater(t, allowed, denied/10, "the traces must reach both")
			require.Greater(t, denied, allowed/10, "the traces must reach both")
			require.Greater(t, changes, 10)
			require.True(t, testing.Short() || mixed > 0, "no TakeAll admitted keys with and without limits of their own")
		})
	}
}
