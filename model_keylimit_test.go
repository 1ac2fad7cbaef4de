package sluice

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/oracle"
	"github.com/sluice-go/sluice/internal/seeded"
)

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
