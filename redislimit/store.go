package redislimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
)

// A Store gives many limits one way to Redis. They share the queue and the pipelines to each primary, the memory of
// states and of denials, the leases, and the charges that Redis is owed after an outage. A hundred limits cost one
// Store, not a hundred Tiers. All promises of a Tier hold for each limit of a Store.
//
// A Store is safe for concurrent use. Close it when it is no longer needed.
type Store struct {
	*core
	prefix  string
	maxKeys int
	beats   *heartbeat // or nil

	mu     sync.Mutex // guards the rest
	names  map[string]*named
	locals map[family]*sluice.Limiter
}

// named holds the limits of one Name.
type named struct {
	keyspace
	shapeOf
	name   string
	limits int
	first  *StoreLimit // the first that was added: for Store.Reach
}

// A family is the limits whose shares are kept in one local limiter.
type family struct {
	algorithm sluice.Algorithm
	offset    time.Duration
}

// A StoreLimit is a limit of a Store. It is safe for concurrent use. Close it when it is no longer needed.
type StoreLimit struct {
	store  *Store
	named  *named
	keys   keyNames
	terms  *terms // or nil
	exact  bool
	plan   atomic.Pointer[plan]
	closed atomic.Bool

	admin  sync.Mutex // held while the limit changes; guards the rest
	config LimitConfig
	others sync.Map // plans of Overrides, by sluice.Limit
	kept   atomic.Int64
}

// maxOverrides is how many plans of Overrides a limit keeps. One more drops all of them.
const maxOverrides = 1024

// NewStore returns a store without limits. It does not wait for Redis, which may be down. The error is a
// *ConfigError.
func NewStore(client redis.UniversalClient, cfg StoreConfig) (*Store, error) {
	to, err := newLink(client, cfg.TimeSource, cfg.Remember)
	if err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tier := cfg.tierConfig()
	if err := tier.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		core: newCore(to, &tier, true), prefix: cfg.Prefix, maxKeys: cmp.Or(tier.MaxKeys, defaultTierMaxKeys),
		names: map[string]*named{}, locals: map[family]*sluice.Limiter{},
	}
	if cfg.Replicas == 0 {
		s.beats = newHeartbeat(s.core, cfg.Prefix)
	}
	return s, nil
}

// Limit adds a limit. Several limits may have the same Name: see LimitConfig. The error is a *ConfigError, also if
// the limit does not fit an open limit of the same Name, or ErrClosed.
func (s *Store) Limit(cfg LimitConfig) (*StoreLimit, error) {
	if err := cfg.validate(s.prefix); err != nil {
		return nil, err
	}
	l := &StoreLimit{store: s, config: cfg, exact: cfg.Exact}
	p, err := l.newPlan(cfg.Limit)
	if err != nil {
		return nil, err
	}
	tier := TierConfig{Budget: s.budget, Lease: cfg.Lease}
	if err := tier.validateLease(cfg.config()); err != nil {
		return nil, err
	}
	l.plan.Store(p)
	l.terms = tier.terms()
	l.keys = newKeyNames(s.prefix, &cfg, p.letter())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, ErrClosed
	}
	l.named, err = s.enter(&cfg, p)
	if err == nil && l.named.first == nil {
		l.named.first = l
	}
	return l, err
}

// enter adds a limit to the limits of its Name. The caller holds mu.
func (s *Store) enter(cfg *LimitConfig, p *plan) (*named, error) {
	shape := cfg.shapeOf(p)
	n := s.names[cfg.Name]
	if n != nil && n.shapeOf != shape {
		return nil, configErrorf("Name", "%q is that of a limit of %v, and this one is of %v: they would read each other's counts; want another Name, or close that limit first", cfg.Name, n.shapeOf, shape)
	}
	if n == nil {
		local, err := s.localOf(cfg)
		if err != nil {
			return nil, err
		}
		n = &named{keyspace: keyspace{seed: maphash.MakeSeed(), local: local, parts: &s.replicas}, shapeOf: shape, name: cfg.Name}
	}
	if _, err := n.local.KeyHash(1).WithLimit(cfg.Limit); err != nil {
		return nil, configErrorf("Limit", "%v cannot be kept without Redis: %v", cfg.Limit, err)
	}
	s.names[cfg.Name] = n
	n.limits++
	if cfg.Lease.Max > 0 {
		n.lends.Store(true)
	}
	return n, nil
}

// localOf returns the local limiter of a limit's family. The caller holds mu.
func (s *Store) localOf(cfg *LimitConfig) (l *sluice.Limiter, err error) {
	f := family{cfg.Algorithm, cfg.Offset}
	if l = s.locals[f]; l == nil {
		if l, err = newLocal(cfg.config(), 1, s.maxKeys); err == nil {
			s.locals[f] = l
		}
	}
	return l, err
}

// newPlan returns the plan of a limit that replaces the present plan of l, if there is one yet.
func (l *StoreLimit) newPlan(limit sluice.Limit) (*plan, error) {
	c := l.config.config()
	before := l.plan.Load()
	if limit.Rate == 0 && limit.Period > 0 { // OpDebit counts, in windows of the period
		var err error
		c.Limit = limit
		c.Limit.Rate = 1
		if before, err = newPlan(c, nil); err != nil {
			return nil, err
		}
	}
	c.Limit = limit
	p, err := newPlan(c, before)
	if err == nil {
		p.holds = l.config.MaxHolds > 0
	}
	return p, err
}

// judge returns the plan that decides a call.
func (l *StoreLimit) judge(override sluice.Limit) (*plan, error) {
	p := l.plan.Load()
	if override == (sluice.Limit{}) || override == p.limit {
		return p, nil
	}
	if known, ok := l.others.Load(override); ok {
		return known.(*plan), nil
	}
	if l.named.period > 0 && !sameWindows(override, p.limit) && override.Rate != math.MaxInt {
		return nil, configErrorf("Override", "%v has another period than %v, in whose windows its units are counted; want the same", override, p.limit)
	}
	made, err := l.newPlan(override)
	if err != nil {
		return nil, err
	}
	if l.kept.Add(1) > maxOverrides {
		l.kept.Store(0)
		l.others.Clear()
	}
	known, _ := l.others.LoadOrStore(override, made)
	return known.(*plan), nil
}

// SetLimit changes the limit, and never the units that have been spent; see Limiter.SetLimit. The period must stay
// the same, unless the limit is a bucket. Units on lease go back. After an error, a *ConfigError, nothing has changed.
func (l *StoreLimit) SetLimit(limit sluice.Limit) error {
	l.admin.Lock()
	defer l.admin.Unlock()
	if l.named.period > 0 && !sameWindows(limit, l.config.Limit) {
		return configErrorf("Limit.Period", "%v, and the units of %q are counted in windows of %v; want the same, or another Name", windowsOf(limit), l.named.name, windowsOf(l.config.Limit))
	}
	p, err := l.newPlan(limit)
	if err != nil {
		return err
	}
	if _, err := l.named.local.KeyHash(1).WithLimit(limit); err != nil {
		return configErrorf("Limit", "%v cannot be kept without Redis: %v", limit, err)
	}
	l.config.Limit = limit
	l.plan.Store(p)
	return nil
}

// Limit returns the limit in force.
func (l *StoreLimit) Limit() sluice.Limit { return l.plan.Load().limit }

// WorstCase is Limiter.WorstCase of the limit in force.
func (l *StoreLimit) WorstCase(d time.Duration) int { return l.plan.Load().worstCase(d) }

// Close takes the limit out of the Store. From then on calls for it fail with ErrClosed. Its leases are given back in
// the background. Redis is still told of the charges that it is owed. Spent units stay in Redis while they count.
func (l *StoreLimit) Close() {
	if l.closed.Swap(true) {
		return
	}
	s := l.store
	s.mu.Lock()
	if l.named.limits--; l.named.limits == 0 {
		delete(s.names, l.named.name)
	}
	s.mu.Unlock()
	s.leases.endOf(l.terms)
}

// Mode returns the current mode.
func (s *Store) Mode() Mode { return s.mode() }

// Stats returns the counts so far.
func (s *Store) Stats() Stats { return s.counted() }

// Replicas returns how many processes share the limits. If StoreConfig.Replicas is 0, Redis counts the processes that
// have called NewStore with the same Prefix, have not called Close, and were heard of within the last three and a half
// seconds. The number is 1 until Redis has answered the first time, when there is no share yet, and stays the same while Redis does not answer.
// A larger number counts at once. A smaller one counts after 7 seconds in which Redis answered: after a failover, or a
// loss of data, the other processes first have to be heard of again. With more than 10,000 processes the number is 10,000.
func (s *Store) Replicas() int { return int(s.replicas.Load()) }

// Close makes all later calls fail with ErrClosed, and waits until the calls that are under way have ended; see
// Tier.Close. Other processes count one process less from about 8 seconds later on; see Replicas.
//
// Settlements that Redis has not answered are sent once more. Holds stay open until they lapse.
func (s *Store) Close(ctx context.Context) error {
	for _, l := range s.router.all() {
		l.stopHolds()
	}
	return s.close(ctx, s.beats.end)
}

// Status returns the current mode, and when and why it began.
func (s *Store) Status() Status { return s.status() }

// Reset makes a key of a limit fresh, as Tier.Reset does. Its open holds have then ended: to settle them is ErrNotHeld. Leases of the
// key that other processes have stay valid. The error is ErrUnavailable if Redis does not answer within the budget; the key may be fresh then.
func (s *Store) Reset(ctx context.Context, l *StoreLimit, key string) error {
	if l == nil || l.store != s {
		return errors.New("redislimit: Reset of a limit that is not of this Store; want one of Store.Limit")
	}
	if l.closed.Load() {
		return ErrClosed
	}
	p := l.plan.Load()
	of := l.named.subject(key)
	r := request{plan: p, key: l.keys.of(key), op: opReset, n: max(1, p.kept), terms: l.terms}
	if _, err := s.change(ctx, of, r); err != nil {
		return err
	}
	of.share(p).Reset()
	return nil
}

// checkCalls returns an error if the calls of a Do or DoAll are invalid.
func (s *Store) checkCalls(calls []StoreCall, out []StoreResult) error {
	if len(out) != len(calls) {
		return fmt.Errorf("redislimit: %d calls with room for %d results; want as many", len(calls), len(out))
	}
	for i := range calls {
		switch c := &calls[i]; {
		case c.Limit == nil || c.Limit.store != s:
			return fmt.Errorf("redislimit: call %d is not of a limit of this Store; want one of Store.Limit", i)
		case int(c.Op) >= len(opNames):
			return fmt.Errorf("redislimit: call %d: %v is not an operation; want one of %v", i, c.Op, opNames)
		case c.Part > Same:
			return fmt.Errorf("redislimit: call %d: %d is not a Part; want Whole, Rest or Same", i, c.Part)
		case c.AllAgain && (i > 0 || !c.Op.isOfHold()):
			return fmt.Errorf("redislimit: call %d: AllAgain of %v; want it of an OpHold, OpSettle or OpExtend that is call 0 of a DoAll", i, c.Op)
		case c.Op.isOfHold():
			if err := c.checkHold(); err != nil {
				return fmt.Errorf("redislimit: call %d: %w", i, err)
			}
		}
	}
	return nil
}
