package redislimit

import (
	"time"

	"github.com/sluice-go/sluice/internal/calendar"
)

// owedPause is how long owed charges wait after Redis could not be told of them.
const owedPause = time.Second

// clocksApart is how far the clocks of Redis and of this process may differ, in us, while both still agree
// on which windows are over.
const clocksApart = int64(time.Second) / micro

// What Redis is owed is kept by window and, for holds, by hold: see localHold.

// An owedCharge is units of a key that Redis has not been told of, less the units that have come back since.
// Redis never counts less than if it had been told at once, except a part of one unit: this process tells whole units, and Redis counts
// the whole units that fit. In windows each unit comes back with its
// own window, whatever else Redis has counted. From a bucket, owed units drain together with the units that
// Redis knows of, and with other processes' units: for buckets no owed unit is taken to have come back.
type owedCharge struct {
	plan   *plan
	window int64 // the number of the last window that has begun for certain
	units  int64 // units charged by then that still count
	next   int64 // units charged so late that they may belong to the next window
	last   int64 // units of the window before, which count in part
}

// A cycle is the windows at whose ends units come back, by a clock that may be wrong. A period
// of 0 means that there are no windows.
type cycle struct {
	period, offset int64 // us
	margin         int64 // us by which an end may be earlier or later; at most half of the period
	fades          bool  // units count for one more window, in part
	whole          bool  // with fades: in full

	dates   calendar.Calendar // the windows are a calendar's; without offset, and without units that fade
	windows *calendar.Windows
}

// same reports whether the windows are the same.
func (c cycle) same(d cycle) bool {
	c.windows, d.windows = nil, nil
	return c == d
}

func (bucket) cycle() cycle { return cycle{} }

func (s counter) cycle() cycle {
	if s.back < s.burst {
		return cycle{} // as for a bucket
	}
	return s.aligned.cycle()
}

func (s sliding) cycle() cycle {
	c := s.aligned.cycle()
	c.fades = true
	return c
}

func (w aligned) cycle() cycle {
	return cycle{period: w.period, offset: w.offset, margin: min(clocksApart, w.period/2)}
}

// cycle: this process does not know when a window of the key began, or when each unit was charged. A unit comes
// back a period after its charge; here it is taken to come back after one to two periods.
func (m most) cycle() cycle {
	half := ceilDiv(m.period, 2)
	return cycle{period: 2 * half, margin: half}
}

// number returns the number of the window that a time is in. at is in us.
func (c *cycle) number(at int64) int64 {
	if c.period == 0 {
		return 0
	}
	if c.windows != nil {
		return int64(numberAt(c.windows, at))
	}
	return floorDiv(at-c.offset, c.period)
}

// newOwed returns the owedCharge of units that are charged now, in us.
func newOwed(p *plan, units, now int64) owedCharge {
	c := p.shape.cycle()
	o := owedCharge{plan: p, window: c.number(now - c.margin)}
	if c.number(now+c.margin) > o.window {
		o.next = min(units, p.kept)
	} else {
		o.units = min(units, p.kept)
	}
	return o
}

// left returns how many units Redis has yet to be told of, at most a burst. now is in us.
func (o *owedCharge) left(now int64) int64 {
	c := o.plan.shape.cycle()
	o.goOn(&c, now)
	n := o.units + o.next
	if o.last > 0 {
		end := (o.window+1)*c.period + c.offset
		part := min(end-(now-c.margin), c.period)
		if c.whole {
			part = c.period
		}
		n += min(int64(mulDiv(uint64(o.last), uint64(part), uint64(c.period)))+1, o.last)
	}
	return min(n, o.plan.kept)
}

// goOn removes the units that have come back by now.
func (o *owedCharge) goOn(c *cycle, now int64) {
	n := c.number(now-c.margin) - o.window
	for range min(n, 3) { // after three windows no unit is left
		if c.fades {
			o.last = o.units
		}
		o.units, o.next = o.next, 0
	}
	o.window += max(n, 0)
}

// plus returns the sum of both charges. If it is more than a burst, the older units are dropped. If the limit has
// other windows now, the older units count as if they had been charged now.
func (o owedCharge) plus(newer owedCharge, now int64) owedCharge {
	c := newer.plan.shape.cycle()
	if !o.plan.shape.cycle().same(c) {
		o = newOwed(newer.plan, o.units+o.next+o.last, now)
	}
	o.goOn(&c, now)
	newer.goOn(&c, now)
	newer.window = max(newer.window, o.window) // of two calls, the later one can have the earlier time
	newer.next = min(newer.next+o.next, newer.plan.kept)
	newer.units = min(newer.units+o.units, newer.plan.kept-newer.next)
	newer.last += o.last
	return newer
}

// takeOwed moves the charge owed for a key into a group, whose call is about to tell Redis of it. The caller
// holds mu.
func (l *lane) takeOwed(g *group, now time.Time) {
	o, ok := l.owed[g.key]
	if !ok {
		return
	}
	delete(l.owed, g.key)
	g.debt = min(o.left(l.core.micros(now)), g.plan.kept)
	g.owed = &o
}

// admitted notes that c was admitted although Redis has not answered its group in time, or there is no group.
// If Redis has not charged c, the units are owed to Redis. While the group is on its way, it is not
// known whether Redis has charged c; nor is it if the answer has been lost.
func (l *lane) admitted(g *group, c *takeCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case g == nil || g.state == groupDropped || g.state == groupUndone:
		l.owe(c.plan, c.key, c.n, time.Now())
		l.send()
	case g.state == groupLate && g.op == opAll:
		g.all.admitted = append(g.all.admitted, *c)
	case g.state == groupLate:
		g.admitted += c.n
	case g.known:
		l.uncovered(g, c.plan, c.key, c.n, time.Now())
	}
}

// learn takes in the answer to a call whose callers have been answered without it. What they were admitted beyond what Redis has charged is
// owed. The caller holds mu.
func (l *lane) learn(g *group, s *scheduled, now time.Time) {
	undone := notDone(s.err) // see notTold
	if s.err != nil && !undone && !ofHold(s.err) {
		return // it may still be on its way
	}
	if !undone {
		g.known, g.covered = true, g.charged(s)
	}
	l.learnHolds(g, g.covered > 0, now)
	if undone {
		return
	}
	if g.op == opAll {
		for i := range g.all.admitted {
			c := &g.all.admitted[i]
			l.uncovered(g, c.plan, c.key, c.n, now)
		}
	}
	l.uncovered(g, g.plan, g.key, g.admitted, now)
}

// uncovered notes units that were admitted in the place of a call of which it is known how many units it has charged. The caller holds mu.
func (l *lane) uncovered(g *group, p *plan, name string, units int64, now time.Time) {
	covered := min(units, g.covered)
	g.covered -= covered
	if units > covered {
		l.owe(p, name, units-covered, now)
		l.send()
	}
}

// notTold is called for a group whose call Redis has not run. It notes again the charge that the call was to tell
// of, and notes the units admitted in place of the call. The caller holds mu.
func (l *lane) notTold(g *group, now time.Time) {
	if g.op == opAll {
		for _, c := range g.all.admitted {
			l.owe(c.plan, c.key, c.n, now)
		}
	}
	if g.debt+g.admitted == 0 {
		return
	}
	if g.debt > 0 {
		l.oweAlso(g.key, *g.owed, now)
	}
	if g.admitted > 0 {
		l.owe(g.plan, g.key, g.admitted, now)
	}
	l.postpone(now)
}

// owe notes units that Redis has to be told of. The caller holds mu.
func (l *lane) owe(p *plan, name string, units int64, now time.Time) {
	l.oweAlso(name, newOwed(p, units, l.core.micros(now)), now)
}

// oweAlso notes a charge that Redis has to be told of, and adds it to the debt of the key, at
// most a burst of a key. The caller holds mu.
func (l *lane) oweAlso(name string, o owedCharge, now time.Time) {
	at := l.core.micros(now)
	if before, known := l.owed[name]; known {
		l.owed[name] = before.plus(o, at)
	} else if len(l.owed) < l.core.maxKeys || l.dropPaid(at) {
		l.owed[name] = o
	}
}

// dropPaid makes room for a key. It looks at a few keys, and drops one whose owed units have all come back. The
// caller holds mu.
func (l *lane) dropPaid(now int64) bool {
	left := tableSample
	for name, o := range l.owed { // begins at a random key
		if o.left(now) == 0 {
			delete(l.owed, name)
			return true
		}
		if left--; left == 0 {
			break
		}
	}
	return false
}

// postpone makes owed charges wait for a while. The caller holds mu.
func (l *lane) postpone(now time.Time) {
	if now.Before(l.owedFrom) {
		return // a timer is set already
	}
	l.owedFrom = now.Add(owedPause)
	time.AfterFunc(owedPause, l.wake)
}

// retire is called for a lane that keys no longer use, so that no call would find out that its primary
// answers again. It returns the debts that Redis has to be told of.
func (l *lane) retire() (owed map[string]owedCharge, held []localHold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.breaker.state != breakerClosed {
		l.core.turn(-1, nil)
	}
	l.breaker = breaker{}
	l.setReturning(false)
	owed = l.owed
	l.owed = map[string]owedCharge{}
	for _, holds := range l.held {
		for _, of := range holds {
			held = append(held, *of)
		}
	}
	l.core.heldHere.Add(-int64(len(held)))
	l.held, l.untold, l.ended = map[string]map[string]*localHold{}, map[string]map[string]*localHold{}, 0
	return owed, held
}

// inherit takes over the charge that is owed for a key.
func (l *lane) inherit(name string, o owedCharge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.oweAlso(name, o, time.Now())
	l.send()
}

// disown takes units in flight that have been given back off the debt of a key that Redis has yet to be told of, the oldest first.
func (l *lane) disown(name string, units int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.owed[name]
	if !ok {
		return
	}
	for _, n := range []*int64{&o.last, &o.units, &o.next} {
		back := min(units, *n)
		*n -= back
		units -= back
	}
	l.owed[name] = o
}

// wake sends the debts that Redis has to be told of.
func (l *lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send()
}
