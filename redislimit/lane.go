package redislimit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A lane is the way to one primary. Callers do not call the client: they join a group, and wait for
// the group or for its deadline. Callers that lead are the exception; see lead.go. Groups go out in pipelines,
// in order of arrival.
//
//	caller:  joins the group of its key and cost, or makes one          (lock)
//	sender:  takes up to 64 groups, counts who still waits, sends       (lock to take)
//	timer:   ends groups whose deadline has come, sent or not, unless it fires late: see patience   (lock)
//	sender:  gets the replies; ends groups that have not ended          (lock)
//
// The state of a group says how far it has come; see group.go. A late reply still goes into the
// memory of states, unless its caller led: then the connection is closed.
//
// Invariant: at most maxSenders senders, with callers that lead, are not late, and no sender begins while maxLate
// are late. So there are at most maxLate + 1 senders. A sender is late once the deadline of a group of its
// batch has come. Late senders are replaced: otherwise a primary that answers nothing would keep
// both senders until the client gives up, seconds later.
type lane struct {
	core   *core
	client *Client        // the client if callers can lead with it, or nil
	work   chan struct{}  // wakes a sender that is idle
	done   sync.WaitGroup // senders, callers that lead, and goroutines that these leave behind

	returning atomic.Bool // the breaker is returning; see core.within

	mu      sync.Mutex // guards the rest
	closed  bool
	breaker breaker
	pulse   *time.Timer // pending while the breaker is not closed
	node    string      // the address of the primary, or empty
	failure error       // of the last call that has failed
	heard   time.Time   // the time of the last answer
	told    bool        // OnMode knows why the primary is not asked
	lost    request     // the request that probes send
	probes  int         // probes under way
	probed  time.Time   // when the last probe went out

	// Groups. Groups that have ended are dropped when their turn comes.
	waiting []*group            // queued groups, in order of arrival
	joining map[groupKey]*group // queued groups that have room for callers
	open    []*group            // groups whose deadlines are to come, in order of deadlines
	timer   *time.Timer         // if armed: fires at the first of these deadlines or before
	armed   bool
	due     time.Time // the time for which it is armed

	// Redis has to be told of these, unless another call takes them along.
	settling []settlement                     // settlements of leases
	owed     map[string]owedCharge            // by name: units admitted without Redis
	held     map[string]map[string]*localHold // by name and id: holds admitted without Redis
	untold   map[string]map[string]*localHold // of these, those that Redis may have to be told of now
	ended    int                              // of held, so many have ended
	owedFrom time.Time                        // owed and held wait until then

	// Senders.
	senders int // senders that are not late
	late    int
	idle    int // senders that wait for work; senders and late do not count them

	// The connection of callers that lead.
	direct   *direct // for the next caller that leads, or nil
	dialling bool
	dialFrom time.Time // the next dial is not before this time

	// The context of calls of the client.
	ctx    context.Context
	cancel context.CancelFunc // or nil
	renew  time.Time          // ctx is too old for more calls from then on
}

func newLane(c *core) *lane {
	leader, _ := c.link.client.(*Client)
	return &lane{
		client: leader, core: c, joining: map[groupKey]*group{}, owed: map[string]owedCharge{}, held: map[string]map[string]*localHold{}, untold: map[string]map[string]*localHold{},
		work: make(chan struct{}, maxSenders), closed: c.closed.Load(),
	}
}

const (
	maxSenders = 2
	maxLate    = 8
	maxBatch   = 64
)

var (
	errLate = errors.New("redislimit: no answer within the budget")
	errOpen = errors.New("redislimit: the primary is not asked, since it has failed")
)

// A settlement settles a lease that has ended.
type settlement struct {
	name string
	plan *plan
	leasing
}

// join makes the caller part of a group, or returns an error. h may be nil. The caller may lead.
func (l *lane) join(r request, h *loan, now time.Time) (*group, *waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, w, err := l.joinLocked(&r, h, now, true)
	if err == nil && w == &g.first && g.state == groupQueued { // it has made the group, and does not lead
		l.send()
	}
	return g, w, err
}

// joinLocked is join, without sending. The caller may lead only if alone is true. mu is held.
func (l *lane) joinLocked(r *request, h *loan, now time.Time, alone bool) (*group, *waiter, error) {
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
	g.loan = h
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

// newGroup returns a group without callers, with the deadline of a call that comes now.
func (l *lane) newGroup(r request, now time.Time) *group {
	return &group{request: r, patience: l.core.patience(now), done: make(chan struct{})}
}

// unjoin keeps callers from joining a group that is about to be sent, or to end. The caller holds mu.
func (l *lane) unjoin(g *group) {
	if key := joinKey(&g.request); l.joining[key] == g {
		delete(l.joining, key)
	}
}

// leave is called for a caller that no longer waits. It reports whether the caller was admitted from a lease meanwhile.
func (l *lane) leave(w *waiter) (leased bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.gone = !w.leased
	return w.leased
}

// send starts a sender if there is something to send and one more sender is allowed. The caller holds
// mu.
func (l *lane) send() {
	owed := len(l.owed)+len(l.untold) > 0 && !time.Now().Before(l.owedFrom) || len(l.settling) > 0
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

// sender sends batches until nothing is left to send, and then waits for more: a new
// goroutine would have to grow its stack each time.
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

// settle has the settlement of a lease sent.
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

// quiet reports whether nothing is under way, and Redis has been told everything.
func (l *lane) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.senders+l.late+len(l.waiting)+len(l.open)+len(l.settling)+len(l.owed)+len(l.held) == 0
}

// close keeps callers from joining. Senders go on until nothing is left to send.
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

// outcome tells the breaker how a group has fared that is about to end. Where timers are late, a call without an answer says nothing of
// a primary that has answered others meanwhile. The caller holds mu.
func (l *lane) outcome(g *group, err error, now time.Time) {
	if err == errLate && l.heard.After(g.began) && l.core.timers.recent(now) > 0 {
		return
	}
	ok, closed := answers(err), l.breaker.state == breakerClosed
	if !ok {
		l.failure = err
	}
	if l.breaker.note(now, g.began, max(len(g.waiters), 1), ok) {
		l.opened(&g.request)
		if closed {
			l.told = tellsWhy(l.failure) // err is nil if this call makes the failures enough
			l.core.turn(+1, l.of(l.failure))
		}
	}
	if !ok {
		l.because(err)
		l.core.router.stale(now)
	}
}

// end puts the group in an ended state, and wakes the callers that wait for it. The caller holds mu.
func (l *lane) end(g *group, state groupState, err error) {
	if g.state == groupQueued {
		l.unjoin(g)
	}
	g.state, g.err = state, err
	close(g.done)
}

// trim drops ended groups, up to the first group that has not ended. The caller holds mu.
func (l *lane) trim() {
	n := 0
	for n < len(l.open) && l.open[n].state.ended() {
		n++
	}
	l.open = slices.Delete(l.open, 0, n)
}

// arm sets the timer for the first group that has not ended. A timer that is set already is for
// that group, or for one before it. The caller holds mu.
func (l *lane) arm(now time.Time) {
	if l.armed {
		return
	}
	l.trim()
	if len(l.open) == 0 {
		return
	}
	l.armed, l.due = true, l.open[0].deadline
	d := max(l.due.Sub(now), 0)
	l.timer = rearm(l.timer, d, l.expire)
}

// rearm returns a timer that calls f after d. It reuses t unless t is nil.
func rearm(t *time.Timer, d time.Duration, f func()) *time.Timer {
	if t == nil {
		return time.AfterFunc(d, f)
	}
	t.Reset(d)
	return t
}

// expire handles the groups whose deadlines have come.
func (l *lane) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	now, due := time.Now(), 0
	l.core.timers.late(l.due, now)
	var longer []*group
	for due < len(l.open) && !l.open[due].deadline.After(now) {
		switch g := l.open[due]; {
		case g.state.ended():
		case g.extend(now):
			longer = append(longer, g)
		default:
			l.overdue(g, now)
		}
		due++
	}
	l.open = slices.Delete(l.open, 0, due)
	if longer != nil {
		l.open = append(l.open, longer...)
		slices.SortStableFunc(l.open, func(a, b *group) int { return a.deadline.Compare(b.deadline) })
	}
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

// isOOM reports whether the server has refused a write for lack of memory.
func isOOM(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}
