package redislimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// A core is shared by all limits that ask the same Redis. It has the ways to the primaries, the remembered
// denials, the units on lease, and the mode.
type core struct {
	link     *link
	router   *router
	budget   time.Duration
	wait     time.Duration // how long to wait for Redis
	policy   OnUnavailable
	maxKeys  int
	maxStale int64 // ns
	began    time.Time
	denied   *table[denial]
	leases   *leases // or nil
	stats    tierStats
	timers   lateness
	closed   atomic.Bool
	replicas atomic.Int64
	heldHere atomic.Int64 // holds of the share; see localHold

	uncounted atomic.Bool // replicas is a guess: Redis has not said yet how many there are

	returning atomic.Int64 // primaries that have just come back; see within

	modes  sync.Mutex // guards the rest
	down   int        // primaries that are not asked
	since  time.Time  // when the mode began
	cause  error      // the cause of the mode, or nil
	base   uint64     // units admitted without Redis before the mode began
	events []event    // changes that OnMode has not been told of
	onMode func(Mode, error)
	told   sync.WaitGroup
}

type event struct {
	mode  Mode
	cause error
}

// A denial is a cost that a key was denied, and the key's state at that time.
type denial struct {
	plan    *plan
	cost    int64
	view    view
	blocked int64 // us
	at      int64 // ns since the tier began: when the call was sent
}

// newCore returns a core for a config that has been validated.
func newCore(to *link, cfg *TierConfig, lends bool) *core {
	c := &core{
		link: to, budget: cfg.Budget, wait: cfg.wait(), policy: cfg.OnUnavailable, maxKeys: cfg.MaxKeys, maxStale: int64(cfg.MaxStale),
		began: time.Now(), since: time.Now(), denied: newTable[denial](cfg.MaxKeys), onMode: cfg.OnMode,
	}
	c.timers.began = c.began
	c.replicas.Store(int64(cfg.Replicas))
	if lends {
		c.leases = newLeases(c)
	}
	c.router = newRouter(to.client, func() *lane { return newLane(c) })
	return c
}

func (c *core) check(ctx context.Context) error {
	if c.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// An asked is a call that asks Redis, and its outcome.
type asked struct {
	lane   *lane
	group  *group // nil if there was no group to join; there is no waiter then
	waiter *waiter
	failed error // why Redis has not answered
}

// leased reports whether the caller has been admitted from a lease, whatever has happened to its group.
func (a *asked) leased() bool { return a.waiter != nil && a.waiter.leased }

// ask asks Redis, in a group, and waits for the group's end. The error is ctx's.
func (c *core) ask(ctx context.Context, s subject, r request, now time.Time) (a asked, err error) {
	a.lane = c.router.lane(r.key, now)
	var h *loan
	if !a.lane.returning.Load() { // a lease would not keep to the share
		h = c.leases.loan(&r, s, now)
	}
	a.group, a.waiter, a.failed = a.lane.join(r, h, now)
	if a.failed != nil {
		return a, nil
	}
	err = a.await(ctx)
	return a, err
}

// await waits for the group's end, or leads it there. The error is ctx's. A caller that has been admitted
// from a lease gets no error: its units are spent.
func (a *asked) await(ctx context.Context) error {
	if a.group.direct != nil {
		err := a.lane.lead(ctx, a.group)
		a.failed = a.group.err
		return err
	}
	select {
	case <-a.group.done:
		a.failed = a.group.err
	case <-ctx.Done():
		if !a.lane.leave(a.waiter) {
			return ctx.Err()
		}
	}
	return nil
}

// decision returns the decision for the caller with a rank, from the reply that its group shares. The
// reply has the state after all calls of the group: the calls behind the caller's are subtracted.
func (c *core) decision(t *takeCall, s subject, g *group, rank int64) sluice.Decision {
	r := &g.reply
	if t.k == 0 {
		seen := *r
		seen.view = g.viewOf(rank)
		return t.decision(&seen)
	}
	if rank < r.admitted {
		if !t.within {
			s.share(t.plan).TakeUpTo(t.cost)
		}
		if g.pause > 0 && r.admitted == g.k {
			c.remember(t, s, g)
		}
		d := t.plan.describe(t.plan.shape.charged(r.view, -(r.admitted-1-rank)*t.n), 0, t.cost, true)
		if g.lend > 0 {
			d.Remaining += int(r.c) // r.c units are lent to this process
		}
		return d
	}
	t.giveBack(s)
	d := t.plan.describe(r.view, r.blocked(), t.cost, false)
	d.RetryAfter = max(d.RetryAfter, c.remember(t, s, g))
	return d
}

// remember notes that the key has been denied the cost, and returns for how long. Redis
// judged after the group was sent. So nothing is admitted before the wait of the reply is over,
// counted from the time when the group was sent.
//
// With leases, something may be admitted earlier if other processes give units back. So that replicas that wait for
// the same unit do not all ask for it together, and again for every unit, each adds some slack.
//
// Of units in flight nothing is remembered: they come back when they end.
func (c *core) remember(t *takeCall, s subject, g *group) time.Duration {
	if t.plan.inFlight() {
		return 0
	}
	d := denial{plan: t.plan, cost: t.n, view: g.reply.view, blocked: g.reply.blocked(), at: int64(g.batch.sent.Sub(c.began))}
	wait := d.blocked
	if wait > 0 {
		d.cost = 1
	} else {
		wait = t.plan.shape.wait(d.view, t.n)
	}
	ask := min(int64(duration(wait)), c.maxStale)
	switch {
	case g.pause > 0 && d.blocked == 0:
		if g.reply.admitted == g.k { // nothing is left
			d.cost = 1
		}
		soonest := int64(duration(t.plan.shape.soonest(d.view, d.cost)))
		ask = min(max(soonest, g.pause), c.maxStale)
	case g.loan != nil && t.terms != nil && d.blocked == 0:
		soonest := min(int64(duration(t.plan.shape.soonest(d.view, t.n))), ask)
		ask = min(soonest+min(ask-soonest+g.slack, t.terms.life/2), c.maxStale)
	}
	c.denied.update(s.id, d.at, func(denial, int64) (denial, int64) { return d, d.at + ask })
	return time.Duration(ask)
}

// recall returns the decision on a call if the memory denies it. seen, if it is not nil, becomes the denial in memory.
func (c *core) recall(p *plan, s subject, cost int, at int64, seen *denial) (d sluice.Decision, ok bool) {
	if cost < 1 || int64(cost) > p.burst {
		return d, false
	}
	e, until, ok := c.denied.get(s.id, at)
	if !ok || e.plan != p || int64(cost) < e.cost {
		return d, false
	}
	if seen != nil {
		*seen = e
	}
	d = p.describe(e.view, e.blocked, cost, false)
	elapsed := time.Duration(at - e.at)
	for _, wait := range []*time.Duration{&d.RetryAfter, &d.ResetAfter} {
		if *wait != sluice.Never {
			*wait = max(*wait-elapsed, 1)
		}
	}
	d.RetryAfter = max(d.RetryAfter, time.Duration(until-at))
	return d, true
}

// micros returns a time in us of Unix time, by the same clock as local: steps of this
// machine's clock do not change it.
func (c *core) micros(now time.Time) int64 {
	return c.began.UnixMicro() + now.Sub(c.began).Microseconds()
}

// mode returns the mode.
func (c *core) mode() Mode {
	c.modes.Lock()
	defer c.modes.Unlock()
	return c.modeLocked()
}

func (c *core) modeLocked() Mode {
	if c.down > 0 {
		return ModeDegraded
	}
	return ModeShared
}

// turn notes that calls no longer ask a primary (more is 1), or ask it again (more is -1).
func (c *core) turn(more int, cause error) {
	c.modes.Lock()
	defer c.modes.Unlock()
	before := c.modeLocked()
	c.down += more
	if more > 0 {
		c.stats.outages.Add(1)
	}
	if c.modeLocked() != before {
		c.since, c.cause, c.base = time.Now(), cause, c.stats.unshared.Load()
	} else if more < 0 {
		return
	}
	c.occurs(cause)
}

// explain notes why the mode is degraded, if it still is.
func (c *core) explain(cause error) {
	c.modes.Lock()
	defer c.modes.Unlock()
	if c.modeLocked() == ModeDegraded {
		c.cause = cause
		c.occurs(cause)
	}
}

// occurs has OnMode told of the present mode, and of a cause. The caller holds modes.
func (c *core) occurs(cause error) {
	if c.onMode == nil {
		return
	}
	c.events = append(c.events, event{c.modeLocked(), cause})
	if len(c.events) == 1 {
		c.told.Go(c.tell)
	}
}

// tell calls OnMode for all events. An event stays in the list until OnMode has been told of it, so
// that only one goroutine tells.
func (c *core) tell() {
	c.modes.Lock()
	defer c.modes.Unlock()
	for len(c.events) > 0 {
		e := c.events[0]
		c.modes.Unlock()
		c.onMode(e.mode, e.cause)
		c.modes.Lock()
		c.events = c.events[1:]
	}
}

// tripped counts a pipeline that has come back.
func (c *core) tripped(d time.Duration) {
	c.stats.trips.Add(1)
	c.stats.tripTime.Add(uint64(max(d, 0)))
}

// status is Store.Status.
func (c *core) status() Status {
	c.modes.Lock()
	defer c.modes.Unlock()
	return Status{Mode: c.modeLocked(), Since: c.since, Cause: c.cause, Unshared: c.stats.unshared.Load() - c.base}
}

// counted returns the counts so far.
func (c *core) counted() Stats {
	s := &c.stats
	return Stats{
		Redis: s.redis.Load(), Cache: s.cache.Load(), Lease: s.lease.Load(), Fallback: s.fallback.Load(), Scripts: s.scripts.Load(), Led: s.led.Load(),
		Late: s.late.Load(), Failed: s.failed.Load(), PoolTimeouts: s.poolTimeouts.Load(), DialErrors: s.dialErrors.Load(), Outages: s.outages.Load(),
		Lent: s.lent.Load(), Returned: s.returned.Load(),
		Unasked: s.unasked.Load(), Unshared: s.unshared.Load(), Trips: s.trips.Load(), TripTime: time.Duration(s.tripTime.Load()),
		Leased: c.leases.out(), Owed: c.router.owed(c.micros(time.Now())),
	}
}

// close is Tier.Close.
func (c *core) close(ctx context.Context, also func()) error {
	c.closed.Store(true)
	done := make(chan struct{})
	go func() {
		c.leases.end()
		for _, l := range c.router.all() {
			l.close()
		}
		c.router.done.Wait()
		for _, l := range c.router.all() {
			l.close() // lanes that the last answer of the cluster has made
			l.wait()
		}
		c.told.Wait()
		also()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
