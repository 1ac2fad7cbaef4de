package metamorphic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// change makes a call that is no charge, and compares what all keys look like.
func (tr *tracer) change(c call) {
	d := time.Duration(c.cost)
	switch c.name {
	case "sweep":
		tr.lim.Sweep()
		tr.floor = tr.now
	case "block":
		want := tr.model.Block(c.key, tr.now, c.cost)
		tr.both(func(l *sluice.Limiter) { tr.Equal(want, l.Key(c.key).Block(d), "Block") })
	case "unblock":
		tr.model.Unblock(c.key)
		tr.both(func(l *sluice.Limiter) { l.Key(c.key).Unblock() })
	case "limit":
		tr.model.SetLimit(tr.now, tr.with(c.limit))
		tr.floor = tr.now
		tr.both(func(l *sluice.Limiter) {
			require.NoError(tr.TB, l.SetLimit(c.limit))
			tr.Equal(c.limit, l.Config().Limit, "Config")
		})
	case "keylimit":
		if tr.on[c.key] != c.limit {
			tr.model.SetKeyLimit(c.key, tr.now, tr.with(c.limit))
			tr.on[c.key], tr.under[c.key], tr.floor = c.limit, c.limit, tr.now
		}
		tr.both(func(l *sluice.Limiter) {
			require.NoError(tr.TB, l.Key(c.key).SetLimit(c.limit))
			tr.Equal(c.limit, l.Key(c.key).Limit(), "Limit")
		})
	case "clear":
		if tr.on[c.key] != (sluice.Limit{}) {
			tr.model.ClearKeyLimit(c.key, tr.now)
			tr.floor = tr.now
			delete(tr.on, c.key)
			delete(tr.under, c.key)
		}
		tr.both(func(l *sluice.Limiter) { l.Key(c.key).ClearLimit() })
	default:
		require.Fail(tr.TB, "no such call", c.String())
	}
	tr.noteEvictions()
	tr.look()
}

// both does something to both limiters.
func (tr *tracer) both(f func(*sluice.Limiter)) {
	f(tr.lim)
	if tr.swept != nil {
		f(tr.swept)
	}
}

// with is the config under another limit.
func (tr *tracer) with(l sluice.Limit) oracle.Config {
	c := tr.Cfg
	c.Limit = l
	return oracleConfig(c)
}

// look compares what a Peek for each key sees; and what is tracked, where what is idle is swept.
func (tr *tracer) look() {
	busy := 0
	for key := range tr.keys {
		for _, cost := range []int{0, 1 + len(tr.calls)%20} {
			tr.peek(call{key: key, cost: int64(cost)})
		}
		if !tr.model.Idle(key, tr.now) && tr.on[key] == (sluice.Limit{}) {
			busy++
		}
	}
	if tr.swept != nil {
		tr.swept.Sweep()
		tr.Equal(busy, tr.swept.Len(), "Len")
	}
}

// peek compares what a call sees, perhaps under a limit that it brings, which puts the key nowhere.
func (tr *tracer) peek(c call) {
	m := tr.model.Clone()
	tr.putUnder(m, c.key, c.limit)
	want := tr.soft(m.Peek(c.key, tr.now, c.cost), int(c.cost))
	tr.both(func(l *sluice.Limiter) {
		tr.Equal(want, tr.handle(l, c.key, c.limit).Peek(int(c.cost)), "Peek of "+c.key)
	})
}

// allow is a take of which nobody asks more than whether it is admitted.
func (tr *tracer) allow(c call) {
	at := max(0, tr.now-c.ago)
	want := tr.model.Take(c.key, at, c.cost).Allowed
	tr.Equal(want, tr.handle(tr.lim, c.key, c.limit).AllowAt(at, int(c.cost)), "AllowAt")
	if tr.swept != nil {
		tr.Equal(want, tr.handle(tr.swept, c.key, c.limit).AllowN(int(c.cost)), "AllowN after a sweep")
		tr.swept.Sweep()
	}
}

// takeAll charges several keys at once, each the same; every second charge brings no limit.
func (tr *tracer) takeAll(c call) {
	var model []oracle.Charge
	keys, seen := strings.Split(c.key, ","), map[string]bool{}
	brings := func(i int) (l sluice.Limit) {
		if i%2 == 0 {
			l = c.limit
		}
		return l
	}
	for i, key := range keys {
		if !seen[key] { // the first charge of a key decides
			tr.bring(key, brings(i))
		}
		seen[key] = true
		model = append(model, oracle.Charge{Model: tr.model, Key: key, Now: tr.now, Cost: c.cost})
	}
	d := oracle.TakeAll(model)
	want := sluice.AllDecision{Allowed: d.Allowed, Denied: d.Denied, Remaining: int(min(d.Remaining, math.MaxInt)), RetryAfter: time.Duration(d.RetryAfter)}
	tr.both(func(l *sluice.Limiter) {
		var charges []sluice.Charge
		for i, key := range keys {
			charges = append(charges, sluice.Charge{Key: tr.handle(l, key, brings(i)), Cost: int(c.cost)})
		}
		tr.Equal(want, sluice.TakeAll(charges...), "TakeAll")
	})
	if tr.swept != nil {
		tr.swept.Sweep()
	}
}

// handle is a key, with the limit that its calls bring, if that is not zero.
func (tr *tracer) handle(l *sluice.Limiter, key string, brings sluice.Limit) sluice.Key {
	k := l.Key(key)
	if brings != (sluice.Limit{}) {
		var err error
		k, err = k.WithLimit(brings)
		require.NoError(tr.TB, err)
		tr.Equal(brings, k.Limit(), "Limit")
	}
	return k
}

// bring puts a key under the limit that a call brings, or back under its own.
func (tr *tracer) bring(key string, brings sluice.Limit) {
	if limit := tr.putUnder(tr.model, key, brings); limit != tr.under[key] {
		tr.under[key], tr.floor = limit, tr.now
	}
}

// putUnder puts a key of m under the limit of a call that brings one, or zero. A key without a limit of its
// own that is idle is forgotten first, and with it how its units came back.
func (tr *tracer) putUnder(m *oracle.Model, key string, brings sluice.Limit) sluice.Limit {
	limit := brings
	if limit == (sluice.Limit{}) {
		limit = tr.on[key]
	}
	switch {
	case limit == tr.under[key]:
		return limit
	case tr.on[key] == (sluice.Limit{}) && m.Idle(key, tr.now):
		m.ClearKeyLimit(key, tr.now)
	}
	if limit == (sluice.Limit{}) {
		m.ClearKeyLimit(key, tr.now)
	} else {
		m.SetKeyLimit(key, tr.now, tr.with(limit))
	}
	return limit
}

// noteEvictions makes keys fresh that have made room for others: only those without limits of their own.
func (tr *tracer) noteEvictions() {
	if tr.Cfg.MaxKeys == 0 {
		return
	}
	tr.Equal(true, tr.lim.Len() <= tr.Cfg.MaxKeys, "Len")
	limit := tr.first.Limit // under which all that counts can be seen
	if tr.Cfg.Algorithm == sluice.SlidingLog {
		limit.Period = 1000 * 24 * time.Hour
	}
	for key := range tr.keys {
		m := tr.model.Clone()
		tr.putUnder(m, key, limit)
		if m.Peek(key, tr.now, 0).ResetAfter > 0 && tr.handle(tr.lim, key, limit).Peek(0).ResetAfter == 0 {
			tr.Equal(sluice.Limit{}, tr.on[key], key+" has been forgotten")
			tr.Equal(true, tr.lim.Stats().Evicted > 0, "Evicted")
			tr.model.Reset(key)
			tr.model.ClearKeyLimit(key, tr.now)
			delete(tr.under, key)
		}
	}
}

// A changer draws calls under a limit that changes, and keys that get limits of their own and lose them.
type changer struct {
	*tracer
	limits   []sluice.Limit // that it changes between
	names    []string
	ownLimit bool // keys get limits of their own
	brings   bool // and calls bring limits
	ago      bool // and are made at older times
	seen     struct{ changes, allowed, denied int }
}

// fewUnits draws limits of few units, or for sliding windows also so many that the
// counts take two words, over periods that often are the same.
func fewUnits(rng *rand.Rand, a sluice.Algorithm) []sluice.Limit {
	day := 24 * time.Hour
	periods := []time.Duration{999, time.Millisecond, time.Second, time.Second, 7 * time.Second, time.Minute, time.Hour, day}
	period := periods[rng.IntN(len(periods))]
	var all []sluice.Limit
	for range 3 + rng.IntN(2) {
		others := []time.Duration{period, period, period, 2 * period, period/3 + 1, 7 * period, period/2 + time.Duration(rng.Int64N(int64(2*period)))}
		l := sluice.Per(1+rng.IntN(12), others[rng.IntN(len(others))])
		switch {
		case a <= sluice.LeakyBucket && rng.IntN(4) > 0:
			l.Burst = 1 + rng.IntN(20)
		case a == sluice.SlidingWindow && rng.IntN(3) == 0 && l.Period >= time.Second:
			l.Rate = 1 + rng.IntN(3_000_000)
		case rng.IntN(6) == 0:
			l.Rate = 1 + rng.IntN(100)
		}
		all = append(all, l)
	}
	return all
}

// drawChanges draws a configuration and the limits that come after its own. With largest it begins with the
// largest rate of them.
func drawChanges(rng *rand.Rand, v variant, largest bool) (c sluice.Config, limits []sluice.Limit) {
	c = v.config()
	limits = fewUnits(rng, c.Algorithm)
	if largest {
		slices.SortFunc(limits, func(a, b sluice.Limit) int { return b.Rate - a.Rate })
	}
	c.Limit = limits[0]
	c.CountDenied = v.CountsDenied() && rng.IntN(3) == 0
	if rng.IntN(3) == 0 {
		c.BlockFor = c.Limit.Period/3 + time.Duration(rng.IntN(5))
	}
	if c.CountDenied && c.Algorithm == sluice.SlidingWindow {
		// Two windows of denied calls are more than any limit. Where they are put into
		// one, only as much as the largest limit is sure to be kept.
		for i := range limits {
			limits[i].Period = c.Limit.Period
		}
	}
	if c.Offset != 0 {
		least := slices.MinFunc(limits, func(a, b sluice.Limit) int { return int(max(-1, min(1, a.Period-b.Period))) })
		c.Offset = time.Duration(rng.Int64N(int64(least.Period)))
	}
	if rng.IntN(4) == 0 {
		c.Soft = 1 + rng.IntN(5)
	} else {
		limits = append(limits, sluice.Unlimited, sluice.DenyAll)
	}
	return c, limits
}

// newChanger: the logs of a limiter have room for its own largest limit, and those of keys with limits of their
// own have had it from the start.
func newChanger(tb testing.TB, rng *rand.Rand, v variant, ownLimits, brings bool) *changer {
	for {
		c, limits := drawChanges(rng, v, ownLimits && v.config().Algorithm == sluice.SlidingLog)
		if slices.ContainsFunc(limits, func(l sluice.Limit) bool {
			c := c
			c.Limit = l
			_, err := sluice.New(c)
			return err != nil
		}) {
			continue
		}
		// A log remembers more than what counts, and a longer period makes it count again
		// in a key that has not been swept meanwhile.
		kept := c.Algorithm == sluice.SlidingLog && slices.ContainsFunc(limits, func(l sluice.Limit) bool { return l.Period != c.Limit.Period })
		names, ago := []string{"a", "b", "c"}, false
		switch n := rng.IntN(3); {
		case !brings:
		case n == 0:
			ago = true
		case n == 1 && c.Algorithm != sluice.InFlight:
			c.MaxKeys, names = 1+rng.IntN(2), append(names, "d", "e")
		}
		tr := newPlayer(tb, c, kept || ago, start.UnixNano(), 1+rng.IntN(20))
		tr.Rng, tr.model = rng, oracle.New(oracleConfig(c))
		return &changer{tracer: tr.record(), limits: limits, names: names, ownLimit: ownLimits, brings: brings, ago: ago}
	}
}

func (ch *changer) draw() sluice.Limit { return ch.limits[ch.Rng.IntN(len(ch.limits))] }

// burst is what a fresh key can be charged.
func (ch *changer) burst(key string) int {
	c := ch.Cfg
	c.Limit = ch.lim.Key(key).Limit()
	return capacity(c)
}

// cost draws one for key, which may have a larger or smaller limit than others.
func (ch *changer) cost(key string) int {
	if left := ch.lim.Key(key).Peek(0).Remaining; ch.Rng.IntN(4) == 0 && left < math.MaxInt {
		return left + ch.Rng.IntN(2) // the edge
	}
	b := ch.burst("another")
	if ch.Rng.IntN(3) > 0 {
		b = ch.burst(key)
	}
	costs := []int{1, 1, 1, 2, 3, b, b, b / 2, b - 1, b + 1, 0, -1, math.MaxInt, 1 + ch.Rng.IntN(20), 1 + ch.Rng.IntN(max(1, b))}
	return costs[ch.Rng.IntN(len(costs))]
}

// debt draws a charge, but none that the words of another limit have no room for, nor one on
// top of another.
func (ch *changer) debt(key string) int {
	for _, l := range ch.limits {
		tight := l.Period < time.Millisecond || l.Rate > 1000 && l != sluice.Unlimited
		if tight && (windowed(ch.Cfg.Algorithm) || ch.Cfg.Algorithm == sluice.TokenBucketInterval) {
			return 0
		}
	}
	if ch.lim.Key(key).Peek(0).Remaining == 0 {
		return 0
	}
	return 1 + ch.Rng.IntN(2*max(1, ch.burst(key)))
}

// gap draws how far time moves on, often to just before or at a moment at which something changes.
func (ch *changer) gap() int64 {
	l := ch.limits[ch.Rng.IntN(3)] // none without periods
	period, interval := int64(l.Period), tracedLimit(l).Interval()
	edge := period - (ch.now-int64(ch.Cfg.Offset))%period
	d := ch.lim.Key(ch.names[ch.Rng.IntN(len(ch.names))]).Peek(1 + ch.Rng.IntN(5))
	gaps := []int64{
		0, 0, 0, 1, interval, interval - 1, edge, edge - 1, period, period - 1,
		period / 3, ch.Rng.Int64N(period), ch.Rng.Int64N(2*period + 1), int64(d.RetryAfter), int64(d.RetryAfter) - 1, int64(d.ResetAfter), int64(d.ResetAfter) - 1,
	}
	if gap := gaps[ch.Rng.IntN(len(gaps))]; gap < int64(400*24*time.Hour) {
		return max(0, gap)
	}
	return 0
}

// next draws a call.
func (ch *changer) next() call {
	c := call{now: ch.now, key: ch.names[ch.Rng.IntN(len(ch.names))], name: "take"}
	if ch.now < start.UnixNano()+int64(20*365*24*time.Hour) {
		c.now += ch.gap()
	}
	c.cost = int64(ch.cost(c.key))
	switch n := ch.Rng.IntN(48); {
	case n < 6:
		c.name, c.limit, c.cost = "limit", ch.draw(), 0
	case n < 9:
		c.name = "refund"
	case n < 12:
		return ch.rare(c)
	case n < 18 && !ch.brings:
		c.name = "upto"
	case n < 24 && ch.ownLimit && ch.Rng.IntN(3) == 0:
		c.name, c.cost = "clear", 0
	case n < 24 && ch.ownLimit:
		c.name, c.limit, c.cost = "keylimit", ch.draw(), 0
	case n < 30 && ch.ownLimit && ch.Cfg.Soft == 0: // the models know nothing of it
		c.name, c.limit = "all", ch.brought()
		if c.key = strings.Repeat(c.key+",", ch.Rng.IntN(3)) + c.key; ch.Cfg.MaxKeys == 0 {
			c.key += ",b,a,c"[:2*ch.Rng.IntN(4)]
		}
	default:
		c.name, c.limit = []string{"take", "take", "take", "allow"}[ch.Rng.IntN(4)], ch.brought()
		if ch.ago && ch.Rng.IntN(2) == 0 {
			c.ago = ch.Rng.Int64N(c.now - ch.floor + 1)
			if c.limit != ch.under[c.key] {
				c.ago = 0 // it puts the key under another limit
			}
		}
	}
	return c
}

// rare draws the other calls. Those that older times may not see are left out of traces with brought limits.
func (ch *changer) rare(c call) call {
	switch n := ch.Rng.IntN(4); {
	case ch.brings && ch.older:
		c.name = "peek"
	case ch.brings:
		c.name, c.cost = "sweep", 0
	case n == 0:
		c.name, c.cost = []string{"reset", "unblock"}[ch.Rng.IntN(2)], 0
	case n == 1:
		c.name, c.cost = "block", 1+ch.Rng.Int64N(int64(2*ch.Cfg.Limit.Period))
	default:
		c.name, c.cost = "debit", int64(ch.debt(c.key))
	}
	return c
}

// brought draws a limit that a call brings, or none.
func (ch *changer) brought() (l sluice.Limit) {
	if ch.brings && ch.Rng.IntN(2) == 0 {
		l = ch.draw()
	}
	return l
}

func (ch *changer) step() {
	if ch.brings && ch.Cfg.MaxKeys == 0 && ch.Rng.IntN(16) == 0 {
		ch.alternate(ch.names[ch.Rng.IntN(len(ch.names))])
		return
	}
	c := ch.next()
	got := ch.do(c)
	switch {
	case c.name == "take" && got.Allowed:
		ch.seen.allowed++
	case c.name == "take":
		ch.seen.denied++
	case c.limit != (sluice.Limit{}):
		ch.seen.changes++
	}
	if ch.Rng.IntN(3) == 0 {
		for _, key := range ch.names {
			ch.do(call{now: ch.now, name: "peek", key: key, cost: int64(ch.Rng.IntN(20)), limit: ch.brought()})
		}
	}
	if c.name == "refund" && ch.Cfg.Algorithm == sluice.SlidingLog {
		ch.floor = ch.now // how much stricter older times are then is not defined: see the oracle
	}
}

// alternate lets the calls of a client alternate in the limits that they bring, at one instant. Whatever their
// order is, it is admitted no more than the largest.
func (ch *changer) alternate(key string) {
	ch.do(call{now: ch.now, name: "reset", key: key})
	ch.floor = ch.now
	sum, most := 0, 0
	for range 12 {
		c := call{now: ch.now, name: "take", key: key, limit: ch.brought(), cost: int64(ch.cost(key))}
		limit := ch.handle(ch.lim, key, c.limit).Limit()
		if limit == sluice.Unlimited {
			continue
		}
		if most = max(most, limit.Rate, limit.Burst); ch.do(c).Allowed {
			sum += max(int(c.cost), 0)
		}
	}
	require.LessOrEqual(ch.TB, sum, most+ch.Cfg.Soft, "a gift\n%s", ch)
}

// TestModel_ChangesOfLimitsAreExact compares every decision before and after changes of the limit with the models,
// and with a limiter that is swept after every call: changes of the limiter's, of keys', and by calls that bring
// limits, with older times or with keys that are evicted at MaxKeys.
func TestModel_ChangesOfLimitsAreExact(t *testing.T) {
	for _, v := range variants {
		for i, kind := range []string{"limiter", "keys", "calls"} {
			t.Run(fmt.Sprintf("variant=%s/of=%s", v.Name(), kind), func(t *testing.T) {
				t.Parallel()
				rng := seeded.Rand(t)
				changes, allowed, denied, evicted := 0, 0, 0, uint64(0)
				for n := 0; n < max(10, depth.Ops()/10_000) || n < 200 && i == 2 && evicted == 0 && v.Algorithm != oracle.InFlight; n++ {
					ch := newChanger(t, rng, v, i > 0, i > 1)
					for range 120 {
						ch.step()
					}
					changes, allowed, denied, evicted = changes+ch.seen.changes, allowed+ch.seen.allowed, denied+ch.seen.denied, evicted+ch.lim.Stats().Evicted
				}
				require.Greater(t, changes, 10)
				require.Greater(t, allowed, denied/10, "the traces must reach both")
				require.Greater(t, denied, allowed/10, "the traces must reach both")
				require.Equal(t, i == 2 && v.Algorithm != oracle.InFlight, evicted > 0)
			})
		}
	}
}
