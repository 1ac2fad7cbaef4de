package redislimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
)

// An allCall is several calls that are made together, by one call of all.lua.
type allCall struct {
	calls  []takeCall // the calls that ask Redis
	packed [][]byte

	admitted []takeCall // calls that were admitted without Redis while this one was late
}

// An allReply is the reply of the script: for each call a 0 in fits if it stands in the way, else a 1, and its reply.
type allReply struct {
	fits  string
	units []int64 // of the calls, if there is a chain
	each  []reply
}

// made reports whether all calls have been made.
func (r *allReply) made() bool { return strings.IndexByte(r.fits, '0') < 0 }

// maxAll is the most calls: while a script runs, Redis does nothing else.
const maxAll = 256

// pack makes up the arguments of the script. A call has three: the letter of its shape, flags, among them whether it can stand
// in the way (1, 2 if it then blocks no key, or 3 if it does not need room), and the arguments that the call would have by itself.
func (a *allCall) pack(l *link, now int64) {
	a.packed = a.packed[:0]
	sums := map[string]int64{}
	for i := range a.calls {
		c := &a.calls[i]
		needed := byte('0')
		switch {
		case c.k > 0 && c.what == whatSettle:
			needed = '3'
		case c.in() && c.k > 0 && !c.upTo:
			needed = '1'
		case c.k > 0 && !c.upTo:
			sums[c.key] += c.n
			needed = '1'
			if sums[c.key] > c.plan.burst { // a sum that never fits is no reason to block
				needed = '2'
			}
		}
		a.packed = append(a.packed, append([]byte{c.plan.letter(), needed + c.bits()}, c.arguments(now, l.spare, l.memory.last(c.key))...))
	}
}

// bits are the flags of all.lua that do not depend on other calls.
func (t *takeCall) bits() byte {
	bits := 4 * byte(t.part)
	switch {
	case t.allAgain:
		bits += 64
	case t.upTo:
		bits += 32
	case t.leads:
		bits += 16
	}
	return bits
}

// script returns the script for the calls.
func (a *allCall) script() *script {
	for i := range a.calls {
		if a.calls[i].plan.holds {
			return allHoldsScript
		}
	}
	return allScript
}

func (a *allCall) command(ctx context.Context, by string, script any) command {
	args := make([]any, 0, 3+4*len(a.calls))
	args = append(args, by, script, len(a.calls))
	for i := range a.calls {
		args = append(args, a.calls[i].key)
	}
	for i := range a.calls {
		if c := &a.calls[i]; c.plan.holds {
			holds, times := holdNames(c.key)
			args = append(args, holds, times)
		}
	}
	args[2] = len(args) - 3
	for i, p := range a.packed {
		if i == len(a.packed)-1 {
			args = append(args, &argument{packed: p})
		} else {
			args = append(args, p)
		}
	}
	return command{redis.NewCmd(ctx, args...)}
}

// chains reports whether there is a chain.
func (a *allCall) chains() bool {
	return slices.ContainsFunc(a.calls, func(c takeCall) bool { return c.in() })
}

// parse returns the reply to a command.
func (a *allCall) parse(cmd command) (r reply, err error) {
	if err := failed(cmd); err != nil {
		return r, err
	}
	answers, ok := cmd.Val().([]any)
	if !ok || len(answers) != 1+len(a.calls) {
		return r, fmt.Errorf("redislimit: the script answered %.64q of type %T, which it cannot: is there a proxy in between that changes replies?", fmt.Sprint(cmd.Val()), cmd.Val())
	}
	fits, _ := answers[0].(string)
	r.all = &allReply{each: make([]reply, len(a.calls))}
	if n := len(a.calls); len(fits) == 8*n { // with the units
		for i := n; i < len(fits); i += 7 {
			r.all.units = append(r.all.units, number(fits[i:i+7]))
		}
		fits = fits[:n]
	}
	if r.all.fits = fits; len(fits) != len(a.calls) || a.chains() != (r.all.units != nil) {
		return reply{}, fmt.Errorf("redislimit: the script answered %.64q, which it cannot: is there a proxy in between that changes replies?", fmt.Sprint(answers[0]))
	}
	for i := range a.calls {
		one := &r.all.each[i]
		*one, err = unpackReply(answers[1+i], a.calls[i].plan.holds)
		if err = a.calls[i].checked(one, err); err != nil {
			return reply{}, err
		}
		if a.calls[0].allAgain && r.all.each[0].said == saidAgain {
			one.said = saidAgain
		}
	}
	return r, nil
}

// DoAll makes all of the calls or none of them. They are judged together, at one instant and in their order; calls of
// one key add up. Only an OpTake of a cost of at least 1, an OpHold, or an OpExtend can stand in the way. If a hold is
// not there, or another one, nothing is done, and the error says so. Denied is the first call that stands in the way, when
// the calls of its key before it are counted as well, or -1.
//
// If all are made, the results are the same as from Do. If none is made, they say how the keys stand. An OpTake, OpHold or
// OpPeek gets the decision of OpPeek, but Allowed is false for each call that was denied. The other calls get the
// decision of OpPeek with a cost of 0. A limit with BlockFor blocks the keys of calls that have stood in the way.
//
// DoAll is one call of a script, and takes no leases: units on lease count as spent. In a cluster all keys must be in
// one slot, as they are if the limits have the same Tag. Otherwise nothing is done, and the error says so. Without Redis
// the shares of this process are judged together, by sluice.TakeAll.
//
// At most 256 calls may be given. After an error nothing has been done or, if Redis was asked, the outcome is unknown.
// The error is ctx's, ErrClosed, a *ConfigError of an Override, one of holds, or ErrUnavailable: under FailClosed, and for an
// OpSettle or OpExtend of a hold that Redis has. Results then hold nothing.
func (s *Store) DoAll(ctx context.Context, calls []StoreCall, out []StoreResult) (sluice.AllDecision, error) {
	none := sluice.AllDecision{Denied: -1}
	if err := s.checkCalls(calls, out); err != nil {
		return none, err
	}
	if len(calls) > maxAll {
		return none, fmt.Errorf("redislimit: DoAll of %d calls; want at most %d", len(calls), maxAll)
	}
	if err := s.check(ctx); err != nil {
		return none, err
	}
	a := together{store: s, calls: calls, out: out, denied: -1}
	if err := a.begin(); err != nil {
		return none, err
	}
	if a.denied >= 0 {
		return a.look(ctx)
	}
	if err := a.make(ctx); err != nil {
		return none, err
	}
	s.stats.cache.Add(uint64(a.cached))
	return a.decision(), nil
}

// make makes the calls, in this process and in Redis.
func (a *together) make(ctx context.Context) error {
	if done, err := a.settleHere(); done || err != nil {
		return err
	}
	here, err := a.keepHere()
	if err == nil && len(a.work) > 0 {
		err = a.ask(ctx)
	}
	if err != nil {
		return err
	}
	return a.settleKept(ctx, here)
}

// together holds the calls of a DoAll.
type together struct {
	store  *Store
	calls  []StoreCall
	out    []StoreResult
	work   []storeCall // the calls that ask Redis
	at     []int       // their indexes in calls
	cached int         // calls that no state of a key decides
	denied int
	within bool // the shares have been charged already

	reservations []*sluice.Reservation // of the charges of the shares, by index in work
}

// begin makes up the calls, and answers those that need not ask Redis. denied is the first that no state would admit.
func (a *together) begin() error {
	for i := range a.calls {
		call := &a.calls[i]
		l := call.Limit
		p, err := call.planned()
		if err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		chain, err := a.chained(i, p)
		if err != nil {
			return err
		}
		if call.Op.isOfHold() {
			if err := a.beginHold(i, p); err != nil {
				return err
			}
			continue
		}
		cost, op := call.Cost, call.Op
		if !chain.in() {
			cost, op = call.counting(p)
		}
		if op == OpTake && a.denied < 0 && !chain.in() && (cost < 0 || int64(cost) > p.burst) {
			a.denied = i
		}
		if p.constant() && op <= OpPeek {
			a.constant(i, p, cost)
			continue
		}
		w := storeCall{subject: l.named.subject(call.Key), out: &a.out[i], call: call, before: -1}
		if w.takeCall = l.newCall(p, call.Key, cost, op); chain.in() {
			w.takeCall = l.newPart(p, call, chain)
		}
		w.terms = nil
		a.work, a.at = append(a.work, w), append(a.at, i)
	}
	return a.oneSlot()
}

// constant answers call i under a limit that admits or denies everything.
func (a *together) constant(i int, p *plan, cost int) {
	a.out[i] = StoreResult{Decision: p.decideConstant(cost), Source: FromCache, HoldID: a.calls[i].HoldID}
	a.cached++
}

// oneSlot returns an error if the keys are not in one slot of a cluster.
func (a *together) oneSlot() error {
	r := a.store.router
	if r.cluster == nil && r.ring == nil {
		return nil
	}
	for i := range a.work {
		if first, other := a.work[0].key, a.work[i].key; slotOf(first) != slotOf(other) {
			return fmt.Errorf("redislimit: DoAll of %q and %q, which are in different slots of the cluster; want limits with one Tag", first, other)
		}
	}
	return nil
}

// look answers calls of which one is denied in any case: it says how the keys stand.
func (a *together) look(ctx context.Context) (sluice.AllDecision, error) {
	looks := make([]StoreCall, len(a.calls))
	var upTo []int // which have a look of 0 besides, that tells how their keys stand
	for i, c := range a.calls {
		if c.Op >= OpDebit && !c.needsRoom() || c.Part != Whole {
			c.Cost = 0
		}
		c.Op, c.Part, c.AllAgain = OpPeek, Whole, false
		looks[i] = c
		if a.upTo(i) {
			c.Cost = 0
			looks, upTo = append(looks, c), append(upTo, i)
		}
	}
	out := make([]StoreResult, len(looks))
	if err := a.store.Do(ctx, looks, out); err != nil {
		return sluice.AllDecision{Denied: -1}, err
	}
	for i := range out {
		if out[i].Err != nil {
			return sluice.AllDecision{Denied: -1}, out[i].Err
		}
	}
	copy(a.out, out)
	for i := range a.calls {
		if a.calls[i].Part != Whole { // it is not known how many units it would be
			a.out[i].Decision.RetryAfter = 0
		}
	}
	for j, i := range upTo {
		a.out[i].Decision = standing(out[len(a.calls)+j].Decision, out[i].Decision)
	}
	return a.decision(), nil
}

// ask asks Redis, and fills in the results.
func (a *together) ask(ctx context.Context) error {
	s, now := a.store, time.Now()
	all := &allCall{calls: make([]takeCall, len(a.work))}
	for i := range a.work {
		all.calls[i] = a.work[i].takeCall
	}
	first := &a.work[0].request
	r := request{plan: first.plan, key: first.key, op: opAll, n: 1, all: all}
	asked := asked{lane: s.router.lane(r.key, now)}
	if s.decides() == LocalShare && asked.lane.returning.Load() { // see within
		if !a.withoutRedis() {
			return a.apart(asked)
		}
		a.within = true
	}
	asked.group, asked.waiter, asked.failed = asked.lane.joinQueue(r, now)
	if asked.failed == nil {
		if err := asked.await(ctx); err != nil {
			return err
		}
	}
	if ofHold(asked.failed) {
		a.giveBack()
		return a.notYet(asked.failed)
	}
	if asked.failed != nil {
		return a.fallback(asked)
	}
	s.stats.redis.Add(uint64(len(a.work)))
	a.answer(all, asked.group.reply.all)
	return nil
}

// joinQueue is join for a caller that does not lead.
func (l *lane) joinQueue(r request, now time.Time) (*group, *waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, w, err := l.joinLocked(&r, nil, now, false)
	if err == nil {
		l.send()
	}
	return g, w, err
}

// answer fills in the results from the reply to a call.
func (a *together) answer(all *allCall, r *allReply) {
	made := r.made()
	if !made {
		a.giveBack()
	}
	if r.units != nil {
		a.divided(r, all.calls)
	}
	for i := range a.work {
		w, one, fits := &a.work[i], &r.each[i], r.fits[i] != '0'
		if !fits && a.denied < 0 {
			a.denied = a.at[i]
		}
		if made {
			a.made(w, one)
		} else {
			a.stands(w, one, fits, r)
		}
		w.out.Source, w.out.Count = FromRedis, w.plan.count(one.view, one.blocked())
		w.out.HoldID, w.out.Held = w.id, int(one.held)
		w.out.Again, w.out.Capped = made && one.said == saidAgain, made && one.said == saidCapped
	}
}

// made fills in the result of a call, if the calls have been made.
func (a *together) made(w *storeCall, r *reply) {
	t := &w.takeCall
	switch {
	case t.op == opHold:
		t.within = a.within && t.what != whatSettle && !w.none
		a.store.warmHold(w, r)
		w.out.Decision, w.out.Err = t.holdDecision(r)
		return
	case t.k > 0 && a.within:
	case t.k > 0:
		w.subject.share(t.plan).TakeUpTo(t.cost)
	case t.op == opDebit:
		w.subject.share(t.plan).Debit(int(t.n))
	case t.op == opRefund:
		w.subject.share(t.plan).Refund(int(t.n))
		a.store.denied.forget(w.subject.id)
	}
	if w.out.Decision = t.decision(r); t.op == opAdmit && t.in() {
		w.out.Decision = t.plan.describe(r.view, r.blocked(), t.cost, true)
	}
}

// stands fills in the result of a call, if the calls have not been made: how its key stands.
func (a *together) stands(w *storeCall, r *reply, fits bool, all *allReply) {
	cost := w.cost
	d := w.plan.judge(r.view, r.blocked(), cost, !w.in())
	if w.op != opAdmit && w.op != opHold {
		d = w.plan.judge(r.view, r.blocked(), 0, true)
	}
	if !fits {
		d = w.plan.describe(r.view, r.blocked(), cost, false)
		if sum := w.sum(a.work, all); sum > int64(cost) && r.blocked() == 0 {
			d.RetryAfter = sluice.Never
			if sum <= w.plan.burst {
				d.RetryAfter = duration(w.plan.shape.wait(r.view, sum))
			}
		}
	}
	w.out.Decision = d
}

// sum returns the cost of an OpTake and of the calls of OpTake before it that are of its key and fit.
func (w *storeCall) sum(work []storeCall, all *allReply) (sum int64) {
	for i := range work {
		o := &work[i]
		if o.subject.id == w.subject.id && o.k > 0 && o.what != whatSettle && (o == w || all.fits[i] != '0') {
			sum += o.n
		}
		if &work[i] == w {
			break
		}
	}
	return sum
}

// decision returns the decision on all calls, from their results.
func (a *together) decision() sluice.AllDecision {
	d := sluice.AllDecision{Allowed: a.denied < 0, Denied: a.denied}
	for i := range a.out {
		if r := &a.out[i].Decision; a.calls[i].needsRoom() && !a.upTo(i) {
			if !d.Allowed && !r.Allowed {
				d.RetryAfter = max(d.RetryAfter, r.RetryAfter)
			}
		}
	}
	d.Remaining = a.least()
	return d
}

// least returns the smallest Remaining.
func (a *together) least() int {
	if len(a.out) == 0 {
		return 0
	}
	n := a.out[0].Decision.Remaining
	for i := range a.out {
		n = min(n, a.out[i].Decision.Remaining)
	}
	return n
}
