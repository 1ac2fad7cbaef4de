package rulestore

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// A call of two budgets is several calls of redislimit, made together. The key of spilled is the key of both budgets: it has the units
// that the second was charged for the first. They are forgotten when the second has forgotten them: with a fixed window at its
// end, and with other algorithms after the time in which a full key becomes fresh, at the latest after twice that time.

// longestFresh bounds that time.
const longestFresh = 10 * 365 * 24 * time.Hour

// openSpilled opens the limit that notes the units of a second budget. cfg is its limit's.
func (c *counter) openSpilled(cfg redislimit.LimitConfig, open func(redislimit.LimitConfig) *redislimit.StoreLimit) {
	cfg.Name, cfg.Algorithm = name(&c.StoreLimit)+" spilled", sluice.InFlight
	period := fresh(&c.StoreLimit)
	windows := sluice.Limit{}
	if cfg.Offset = 0; c.Algorithm == sluice.FixedWindow {
		cfg.Algorithm, cfg.Offset, windows = sluice.FixedWindow, c.Offset, c.Limit
	}
	cfg.Limit = plentyOf(cfg.Algorithm, windows, period)
	c.spilled = open(cfg)
}

// fresh is how long a full key of a limit takes to be fresh, or the period of its windows.
func fresh(l *rules.StoreLimit) time.Duration {
	period := l.Limit.Period
	switch l.Algorithm {
	case sluice.FixedWindow, sluice.FixedWindowFirstCharge, sluice.SlidingLog:
		return period
	case sluice.SlidingWindow:
		return min(2*period, longestFresh)
	}
	if l.Limit.Rate == 0 {
		return period
	}
	periods := (int64(l.Limit.Capacity())-1)/int64(l.Limit.Rate) + 1
	if periods > int64(longestFresh/period) {
		return max(longestFresh, period)
	}
	return time.Duration(periods) * period
}

// ofBoth reports whether a call is of two budgets.
func ofBoth(in rules.StoreCall) bool { return in.Second.Counter != nil }

// beyondInt reports whether an int cannot be the hits that a call is to count: on 32 bits both budgets together can have
// room for more. They are denied, since fewer would be counted.
func beyondInt(in *rules.StoreCall) bool { return in.Op == rules.CountFitting && in.Hits > math.MaxInt }

// onlyLooks reports whether a call of two budgets counts nothing, and gives nothing back.
func onlyLooks(in *rules.StoreCall) bool {
	return in.Hits == 0 || in.Op == rules.Look || beyondInt(in)
}

// addBoth adds the calls for a call of two budgets.
func (b *batch) addBoth(in *rules.StoreCall) {
	c, s := in.Counter.(*counter), in.Second.Counter.(*counter)
	add := func(limit *redislimit.StoreLimit, key string, op redislimit.Op, hits uint64, part redislimit.Part) {
		b.add(c, redislimit.StoreCall{Limit: limit, Key: key, Op: op, Cost: clamp(hits), Part: part})
	}
	first, second, note := in.Key, in.Second.Key, in.Key+in.Second.Key
	switch {
	case onlyLooks(in):
		add(c.limit, first, redislimit.OpPeek, 0, redislimit.Whole)
		add(s.limit, second, redislimit.OpPeek, 0, redislimit.Whole)
		add(c.limit, first, redislimit.OpPeek, in.Hits, redislimit.Whole)
	case in.Op == rules.GiveBack:
		add(c.denied, first, redislimit.OpRefund, in.Hits, redislimit.Whole)
		add(s.spilled, note, redislimit.OpRefund, 0, redislimit.Rest)
		add(s.limit, second, redislimit.OpRefund, 0, redislimit.Same)
		add(c.limit, first, redislimit.OpRefund, 0, redislimit.Rest)
	case s.Limit.Rate == 0: // there is only the first
		add(c.limit, first, redislimit.OpTake, in.Hits, redislimit.Whole)
		add(s.limit, second, redislimit.OpPeek, 0, redislimit.Whole)
		add(c.limit, first, redislimit.OpPeek, 0, redislimit.Whole)
	case c.Limit.Rate == 0: // there is only the second
		add(c.limit, first, redislimit.OpPeek, 0, redislimit.Whole)
		add(s.limit, second, redislimit.OpTake, in.Hits, redislimit.Whole)
		add(s.spilled, note, redislimit.OpDebit, 0, redislimit.Same)
		add(s.limit, second, redislimit.OpPeek, 0, redislimit.Whole)
	default:
		add(c.limit, first, redislimit.OpTake, in.Hits, redislimit.Whole)
		add(s.limit, second, redislimit.OpTake, 0, redislimit.Rest)
		add(s.spilled, note, redislimit.OpDebit, 0, redislimit.Same)
	}
}

// answerBoth fills in the result of a call of two budgets, from the results of its calls.
func answerBoth(in *rules.StoreCall, r []redislimit.StoreResult, made bool) {
	c, s := in.Counter.(*counter), in.Second.Counter.(*counter)
	first, second, retry := r[0].Decision, r[1].Decision, r[0].Decision.RetryAfter
	in.Local = r[0].Source == redislimit.FromFallback
	looks := onlyLooks(in)
	in.Second.Hits = 0
	switch {
	case looks:
		retry, second.RetryAfter = r[2].Decision.RetryAfter, 0 // it is not known how many are for the second
	case in.Op == rules.GiveBack:
		first, second = r[3].Decision, r[2].Decision
		in.Absorbed, in.Second.Hits = uint64(r[0].Units), uint64(r[1].Units)
	case s.Limit.Rate == 0:
		first = r[2].Decision
	case c.Limit.Rate == 0:
		retry, in.Second.Hits = sluice.Never, uint64(r[1].Units)
		second = r[3].Decision
		second.RetryAfter = r[1].Decision.RetryAfter
	default:
		in.Second.Hits = uint64(r[1].Units)
	}
	in.Decision, in.Second.Decision = first, second
	in.Decision.RetryAfter = retry
	switch {
	case in.Hits == 0:
		in.Decision.Allowed = first.Allowed || second.Allowed
	case looks || !made:
		in.Decision.Allowed = !beyondInt(in) && in.Hits <= uint64(first.Remaining)+uint64(second.Remaining)
	default:
		in.Decision.Allowed = true
	}
}

// decideBoth makes a call of two budgets.
func (s *Store) decideBoth(in *rules.StoreCall) error {
	c := in.Counter.(*counter)
	if in.Op == rules.GiveBack && in.Hits > 0 {
		s.refunds.sent(c.domain)
	}
	b := batches.Get().(*batch)
	defer b.free()
	b.addBoth(in)
	all, err := b.doAll(c.on)
	if err != nil {
		return err
	}
	answerBoth(in, b.results, all.Allowed)
	return nil
}
