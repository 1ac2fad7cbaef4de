package redislimit

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// A storeCall is a StoreCall that is being made.
type storeCall struct {
	takeCall
	subject subject
	asked   asked
	err     error // ctx's error
	out     *StoreResult
	call    *StoreCall
	before  int  // the index of the last call before it for the same key, or -1
	again   bool // it makes a hold of the share again
	none    bool // it is an OrNone for which the share has no room
	owed    bool // it is of a hold of the share that Redis may not have been told of
}

// linearCalls is the most calls among which an earlier one of the same key is searched; more of them get an index.
const linearCalls = 16

// Do makes calls, of any limits and keys. Each is judged by itself, and the calls of one key in their order. All calls
// that have to ask Redis go out together, in one pipeline to each primary. Do returns within the budget. Each result
// has an error of its own: ctx's if ctx ends first, ErrClosed of a limit that has been closed, a *ConfigError of an
// Override, and under FailClosed ErrUnavailable. An error of Do itself means that nothing has been done.
//
// Without Redis each call is answered by itself, as by a Tier. A refund then goes to this process's share, and
// Redis is not told of it. A hold is then one of this process's share: it is settled here, it cannot be extended, and other
// processes do not know it until Redis answers again, and has been told of it. OpSettle of any other hold is answered from the share, and
// sent again for the TTL of the call, or for a minute if that is 0: give it the TTL of the hold, since then the hold has lapsed. OpExtend is
// ErrUnavailable.
func (s *Store) Do(ctx context.Context, calls []StoreCall, out []StoreResult) error {
	if err := s.checkCalls(calls, out); err != nil {
		return err
	}
	for i := range calls {
		if calls[i].Part != Whole {
			return fmt.Errorf("redislimit: call %d of Do is about a part of the call before it; want DoAll", i)
		}
		if calls[i].AllAgain {
			return fmt.Errorf("redislimit: call %d of Do has AllAgain, and each call of Do is made by itself; want DoAll", i)
		}
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	return s.do(ctx, calls, out)
}

// do is Do for calls that have been checked.
func (s *Store) do(ctx context.Context, calls []StoreCall, out []StoreResult) error {
	now := time.Now()
	work := make([]storeCall, 0, len(calls))
	var last map[uint64]int // indexes in work, by id
	if len(calls) > linearCalls {
		last = make(map[uint64]int, len(calls))
	}
	for i := range calls {
		w := storeCall{subject: calls[i].Limit.named.subject(calls[i].Key), out: &out[i], call: &calls[i]}
		w.before = lastOf(work, last, w.subject.id)
		if s.begin(&w, &calls[i], now) {
			continue
		}
		if last != nil {
			last[w.subject.id] = len(work)
		}
		work = append(work, w)
	}
	s.askAll(ctx, work, now)
	for i := range work {
		s.finish(&work[i])
	}
	return nil
}

// lastOf returns the index of the last call of a key, or -1.
func lastOf(work []storeCall, last map[uint64]int, id uint64) int {
	if last != nil {
		if i, ok := last[id]; ok {
			return i
		}
		return -1
	}
	for i := len(work) - 1; i >= 0; i-- {
		if work[i].subject.id == id {
			return i
		}
	}
	return -1
}

// planned returns the plan that decides a call.
func (c *StoreCall) planned() (*plan, error) {
	p, err := c.Limit.judge(c.Override)
	if err == nil && c.Limit.closed.Load() {
		err = ErrClosed
	}
	return p, err
}

// counting returns the cost and the operation of a call that is of no hold: a call that charges or gives back nothing is a look.
func (c *StoreCall) counting(p *plan) (cost int, op Op) {
	if c.Op >= OpDebit && (c.Cost < 1 || !p.counts()) {
		return 0, OpPeek
	}
	return c.Cost, c.Op
}

// begin makes up a call, or answers it at once.
func (s *Store) begin(w *storeCall, call *StoreCall, now time.Time) (done bool) {
	l := call.Limit
	p, err := call.planned()
	if err != nil {
		*w.out = StoreResult{Err: err}
		return true
	}
	if call.Op.isOfHold() {
		return s.beginHold(w, call, p, now)
	}
	cost, op := call.counting(p)
	if op <= OpPeek {
		first, seen := w.before < 0, denial{}
		d, from, ok := s.atHand(p, w.subject, cost, op == OpTake, first && l.terms != nil, first && !l.exact, int64(now.Sub(s.began)), &seen)
		if ok {
			*w.out = StoreResult{Decision: d, Source: from, Count: p.countAtHand(&d, from, &seen)}
			return true
		}
	}
	w.takeCall = l.newCall(p, call.Key, cost, op)
	if d, ok := s.within(&w.takeCall, w.subject, now); !ok {
		*w.out = StoreResult{Decision: d, Source: FromFallback}
		w.out.Count = s.shareCount(w)
		return true
	}
	return false
}

// beginHold is begin for a call of a hold.
func (s *Store) beginHold(w *storeCall, call *StoreCall, p *plan, now time.Time) (done bool) {
	if call.needsNoRedis(p) {
		s.stats.cache.Add(1)
		*w.out = StoreResult{Decision: p.decideConstant(call.Cost), Source: FromCache, HoldID: call.HoldID}
		return true
	}
	w.takeCall = call.Limit.newHold(p, call)
	if call.Op == OpSettle && s.heldHere.Load() > 0 {
		done, err := s.settleHere([]storeCall{*w})
		if err != nil {
			*w.out = StoreResult{Err: err, HoldID: call.HoldID}
		}
		if done || err != nil {
			return true
		}
	}
	w.owed = call.Op == OpExtend && s.owesHold(&w.request)
	if w.letsPass() {
		return false
	}
	if d, ok := s.within(&w.takeCall, w.subject, now); !ok {
		*w.out = StoreResult{Decision: d, Source: FromFallback, HoldID: w.id}
		w.out.Count = s.shareCount(w)
		return true
	}
	return false
}

// newHold returns a call of a hold.
func (l *StoreLimit) newHold(p *plan, call *StoreCall) takeCall {
	t := takeCall{request: request{plan: p, key: l.keys.of(call.Key), op: opHold, n: min(int64(call.Cost), exact/2-1), terms: l.terms}, cost: call.Cost}
	t.receipt, t.allAgain = call.receiptOf(), call.AllAgain
	t.charges = t.what == whatHold
	return t
}

// countAtHand is the Count of a call that did not need Redis.
func (p *plan) countAtHand(d *sluice.Decision, from Source, seen *denial) int64 {
	switch {
	case p.constant():
		return 0
	case from == FromLease:
		return p.burst - int64(d.Remaining)
	}
	return p.count(seen.view, seen.blocked)
}

// newCall returns a call that asks Redis.
func (l *StoreLimit) newCall(p *plan, key string, cost int, op Op) takeCall {
	t := takeCall{request: request{plan: p, key: l.keys.of(key), op: opAdmit, n: 1, terms: l.terms}, cost: cost, charges: op == OpTake}
	switch {
	case op == OpRefund:
		t.op, t.n, t.cost = opRefund, p.refunds(cost), 0
	case op == OpDebit:
		t.op, t.n, t.cost, t.judges = opDebit, min(int64(cost), exact/2-1), 0, true
	case 0 < cost && int64(cost) <= p.burst:
		t.n = int64(cost)
		if t.charges {
			t.k = 1
		}
	}
	return t
}

// askAll asks Redis about all calls, and waits for the answers.
func (c *core) askAll(ctx context.Context, work []storeCall, now time.Time) {
	if len(work) == 1 {
		w := &work[0]
		w.asked, w.err = c.ask(ctx, w.subject, w.request, now)
		return
	}
	for i := range work {
		work[i].asked.lane = c.router.lane(work[i].takeCall.key, now)
	}
	for i := range work {
		if a := &work[i].asked; a.group == nil && a.failed == nil {
			a.lane.joinAll(c.leases, work, now)
		}
	}
	for i := range work {
		if a := &work[i].asked; a.failed == nil {
			work[i].err = a.await(ctx)
		}
	}
}

// joinAll makes the callers of a lane part of groups, or sets their errors. The groups go out together.
func (l *lane) joinAll(leases *leases, work []storeCall, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range work {
		w := &work[i]
		a := &w.asked
		if a.lane != l {
			continue
		}
		if w.before >= 0 {
			l.after(work[w.before].asked.group, &w.request)
		}
		var h *loan
		if !l.returning.Load() { // see ask
			h = leases.loan(&w.request, w.subject, now)
		}
		a.group, a.waiter, a.failed = l.joinLocked(&w.request, h, now, false)
	}
	l.send()
}

// after makes sure that a request goes out after a group of the same key. The request can join that group, but no
// other group that exists already. The caller holds mu.
func (l *lane) after(g *group, r *request) {
	if g == nil || l.joining[joinKey(r)] == g {
		return
	}
	l.unjoin(g)
	delete(l.joining, joinKey(r))
}

// finish answers a call that has asked Redis.
func (s *Store) finish(w *storeCall) {
	a, t := &w.asked, &w.takeCall
	out := StoreResult{Err: w.err}
	switch {
	case t.op == opHold:
		out = s.finishHold(w)
	case w.err != nil:
	default:
		out.Decision, out.Source, out.Err = s.outcome(a, t, w.subject)
		switch {
		case out.Source == FromLease:
			out.Count = t.plan.burst - int64(out.Decision.Remaining)
		case a.failed != nil:
			out.Count = s.shareCount(w)
		default:
			out.Count = t.counted(a.group, a.waiter.rank)
		}
	}
	*w.out = out
}

// finishHold answers a call of a hold that has asked Redis.
func (s *Store) finishHold(w *storeCall) (out StoreResult) {
	a, t := &w.asked, &w.takeCall
	switch {
	case w.err != nil:
		out.Err = w.err
	case ofHold(a.failed):
		t.giveBack(w.subject)
		out.Err = a.failed
	case a.failed != nil:
		out = s.fallbackHold(w)
	default:
		s.stats.redis.Add(1)
		r := &a.group.reply
		out.Decision, out.Err = t.holdDecision(r)
		out.Err = w.notYet(out.Err)
		out.Source, out.Count, out.Held = FromRedis, t.plan.count(r.view, 0), int(r.held)
		out.Again, out.Capped = out.Err == nil && r.said == saidAgain, r.said == saidCapped
		s.warmHold(w, r)
	}
	out.HoldID = t.id
	return out
}

// warmHold charges the share with a hold, or gives back unused units.
func (s *Store) warmHold(w *storeCall, r *reply) {
	t := &w.takeCall
	switch made := r.admitted == 1 && r.said != saidAgain; {
	case t.what == whatSettle:
		s.denied.forget(w.subject.id)
		if unused := r.held - t.n; made && unused > 0 {
			w.subject.share(t.plan).Refund(int(unused))
		}
	case !made:
		t.giveBack(w.subject)
	case !t.within:
		w.subject.share(t.plan).TakeUpTo(t.cost)
	}
}

// counted is the Count for the caller with a rank.
func (t *takeCall) counted(g *group, rank int64) int64 {
	r := &g.reply
	if t.k == 0 {
		return t.plan.count(g.viewOf(rank), r.blocked())
	}
	n := t.plan.count(r.view, r.blocked())
	if rank < r.admitted {
		n -= (r.admitted - 1 - rank) * t.n
		if g.lend > 0 {
			n -= r.c // r.c units are lent to this process
		}
	}
	return max(n, 0)
}

// count is the Count of a key in state v that is blocked for a time, or not if that is 0.
func (p *plan) count(v view, blocked int64) int64 {
	if blocked > 0 {
		return max(p.kept, p.shape.used(v))
	}
	return p.shape.used(v)
}

// shareCount is the Count of a call that was answered without Redis.
func (s *Store) shareCount(w *storeCall) int64 {
	if s.decides() != LocalShare || w.plan.constant() {
		return 0
	}
	return int64(w.plan.limit.Share(s.Replicas()).Capacity() - w.subject.share(w.plan).Peek(0).Remaining)
}
