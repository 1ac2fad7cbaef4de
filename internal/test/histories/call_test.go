package histories

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/oracle"
)

// A kind is one of the operations whose order is searched for.
type kind int

const (
	take kind = iota
	takeUpTo
	debit
	peek
	acquire
	takeAll
	refund
	release
	renew
	reset
	block
	unblock
	setLimit
	setKeyLimit
	clearKeyLimit
	sweep
	move // of a key by a call, to the limit that it brings: see moves
)

var kindNames = [...]string{"Take", "TakeUpTo", "Debit", "Peek", "Acquire", "TakeAll", "Refund", "Release", "Renew", "Reset", "Block", "Unblock", "SetLimit", "Key.SetLimit", "Key.ClearLimit", "Sweep", "move"}

// A call is what a goroutine is to do.
type call struct {
	kind    kind
	key     string
	cost    int
	brings  brought       // of those that go by a limit
	charges []charge      // of TakeAll
	limit   sluice.Limit  // of SetLimit and Key.SetLimit
	time    time.Duration // of Block
	permit  int           // of Acquire, which fills it, and of Release and Renew: a place among the permits
}

type charge struct {
	key    string
	cost   int
	brings brought
}

// brought is the limit that a call brings. The zero value is none.
type brought struct{ limit sluice.Limit }

// keyOf returns the key with the limit that a call brings.
func (b brought) keyOf(l *sluice.Limiter, key string) sluice.Key {
	k, err := l.Key(key), error(nil)
	if b.limit.Rate > 0 {
		k, err = k.WithLimit(b.limit)
		must(err)
	}
	return k
}

// A result is what a call has returned.
type result struct {
	decision sluice.Decision
	taken    int // of TakeUpTo
	all      sluice.AllDecision
	each     []sluice.Decision // of TakeAll
	blocked  bool
	ok       bool // of Acquire, Release and Renew
}

// do makes the call.
func (c *call) do(l *sluice.Limiter, held permits) (r result) {
	if c.goesByLimit() {
		return c.doByLimit(l, held)
	}
	switch c.kind {
	case release:
		r.ok = held[c.permit].Load().Release() == nil
	case renew:
		r.ok = held[c.permit].Load().Renew() == nil
	case refund:
		l.Key(c.key).Refund(c.cost)
	case reset:
		l.Key(c.key).Reset()
	case block:
		r.blocked = l.Key(c.key).Block(c.time)
	case unblock:
		l.Key(c.key).Unblock()
	case setLimit:
		must(l.SetLimit(c.limit))
	case setKeyLimit:
		must(l.Key(c.key).SetLimit(c.limit))
	case clearKeyLimit:
		l.Key(c.key).ClearLimit()
	case sweep:
		l.Sweep()
	}
	return r
}

// goesByLimit reports whether the limit of a key says what the call returns.
func (c *call) goesByLimit() bool { return c.kind <= takeAll }

func (c *call) doByLimit(l *sluice.Limiter, held permits) (r result) {
	if c.kind == takeAll {
		return c.doAll(l)
	}
	k := c.brings.keyOf(l, c.key)
	switch c.kind {
	case take:
		r.decision = k.Take(c.cost)
	case takeUpTo:
		r.taken, r.decision = k.TakeUpTo(c.cost)
	case debit:
		r.decision = k.Debit(c.cost)
	case peek:
		r.decision = k.Peek(c.cost)
	case acquire:
		r.ok = held.acquire(c.permit, k, c.cost)
	}
	return r
}

func (c *call) doAll(l *sluice.Limiter) (r result) {
	charges := make([]sluice.Charge, len(c.charges))
	for i, w := range c.charges {
		charges[i] = sluice.Charge{Key: w.brings.keyOf(l, w.key), Cost: w.cost}
	}
	r.each = make([]sluice.Decision, len(charges))
	r.all = sluice.TakeAllReservations(nil, r.each, charges...)
	return r
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// explains makes the call on the models of its keys, which go by its limits, at now, and
// reports whether it returns r there. If it is not certain that the limiter took the call to
// be made at now, its clock having moved on meanwhile, then r may be stricter.
//
// (A call that has read the time and is then overtaken by one with a newer time is judged
// as one with an older time, for which a key is not fresh that has become so since. It may
// be denied, and what is left is what it looks like from there. It may not be admitted.)
func (c *call) explains(w world, now int64, certain bool, r result) bool {
	if c.kind == takeAll {
		return c.explainsAll(w, now, certain, r)
	}
	m := w[c.key].model
	switch c.kind {
	case take:
		if !certain && !r.decision.Allowed {
			return stricter(m.Peek(c.key, now, 0), r.decision)
		}
		return same(m.Take(c.key, now, int64(c.cost)), r.decision, certain)
	case takeUpTo:
		switch {
		case certain:
			taken, want := m.TakeUpTo(c.key, now, int64(c.cost))
			return taken == int64(r.taken) && same(want, r.decision, certain)
		case r.taken == 0:
			return stricter(m.Peek(c.key, now, 0), r.decision)
		}
		return r.taken <= c.cost && same(m.Take(c.key, now, int64(r.taken)), r.decision, certain)
	case debit:
		return same(m.Debit(c.key, now, int64(c.cost)), r.decision, certain)
	case acquire:
		p, ok := m.Acquire(c.key, now, int64(c.cost))
		if ok {
			w[c.key].permits[c.permit] = p
		}
		return ok == r.ok
	}
	return same(m.Peek(c.key, now, int64(c.cost)), r.decision, certain)
}

func (c *call) explainsAll(w world, now int64, certain bool, r result) bool {
	if !certain && !r.all.Allowed {
		for i, ch := range c.charges {
			if !stricter(w[ch.key].model.Peek(ch.key, now, 0), r.each[i]) {
				return false
			}
		}
		return true
	}
	charges := make([]oracle.Charge, len(c.charges))
	for i, ch := range c.charges {
		charges[i] = oracle.Charge{Model: w[ch.key].model, Key: ch.key, Now: now, Cost: int64(ch.cost)}
	}
	want := oracle.TakeAll(charges)
	least := math.MaxInt
	for i, d := range want.Each {
		if !same(d, r.each[i], certain) {
			return false
		}
		least = min(least, r.each[i].Remaining)
	}
	return want.Allowed == r.all.Allowed && want.Denied == r.all.Denied && least == r.all.Remaining &&
		(!certain || want.RetryAfter == int64(r.all.RetryAfter))
}

func same(want oracle.Decision, got sluice.Decision, certain bool) bool {
	if !certain {
		return (want.Allowed || !got.Allowed) && stricter(want, got)
	}
	return want == oracle.Decision{
		Allowed: got.Allowed, Limit: int64(got.Limit), Remaining: int64(got.Remaining),
		RetryAfter: int64(got.RetryAfter), ResetAfter: int64(got.ResetAfter),
	}
}

// stricter reports whether got leaves no more than want.
func stricter(want oracle.Decision, got sluice.Decision) bool {
	return want.Limit == int64(got.Limit) && want.Remaining >= int64(got.Remaining)
}

func oracleConfig(c sluice.Config, l sluice.Limit) oracle.Config {
	o := oracle.Named(c.Algorithm.String())
	o.Rate, o.Burst, o.Period, o.Grid = int64(l.Rate), int64(max(l.Burst, 0)), int64(l.Period), true
	o.BlockFor, o.CountDenied = int64(c.BlockFor), c.CountDenied
	return o
}

func (c call) String() string {
	s := kindNames[c.kind]
	switch c.kind {
	case take, takeUpTo, debit, peek, refund:
		return fmt.Sprintf("%s(%s, %d)%v", s, c.key, c.cost, c.brings)
	case acquire:
		return fmt.Sprintf("%s(%s, %d)%v as permit %d", s, c.key, c.cost, c.brings, c.permit)
	case release, renew:
		return fmt.Sprintf("%s(%s, permit %d)", s, c.key, c.permit)
	case takeAll:
		return fmt.Sprintf("%s%v", s, c.charges)
	case block:
		return fmt.Sprintf("%s(%s, %d)", s, c.key, c.time)
	case setLimit:
		return fmt.Sprintf("%s(%s: %d per %d)", s, c.key, c.limit.Rate, c.limit.Period)
	case setKeyLimit:
		return fmt.Sprintf("%s(%s, %d per %d)", s, c.key, c.limit.Rate, c.limit.Period)
	case sweep:
		return s
	}
	return fmt.Sprintf("%s(%s)", s, c.key)
}

func (b brought) String() string {
	if b.limit.Rate > 0 {
		return fmt.Sprintf(" by %d per %d", b.limit.Rate, b.limit.Period)
	}
	return ""
}

func (c call) outcome(r result) string {
	switch c.kind {
	case take, debit, peek:
		return fmt.Sprintf("%+v", r.decision)
	case takeUpTo:
		return fmt.Sprintf("%d, %+v", r.taken, r.decision)
	case takeAll:
		return fmt.Sprintf("%+v %+v", r.all, r.each)
	case block:
		return fmt.Sprint(r.blocked)
	case acquire, release, renew:
		return fmt.Sprint(r.ok)
	}
	return ""
}

// The limits are small, so that calls stand in each other's way.
const (
	burst  = 8
	period = 800 * time.Millisecond // long enough for a SlidingWindow to count what Debit makes of it
)

var keys = []string{"a", "b"}

// variants are the algorithms, and their options.
var variants = []sluice.Config{
	{Algorithm: sluice.GCRA},
	{Algorithm: sluice.TokenBucket},
	{Algorithm: sluice.TokenBucketInterval},
	{Algorithm: sluice.LeakyBucket},
	{Algorithm: sluice.SlidingWindow},
	{Algorithm: sluice.SlidingLog},
	{Algorithm: sluice.FixedWindow},
	{Algorithm: sluice.FixedWindowFirstCharge},
	{Algorithm: sluice.InFlight},
}

// A script is what the goroutines of one history do, and how.
type script struct {
	config  sluice.Config
	yields  bool               // the clock gives the processor away between its reading and the decision
	brings  bool               // calls bring limits
	before  []call             // one after the other
	clients [][]call           // at the same time
	steps   [2][]time.Duration // of the clock: those of before, each ahead of a call, and those of the clients' time
	keyOf   []string           // the keys of the permits
}

// draw draws a script. One seed makes one script.
func draw(seed uint64) script {
	rng := rand.New(rand.NewPCG(seed, seed))
	s := script{config: variants[rng.IntN(len(variants))], yields: rng.IntN(2) == 0}
	s.config.Limit = sluice.Per(burst, period)
	s.config.Shards = 1 // or SetLimit takes effect shard by shard
	switch rng.IntN(6) {
	case 0:
		s.config.BlockFor = period / 2
	case 1:
		s.config.CountDenied = s.config.Algorithm >= sluice.SlidingWindow && s.config.Algorithm != sluice.InFlight
	}
	stepping := rng.IntN(2) == 0
	kinds := []kind{take, take, take, takeUpTo, debit, peek, takeAll, takeAll, refund, refund, reset, sweep}
	switch rng.IntN(3) {
	case 0:
		kinds = append(kinds, block, unblock)
	case 1:
		kinds = append(kinds, setLimit, setLimit, setKeyLimit, setKeyLimit, clearKeyLimit, sweep)
		s.brings = true
	}
	for range 1 + rng.IntN(4) {
		s.before = append(s.before, s.drawCall(rng, kinds))
	}
	s.drawClients(rng, func() call { return s.drawCall(rng, kinds) })
	if rng.IntN(4) == 0 { // units go from key to key, and there is always a key that has spent most
		most := 1 + burst/2
		s.before = append(s.before, call{kind: take, key: "a", cost: most})
		s.clients[0] = []call{{kind: take, key: "b", cost: most}, {kind: refund, key: "a", cost: most}, {kind: take, key: "a", cost: most}, {kind: refund, key: "b", cost: most}}
	}
	if stepping {
		s.steps[0] = drawSteps(rng, len(s.before))
		if s.config.BlockFor == 0 && !s.config.CountDenied { // what a denial does is told by certain times
			s.steps[1] = drawSteps(rng, 1+rng.IntN(3))
		}
	}
	return s
}

// drawClients draws what two or three clients call.
func (s *script) drawClients(rng *rand.Rand, draw func() call) {
	clients, most := 2+rng.IntN(2), 5
	if s.brings { // which makes the search long
		clients, most = 2, 4
	}
	for range clients {
		var calls []call
		for range 2 + rng.IntN(most-1) {
			calls = append(calls, draw())
		}
		s.clients = append(s.clients, calls)
	}
}

func drawSteps(rng *rand.Rand, n int) (steps []time.Duration) {
	for range n {
		steps = append(steps, []time.Duration{1, period / burst, period / 2, period, 3 * period}[rng.IntN(5)])
	}
	return steps
}

func (s *script) drawCall(rng *rand.Rand, kinds []kind) call {
	c := call{kind: kinds[rng.IntN(len(kinds))], key: keys[rng.IntN(len(keys))], cost: drawCost(rng)}
	if c.goesByLimit() {
		c.brings = s.drawBrought(rng)
	}
	switch c.kind {
	case debit:
		c.cost = rng.IntN(2 * burst) // all of which every algorithm can count
	case takeAll:
		for range 1 + rng.IntN(3) {
			c.charges = append(c.charges, charge{keys[rng.IntN(len(keys))], drawCost(rng), s.drawBrought(rng)})
		}
	case setLimit, setKeyLimit:
		c.limit = drawLimit(rng, burst/2, burst, 2*burst)
	case block:
		c.time = []time.Duration{1, period / 2, 3 * period}[rng.IntN(3)]
	}
	return c
}

func (s *script) drawBrought(rng *rand.Rand) (b brought) {
	if s.brings && rng.IntN(3) == 0 {
		b.limit = drawLimit(rng, burst/2, burst, 2*burst)
	}
	return b
}

func drawLimit(rng *rand.Rand, rates ...int) sluice.Limit {
	return sluice.Per(rates[rng.IntN(len(rates))], []time.Duration{period / 2, period, 10 * period}[rng.IntN(3)])
}

func drawCost(rng *rand.Rand) int {
	return []int{0, 1, 1, 2, 3, burst/2 + 1, burst, burst + 1, -1, math.MaxInt}[rng.IntN(10)]
}
