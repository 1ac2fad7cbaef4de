package redislimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// A batch is the groups that go out together.
type batch struct {
	groups  []*group
	scripts []scheduled // requests of the groups, in the same order
	sent    time.Time
	late    bool // the deadline of one of them has come

	oneGroup  [1]*group // room for one
	oneScript [1]scheduled
}

// newBatch returns a batch with room for n groups.
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

// context returns a context that lasts for at least life, a second and the budget, and for at most half
// of life longer. The caller holds mu.
func (l *lane) context(now time.Time) context.Context {
	life := time.Second + l.core.budget
	if !now.Before(l.renew) {
		l.ctx, l.cancel = context.WithTimeout(context.Background(), life+life/2) // earlier contexts end by themselves
		l.renew = now.Add(life / 2)
	}
	return l.ctx
}

// take returns a batch of up to maxBatch groups: queued groups, settlements and owed charges. It returns nil
// if there is nothing to send. The caller holds mu.
func (l *lane) take() *batch {
	if len(l.waiting)+len(l.settling)+len(l.owed)+len(l.untold) == 0 {
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
			l.tell(b, g)
			b.add(g)
		}
	}
	l.waiting = slices.Delete(l.waiting, back, taken)
	if l.breaker.state == breakerOpen {
		l.settling = nil // Redis counts these leases as spent
	} else {
		l.takeUnasked(b)
	}
	if len(b.groups) == 0 {
		return nil
	}
	return b
}

// holdsBack reports whether a group waits for another call for its key, whose answer is to bring a batch of units. The
// group is sent when that answer is handed out, or when that call's deadline ends. The caller holds mu.
func (l *lane) holdsBack(g *group, now time.Time) bool {
	return g.loan != nil && g.k > 0 && g.wanted() && g.loan.batchComes(int64(now.Sub(l.core.began)), int64(l.core.wait))
}

// ready makes up the call of a group that is about to be sent. If the group is not wanted any more
// it ends instead. The caller holds mu.
func (l *lane) ready(g *group, now time.Time) bool {
	if g.loan != nil && g.wanted() { // prepare moves settlements into the call: it has to be sent
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
	case g.op == opDebit:
		g.charges, g.n = rank, g.n*rank
	}
	if g.op != opAll {
		l.takeOwed(g, now)
	}
	return true
}

// takeUnasked adds to a batch the calls that no caller waits for. The caller holds mu.
func (l *lane) takeUnasked(b *batch) {
	for len(l.settling) > 0 && len(b.groups) < maxBatch {
		s := l.settling[0]
		l.settling = l.settling[1:]
		l.unasked(b, request{plan: s.plan, key: s.name, op: opAdmit, n: 1, leasing: s.leasing})
	}
	if b.sent.Before(l.owedFrom) {
		return
	}
	for name := range l.owed {
		if len(b.groups) >= maxBatch {
			return
		}
		l.tellOwed(b, name)
	}
	for name := range l.untold {
		if len(b.groups) >= maxBatch {
			return
		}
		l.tellHolds(b, name)
	}
}

// tellOwed adds to a batch the call that tells of the charge owed for a key. The caller holds mu.
func (l *lane) tellOwed(b *batch, name string) {
	o, ok := l.owed[name]
	if !ok {
		return
	}
	delete(l.owed, name)
	if units := o.left(l.core.micros(b.sent)); units > 0 {
		l.unasked(b, request{plan: o.plan, key: name, op: opAdmit, n: 1, debt: units}).owed = &o
	}
}

// unasked adds to a batch a call that no caller waits for. The caller holds mu.
func (l *lane) unasked(b *batch, r request) *group {
	g := l.newGroup(r, b.sent)
	l.open = append(l.open, g)
	l.arm(b.sent)
	b.add(g)
	return g
}

// exchange sends a batch and hands out the replies. It reports whether the sender is to go
// on: a late sender has been replaced, and ends unless there is a place for it again.
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

// finish is called for a group when the client has returned. It ends the group with the outcome, unless the
// group has ended already. The caller holds mu.
func (l *lane) finish(g *group, s *scheduled, now time.Time) {
	if errors.Is(s.err, redis.ErrPoolTimeout) {
		l.core.stats.poolTimeouts.Add(1)
	}
	if Unreached(s.err) {
		l.core.stats.dialErrors.Add(1)
	}
	state := groupBack
	if notDone(s.err) {
		state = groupUndone
		l.notTold(g, now)
	}
	if g.loan != nil {
		l.leased(g, s, now)
	}
	if g.tells != nil {
		l.heardOf(g, s, now)
	}
	if answers(s.err) {
		l.heard = now
	}
	if g.state == groupLate {
		l.because(s.err)
		g.state = state
		l.learn(g, s, now)
		return
	}
	if s.err != errLeft {
		l.outcome(g, s.err, now)
	}
	g.reply = s.reply
	l.end(g, state, s.err)
}

// leased opens the lease that a reply has brought. The caller holds mu.
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
