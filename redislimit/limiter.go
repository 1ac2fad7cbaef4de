package redislimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
)

// A Limiter shares its limit with all Limiters that have the same Config and the same Redis.
//
// It is safe for concurrent use, and does not have to be closed: the client belongs to the
// code that created it. Calls on one key take effect one at a time.
type Limiter struct {
	*link
	plan   atomic.Pointer[plan]
	prefix string
	config Config // its Limit is the one given to New; configOf has the limit in force

	admin sync.Mutex // held while the limit changes
}

// New returns a limiter. It does not talk to Redis, which may be down. The error is a
// *ConfigError. Among others, New refuses a limit that cannot be kept exactly, and a Prefix that another limiter
// of the client has for another limit, as long as that limiter is still referenced in the process.
func New(client redis.UniversalClient, cfg Config) (*Limiter, error) {
	to, err := newLink(client, cfg.TimeSource, cfg.Remember)
	if err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPlan(cfg, nil)
	if err != nil {
		return nil, err
	}
	l := &Limiter{link: to, prefix: cfg.Prefix, config: cfg}
	l.plan.Store(p)
	if err := l.register(); err != nil {
		return nil, err
	}
	return l, nil
}

// Take charges cost units to key and describes the decision, in one round trip; in two, if
// the server does not know the script. See sluice.Limiter.Take for costs that are not
// from 1 to the burst. After an error the outcome is unknown: the call may have been charged.
func (l *Limiter) Take(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	return l.decide(ctx, l.newCall(key, cost, true))
}

// Peek returns the Decision that Take would return, but charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	return l.decide(ctx, l.newCall(key, cost, false))
}

// Debit charges cost units to key whether the limit has room for them or not. It returns the Decision that
// Peek with a cost of 0 would return right after it; see sluice.Key.Debit. A cost below 1 charges
// nothing. A charge beyond the burst is a debt. The largest charge is half of 2^53 units,
// or 2^53 parts of a bucket. A block lasts at least as long as the units count.
func (l *Limiter) Debit(ctx context.Context, key string, cost int) (sluice.Decision, error) {
	return l.decide(ctx, l.newDebit(l.plan.Load(), key, cost))
}

// Refund gives back cost units that key has been charged, as sluice.Key.Refund does.
// A cost below 1 does nothing.
func (l *Limiter) Refund(ctx context.Context, key string, cost int) error {
	r, ok := l.refundOf(key, cost)
	if !ok {
		return ctx.Err()
	}
	_, err := l.run(ctx, r)
	return err
}

// refundOf returns the request of a Refund. ok is false if the Refund does nothing.
func (l *Limiter) refundOf(key string, cost int) (r request, ok bool) {
	p := l.plan.Load()
	if cost < 1 || !p.counts() {
		return r, false
	}
	r = l.request(p, key)
	r.op, r.n = opRefund, min(int64(cost), p.kept)
	return r, true
}

// Reset makes key fresh.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	_, err := l.run(ctx, l.resetOf(key))
	return err
}

func (l *Limiter) resetOf(key string) request {
	p := l.plan.Load()
	r := l.request(p, key)
	r.op, r.n = opReset, max(1, p.kept)
	return r
}

// SetLimit changes the limit. Calls that are under way are judged by the old limit. The units
// that a key has spent still count; see the package documentation. The error is a *ConfigError;
// the limit then stays as it was.
func (l *Limiter) SetLimit(limit sluice.Limit) error {
	l.admin.Lock()
	defer l.admin.Unlock()
	c := l.config
	c.Limit = limit
	p, err := newPlan(c, l.plan.Load())
	if err != nil {
		return err
	}
	l.plan.Store(p)
	return nil
}

// configOf returns the Config with the limit of p.
func (l *Limiter) configOf(p *plan) Config {
	c := l.config
	c.Limit = p.limit
	return c
}

// Limit returns the limit in force.
func (l *Limiter) Limit() sluice.Limit { return l.plan.Load().limit }

// Algorithm returns Config's.
func (l *Limiter) Algorithm() sluice.Algorithm { return l.config.Algorithm }

// WorstCase returns the most units of any one key that all replicas together can admit
// in any closed span [t, t+d] of the deciding clock, under the present limit. It is math.MaxInt
// if that number is not below math.MaxInt, as under InFlight, and 0 for a negative d. It does not cover keys that are
// Reset, states that Redis has lost and no process restores, or steps of the clock.
func (l *Limiter) WorstCase(d time.Duration) int { return l.plan.Load().worstCase(d) }

// A takeCall is a call of Take or Peek.
type takeCall struct {
	request
	cost    int
	charges bool // a Take, not a Peek
	within  bool // the share has been charged already
	judges  bool // a Debit that also decides whether the cost fits
	over    bool // the share has no room for the cost
	chained

	allAgain bool // see StoreCall
}

func (l *Limiter) newCall(key string, cost int, charges bool) takeCall {
	return l.newCallOf(l.plan.Load(), key, cost, charges)
}

func (l *Limiter) newCallOf(p *plan, key string, cost int, charges bool) takeCall {
	t := takeCall{request: l.request(p, key), cost: cost, charges: charges}
	if 0 < cost && int64(cost) <= p.burst {
		t.n = int64(cost)
		if charges {
			t.k = 1
		}
	}
	return t
}

// newDebit returns a call of Debit. Its decision is the one of a Peek right afterwards.
func (l *Limiter) newDebit(p *plan, key string, cost int) takeCall {
	t := l.newCallOf(p, key, 0, false)
	if cost > 0 {
		t.op, t.n = opDebit, min(int64(cost), exact/2-1)
	}
	return t
}

// decision describes the outcome of t.
func (t *takeCall) decision(r *reply) sluice.Decision {
	switch {
	case t.plan.constant(): // a Debit
		return t.plan.decideConstant(t.cost)
	case t.judges:
		return t.judged(r)
	case t.k > 0:
		return t.plan.describe(r.view, r.blocked(), t.cost, r.admitted > 0)
	}
	return t.plan.judge(r.view, r.blocked(), t.cost, !t.charges)
}

// asks returns the cost that a decision is about.
func (t *takeCall) asks() int64 {
	if t.judges {
		return t.n
	}
	return int64(t.cost)
}

// judged describes a Debit that also says whether its cost fits, as Take would have decided.
func (t *takeCall) judged(r *reply) sluice.Decision {
	fits := r.admitted > 0 // for a log: its reply does not tell the state before the charge
	if t.plan.shape.letter() != logLetter {
		fits = r.blocked() == 0 && t.plan.shape.free(t.plan.shape.charged(r.view, -t.n)) >= t.n
	}
	return t.plan.describe(r.view, r.blocked(), int(t.n), fits && !t.over)
}

// chargeShare makes a Debit of this process's share.
func (t *takeCall) chargeShare(share sluice.Key) (d sluice.Decision) {
	if t.judges {
		if d = share.Take(int(t.n)); d.Allowed {
			return d
		}
	}
	charged := share.Debit(int(t.n))
	if t.judges {
		charged.Allowed, charged.RetryAfter = false, max(d.RetryAfter, charged.RetryAfter)
	}
	return charged
}

func (l *Limiter) decide(ctx context.Context, t takeCall) (sluice.Decision, error) {
	if t.plan.constant() && !(t.op == opDebit && t.plan.counts()) {
		return t.plan.decideConstant(t.cost), ctx.Err()
	}
	r, err := l.run(ctx, t.request)
	if err != nil {
		return sluice.Decision{}, err
	}
	return t.decision(&r), nil
}

// request returns a request that asks about one unit and changes nothing.
func (l *Limiter) request(p *plan, key string) request {
	return request{plan: p, key: name(l.prefix, p.shape.letter(), key), op: opAdmit, n: 1}
}
