package histories

import (
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
)

// An input is a call, when it began and returned, and the times that its clock can have told
// it.
type input struct {
	call
	began, returned int64
	times           []int64
	contested       bool // see contest
}

// perKey returns the operations that a call comes to: a change of the limit of many keys is
// one for each, since it takes effect key by key.
func (in input) perKey(op porcupine.Operation) (ops []porcupine.Operation) {
	op.Input = in
	if in.kind != setLimit {
		return []porcupine.Operation{op}
	}
	for _, in.key = range keys {
		op.Input = in
		ops = append(ops, op)
	}
	return ops
}

// moves returns operations for what calls that bring limits do beside deciding. Such a call puts
// its keys under the limits first, one by one; another call may come between that and the
// decision, and see it: a Refund, say, gives back at most the limit that the key is under.
func moves(history []porcupine.Operation) (ops []porcupine.Operation) {
	for i, op := range history {
		in := op.Input.(input)
		if !in.goesByLimit() || in.kind == peek || !overlaps(op, history[:i]) && !overlaps(op, history[i+1:]) {
			continue
		}
		for _, c := range in.all() {
			in.call = call{kind: move, key: c.key, brings: c.brings}
			op.Input = in
			ops = append(ops, op)
		}
	}
	return ops
}

// all returns the charges of a call that goes by limits.
func (c *call) all() []charge {
	if c.kind == takeAll {
		return c.charges
	}
	return []charge{{c.key, c.cost, c.brings}}
}

// A world is what is known of each key. It is not written in place.
type world map[string]*key

// A key has a model of its own. Its own limit there is the one that it has been put under
// last, by a change or by a call that brings one.
type key struct {
	name   string
	config *sluice.Config
	model  *oracle.Model

	main, own sluice.Limit // the latter may be zero, for none
	former    []former
	permits   map[int]oracle.Permit
}

// A former limit is one that calls which have begun before until may still go by: those that
// run while a limit changes go by either, in any order.
type former struct {
	limit sluice.Limit
	until int64
}

func newWorld(c sluice.Config) world {
	w := world{}
	for _, name := range keys {
		w[name] = &key{name: name, config: &c, model: oracle.New(oracleConfig(c, c.Limit)), main: c.Limit, permits: map[int]oracle.Permit{}}
	}
	return w
}

func (k *key) clone() *key {
	c := *k
	c.model, c.former, c.permits = k.model.Clone(), slices.Clone(k.former), maps.Clone(k.permits)
	return &c
}

func (k *key) equal(o *key) bool {
	return k.main == o.main && k.own == o.own && slices.Equal(k.former, o.former) && maps.Equal(k.permits, o.permits) && k.model.Equal(o.model)
}

// after returns the worlds that there can be after a call which has returned r.
func (w world) after(in input, r result) (next []world) {
	if in.kind == move {
		return append(w.goBy(in.all(), in.began, in.times), w) // w: it was not needed
	}
	if in.contested {
		next = append(next, w)
	}
	if !in.goesByLimit() {
		for _, now := range in.times {
			k := w[in.key].clone()
			if k.change(in, now, r) {
				n := maps.Clone(w)
				n[in.key] = k
				next = append(next, n)
			}
		}
		return next
	}
	charges := in.all()
	certain := len(in.times) == 1
	for _, by := range w.goBy(charges, in.began, in.times) {
		for _, now := range in.times {
			n := by.clone()
			if !in.explains(n, now, certain, r) {
				continue
			}
			if in.kind == peek || in.kind == debit && in.cost <= 0 {
				n = w // the key stays where it is
			}
			next = append(next, n)
		}
	}
	return next
}

func (w world) clone() world {
	c := world{}
	for name, k := range w {
		c[name] = k.clone()
	}
	return c
}

// goBy returns the worlds in which each key goes by a limit that the first of the charges for
// it, which has begun then, can go by. Each key has been put under its limit at a time of its own.
func (w world) goBy(charges []charge, began int64, times []int64) []world {
	all := []world{w}
	for i, c := range charges {
		if slices.ContainsFunc(charges[:i], func(d charge) bool { return d.key == c.key }) {
			continue
		}
		var next []world
		for _, w := range all {
			for _, k := range w[c.key].goBy(c.brings, began, times) {
				n := maps.Clone(w)
				n[c.key] = k
				next = append(next, n)
			}
		}
		all = next
	}
	return all
}

func (k *key) goBy(b brought, began int64, times []int64) (all []*key) {
	by := func(l sluice.Limit, own bool) {
		for _, now := range times {
			c := k.clone()
			c.put(l, own, now)
			if !slices.ContainsFunc(all, c.equal) {
				all = append(all, c)
			}
		}
	}
	if b.limit.Rate > 0 {
		by(b.limit, true)
		return all
	}
	by(k.kept())
	for _, f := range k.former {
		if f.until > began {
			by(f.limit, true)
		}
	}
	return all
}

// kept returns the limit of the key for calls that bring none, and whether it is its own.
func (k *key) kept() (l sluice.Limit, own bool) {
	if k.own.Rate > 0 {
		return k.own, true
	}
	return k.main, false
}

// put puts the key under a limit of its own, or the limiter's.
func (k *key) put(l sluice.Limit, own bool, now int64) {
	if !own {
		k.model.ClearKeyLimit(k.name, now)
		return
	}
	k.model.SetKeyLimit(k.name, now, oracleConfig(*k.config, l))
}

// change makes a call on the key that does not go by its limit, and reports whether it
// returns r.
func (k *key) change(in input, now int64, r result) bool {
	was, _ := k.kept()
	switch in.kind {
	case refund:
		k.model.Refund(k.name, now, int64(in.cost))
	case release, renew:
		p := k.permits[in.permit]
		held := in.kind == release && k.model.Release(&p, now) || in.kind == renew && k.model.Renew(&p, now)
		k.permits[in.permit] = p
		return held == r.ok
	case reset:
		k.model.Reset(k.name)
	case block:
		return k.model.Block(k.name, now, int64(in.time)) == r.blocked
	case unblock:
		k.model.Unblock(k.name)
	case setLimit:
		k.main = in.limit
		k.model.SetLimit(now, oracleConfig(*k.config, in.limit))
	case setKeyLimit:
		if k.own != in.limit {
			k.own = in.limit
			k.put(in.limit, true, now)
		}
	case clearKeyLimit:
		k.clear(now)
	}
	if is, _ := k.kept(); is != was {
		k.former = append(k.former, former{was, in.returned})
	}
	return true
}

func (k *key) clear(now int64) {
	if k.own.Rate > 0 {
		k.own = sluice.Limit{}
		k.put(k.main, false, now)
	}
}
