package redistier

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// A batch is groups that go out together.
type batch struct {
	groups  []*group
	scripts []scheduled // of the groups, in their order
	sent    time.Time
	late    bool // the deadline of one of them has come

	oneGroup  [1]*group // room for one
	oneScript [1]scheduled
}

// newBatch returns one with room for n groups.
func newBatch(sent time.Time, n int) *batch {
	b := &batch{sent: sent}
	b.groups, b.scripts = b.oneGroup[:0], b.oneScript[:0]
	if n > 1 {
		b.groups, b.scripts = make([]*group, 0, n), make([]scheduled, 0, n)
	}
	return b
}

// add makes a group part of the batch: from now on it is sent.
func (b *batch) add(g *group) {
	g.state, g.batch = groupSent, b
	b.groups = append(b.groups, g)
}

// context returns one that ends a second after the budget at the earliest, and half of that
// later at the latest. The caller holds mu.
func (l *lane) context(now time.Time) context.Context {
	life := time.Second + l.core.budget
	if !now.Before(l.renew) {
		l.ctx, l.cancel = context.WithTimeout(context.Background(), life+life/2) // those before end by themselves
		l.renew = now.Add(life / 2)
	}
	return l.ctx
}

// take takes up to maxBatch groups that somebody waits for, and what is owed; or returns nil
// if there is nothing. The caller holds mu.
func (l *lane) take() *batch {
	if len(l.waiting)+len(l.settling)+len(l.owed) == 0 {
		return nil
	}
	b := newBatch(time.Now(), min(len(l.waiting), maxBatch))
	taken, back := 0, 0
	for taken < len(l.waiting) && len(b.groups) < maxBatch {
		g := l.waiting[taken]
		taken++
		if g.state == groupQueued && l.holdsBack(g, b.sent) {
			l.waiting[back] = g
			back++
		} else if g.state == groupQueued && l.ready(g, b.sent) {
			b.add(g)
		}
	}
	l.waiting = slices.Delete(l.waiting, back, taken)
	if l.breaker.state == breakerOpen {
		l.settling = nil // Redis takes it for spent
	} else {
		l.takeUnasked(b)
	}
	if len(b.groups) == 0 {
		return nil
	}
	return b
}

// holdsBack reports whether a group waits for the answer to another call for its key, of which a batch is to
// come. Whoever hands that out has the group sent, and so has the end of that call's deadline. The caller holds mu.
func (l *lane) holdsBack(g *group, now time.Time) bool {
	return g.hold != nil && g.k > 0 && g.wanted() && g.hold.batchComes(int64(now.Sub(l.core.began)), int64(l.core.wait))
}

// ready makes up the call of a group that is about to be sent, unless it is not wanted any more: then
// the group ends. The caller holds mu.
func (l *lane) ready(g *group, now time.Time) bool {
	if g.hold != nil && g.wanted() { // what it says of leases, they forget
		l.core.leases.prepare(g, int64(now.Sub(l.core.began)))
	}
	if !g.wanted() {
		l.end(g, groupDropped, context.Canceled)
		return false
	}
	l.unjoin(g)
	rank := int64(0)
	for _, w := range g.waiters {
		if !w.gone && !w.leased {
			w.rank = rank
			rank++
		}
	}
	switch {
	case g.k > 0:
		g.k = rank
	case g.op == opCharge:
		g.charges, g.n = rank, g.n*rank
	}
	if g.op != opAll {
		l.takeOwed(g, now)
	}
	return true
}

// takeUnasked adds to a batch what no caller waits for. The caller holds mu.
func (l *lane) takeUnasked(b *batch) {
	add := func(r request, o *owedCharge) {
		g := l.newGroup(r, b.sent)
		g.owed = o
		l.open = append(l.open, g)
		l.arm(b.sent)
		b.add(g)
	}
	for len(l.settling) > 0 && len(b.groups) < maxBatch {
		s := l.settling[0]
		l.settling = l.settling[1:]
		add(request{plan: s.plan, key: s.name, op: opAdmit, n: 1, leasing: s.leasing}, nil)
	}
	if b.sent.Before(l.owedFrom) {
		return
	}
	for name, o := range l.owed {
		if len(b.groups) == maxBatch {
			return
		}
		delete(l.owed, name)
		if units := o.left(l.core.micros(b.sent)); units > 0 {
			add(request{plan: o.plan, key: name, op: opAdmit, n: 1, debt: units}, &o)
		}
	}
}

// exchange sends a batch and hands out the replies. It reports whether the sender is to go
// on: one that was late has been replaced, unless its place is free again.
func (l *lane) exchange(ctx context.Context, b *batch) (goOn bool) {
	for _, g := range b.groups {
		b.scripts = append(b.scripts, scheduled{request: g.request, now: l.core.link.clock()})
	}
	l.core.stats.scripts.Add(uint64(len(b.groups)))
	l.core.link.runAll(ctx, b.scripts)
	now := time.Now()
	l.core.tripped(now.Sub(b.sent))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, g := range b.groups {
		l.finish(g, &b.scripts[i], now)
	}
	l.trim()
	if !b.late {
		return true
	}
	l.late--
	if l.senders == maxSenders {
		return false
	}
	l.senders++
	return true
}

// finish is for a group that the client has returned with, and ends it with what came of it, unless it
// has ended. The caller holds mu.
func (l *lane) finish(g *group, s *scheduled, now time.Time) {
	if errors.Is(s.err, redis.ErrPoolTimeout) {
		l.core.stats.poolTimeouts.Add(1)
	}
	state := groupBack
	if notDone(s.err) {
		state = groupUndone
		l.notTold(g, now)
	}
	if g.hold != nil {
		l.leased(g, s, now)
	}
	if g.state == groupLate {
		g.state = state
		return
	}
	if s.err != errLeft {
		l.outcome(g, s.err, now)
	}
	g.reply = s.reply
	l.end(g, state, s.err)
}

// leased opens the lease that has come with a reply. The caller holds mu.
func (l *lane) leased(g *group, s *scheduled, now time.Time) {
	next := l.joining[groupKey{g.plan, g.key, g.n, opAdmit, true}]
	late := l.core.leases.answered(g, s, next, int64(now.Sub(l.core.began)))
	if late.unused > 0 {
		l.settling = append(l.settling, settlement{g.key, g.plan, late})
	}
	if next != nil && next.waits() == 0 {
		l.end(next, groupDropped, nil)
	}
}
