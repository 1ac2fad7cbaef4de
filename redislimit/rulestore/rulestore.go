// Package rulestore keeps the counts of rules in Redis or Valkey, so that the engines of many processes count
// together.
//
//	store, err := rulestore.New(client, rulestore.Config{Prefix: "sluice"})
//	engine, err := rules.New(set, rules.Config{Store: store, Leases: true})
//	...
//	store.Close(ctx)
//
// It is a rules.Store on top of a redislimit.Store: package redislimit says how units are lent, how counts are restored,
// and how calls go on without Redis. Keys of Redis hold the domain and the entries of a descriptor as text, each with its
// length, or their SHA-256 if that is long, so that different lists of entries have different keys. The keys of an
// atomic domain are in one slot of a cluster, by a hash tag of the domain, and so are the keys of rules with then and of their
// second budgets; other keys are spread over all slots.
package rulestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// Config describes a Store. Processes that share counts have the same Prefix and, unless it is 0, the same Replicas.
type Config struct {
	// StoreConfig is for the Redis and, with Prefix and Replicas, for PerSecond, too. An empty Prefix is "sluice".
	redislimit.StoreConfig

	// PerSecond counts the limits of a second, except in atomic domains. If it is nil they count with all other limits.
	PerSecond redis.UniversalClient

	// OnError, if not nil, is called when Redis has not said, or was not told, which domains are sent refunds: once,
	// until that has worked again. The known domains stay meanwhile. Failed calls are for StoreConfig.OnMode.
	OnError func(error)
}

// Store implements rules.HoldStore. It is safe for concurrent use. Close it when no engine needs it any more.
type Store struct {
	main      *redislimit.Store
	perSecond *redislimit.Store // or nil
	refunds   *refunds
	budget    time.Duration
	after     func(time.Duration, func()) // time.AfterFunc
	slots     bool                        // keys are spread over servers
	idLimits  idLimits
}

// most is the largest lease. The units that the limit admits in a lease's life, and the units left, bound it further.
const most = 1 << 20

// closeAfter is how long calls may take that began before a limit was closed. For one call an engine asks the Store at
// most three times. The Store then makes at most four calls of redislimit, to one server after the other, each within the
// budget. A minute is for the work of the process between these calls, and for calls of two budgets, which are made one by one.
func (s *Store) closeAfter() time.Duration { return time.Minute + 3*4*2*s.budget }

// New returns a store. It does not wait for Redis, which may be down.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	if c.Prefix == "" {
		c.Prefix = "sluice"
	}
	if c.Budget == 0 {
		c.Budget = 5 * time.Millisecond
	}
	main, err := redislimit.NewStore(client, c.StoreConfig)
	if err != nil {
		return nil, err
	}
	s := &Store{main: main, slots: spread(client) || spread(c.PerSecond), budget: c.Budget, after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}
	if c.PerSecond != nil {
		if s.perSecond, err = redislimit.NewStore(c.PerSecond, c.StoreConfig); err != nil {
			return nil, errors.Join(err, main.Close(context.Background()))
		}
	}
	s.refunds = newRefunds(client, c.Prefix, c.OnError)
	return s, nil
}

// spread reports whether the keys of a client are on several servers.
func spread(client redis.UniversalClient) bool {
	switch client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return true
	}
	return false
}

// Close gives back the units on lease and tells Redis of the charges that it is owed, as far as ctx lets it. It ends all
// background work of the Store. The engines that used the Store have nothing to close themselves.
func (s *Store) Close(ctx context.Context) error {
	wait := s.refunds.close()
	err := s.main.Close(ctx)
	if s.perSecond != nil {
		err = errors.Join(err, s.perSecond.Close(ctx))
	}
	wait(ctx)
	return err
}

// Stores returns the store of each server that counts: one, or two with Config.PerSecond.
func (s *Store) Stores() []*redislimit.Store {
	if s.perSecond != nil {
		return []*redislimit.Store{s.main, s.perSecond}
	}
	return []*redislimit.Store{s.main}
}

// counter implements rules.StoreCounter.
type counter struct {
	rules.StoreLimit
	store *Store
	on    *redislimit.Store
	limit *redislimit.StoreLimit
	// The units that keys were denied: all that wait for a refund, and those that are in the count of the present window.
	denied, deniedNow *redislimit.StoreLimit
	spilled           *redislimit.StoreLimit // for a second budget: see both.go
	plenty            sluice.Limit           // for windows: a limit of the same period that is never reached
	domain            *domain
}

// leaseLife is the life of a lease of a window of a minute or more. Most keys are called a few times a second, and in
// redislimit's 100 ms a lease would serve one call. It is 0, for the 100 ms, for shorter windows, and for other
// algorithms: from an empty bucket a lease brings only the units that drain in its life.
func leaseLife(l *rules.StoreLimit) time.Duration {
	if !l.Windows() || l.Limit.Period < time.Minute {
		return 0
	}
	return time.Second
}

// Open implements rules.Store.
func (s *Store) Open(l rules.StoreLimit) (rules.StoreCounter, error) {
	c := &counter{StoreLimit: l, store: s, on: s.main, domain: s.refunds.enter(l.Domain)}
	if s.perSecond != nil && l.Limit.Period == time.Second && !l.Atomic {
		c.on = s.perSecond
	}
	cfg := redislimit.LimitConfig{Name: name(&l), Algorithm: l.Algorithm, Limit: l.Limit, Offset: l.Offset, BlockFor: l.BlockFor}
	if l.Atomic {
		cfg.Tag = tag(l.Domain)
	}
	// A lease lives at least for a budget, and at most for half of a period.
	if l.Leases && l.Algorithm != sluice.SlidingLog && l.Algorithm != sluice.InFlight && l.BlockFor == 0 && s.budget <= l.Limit.Period/2 {
		cfg.Lease.Max = most
		if life := leaseLife(&l); life >= 2*s.budget {
			cfg.Lease.Life = life
		}
	}
	cfg.Exact = !l.Leases
	if holdable(&l) {
		cfg.MaxHolds = maxHolds
	}
	var err error
	open := func(cfg redislimit.LimitConfig) (opened *redislimit.StoreLimit) {
		if err == nil {
			opened, err = c.on.Limit(cfg)
		}
		return opened
	}
	c.limit = open(cfg)
	cfg.Lease, cfg.BlockFor, cfg.Exact, cfg.MaxHolds = redislimit.Lease{}, 0, true, 0
	kind := name(&l)
	if l.Override {
		kind += " override"
	}
	if l.Windows() {
		cfg.Name, c.plenty = kind+" denied now", plentyOf(sluice.FixedWindow, l.Limit, l.Limit.Period)
		cfg.Limit = c.plenty
		c.deniedNow = open(cfg)
	}
	cfg.Name, cfg.Algorithm, cfg.Offset = kind+" denied", sluice.FixedWindowFirstCharge, 0
	cfg.Limit = sluice.Per(plenty, denialLife)
	c.denied = open(cfg)
	if l.Second {
		c.openSpilled(cfg, open)
	}
	if err != nil {
		c.closeAll()
		return nil, plain(err)
	}
	return c, nil
}

// plenty is a limit that is never reached. If an int has 32 bits, one more would be Unlimited, which counts nothing.
const plenty = math.MaxInt32 - 1

// plentyOf returns plenty, or less for short windows, whose large numbers need room beside the count: in the windows of a limit, if it has a
// calendar, or else in a period.
func plentyOf(algorithm sluice.Algorithm, windows sluice.Limit, period time.Duration) sluice.Limit {
	limit := sluice.Per(plenty, period)
	if c := windows.Calendar(); c != (sluice.Calendar{}) {
		limit = sluice.PerCalendar(plenty, c)
	}
	for limit.Rate > 1 {
		if _, err := sluice.New(sluice.Config{Algorithm: algorithm, Limit: limit, MaxKeys: 1}); err == nil {
			break
		}
		limit.Rate /= 2
	}
	return limit
}

// plain returns the error of a limit without the name of redislimit's field, since rules have no such name.
func plain(err error) error {
	var c *redislimit.ConfigError
	if errors.As(err, &c) {
		return fmt.Errorf("%s: %s", strings.ToLower(c.Field), c.Reason)
	}
	return err
}

// name returns the name that limits share if they count the same keys.
func name(l *rules.StoreLimit) string {
	n := l.Algorithm.String()
	if c := l.Limit.Calendar(); c != (sluice.Calendar{}) {
		n += " " + sluice.PerCalendar(0, c).String()
	} else if l.Windows() || l.Algorithm == sluice.SlidingWindow || l.Algorithm == sluice.SlidingLog || l.Algorithm == sluice.FixedWindow || l.Algorithm == sluice.InFlight {
		n += fmt.Sprintf(" %d", int64(l.Limit.Period))
	}
	if l.Offset != 0 {
		n += fmt.Sprintf(" +%d", int64(l.Offset))
	}
	if l.BlockFor != 0 {
		n += " blocks"
	}
	if l.Admitted {
		n += " admitted"
	}
	if l.Second {
		n += " second"
	}
	if l.Atomic {
		n += " of " + tag(l.Domain)
	}
	return n
}

// tag returns the hash tag that keeps the keys of a domain together.
func tag(domain string) string {
	sum := sha256.Sum256([]byte(domain))
	return hex.EncodeToString(sum[:8])
}

// Close implements rules.StoreCounter.
func (c *counter) Close() { c.store.after(c.store.closeAfter(), c.closeAll) }

func (c *counter) closeAll() {
	for _, l := range []*redislimit.StoreLimit{c.limit, c.denied, c.deniedNow, c.spilled} {
		if l != nil {
			l.Close()
		}
	}
	c.store.refunds.leave(c.domain)
}

// Decide implements rules.Store.
func (s *Store) Decide(calls []rules.StoreCall) error {
	if len(calls) > 0 && calls[0].Op == rules.Deny {
		return s.deny(calls)
	}
	for len(calls) > 0 {
		n := slices.IndexFunc(calls, ofBoth)
		switch {
		case n == 0:
			if err := s.decideBoth(&calls[0]); err != nil {
				return err
			}
			calls = calls[1:]
			continue
		case n < 0:
			n = len(calls)
		}
		if err := s.decideEach(calls[:n]); err != nil {
			return err
		}
		calls = calls[n:]
	}
	return nil
}

// decideEach makes calls of one budget.
func (s *Store) decideEach(calls []rules.StoreCall) error {
	absorbed, err := s.absorb(calls)
	if err != nil {
		return err
	}
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		c := calls[i].Counter.(*counter)
		b.add(c, c.call(&calls[i], absorbed))
	}
	if err := b.do(s); err != nil {
		return err
	}
	for i := range calls {
		calls[i].Counter.(*counter).answer(&calls[i], &b.calls[i], &b.results[i])
	}
	return s.settle(calls, absorbed)
}

// DecideAll implements rules.Store.
func (s *Store) DecideAll(calls []rules.StoreCall) (denied int, err error) {
	if denied, err = s.overfull(calls); err != nil || denied >= 0 {
		return denied, err
	}
	absorbed, err := s.absorb(calls)
	if err != nil {
		return -1, err
	}
	b := batches.Get().(*batch)
	defer b.free()
	for i := range calls {
		b.addOf(&calls[i], func(c *counter) redislimit.StoreCall { return c.call(&calls[i], absorbed) })
	}
	all, err := b.doAll(s.main)
	if err != nil {
		return -1, err
	}
	if denied = b.answer(calls, all); denied >= 0 {
		return denied, s.unabsorb(calls, absorbed)
	}
	return -1, s.settle(calls, absorbed)
}

// overfull returns the first call without hits, or with too many for an int, that denies other calls, or -1. One without
// stands in the way if its window holds more than its limit, or its limiter would admit nothing. redislimit would only see a look.
func (s *Store) overfull(calls []rules.StoreCall) (int, error) {
	if !slices.ContainsFunc(calls, looks) {
		return -1, nil
	}
	b := batches.Get().(*batch)
	defer b.free()
	made := calls
	calls = slices.Clone(made)
	for i := range calls {
		in := &calls[i]
		if ofBoth(*in) {
			in.Op = rules.Look
		}
		b.addOf(in, func(c *counter) redislimit.StoreCall {
			peek := redislimit.StoreCall{Limit: c.limit, Key: in.Key, Op: redislimit.OpPeek, Override: c.asked(in)}
			if in.Op == rules.CountFitting || in.Op == rules.Look {
				peek.Cost = clamp(in.Hits)
			}
			return peek
		})
	}
	if err := b.do(s); err != nil {
		return -1, err
	}
	b.answer(calls, sluice.AllDecision{Denied: -1})
	for i := range calls {
		in := &calls[i]
		in.Op = made[i].Op
		in.Decision.Allowed = in.Decision.Allowed && !(ofBoth(*in) && beyondInt(in))
	}
	copy(made, calls)
	return slices.IndexFunc(made, func(in rules.StoreCall) bool { return looks(in) && !in.Decision.Allowed }), nil
}

// looks reports whether a call counts no hits, or cannot.
func looks(in rules.StoreCall) bool {
	return in.Op == rules.CountFitting && in.Hits == 0 || ofBoth(in) && beyondInt(&in)
}

// asked returns the limit for a call, if not the counter's. Under a limit of 0 redislimit does not tell a window's count.
func (c *counter) asked(in *rules.StoreCall) sluice.Limit {
	fits := in.Op == rules.CountFitting && in.Hits > 0
	if c.Windows() && c.limitOf(in).Rate == 0 && !fits {
		return c.plenty
	}
	return in.Limit
}

// call returns a call in redislimit's form.
func (c *counter) call(in *rules.StoreCall, a absorptions) redislimit.StoreCall {
	out := redislimit.StoreCall{Limit: c.limit, Key: in.Key, Cost: clamp(in.Hits), Override: c.asked(in)}
	switch in.Op {
	case rules.CountFitting:
		if looks(*in) {
			out.Op = redislimit.OpPeek
		}
	case rules.CountAll:
		if !c.leases() {
			out.Op = redislimit.OpDebit
		}
	case rules.Look:
		out.Op = redislimit.OpPeek
	case rules.GiveBack:
		out.Op = redislimit.OpRefund
		in.Absorbed = a[in].absorbed
		if c.Windows() { // a window holds more than its limit after hits were denied
			out.Override = c.plenty
		}
		out.Cost = clamp(in.Hits - in.Absorbed)
	}
	return out
}

// leases reports whether denied hits may stay uncounted. They may not if refunds are sent: refunds of denied calls
// would give back hits that were never counted.
func (c *counter) leases() bool { return c.Leases && !c.domain.refunds() }

// answer fills in the result of a call.
func (c *counter) answer(in *rules.StoreCall, out *redislimit.StoreCall, r *redislimit.StoreResult) {
	in.Decision, in.Local, in.Count = r.Decision, r.Source == redislimit.FromFallback, uint64(max(r.Count, 0))
	switch limit := c.limitOf(in).Rate; {
	case in.Op == rules.GiveBack && c.Windows(): // it was judged under plenty
		in.Decision = lookOf(limit, in.Count, in.Decision.ResetAfter)
	case looks(*in) && c.Windows() && !c.Second: // a look passes if the count is at most the limit
		in.Decision.Allowed = in.Count <= uint64(limit)
		in.Decision.Remaining = min(in.Decision.Remaining, limit)
	case limit == 0 && (c.Windows() || in.Op != rules.GiveBack): // of which redislimit counts as if it were another limit
		in.Decision.Allowed, in.Decision.Remaining = in.Hits == 0 && c.Windows() && !c.Second, 0
		if !in.Decision.Allowed {
			in.Decision.RetryAfter = sluice.Never
		}
		if !c.Windows() {
			in.Decision.ResetAfter = 0
		}
	}
	if in.Op != rules.CountAll || out.Op == redislimit.OpPeek {
		return
	}
	in.Counted = out.Op == redislimit.OpDebit || out.Over
	if in.Counted || in.Local {
		return
	}
	limit := c.limitOf(in).Rate
	in.Count = uint64(max(limit-r.Decision.Remaining, 0))
	if in.Counted = r.Decision.Allowed; !in.Counted { // other processes may hold the units that are left, on lease
		in.Count = max(in.Count+in.Hits, uint64(limit)+1)
	}
}

// lookOf is the decision of a look at a window that holds count hits of limit.
func lookOf(limit int, count uint64, left time.Duration) sluice.Decision {
	d := sluice.Decision{Limit: limit, Remaining: int(uint64(limit) - min(count, uint64(limit))), ResetAfter: left}
	if d.Allowed = d.Remaining > 0; !d.Allowed {
		d.RetryAfter = left
		if limit == 0 {
			d.RetryAfter = sluice.Never
		}
	}
	return d
}

// limitOf returns the limit that judges a call.
func (c *counter) limitOf(in *rules.StoreCall) sluice.Limit {
	if in.Limit != (sluice.Limit{}) {
		return in.Limit
	}
	return c.Limit
}

// clamp returns the cost of hits. If an int has 32 bits, no limit has room for more.
func clamp(hits uint64) int { return int(min(hits, math.MaxInt)) }
