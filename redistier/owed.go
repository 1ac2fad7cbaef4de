package redistier

import "time"

// owedPause is how long what is owed rests when Redis could not be told.
const owedPause = time.Second

// clocksApart is how far the clocks of Redis and of this process may be apart, in us, for both to
// see which windows are over.
const clocksApart = int64(time.Second) / micro

// An owedCharge is units that Redis has not been told of, without those that have come back since:
// Redis never counts less than if it had been told at once. In windows each unit comes back
// with its own, whatever else Redis knows of. From a bucket units drain together with those that
// Redis knows of, and with other processes': there, none are taken to have come back.
type owedCharge struct {
	plan   *plan
	window int64 // the number of the last one that has begun for sure
	units  int64 // charged by then, that count
	next   int64 // the same, charged so late that they may belong to the window after
	last   int64 // units of the window before, that count in part
}

// A cycle is windows, by a clock that may be wrong, at whose ends units come back. With a period
// of 0 there are none.
type cycle struct {
	period, offset int64 // us
	margin         int64 // us by which an end may be earlier or later; at most half of the period
	fades          bool  // units count for one more window, in part
}

func (bucket) cycle() cycle { return cycle{} }

func (s counter) cycle() cycle {
	if s.back < s.burst {
		return cycle{} // as from a bucket
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

// cycle: nobody here knows when a window of the key began, or when each unit was charged. It comes
// back a period later, and is taken to after one period to two.
func (m most) cycle() cycle {
	half := ceilDiv(m.period, 2)
	return cycle{2 * half, 0, half, false}
}

// number returns that of the window of a time, in us.
func (c *cycle) number(at int64) int64 {
	if c.period == 0 {
		return 0
	}
	return floorDiv(at-c.offset, c.period)
}

// newOwed returns units that are charged now, in us.
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

// left returns how many units there are to tell Redis of, at most a burst. now is in us.
func (o *owedCharge) left(now int64) int64 {
	c := o.plan.shape.cycle()
	o.goOn(&c, now)
	n := o.units + o.next
	if o.last > 0 {
		end := (o.window+1)*c.period + c.offset
		part := min(end-(now-c.margin), c.period)
		n += min(int64(mulDiv(uint64(o.last), uint64(part), uint64(c.period)))+1, o.last)
	}
	return min(n, o.plan.kept)
}

// goOn takes off what has come back by now.
func (o *owedCharge) goOn(c *cycle, now int64) {
	n := c.number(now-c.margin) - o.window
	for range min(n, 3) { // the third leaves nothing
		if c.fades {
			o.last = o.units
		}
		o.units, o.next = o.next, 0
	}
	o.window += max(n, 0)
}

// plus returns both together. Of more than a burst the older units go. Under another limit, those
// of before count as if they had been charged now.
func (o owedCharge) plus(newer owedCharge, now int64) owedCharge {
	c := newer.plan.shape.cycle()
	if o.plan.shape.cycle() != c {
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

// takeOwed moves what is owed of a key to a group, whose call is about to tell of it. The caller
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

// admitted notes that c, of a group that Redis has not answered, or of none, was admitted
// all the same. If Redis cannot have been charged it is owed that; while the group is on
// its way, that is not known.
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
	}
}

// notTold notes what the call of a group, which Redis has not run, was to tell, and what has been
// admitted in its place. The caller holds mu.
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

// oweAlso notes a charge that Redis has to be told of, beside those that it has to be already, at
// most a burst of a key. The caller holds mu.
func (l *lane) oweAlso(name string, o owedCharge, now time.Time) {
	at := l.core.micros(now)
	if before, known := l.owed[name]; known {
		l.owed[name] = before.plus(o, at)
	} else if len(l.owed) < l.core.maxKeys || l.dropPaid(at) {
		l.owed[name] = o
	}
}

// dropPaid makes room for a key: of a few, one goes of which everything has come back. The caller
// holds mu.
func (l *lane) dropPaid(now int64) bool {
	left := tableSample
	for name, o := range l.owed { // which begins anywhere
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

// postpone lets what is owed rest for a while. The caller holds mu.
func (l *lane) postpone(now time.Time) {
	if now.Before(l.owedFrom) {
		return // and a timer is set
	}
	l.owedFrom = now.Add(owedPause)
	time.AfterFunc(owedPause, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.send()
	})
}

// retire is for a lane that no key goes by any more: nobody would find out that its primary
// answers. It returns what is owed.
func (l *lane) retire() map[string]owedCharge {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.breaker.state != breakerClosed {
		l.core.turn(-1, nil)
	}
	l.breaker = breaker{}
	l.setReturning(false)
	owed := l.owed
	l.owed = map[string]owedCharge{}
	return owed
}

// inherit takes over what is owed of a key.
func (l *lane) inherit(name string, o owedCharge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.oweAlso(name, o, time.Now())
	l.send()
}
