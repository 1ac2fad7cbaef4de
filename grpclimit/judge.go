package grpclimit

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
	"github.com/sluice-go/sluice/internal/lag"
)

// A Judge decides on calls by the policies of a Config. Unary and Stream are the interceptors
// that do so in a server of grpc-go, and ServerOptions installs both. Decide is for servers of
// other frameworks. It is safe for concurrent use and must be made by New.
type Judge struct {
	config Config
	holds  *inflight.Renewer // nil without InFlight policies

	// The policies that are judged together, by what they judge; those in shadow mode come last.
	unary, opening, received, sent []policy
}

// New returns a Judge. The error is a *ConfigError. Later changes to c have no effect.
func New(c Config) (*Judge, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Skip == nil {
		c.Skip = SkipHealthAndReflection
	}
	j := &Judge{config: c}
	for _, shadow := range []bool{false, true} {
		for _, conf := range c.Policies {
			if p := newPolicy(conf); p.shadow == shadow {
				if p.holds && j.holds == nil {
					j.holds = inflight.NewRenewer()
				}
				j.add(p)
			}
		}
	}
	return j, nil
}

func (j *Judge) add(p policy) {
	switch p.Per {
	case PerCall:
		j.unary, j.opening = append(j.unary, p), append(j.opening, p)
	case PerReceived:
		j.unary, j.received = append(j.unary, p), append(j.received, p)
	case PerSent:
		j.sent = append(j.sent, p)
	}
}

// of returns the policies that judge what is judged.
func (j *Judge) of(call Call) []policy {
	switch {
	case call.Per == PerReceived:
		return j.received
	case call.Per == PerSent:
		return j.sent
	case call.Stream:
		return j.opening
	}
	return j.unary
}

// inline is the number of policies that are judged without an allocation, which is that of
// sluice.TakeAll.
const inline = 8

// receipts are for the charges of one call. Those of what has not been charged are nil.
type receipts [inline]*sluice.Reservation

// settles reports whether calls are to be settled when they are done.
func (j *Judge) settles() bool { return j.config.Settle != nil || j.holds != nil }

// A settlement has the receipts of a call that is to be settled.
type settlement struct {
	kept []*sluice.Reservation // nil where held has it
	held *inflight.Lease       // of InFlight policies; nil without them
}

// An entry says whose charge it is that has the same index.
type entry struct {
	policy *policy
	key    string
}

// A judgement is the space for one call's charges. It is no part of the stack, which a server
// begins anew for each call: to let it grow costs as much as several decisions.
type judgement struct {
	entries  []entry
	charges  []sluice.Charge
	states   []sluice.Decision
	enforced int // the charges before it are not in shadow mode
}

var judgements = sync.Pool{New: func() any {
	return &judgement{make([]entry, 0, inline), make([]sluice.Charge, 0, inline), make([]sluice.Decision, inline), 0}
}}

// free gives the space back.
func (m *judgement) free() {
	m.entries, m.charges, m.enforced = m.entries[:0], m.charges[:0], 0
	judgements.Put(m)
}

// judge charges a call to all policies that judge it, or to none, and tells the hook. With
// space for receipts it returns them.
func (j *Judge) judge(ctx context.Context, call Call, space []*sluice.Reservation) (d Decision, s settlement) {
	policies := j.of(call)
	if len(policies) == 0 {
		return Decision{Allowed: true, Remaining: math.MaxInt}, s
	}
	d.Remaining = math.MaxInt
	m := judgements.Get().(*judgement)
	if m.collect(ctx, call, policies, &d, j.config.OnKeyError) {
		if space != nil {
			s.kept = slices.Grow(space[:0], len(m.charges))[:len(m.charges)]
		}
		m.charge(&d, s.kept)
	}
	if !d.Allowed {
		d.WouldDeny, d.Charges, s.kept = nil, m.explain(), nil
	}
	if j.holds != nil && s.kept != nil {
		held := m.lease(s.kept) // a variable, so that the compiler leaves s on the stack
		j.holds.Keep(held)
		s.held = held
	}
	m.free()
	if j.config.OnDecision != nil {
		j.tell(ctx, call, d, s)
	}
	return d, s
}

// lease takes the receipts of InFlight policies out of kept.
func (m *judgement) lease(kept []*sluice.Reservation) *inflight.Lease {
	l := &inflight.Lease{}
	for i := range kept {
		if m.entries[i].policy.holds {
			l.Add(m.charges[i], kept[i])
			kept[i] = nil
		}
	}
	return l
}

// tell tells the hook. A call ends with a panic of the hook, as with one of its handler.
func (j *Judge) tell(ctx context.Context, call Call, d Decision, s settlement) {
	told := false
	defer func() {
		if !told {
			j.settle(ctx, call, s, codes.Internal)
		}
	}()
	j.config.OnDecision(ctx, call, d)
	told = true
}

// collect notes what the call asks of each policy. It reports whether the call has the keys that it
// needs, or says in d that it has not.
func (m *judgement) collect(ctx context.Context, call Call, policies []policy, d *Decision, action KeyErrorAction) bool {
	for i := range policies {
		p := &policies[i]
		key, err := p.Key(ctx, call)
		if err != nil {
			if d.passOver(p, err, action) {
				continue
			}
			d.Code, d.KeyError = codes.InvalidArgument, err
			return false
		}
		cost := 1
		if p.Cost != nil {
			cost = p.Cost(ctx, call)
		}
		m.entries = append(m.entries, entry{p, key})
		m.charges = append(m.charges, sluice.Charge{Key: p.Limiter.Key(key), Cost: cost})
		if !p.shadow {
			m.enforced = len(m.charges)
		}
	}
	return true
}

// passOver notes the error of a Key that the call is not denied for, and reports whether it is
// such a one.
func (d *Decision) passOver(p *policy, err error, action KeyErrorAction) bool {
	none := action == KeyErrorSkip && errors.Is(err, ErrNoKey)
	if !p.shadow && !none {
		return false
	}
	if d.KeyError == nil {
		d.KeyError = err
	}
	if !none {
		d.WouldDeny = append(d.WouldDeny, p.Name)
	}
	return true
}

// charge makes the charges of the policies that are enforced, all or none, and then those of the
// others, which deny nothing. With space for receipts it fills that.
func (m *judgement) charge(d *Decision, kept []*sluice.Reservation) {
	m.states = slices.Grow(m.states[:0], len(m.charges))[:len(m.charges)]
	all := makeAll(m.charges[:m.enforced], part(kept, 0, m.enforced), m.states[:m.enforced])
	d.Allowed, d.OverSoft, d.Remaining, d.RetryAfter = all.Allowed, all.OverSoft, all.Remaining, all.RetryAfter
	if !d.Allowed {
		m.deny(d)
		return
	}
	n := len(m.charges)
	if m.enforced == n {
		return
	}
	makeAll(m.charges[m.enforced:], part(kept, m.enforced, n), m.states[m.enforced:])
	for i := m.enforced; i < n; i++ {
		if m.states[i].WouldDeny {
			d.WouldDeny = append(d.WouldDeny, m.entries[i].policy.Name)
		}
	}
}

// part returns the receipts from one index to another, if there are any.
func part(kept []*sluice.Reservation, from, to int) []*sluice.Reservation {
	if kept == nil {
		return nil
	}
	return kept[from:to]
}

// makeAll makes all charges or none, with receipts if there is space for them, and says in states
// what was decided on each. A single charge that is final is decided in the same way by Take, in
// half the time.
func makeAll(charges []sluice.Charge, kept []*sluice.Reservation, states []sluice.Decision) sluice.AllDecision {
	if kept != nil || len(charges) != 1 {
		return sluice.TakeAllReceipts(kept, states, charges...)
	}
	d := charges[0].Key.Take(charges[0].Cost)
	states[0] = d
	return sluice.AllDecision{Allowed: d.Allowed, OverSoft: d.OverSoft, Remaining: d.Remaining, RetryAfter: d.RetryAfter}
}

// deny says who has denied the charges.
func (m *judgement) deny(d *Decision) {
	d.Code = codes.ResourceExhausted
	d.RetryAfter = 0
	var most time.Duration
	for i, e := range m.entries[:m.enforced] {
		most = max(most, e.policy.lag)
		if s := &m.states[i]; !s.Allowed {
			d.Violated = append(d.Violated, e.policy.Name)
			wait := s.RetryAfter
			if e.policy.holds {
				wait = inflight.RetryAfter(wait)
			}
			d.RetryAfter = max(d.RetryAfter, wait)
		}
	}
	d.RetryAfter = lag.Later(d.RetryAfter, most)
}

// explain returns what is to be charged.
func (m *judgement) explain() []PolicyCharge {
	list := make([]PolicyCharge, len(m.entries))
	for i, e := range m.entries {
		list[i] = PolicyCharge{Policy: e.policy.Name, Key: e.key, Cost: m.charges[i].Cost}
	}
	return list
}

// A Verdict is the decision on one call, and what is left to do about it. It is not safe for
// concurrent use.
type Verdict struct {
	Decision

	judge *Judge
	ctx   context.Context
	call  Call
	rest  settlement
}

// Decide judges a call as the interceptors do: it asks Config.Skip, charges the policies and calls
// Config.OnDecision. It neither answers the call nor calls a handler: that is for the caller to
// do, who answers a call that was denied by Err, and calls Settle once the handler of an admitted
// one is done, in any case, also if it panics. The key functions of this package find peer and
// metadata in the context, as grpc-go puts them there: peer.NewContext, metadata.NewIncomingContext.
func (j *Judge) Decide(ctx context.Context, call Call) *Verdict {
	v := &Verdict{judge: j, ctx: ctx, call: call}
	if j.config.Skip(ctx, call) {
		v.Decision = Decision{Allowed: true, Remaining: math.MaxInt}
		return v
	}
	var space []*sluice.Reservation
	if j.settles() && call.Per == PerCall {
		space = new(receipts)[:]
	}
	v.Decision, v.rest = j.judge(ctx, call, space)
	return v
}

// Err returns nil if the call was admitted, and else the *DeniedError that answers it.
func (v *Verdict) Err() error {
	if v.Allowed {
		return nil
	}
	return &DeniedError{Decision: v.Decision, begun: v.call.Per != PerCall}
}

// Settle has Config.Settle say what the call finally costs, given the code of its status, and
// charges or gives back the difference. It gives back what InFlight policies have charged. Only the first call
// does anything, and none for calls that were denied or skipped, or for messages.
func (v *Verdict) Settle(code codes.Code) {
	rest := v.rest
	v.rest = settlement{}
	v.judge.settle(v.ctx, v.call, rest, code)
}

// settle asks what the call finally costs, and makes it so, once the call no longer runs.
func (j *Judge) settle(ctx context.Context, call Call, s settlement, code codes.Code) {
	if s.held != nil {
		s.held.End()
	}
	if len(s.kept) == 0 {
		return
	}
	final := -1 // as it was charged
	if j.config.Settle != nil {
		final = j.config.Settle(ctx, call, code)
	}
	for _, r := range s.kept {
		r.Settle(final)
	}
}
