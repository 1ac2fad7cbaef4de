package redistier

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
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
// A group that ends closes its channel. A reply that comes too late still goes into the
// memory, unless its caller led: that connection is closed.
//
// Invariant: nobody joins a group that has ended, nor is it sent, nor ended again. end takes it out
// of joining; whoever takes groups from waiting or open drops those that have ended.
//
// Invariant: at most maxSenders senders, callers that lead included, are not late, and none begins while maxLate are, so
// that there are at most maxLate + 1; a sender is late once the deadline of a group of its
// batch has come. If late ones were not replaced, a primary that answers nothing would keep
// both until the client gives up, seconds later.
type lane struct {
	tier *Tier

	mu       sync.Mutex
	breaker  breaker
	waiting  []*group              // not sent
	joining  map[groupKey]*group   // those of them that have room
	open     []*group              // not ended, in order of their deadlines; ended ones are dropped late
	owed     map[string]owedCharge // by name: units admitted without Redis
	owedFrom time.Time             // they are not sent before, unless with a call
	settling []settlement          // of leases, that no call has taken along
	senders  int
	late     int
	idle     int           // senders that wait for work: they are neither of those
	work     chan struct{} // wakes one of them
	timer    *time.Timer   // pending, if armed, until the first open group's deadline or before
	armed    bool
	closed   bool
	done     sync.WaitGroup // senders, callers that lead, and what they leave

	client   *Client   // by which callers lead, or nil
	direct   *direct   // that the next one may lead on, or nil
	dialling bool      // it
	dialFrom time.Time // it is not dialled before

	ctx    context.Context    // of calls of the client
	cancel context.CancelFunc // of ctx, or nil
	renew  time.Time          // when ctx is too old for more of them
}

func newLane(t *Tier) *lane {
	c, _ := t.shared.client.(*Client)
	return &lane{
		client: c, tier: t, joining: map[groupKey]*group{}, owed: map[string]owedCharge{},
		work: make(chan struct{}, maxSenders), closed: t.closed.Load(),
	}
}

const (
	maxSenders = 2
	maxLate    = 8
	maxBatch   = 64
)

type groupKey struct {
	plan    *plan
	name    string
	cost    int64
	charges bool
}

// joinKey must be asked for before a group is made ready: that counts its callers.
func joinKey(r *request) groupKey { return groupKey{r.plan, r.key, r.n, r.k > 0} }

// A group is the callers of one key and cost, who share a call of the script.
type group struct {
	request
	hold     *hold // of the key's leases, or nil
	probe    bool
	deadline time.Time
	waiters  []*waiter
	first    waiter
	some     [1]*waiter // room for it
	done     chan struct{}
	batch    *batch      // nil: it has not been sent
	direct   *direct     // if its caller leads
	owed     *owedCharge // that its call tells of, or nil

	back     bool  // the client has returned
	undone   bool  // and Redis has done nothing
	told     bool  // the breaker knows how it has fared
	admitted int64 // units that callers were admitted without Redis in the meantime

	// Set before done is closed.
	ended bool
	reply reply
	slack int64 // ns after a denial that ends, until Redis is asked again
	err   error
}

// A waiter is a caller. Its rank is the number of those that come before it in its group,
// and wait for Redis.
type waiter struct {
	rank     int64
	gone     bool // its context has ended before the group was sent
	leased   bool // it has been admitted from a lease, whatever becomes of the group:
	decision sluice.Decision
}

// waits returns how many of the group's callers wait for Redis.
func (g *group) waits() (n int) {
	for _, w := range g.waiters {
		if !w.gone && !w.leased {
			n++
		}
	}
	return n
}

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

// join makes the caller part of a group, or says why not. h may be nil.
func (l *lane) join(r request, h *hold, now time.Time) (*group, *waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, ErrClosed
	}
	key := joinKey(&r)
	if g := l.joining[key]; g != nil && r.op == opAdmit && len(g.waiters) < 1<<20 {
		w := &waiter{}
		g.waiters = append(g.waiters, w)
		return g, w, nil
	}
	yes, probe := l.breaker.asks(now)
	if !yes {
		return nil, nil, errOpen
	}
	g := &group{request: r, hold: h, probe: probe, deadline: now.Add(l.tier.wait), done: make(chan struct{})}
	w := &g.first
	g.waiters = append(g.some[:0], w)
	if !probe {
		if d := l.leads(now); d != nil {
			l.begin(g, d, now)
			return g, w, nil
		}
	}
	if r.op == opAdmit && !probe {
		l.joining[key] = g
	}
	l.waiting = append(l.waiting, g)
	l.open = append(l.open, g)
	l.arm(now)
	l.send()
	return g, w, nil
}

// unjoin lets nobody else join a group that is about to be sent, or to end. The caller holds mu.
func (l *lane) unjoin(g *group) {
	if key := joinKey(&g.request); l.joining[key] == g {
		delete(l.joining, key)
	}
}

// leave makes a caller that no longer waits not count, if its group has not been sent, and
// reports whether that is so.
func (l *lane) leave(g *group, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.batch != nil || w.leased {
		return false
	}
	w.gone = true
	return true
}

// served reports whether a caller has been admitted from a lease.
func (l *lane) served(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.leased
}

// send lets a sender begin if there is something to send and one more may. The caller holds
// mu.
func (l *lane) send() {
	owed := len(l.owed) > 0 && !time.Now().Before(l.owedFrom) || len(l.settling) > 0
	if (len(l.waiting) > 0 || owed && !l.breaker.open) && !l.closed && l.senders < maxSenders && l.late < maxLate {
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

// outcome tells the breaker how a group has fared, by what is known first. The caller holds mu.
func (l *lane) outcome(g *group, err error, now time.Time) {
	if g.told {
		return
	}
	g.told = true
	ok := err == nil || errors.Is(err, ErrForeignValue) || isOOM(err)
	switch {
	case g.probe:
		if l.breaker.probed(now, ok) {
			l.tier.turn(-1, nil)
		}
	case l.breaker.note(now, max(len(g.waiters), 1), ok):
		l.tier.turn(+1, err)
	}
	if !ok {
		l.tier.router.stale(now)
	}
}

// end hands the group to those who wait for it, and lets nobody else join it. The caller holds mu.
func (l *lane) end(g *group, err error) {
	if g.batch == nil {
		l.unjoin(g)
	}
	g.ended, g.err = true, err
	close(g.done)
}

// trim drops groups that have ended, up to the first that has not. The caller holds mu.
func (l *lane) trim() {
	n := 0
	for n < len(l.open) && l.open[n].ended {
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

// expire ends the groups whose deadlines have come.
func (l *lane) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	now := time.Now()
	for _, g := range l.open {
		if g.deadline.After(now) {
			break
		}
		if g.ended {
			continue
		}
		if b := g.batch; b != nil && !b.late {
			b.late = true
			l.senders--
			l.late++
		}
		if len(g.waiters) > 0 { // calls that nobody waits for may take their time
			l.outcome(g, errLate, now)
		}
		l.end(g, errLate)
	}
	l.arm(now)
	l.send()
}

// isOOM reports whether the server has no memory for what would be written, which is no
// reason not to ask it: denials write nothing.
func isOOM(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}
