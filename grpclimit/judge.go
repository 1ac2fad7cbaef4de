package grpclimit

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/hint"
	"github.com/sluice-go/sluice/internal/inflight"
	"github.com/sluice-go/sluice/internal/policies"
)

// A Judge decides on calls by the policies of a Config. Unary and Stream are the interceptors
// that do so in a server of grpc-go, and ServerOptions installs both. Decide is for servers of
// other frameworks. It is safe for concurrent use and must be made by New.
type Judge struct {
	config Config
	hint   hint.Hint
	passed error             // errors of a Key that leave out its policy; nil for none
	holds  *inflight.Renewer // nil without InFlight policies
	queue  *policies.Queue   // nil for none

	// The policies that are judged together, by the subject that they judge.
	unary, opening, received, sent judged
}

type policy = policies.Policy[*request, Per]

// A request describes a call to the functions of a policy.
type request struct {
	ctx  context.Context
	call Call
}

// judged are policies that are judged together.
type judged struct {
	list    []policy
	settles bool // charges take reservations, since they may be given back
	asks    bool // some Settle for the final cost
	ends    bool // there is something to do about a call that has ended
}

// New returns a Judge. The error is a *ConfigError. Later changes to c have no effect.
func New(c Config) (*Judge, error) {
	list, err := newPolicies(&c)
	if err != nil {
		return nil, err
	}
	if c.Skip == nil {
		c.Skip = SkipHealthAndReflection
	}
	j := &Judge{config: c, hint: c.hint(), queue: (*policies.Queue)(c.Queue)}
	if field, reason := policies.PutInto(j.queue, list); reason != "" {
		return nil, &ConfigError{"Config." + field, reason}
	}
	if c.OnKeyError == KeyErrorSkip {
		j.passed = ErrNoKey
	}
	if policies.AnyHolds(list) {
		j.holds = inflight.NewRenewer()
	}
	of := func(per ...Per) (d judged) {
		for _, p := range list {
			if slices.Contains(per, p.Own) {
				d.list = append(d.list, p)
			}
		}
		d.asks = slices.Contains(per, PerCall) && (c.Settle != nil || policies.AnySettles(d.list))
		d.ends = d.asks || slices.Contains(per, PerCall) && j.holds != nil
		d.settles = d.ends || policies.AnyFar(d.list)
		return d
	}
	j.unary, j.opening, j.received, j.sent = of(PerCall, PerReceived), of(PerCall), of(PerReceived), of(PerSent)
	return j, nil
}

// newPolicies returns the policies in the order in which they are judged. The error is a *ConfigError.
func newPolicies(c *Config) ([]policy, error) {
	list := make([]policy, len(c.Policies))
	for i, p := range c.Policies {
		list[i] = policy{Name: p.Name, Limiter: p.Limiter, Remote: p.Remote, Shadow: p.Shadow, CountsDenialsOf: p.CountsDenialsOf, MaxPerKey: p.MaxPerKey, Own: p.Per}
		q := &list[i]
		if p.Key != nil {
			q.Key = func(r *request) (string, error) { return p.Key(r.ctx, r.call) }
		}
		if p.Cost != nil {
			q.Cost = func(r *request) int { return p.Cost(r.ctx, r.call) }
		}
		if p.Limit != nil {
			q.Limit = func(r *request) (sluice.Limit, error) { return p.Limit(r.ctx, r.call) }
		}
		if p.Settle != nil {
			q.Settle = func(r *request, code int) int { return p.Settle(r.ctx, r.call, codes.Code(code)) }
		}
	}
	if field, reason := policies.Check(list, "calls"); reason != "" {
		return nil, &ConfigError{"Config." + field, reason}
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	policies.Order(list)
	return list, nil
}

// of returns the policies that judge this subject.
func (j *Judge) of(call Call) *judged {
	switch {
	case call.Per == PerReceived:
		return &j.received
	case call.Per == PerSent:
		return &j.sent
	case call.Stream:
		return &j.opening
	}
	return &j.unary
}

// A judgement is the space for one call's charges. It is no part of the stack, which a server
// begins anew for each call: to let it grow costs as much as several decisions.
type judgement struct {
	policies.Judgement[*request, Per]
	request request
	held    *inflight.Lease // of InFlight policies; nil without them
}

var judgements = sync.Pool{New: func() any {
	return &judgement{Judgement: policies.Judgement[*request, Per]{
		Entries: make([]policies.Entry[*request, Per], policies.Inline), Charges: make([]sluice.Charge, policies.Inline), States: make([]sluice.Decision, policies.Inline),
	}}
}}

// free gives the space back. Nil has none.
func (m *judgement) free() {
	if m == nil {
		return
	}
	m.request, m.held = request{}, nil // a request can be large
	judgements.Put(m)
}

// judge charges a call to all policies that judge it, or to none, and tells the hook. It returns the judgement of a call
// that is to be settled when it has ended, which the caller is to free.
func (j *Judge) judge(ctx context.Context, call Call) (d Decision, rest *judgement) {
	by := j.of(call)
	if len(by.list) == 0 {
		return Decision{Allowed: true, Remaining: math.MaxInt}, nil
	}
	m := judgements.Get().(*judgement)
	m.request, m.Settles = request{ctx, call}, by.settles
	lacks := m.Collect(by.list, &m.request, j.passed)
	if by.settles {
		j.judgeWhole(m, by, lacks, &d)
	} else {
		m.decide(lacks, j.queue, &d)
		j.tell(m, &d)
	}
	if d.Allowed && by.ends {
		return d, m
	}
	m.free()
	return d, nil
}

// judgeWhole is judge for a call that is settled. If the hook or a Remote panics, that ends the call as a panic of its handler does.
func (j *Judge) judgeWhole(m *judgement, by *judged, lacks policies.Lacking, d *Decision) {
	denied, panicked := false, true
	defer func() {
		if panicked && !denied {
			j.settle(m, by, codes.Internal)
		}
	}()
	m.decide(lacks, j.queue, d)
	denied = !d.Allowed
	if d.Allowed && j.holds != nil && m.Holds() {
		m.held = &inflight.Lease{}
		m.Lease(m.held)
		j.holds.Keep(m.held)
	}
	if !by.asks { // no Remote can deny it any more
		m.Settle(m.request.ctx, policies.AsCharged)
	}
	j.tell(m, d)
	panicked = false
}

// tell tells the hook.
func (j *Judge) tell(m *judgement, d *Decision) {
	if j.config.OnDecision != nil {
		j.config.OnDecision(m.request.ctx, m.request.call, *d)
	}
}

// outcomes has the code that answers a call of each outcome.
var outcomes = [...]codes.Code{
	policies.Denied:   codes.ResourceExhausted,
	policies.Keyless:  codes.InvalidArgument,
	policies.Failed:   codes.Unavailable,
	policies.Gone:     codes.Canceled,
	policies.Admitted: codes.OK,
}

// decide charges the call to all policies, or to none. With a queue it waits for its turn.
func (m *judgement) decide(lacks policies.Lacking, q *policies.Queue, d *Decision) {
	if q != nil {
		out := m.JudgeInTurn(m.request.ctx, lacks, q)
		d.tell(&out)
	} else {
		out := m.Judge(m.request.ctx, lacks)
		d.tell(&out)
	}
	if !d.Allowed {
		d.Charges = m.explain()
	}
}

// tell puts the outcome into the words of this package.
func (d *Decision) tell(out *policies.Decision) {
	d.Allowed, d.Code, d.Violated, d.WouldDeny = out.Outcome == policies.Admitted, outcomes[out.Outcome], out.Violated, out.WouldDeny
	d.OverSoft, d.Remaining, d.RetryAfter, d.Waited, d.KeyError = out.OverSoft, out.Remaining, out.RetryAfter, out.Waited, out.KeyError
	if out.FarError != nil {
		d.RemoteError = fmt.Errorf("grpclimit: %w", out.FarError)
	}
}

// explain lists the charges.
func (m *judgement) explain() []PolicyCharge {
	list := make([]PolicyCharge, len(m.Entries))
	for i := range m.Entries {
		e := &m.Entries[i]
		list[i] = PolicyCharge{Policy: e.Policy.Name, Key: e.Key, Cost: m.Charges[i].Cost}
	}
	return list
}

// A Verdict is the decision on one call, and settles it. It is not safe for
// concurrent use.
type Verdict struct {
	Decision

	judge  *Judge
	call   Call
	rest   *judgement
	denied *DeniedError // nil if the call was admitted
}

// Decide judges a call as the interceptors do: it asks Config.Skip, charges the policies and calls
// Config.OnDecision. It neither answers the call nor calls a handler: that is for the caller to
// do, who answers a call that was denied by Err, and calls Settle once the handler of an admitted
// one is done, in any case, also if it panics. The key functions of this package find peer and
// metadata in the context, as grpc-go puts them there: peer.NewContext, metadata.NewIncomingContext.
func (j *Judge) Decide(ctx context.Context, call Call) *Verdict {
	v := &Verdict{judge: j, call: call}
	if j.config.Skip(ctx, call) {
		v.Decision = Decision{Allowed: true, Remaining: math.MaxInt}
		return v
	}
	if v.Decision, v.rest = j.judge(ctx, call); !v.Allowed {
		v.denied = j.newDenied(v.Decision, call.Per != PerCall)
	}
	return v
}

// Err returns nil if the call was admitted, and else the *DeniedError that answers it.
func (v *Verdict) Err() error {
	if v.denied == nil {
		return nil
	}
	return v.denied
}

// Settle asks Config.Settle, and that of each policy, for the final cost of the call, given the code of its status, and
// charges or gives back the difference. It gives back the units of InFlight policies. Only the first call
// does anything, and none for calls that were denied or skipped, or for messages.
func (v *Verdict) Settle(code codes.Code) {
	rest := v.rest
	v.rest = nil
	v.judge.conclude(rest, code)
}

// conclude settles a call that has ended, unless it is nil, and frees its judgement.
func (j *Judge) conclude(m *judgement, code codes.Code) {
	if m == nil {
		return
	}
	j.settle(m, j.of(m.request.call), code)
	m.free()
}

// settle gives back the units of the running call, asks for its final cost, and charges or gives back the difference.
func (j *Judge) settle(m *judgement, by *judged, code codes.Code) {
	if m.held != nil {
		m.held.End()
	}
	m.Release()
	if !by.asks {
		return
	}
	final := policies.AsCharged
	if j.config.Settle != nil {
		final = j.config.Settle(m.request.ctx, m.request.call, code)
	}
	m.SettleEach(m.request.ctx, &m.request, int(code), final)
}
