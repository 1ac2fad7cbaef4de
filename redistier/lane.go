package redistier

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A lane is the way to one primary. Callers never go into the client: they join a group,
// and wait for it or for its deadline; or they lead, see lead.go. Groups go out in pipelines,
// in order of arrival.
//
//	caller:  joins the group of its key and cost, or makes one          (lock)
//	sender:  takes up to 64 groups, counts who still waits, sends       (lock to take)
//	timer:   ends groups whose deadline has come, sent or not           (lock)
//	sender:  gets the replies; ends groups that have not ended          (lock)
//
// How far a group has come is its state; see group.go. A reply that comes too late still goes into the
// memory, unless its caller led: that connection is closed.
//
// Invariant: at most maxSenders senders, callers that lead included, are not late, and none begins while maxLate are, so
// that there are at most maxLate + 1; a sender is late once the deadline of a group of its
// batch has come. If late ones were not replaced, a primary that answers nothing would keep
// both until the client gives up, seconds later.
type lane struct {
	core   *core
	client *Client        // by which callers lead, or nil
	work   chan struct{}  // wakes a sender that is idle
	done   sync.WaitGroup // senders, callers that lead, and what they leave

	returning atomic.Bool // the breaker is; see core.within

	mu      sync.Mutex // guards the rest
	closed  bool
	breaker breaker
	pulse   *time.Timer // pending while the breaker is not closed
	lost    request     // of a probe
	probes  int         // under way
	probed  time.Time   // when the last one went out

	// Groups. Those that have ended are dropped when their turn comes.
	waiting []*group            // queued, in order of arrival
	joining map[groupKey]*group // those of them that have room
	open    []*group            // whose deadlines are to come, in their order
	timer   *time.Timer         // pending, if armed, until the first of these or before
	armed   bool

	// Redis has to be told this, if no call takes it along.
	settling []settlement          // of leases
	owed     map[string]owedCharge // by name: units admitted without Redis
	owedFrom time.Time             // they rest until then

	// Senders.
	senders int // that are not late
	late    int
	idle    int // that wait for work: they are neither of those

	// The connection of callers that lead.
	direct   *direct // that the next one may lead on, or nil
	dialling bool
	dialFrom time.Time // not before

	// The context of calls of the client.
	ctx    context.Context
	cancel context.CancelFunc // or nil
	renew  time.Time          // when ctx is too old for more of them
}

func newLane(c *core) *lane {
	leader, _ := c.link.client.(*Client)
	return &lane{
		client: leader, core: c, joining: map[groupKey]*group{}, owed: map[string]owedCharge{},
		work: make(chan struct{}, maxSenders), closed: c.closed.Load(),
	}
}

const (
	maxSenders = 2
	maxLate    = 8
	maxBatch   = 64
)

var (
	errLate = errors.New("redistier: no answer within the budget")
	errOpen = errors.New("redistier: the primary is not asked, since it has failed")
)

// A settlement is of a lease that has ended.
type settlement struct {
	name string
	plan *plan
	leasing
}

// join makes the caller part of a group, or says why not. h may be nil. The caller may lead.
func (l *lane) join(r request, h *hold, now time.Time) (*group, *waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, w, err := l.joinLocked(&r, h, now, true)
	if err == nil && w == &g.first && g.state == groupQueued { // it has made the group, and does not lead
		l.send()
	}
	return g, w, err
}

// joinLocked is join, without sending. Only a caller that is alone may lead. The caller holds mu.
func (l *lane) joinLocked(r *request, h *hold, now time.Time, alone bool) (*group, *waiter, error) {
	if l.closed {
		return nil, nil, ErrClosed
	}
	key := joinKey(r)
	if g := l.joining[key]; g != nil && r.shared() && !g.full() {
		w := &waiter{}
		g.waiters = append(g.waiters, w)
		return g, w, nil
	}
	if l.breaker.state == breakerOpen {
		return nil, nil, errOpen
	}
	g := l.newGroup(*r, now)
	g.hold = h
	w := &g.first
	g.waiters = append(g.some[:0], w)
	if alone {
		if d := l.leads(now); d != nil {
			l.begin(g, d, now)
			return g, w, nil
		}
	}
	if r.shared() {
		l.joining[key] = g
	}
	l.waiting = append(l.waiting, g)
	l.open = append(l.open, g)
	l.arm(now)
	return g, w, nil
}

// newGroup returns one without callers, whose deadline is that of a call that comes now.
func (l *lane) newGroup(r request, now time.Time) *group {
	return &group{request: r, deadline: now.Add(l.core.wait), done: make(chan struct{})}
}

// unjoin lets nobody else join a group that is about to be sent, or to end. The caller holds mu.
func (l *lane) unjoin(g *group) {
	if key := joinKey(&g.request); l.joining[key] == g {
		delete(l.joining, key)
	}
}

// leave is for a caller that no longer waits. It reports whether it has been admitted from a lease, all the same.
func (l *lane) leave(w *waiter) (leased bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.gone = !w.leased
	return w.leased
}

// send lets a sender begin if there is something to send and one more may. The caller holds
// mu.
func (l *lane) send() {
	owed := len(l.owed) > 0 && !time.Now().Before(l.owedFrom) || len(l.settling) > 0
	if (len(l.waiting) > 0 || owed && l.breaker.state != breakerOpen) && !l.closed && l.senders < maxSenders && l.late < maxLate {
		l.senders++
		if l.idle > 0 {
			l.idle--
			l.work <- struct{}{}
			return
		}
		l.done.Go(l.sender)
	}
}

// sender sends batches until there is nothing left to send, and then waits for more: a new
// one would have to grow its stack each time.
func (l *lane) sender() {
	for {
		l.mu.Lock()
		if b := l.take(); b != nil {
			ctx := l.context(b.sent)
			l.mu.Unlock()
			if !l.exchange(ctx, b) {
				return
			}
			continue
		}
		l.senders--
		if l.closed || l.idle == maxSenders {
			l.mu.Unlock()
			return
		}
		l.idle++
		l.mu.Unlock()
		if _, open := <-l.work; !open {
			return
		}
	}
}

// settle sends the settlement of a lease.
func (l *lane) settle(name string, p *plan, s leasing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settling = append(l.settling, settlement{name, p, s})
	l.send()
}

// nextProbe returns how long it is until Redis is asked again.
func (l *lane) nextProbe() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.left(time.Now())
}

// quiet reports whether nothing is under way, and nothing is to be told.
func (l *lane) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.senders+l.late+len(l.waiting)+len(l.open)+len(l.settling)+len(l.owed) == 0
}

// close lets nobody join any more. Senders go on until there is nothing left to send.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send()
	if !l.closed {
		l.closed = true
		close(l.work)
	}
}

// wait waits until the senders of a closed lane have ended.
func (l *lane) wait() {
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.direct != nil {
		l.direct.close()
		l.direct = nil
	}
	if l.cancel != nil {
		l.cancel()
	}
}

// outcome tells the breaker how a group has fared that is about to end. The caller holds mu.
func (l *lane) outcome(g *group, err error, now time.Time) {
	ok, closed := answers(err), l.breaker.state == breakerClosed
	if l.breaker.note(now, g.deadline.Add(-l.core.wait), max(len(g.waiters), 1), ok) {
		l.opened(&g.request)
		if closed {
			l.core.turn(+1, err)
		}
	}
	if !ok {
		l.core.router.stale(now)
	}
}

// end hands the group to those who wait for it, in a state that has ended. The caller holds mu.
func (l *lane) end(g *group, state groupState, err error) {
	if g.state == groupQueued {
		l.unjoin(g)
	}
	g.state, g.err = state, err
	close(g.done)
}

// trim drops groups that have ended, up to the first that has not. The caller holds mu.
func (l *lane) trim() {
	n := 0
	for n < len(l.open) && l.open[n].state.ended() {
		n++
	}
	l.open = slices.Delete(l.open, 0, n)
}

// arm sets the timer for the first group that has not ended, unless it is set: then it is for
// that, or for one before. The caller holds mu.
func (l *lane) arm(now time.Time) {
	if l.armed {
		return
	}
	l.trim()
	if len(l.open) == 0 {
		return
	}
	l.armed = true
	d := max(l.open[0].deadline.Sub(now), 0)
	l.timer = rearm(l.timer, d, l.expire)
}

// rearm returns a timer that calls f after d: t, unless that is nil.
func rearm(t *time.Timer, d time.Duration, f func()) *time.Timer {
	if t == nil {
		return time.AfterFunc(d, f)
	}
	t.Reset(d)
	return t
}

// expire sees to the groups whose deadlines have come.
func (l *lane) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	now, due := time.Now(), 0
	for due < len(l.open) && !l.open[due].deadline.After(now) {
		if g := l.open[due]; !g.state.ended() {
			l.overdue(g, now)
		}
		due++
	}
	l.open = slices.Delete(l.open, 0, due)
	l.arm(now)
	l.send()
}

// overdue replaces the sender of a group whose deadline has come, and ends the group if it has
// callers. The caller holds mu.
func (l *lane) overdue(g *group, now time.Time) {
	state := groupDropped
	if g.state == groupSent {
		state = groupLate
		if !g.batch.late {
			g.batch.late = true
			l.senders--
			l.late++
		}
	}
	if len(g.waiters) > 0 {
		l.outcome(g, errLate, now)
		l.end(g, state, errLate)
	}
}

// isOOM reports whether the server has no memory for what would be written.
func isOOM(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}
