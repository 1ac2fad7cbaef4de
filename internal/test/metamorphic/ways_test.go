package metamorphic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// A way is a limiter in which one limit is in force for all keys, in one of the ways to put it
// there.
type way struct {
	name         string
	own          bool // the limit is the limiter's own; else it is in force beside another one
	put          func(w *wayTracer, way *way)
	key          func(w *wayTracer, way *way, name string) (sluice.Key, error)
	l            *sluice.Limiter
	reservations []*sluice.Reservation // nil where there was an error
	kept         map[string]bool       // keys that Key.SetLimit has put under the limit, by turns
}

func newWays() []*way {
	return []*way{
		{name: "New", own: true, put: putNew, key: plain},
		{name: "SetLimit", put: putOwn, key: plain},
		{name: "Key.SetLimit", put: putOnKeys, key: plain},
		{name: "WithLimit", put: putNowhere, key: withLimit},
		{name: "by turns", own: true, put: putEverywhere, key: byTurns},
	}
}

func putNowhere(*wayTracer, *way) {}

func putNew(w *wayTracer, way *way) {
	if way.l.Config().Limit != w.limit {
		putOwn(w, way)
	}
}

func putOwn(w *wayTracer, way *way) { require.NoError(w.TB, way.l.SetLimit(w.limit)) }

func putOnKeys(w *wayTracer, way *way) {
	for _, name := range w.keys {
		require.NoError(w.TB, way.l.Key(name).SetLimit(w.limit))
	}
}

func putEverywhere(w *wayTracer, way *way) {
	putOwn(w, way)
	for name := range way.kept {
		require.NoError(w.TB, way.l.Key(name).SetLimit(w.limit))
	}
}

func plain(_ *wayTracer, way *way, name string) (sluice.Key, error) { return way.l.Key(name), nil }

func withLimit(w *wayTracer, way *way, name string) (sluice.Key, error) {
	return way.l.Key(name).WithLimit(w.limit)
}

// byTurns takes another way for each call.
func byTurns(w *wayTracer, way *way, name string) (sluice.Key, error) {
	k := way.l.Key(name)
	switch w.Rng.IntN(6) {
	case 0:
		way.kept[name] = true
		return k, k.SetLimit(w.limit)
	case 1:
		delete(way.kept, name)
		k.ClearLimit()
	case 2:
		return k, way.l.SetLimit(w.limit)
	case 3, 4:
		return k.WithLimit(w.limit)
	}
	return k, nil
}

// A wayTracer takes all ways at once, and demands that nobody can tell them apart.
type wayTracer struct {
	*trace
	ways   []*way
	keys   []string
	limit  sluice.Limit
	limits []sluice.Limit // that it changes between, at once in all ways; nil if it does not
	older  bool           // calls have older times, and times to come
	open   []chargedKey   // what the reservations are of

	constant bool // Unlimited or DenyAll has been in force, or is beside it
	restored bool
}

// A chargedKey is one of a charge that has a reservation.
type chargedKey struct {
	name string
	cost int
}

func newWayTracer(tb testing.TB, rng *rand.Rand, v variant) *wayTracer {
	w := &wayTracer{trace: &trace{TB: tb, Rng: rng, Clock: sluice.NewManualClock(start)}, keys: []string{"a", "b", "c"}}
	changes := rng.IntN(2) == 0
	w.older = !changes && rng.IntN(3) == 0
	w.Cfg = valid(func() sluice.Config { return w.random(v, changes) })
	beside := w.beside()
	w.Cfg.Hash, w.Cfg.Clock, w.Cfg.Stats, w.Cfg.Shards = sluice.HashStable, w.Clock, true, 1<<rng.IntN(3)
	if w.Cfg.TTL = 1; w.older {
		w.Cfg.TTL = math.MaxInt64 // a sweep may forgive what an older time still sees
	}
	for _, way := range newWays() {
		if w.older && way.name == "by turns" {
			continue // a key that moves leaves behind what is over by then
		}
		c := w.Cfg
		if !way.own {
			c.Limit = beside
		}
		way.l, way.kept = mustNew(tb, c), map[string]bool{}
		w.ways = append(w.ways, way)
	}
	w.put(w.Cfg.Limit)
	return w
}

// random draws a configuration, and the limits that come after its own.
func (w *wayTracer) random(v variant, changes bool) sluice.Config {
	c := v.random(w.Rng)
	if changes {
		w.limits = changeLimits(w.Rng, c.Algorithm)
		if c.Limit = w.limits[w.Rng.IntN(len(w.limits))]; c.Offset != 0 {
			c.Offset = time.Duration(1 + w.Rng.Int64N(int64(time.Second)-1))
		}
	}
	if !constant(c.Limit) && c.Limit.Capacity() < 1<<20 && w.Rng.IntN(3) == 0 {
		c.Soft = 1 + w.Rng.IntN(5)
	}
	if w.Rng.IntN(3) == 0 {
		c.BlockFor = time.Duration(1 + w.Rng.Int64N(3*int64(min(c.Limit.Period, math.MaxInt64/4))))
	}
	c.CountDenied = windowed(c.Algorithm) && c.Algorithm != sluice.InFlight && w.Rng.IntN(3) == 0
	if c.CountDenied && c.Algorithm == sluice.SlidingWindow {
		// Two windows of denied calls are more than any limit, and are not kept if a change puts them into one.
		for i := range w.limits {
			w.limits[i].Period = c.Limit.Period
		}
	}
	c.Shadow = w.Rng.IntN(8) == 0
	return c
}

// changeLimits are limits of few units, and two of none.
func changeLimits(rng *rand.Rand, a sluice.Algorithm) []sluice.Limit {
	all := []sluice.Limit{sluice.Per(6, time.Second), sluice.Per(12, 7*time.Second), sluice.PerMinute(3), sluice.Per(40, time.Second), sluice.Per(3, time.Second)}
	if !windowed(a) {
		all = append(all, sluice.Per(7, 3*time.Second).WithBurst(2), sluice.PerSecond(3).WithBurst(17))
	}
	if rng.IntN(3) == 0 {
		all = append(all, sluice.DenyAll, sluice.Unlimited)
	}
	return all
}

func constant(l sluice.Limit) bool { return l.Rate == 0 || l.Rate == math.MaxInt }

// beside draws the limit beside which the others are in force.
func (w *wayTracer) beside() sluice.Limit {
	if w.Cfg.Soft == 0 && w.Rng.IntN(6) == 0 {
		w.constant = true
		return []sluice.Limit{sluice.DenyAll, sluice.Unlimited}[w.Rng.IntN(2)]
	}
	return valid(func() sluice.Config {
		c := w.Cfg
		c.Limit = randomLimit(w.Rng, c.Algorithm)
		if w.limits != nil {
			c.Limit = w.limits[w.Rng.IntN(5)]
		}
		return c
	}).Limit
}

// put puts a limit in force, in all ways. A call that brings it puts its key under it, so each
// key has a call at once.
func (w *wayTracer) put(limit sluice.Limit) {
	w.Note("limit %v", limit)
	w.limit = limit
	w.constant = w.constant || constant(limit)
	for _, way := range w.ways {
		way.put(w, way)
	}
	for _, name := range w.keys {
		w.one("Take 0", name, func(k sluice.Key) any { return k.Take(0) })
	}
}

// alike demands that f comes to the same in all ways.
func (w *wayTracer) alike(what string, f func(way *way) any) (first any) {
	for i, way := range w.ways {
		switch got := f(way); {
		case i == 0:
			first = got
		case got != first:
			w.Equal(first, got, fmt.Sprintf("%s by %s, beside %v", what, way.name, w.ways[1].l.Config().Limit))
		}
	}
	return first
}

// handle is the key for a call in a way.
func (w *wayTracer) handle(way *way, name string) sluice.Key {
	k, err := way.key(w, way, name)
	require.NoError(w.TB, err)
	return k
}

// one makes one call for a key.
func (w *wayTracer) one(what, name string, f func(k sluice.Key) any) any {
	w.Note("%s of %s", what, name)
	return w.alike(what, func(way *way) any { return f(w.handle(way, name)) })
}

// room returns how much a key can be charged, whether it is there or not, that is counted in all ways:
// how far words count beyond the limit depends on the limits before.
func (w *wayTracer) room(name string) int {
	c := w.Cfg
	c.Limit = w.limit
	burst := capacity(c)
	if constant(w.limit) || w.ways[0].l.Key(name).Peek(0).ResetAfter > maxDebt {
		return 0
	}
	switch {
	case c.Algorithm == sluice.SlidingLog:
		return 100
	case c.Algorithm <= sluice.LeakyBucket && c.Algorithm != sluice.TokenBucketInterval:
		return int(min(int64(2*min(burst, math.MaxInt/4)), maxDebt/tracedLimit(w.limit).Interval()))
	}
	most := traces.WordsOf(oracleConfig(c)).CountMost
	if w.ways[0].l.Key(name).Peek(0).Remaining == 0 {
		return int(min(2, max(0, (most-int64(burst))/100)))
	}
	return int(max(0, min(most-int64(burst), 3*int64(min(burst, math.MaxInt/4)))))
}

func (w *wayTracer) step() {
	name := w.keys[w.Rng.IntN(len(w.keys))]
	cost := w.cost()
	if w.older && w.Rng.IntN(2) == 0 {
		w.stepAt(name, cost)
		return
	}
	switch w.Rng.IntN(24) {
	case 0, 1, 2:
		w.one(fmt.Sprint("Take ", cost), name, func(k sluice.Key) any { return k.Take(cost) })
	case 3, 4:
		w.one(fmt.Sprint("AllowN ", cost), name, func(k sluice.Key) any { return k.AllowN(cost) })
	case 5:
		w.one(fmt.Sprint("TakeUpTo ", cost), name, func(k sluice.Key) any {
			n, d := k.TakeUpTo(cost)
			return [2]any{n, d}
		})
	case 6:
		if room := w.room(name); room > 0 {
			cost = 1 + w.Rng.IntN(room)
			w.one(fmt.Sprint("Debit ", cost), name, func(k sluice.Key) any { return k.Debit(cost) })
		}
	case 7, 8:
		if !w.remembers() {
			w.giveBack(name, cost)
		}
	case 9, 10:
		w.takeAll()
	case 11, 12:
		w.reserve(name, cost)
	case 13, 14, 15:
		if !w.remembers() {
			w.settle()
		}
	case 16:
		if !w.older {
			w.Note("sweep")
			w.ways[w.Rng.IntN(len(w.ways))].l.Sweep()
		}
	case 17:
		w.restore()
	case 18:
		if w.limits != nil {
			w.put(w.limits[w.Rng.IntN(len(w.limits))])
		}
	default:
		w.advance()
	}
	w.look()
}

func (w *wayTracer) cost() int {
	if constant(w.limit) {
		return w.Rng.IntN(6) - 1
	}
	return traces.RandomCost(w.Rng, capacity(sluice.Config{Limit: w.limit, Soft: w.Cfg.Soft}))
}

// stepAt makes a call at a time of its own.
func (w *wayTracer) stepAt(name string, cost int) {
	at := max(0, w.Clock.Now()-w.gap())
	if w.Rng.IntN(4) == 0 {
		at = min(w.Clock.Now()+min(w.gap(), 1<<55), lastTime)
	}
	w.one(fmt.Sprintf("TakeAt %d %d", at, cost), name, func(k sluice.Key) any { return k.TakeAt(at, cost) })
	w.look()
}

// remembers reports whether calls with older times see what a key has been, that has been given back
// units. How far it remembers depends on how many units its words can count: a sliding window
// in two words keeps the window that it was in, and a log what it has not written over.
func (w *wayTracer) remembers() bool {
	return w.older && (w.Cfg.Algorithm == sluice.SlidingWindow || w.Cfg.Algorithm == sluice.InFlight || w.Cfg.Algorithm == sluice.SlidingLog)
}

// giveBack gives back units, blocks a key, or makes it fresh.
func (w *wayTracer) giveBack(name string, cost int) {
	switch d := time.Duration(w.Rng.Int64N(2 * int64(min(w.limit.Period, 1<<55)))); w.Rng.IntN(6) {
	case 0:
		w.one(fmt.Sprintf("Block %v", d), name, func(k sluice.Key) any { return k.Block(d) })
	case 1:
		w.one("Unblock", name, func(k sluice.Key) any { k.Unblock(); return nil })
	case 2:
		w.one("Reset", name, func(k sluice.Key) any { k.Reset(); return nil })
	default:
		w.one(fmt.Sprint("Refund ", cost), name, func(k sluice.Key) any { k.Refund(cost); return nil })
		w.losesReservations(name)
	}
}

// losesReservations lets the reservations of a key be settled no more that has been refunded: the units may have
// been theirs, and whether others are given back in their place depends on whether the key, if it
// is fresh, has been dropped since.
func (w *wayTracer) losesReservations(name string) {
	for i := range w.open {
		if w.open[i].name == name {
			for _, way := range w.ways {
				way.reservations[i] = nil
			}
		}
	}
}

// takeAll charges some keys together, and keeps the reservations.
func (w *wayTracer) takeAll() {
	var names []string
	var costs []int
	for range 1 + w.Rng.IntN(3) {
		names, costs = append(names, w.keys[w.Rng.IntN(len(w.keys))]), append(costs, min(w.cost(), math.MaxInt/4))
	}
	form := w.Rng.IntN(3)
	w.Note("TakeAll (form %d) of %v %v", form, names, costs)
	if form == 0 {
		for i := range names {
			w.open = append(w.open, chargedKey{names[i], costs[i]})
		}
	}
	w.alike("TakeAll", func(way *way) any {
		charges, all := make([]sluice.Charge, len(names)), make([]*sluice.Reservation, len(names))
		for i := range names {
			charges[i] = sluice.Charge{Key: w.handle(way, names[i]), Cost: costs[i]}
		}
		var each [3]sluice.Decision
		var got sluice.AllDecision
		switch form {
		case 0:
			got = sluice.TakeAllReservations(all, each[:], charges...)
			way.reservations = append(way.reservations, all...)
		case 1:
			got = sluice.TakeAllReservations(nil, each[:], charges...)
		default:
			return fmt.Sprint(sluice.AllowEach(nil, charges...))
		}
		return [2]any{got, each}
	})
}

// reserve takes a turn of a key.
func (w *wayTracer) reserve(name string, cost int) {
	wait := time.Duration(w.Rng.Int64N(2 * int64(min(w.limit.Period, 1<<50))))
	w.Note("reserve %v %d, up to %v", name, cost, wait)
	w.open = append(w.open, chargedKey{name, cost})
	w.alike("Reserve", func(way *way) any {
		r, err := w.handle(way, name).Reserve(cost, wait)
		way.reservations = append(way.reservations, r)
		if err != nil {
			return err.Error()
		}
		return [2]any{r.Delay(), r.WouldDeny()}
	})
}

// settle settles one of the reservations. No call that brings a limit charges the units beyond the
// cost, and so they go under another one where the key has been forgotten.
func (w *wayTracer) settle() {
	if len(w.open) == 0 {
		return
	}
	i := w.Rng.IntN(len(w.open))
	r, used := w.open[i], w.Rng.IntN(4)
	if w.ways[0].l.Key(r.name).Peek(0).ResetAfter == 0 || w.room(r.name) < used {
		used = min(used, max(r.cost, 0))
	}
	w.Note("settle %v with %d", r, used)
	for _, way := range w.ways {
		if r := way.reservations[i]; r != nil {
			r.Settle(used)
		}
	}
}

// restore lets some of the limiters go on from a snapshot. Reservations do not outlive that.
func (w *wayTracer) restore() {
	if w.older || w.constant {
		return // units come back as under the limit before
	}
	w.Note("restore")
	w.restored = true // what has been counted has gone
	w.open = nil
	for _, way := range w.ways {
		way.reservations = nil
		if w.Rng.IntN(2) == 0 {
			way.l = restored(w.TB, way.l.Config(), way.l)
			way.put(w, way)
		}
	}
}

// lastTime is when windows may end that have had to count much.
const lastTime = 1 << 61

func (w *wayTracer) gap() int64 {
	if constant(w.limit) {
		return w.Rng.Int64N(int64(time.Second))
	}
	return traces.RandomGap(w.Rng, tracedLimit(w.limit), w.Cfg.Offset%w.limit.Period, w.Clock.Now())
}

func (w *wayTracer) advance() {
	if d := w.gap(); d < lastTime-w.Clock.Now() {
		w.Clock.Advance(time.Duration(d))
	}
}

// look demands that all keys look alike.
func (w *wayTracer) look() {
	cost := max(w.cost(), 1)
	for _, name := range w.keys {
		w.alike(fmt.Sprint("Peek of ", name), func(way *way) any { return w.handle(way, name).Peek(cost) })
		w.alike(fmt.Sprint("Status of ", name), func(way *way) any { return w.handle(way, name).Status() })
	}
}

// count demands that all ways have counted the same.
func (w *wayTracer) count() {
	if !w.restored {
		w.alike("Stats", func(way *way) any {
			s := way.l.Stats()
			return sluice.Stats{Admitted: s.Admitted, Denied: s.Denied, WouldDeny: s.WouldDeny, Blocked: s.Blocked}
		})
	}
}

// TestModel_WaysToALimitAreAlike: New, SetLimit, Key.SetLimit, and limits that calls
// bring make the same of a limit, and of one that changes.
func TestModel_WaysToALimitAreAlike(t *testing.T) {
	for _, v := range variants {
		t.Run("variant="+v.Name(), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range depth.Of(10, 25, 2_000) {
				w := newWayTracer(t, rng, v)
				for range 40 {
					w.step()
				}
				w.count()
			}
		})
	}
}
