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

// A limitTracer drives one limiter and its model through keys with limits of their own, and calls
// that bring limits. It knows whose limit a key is under, since a change to another one drops what
// is idle.
type limitTracer struct {
	*changer
	l     *Limiter
	older bool  // calls have older times
	evict bool  // there are more keys than MaxKeys
	floor int64 // no call is older: what was idle then may have been dropped

	on            map[string]any // the Limit that a key is kept on
	at            map[string]any // what it is under, likewise; nil is the limiter's own
	evicts, moves int
}

// A tracedKey is the Limit that a call brings, or nil, and a key with it.
type tracedKey struct {
	brings any
	key    string
	with   Key
}

func newLimitTracer(t *testing.T, rng *rand.Rand, variant Config) *limitTracer {
	p := &limitTracer{
		changer: newPlanChanger(t, rng, variant, NewManualClock(start)),
		on:      map[string]any{}, at: map[string]any{},
	}
	c := p.Cfg
	switch rng.IntN(3) {
	case 0:
		p.older, c.TTL = true, math.MaxInt64
	case 1:
		if c.Algorithm == InFlight {
			break // evicts no keys
		}
		p.evict, c.MaxKeys = true, 1+rng.IntN(2)
		p.keys = append(p.keys, "d", "e")
	}
	p.l = mustNew(t, c)
	p.lims = [2]*Limiter{p.l, p.l}
	p.floor = p.now()
	return p
}

// under puts a key of m under the terms of a call that brings some, or nil. A key that is kept
// on nothing and idle is forgotten first, and with it how its units came back.
func (p *limitTracer) under(m *oracle.Model, key string, brings any) (terms any) {
	if terms = brings; terms == nil {
		terms = p.on[key]
	}
	if terms == p.at[key] {
		return terms
	}
	if p.on[key] == nil && m.Idle(key, p.now()) {
		m.ClearKeyLimit(key, p.now())
	}
	if terms == nil {
		m.ClearKeyLimit(key, p.now())
	} else {
		m.SetKeyLimit(key, p.now(), p.with(terms.(Limit)))
	}
	return terms
}

// goBy is under of a call that is being made.
func (p *limitTracer) goBy(key string, brings any) {
	if terms := p.under(p.model, key, brings); terms != p.at[key] {
		p.at[key] = terms
		p.floor = p.now()
		p.moves++
	}
}

// settle looks what has been dropped: only what is idle, or at MaxKeys a key that is kept on
// nothing, which is fresh again.
func (p *limitTracer) settle() {
	own := map[string]bool{}
	for _, key := range p.keys {
		id := p.l.Key(key).id
		at := p.l.locate(id)
		if p.on[key] != nil {
			own[key] = true
		}
		if at.slot != nil {
			continue
		}
		if !p.model.Idle(key, p.now()) {
			require.True(p.TB, p.evict && p.on[key] == nil, "%s has been forgotten\n%s", key, p)
			p.Note("%s is evicted", key)
			p.model.Reset(key)
			p.evicts++
		}
		if p.on[key] == nil {
			p.model.ClearKeyLimit(key, p.now())
			delete(p.at, key)
		}
	}
	require.LessOrEqual(p.TB, p.l.Len(), p.l.Config().MaxKeys)
	checkCells(p.TB, p.l, p.keys, own)
}

// look compares what calls see that bring nothing, and what others see that bring a limit.
func (p *limitTracer) look() {
	for _, key := range p.keys {
		for _, tok := range []tracedKey{{nil, key, p.l.Key(key)}, p.draws(key)} {
			cost := p.Rng.IntN(20)
			m := p.model.Clone()
			p.under(m, key, tok.brings)
			want := p.soft(m.Peek(key, p.now(), int64(cost)), cost)
			p.Equal(want, tok.with.Peek(cost), fmt.Sprintf("Peek of %s by %v", key, tok.brings))
		}
	}
}

// draws returns key with a limit that its calls bring, or with none.
func (p *limitTracer) draws(key string) tracedKey {
	k := p.l.Key(key)
	if p.Rng.IntN(2) == 0 {
		limit := p.draw()
		with, err := k.WithLimit(limit)
		require.NoError(p.TB, err)
		require.Equal(p.TB, limit, with.Limit())
		return tracedKey{limit, key, with}
	}
	return tracedKey{nil, key, k}
}

// clear follows ClearKeyLimit.
func (p *limitTracer) clear(key string) {
	delete(p.on, key)
	delete(p.at, key)
	p.model.ClearKeyLimit(key, p.now())
}

// setKey gives key a limit of its own, a plan, or none.
func (p *limitTracer) setKey(key string) {
	var terms any = p.draw()
	if p.Rng.IntN(3) == 0 {
		p.Note("ClearKeyLimit %s", key)
		if p.l.ClearKeyLimit(key); p.on[key] != nil {
			p.clear(key)
		}
		return
	}
	p.Note("SetKeyLimit %s %v", key, terms)
	require.NoError(p.TB, p.l.SetKeyLimit(key, terms.(Limit)))
	require.Equal(p.TB, terms.(Limit), p.l.Key(key).Limit())
	if p.on[key] != terms {
		p.on[key], p.at[key] = terms, terms
		p.model.SetKeyLimit(key, p.now(), p.with(terms.(Limit)))
	}
}

// takeBy makes a call, perhaps one of an older time, and returns what it was admitted.
func (p *limitTracer) takeBy(tok tracedKey) (admitted int) {
	key, cost := tok.key, p.cost(tok.key)
	p.goBy(key, tok.brings)
	if left := tok.with.Peek(0).Remaining; p.Rng.IntN(3) == 0 {
		cost = left + p.Rng.IntN(2) // the edge
	}
	now := p.now()
	if p.older && p.Rng.IntN(2) == 0 {
		now -= p.Rng.Int64N(now - p.floor + 1)
	}
	want := p.soft(p.model.Take(key, now, int64(cost)), cost)
	p.Note("%d ago: Take %s %d by %v: %+v", p.now()-now, key, cost, tok.brings, want)
	if p.Rng.IntN(3) == 0 {
		require.Equal(p.TB, want.Allowed, tok.with.AllowAt(now, cost), "Allow\n%s", p)
	} else {
		p.Equal(want, tok.with.TakeAt(now, cost), "Take")
	}
	if !want.Allowed {
		p.denied++
		return 0
	}
	p.allowed++
	return max(cost, 0)
}

// alternate lets a client's token alternate at one instant. Whatever the order of its limits
// is, it is admitted no more than the largest.
func (p *limitTracer) alternate(key string) {
	p.Note("Reset %s", key)
	p.l.Reset(key)
	p.model.Reset(key)
	p.floor = p.now()
	sum, most := 0, 0
	for range 12 {
		tok := p.draws(key)
		limit := tok.with.Limit()
		if limit == Unlimited {
			continue
		}
		most = max(most, limit.Rate, limit.Burst)
		sum += p.takeBy(tok)
		p.settle()
	}
	require.LessOrEqual(p.TB, sum, most+p.Cfg.Soft, "a gift\n%s", p)
}

// takeAll charges some keys, or at MaxKeys one, with different limits for the same key.
func (p *limitTracer) takeAll() {
	if p.Cfg.Soft > 0 {
		return // the models know nothing of it
	}
	var charges []Charge
	var model []oracle.Charge
	first := map[string]bool{}
	key := p.keys[p.Rng.IntN(len(p.keys))]
	for range 1 + p.Rng.IntN(4) {
		if !p.evict {
			key = p.keys[p.Rng.IntN(len(p.keys))]
		}
		tok, cost := p.draws(key), 1+p.Rng.IntN(4)
		if !first[key] {
			first[key] = true
			p.goBy(key, tok.brings)
		}
		p.Note("in a TakeAll: %s %d by %v", key, cost, tok.brings)
		charges = append(charges, Charge{tok.with, cost})
		model = append(model, oracle.Charge{Model: p.model, Key: key, Now: p.now(), Cost: int64(cost)})
	}
	d := oracle.TakeAll(model)
	want := AllDecision{Allowed: d.Allowed, Denied: d.Denied, Remaining: int(min(d.Remaining, math.MaxInt)), RetryAfter: time.Duration(d.RetryAfter)}
	if got := TakeAll(charges...); want != got {
		require.Equal(p.TB, want, got, "TakeAll\n%s", p)
	}
}

func (p *limitTracer) step() {
	if p.now() < start.UnixNano()+int64(20*365*day) {
		p.advance()
	}
	key := p.keys[p.Rng.IntN(len(p.keys))]
	switch p.Rng.IntN(16) {
	case 0, 1, 2:
		p.setKey(key)
		p.floor = p.now()
	case 3:
		limit := p.draw()
		p.Note("SetLimit %v", limit)
		require.NoError(p.TB, p.l.SetLimit(limit))
		p.model.SetLimit(p.now(), p.with(limit))
		p.floor = p.now()
	case 4:
		if !p.kept {
			p.Note("Sweep")
			p.l.Sweep()
			p.floor = p.now()
		}
	case 5:
		cost := p.cost(key)
		p.Note("Refund %s %d", key, cost)
		p.model.Refund(key, p.now(), int64(cost))
		p.l.Key(key).Refund(cost)
		if p.Cfg.Algorithm == SlidingLog { // how much stricter older times are then is not defined: see the oracle
			p.floor = p.now()
		}
	case 6:
		p.takeAll()
	case 7:
		if !p.evict {
			p.alternate(key)
		}
	default:
		p.takeBy(p.draws(key))
	}
	p.settle()
	if p.Rng.IntN(3) == 0 {
		p.look()
		p.settle()
	}
}

// TestModel_KeyLimitsAreExact compares every decision with the models while keys get limits of their
// own and lose them, and calls bring limits of their own: with older times, with sweeps, and
// with keys that are evicted at MaxKeys.
func TestModel_KeyLimitsAreExact(t *testing.T) {
	for _, variant := range variants {
		t.Run(fmt.Sprint("variant=", variantName(variant)), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			allowed, denied, evicts, moves := 0, 0, 0, 0
			least := max(20, depth.Ops()/10_000)
			// More traces, if these have not reached all: some have hardly any keys to evict.
			for i := 0; i < least || i < 20*least && min(evicts, moves) == 0 && variant.Algorithm != InFlight; i++ {
				p := newLimitTracer(t, rng, variant)
				for range 150 {
					p.step()
				}
				allowed, denied, evicts = allowed+p.allowed, denied+p.denied, evicts+p.evicts
				moves += p.moves
			}
			require.Greater(t, allowed, denied/10, "the traces must reach both")
			require.Greater(t, denied, allowed/10, "the traces must reach both")
			require.True(t, min(evicts, moves) > 0 || variant.Algorithm == InFlight, "the traces must reach all: %d %d", evicts, moves)
		})
	}
}
