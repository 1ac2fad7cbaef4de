package rulestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// UpstreamConfig describes an Upstream.
type UpstreamConfig struct {
	// Prefix begins the names of all keys, as CACHE_KEY_PREFIX does.
	Prefix string
	// PerSecond counts the limits of a second. If it is nil they count with all other limits.
	PerSecond redis.UniversalClient
	// Budget is how long a call waits for an answer. 0 means 5 ms. The clients must have ContextTimeoutEnabled: otherwise
	// they wait for timeouts of their own.
	Budget time.Duration
	// OnUnavailable is FailOpen or FailClosed. There is no local share, since the number of processes is not known.
	OnUnavailable redislimit.OnUnavailable
	// Jitter is the longest random time that keys outlive their windows, as in EXPIRATION_JITTER_MAX_SECONDS.
	Jitter time.Duration
	// OnMode, if not nil, is called when the mode of a server changes. The call that has found the change calls
	// OnMode, and waits for it. See UpstreamServer.Status.
	OnMode func(mode redislimit.Mode, cause error)
}

// Upstream is a rules.Store that gives keys the same names as envoyproxy/ratelimit, so that processes of both
// programs count together while one replaces the other: domain_key_value_..., and the window's begin by this
// process's clock in seconds. Names can collide as in envoyproxy/ratelimit: user=id_42 and user_id=42 have one name,
// and text in braces chooses the slot of a cluster. There are no leases, and only fixed windows of whole units. Refunds
// are subtracted from the count of the present window, whether their hits were counted in it or not.
//
// It is safe for concurrent use, and only its clients have to be closed.
type Upstream struct {
	main, perSecond *UpstreamServer // the same one if there is only one
	config          UpstreamConfig
	now             func() time.Time
}

// NewUpstream returns a store. It does not wait for Redis, which may be down.
func NewUpstream(client redis.UniversalClient, c UpstreamConfig) (*Upstream, error) {
	c.Budget = cmp.Or(c.Budget, 5*time.Millisecond)
	switch {
	case client == nil:
		return nil, errors.New("rulestore: NewUpstream of no client; want one of redis.NewClient")
	case c.Budget < 0 || c.Jitter < 0:
		return nil, fmt.Errorf("rulestore: a Budget of %v and a Jitter of %v; want none below 0", c.Budget, c.Jitter)
	case c.OnUnavailable != redislimit.FailOpen && c.OnUnavailable != redislimit.FailClosed:
		return nil, errors.New("rulestore: there is no local share of counts under upstream's names; want FailOpen or FailClosed")
	}
	u := &Upstream{main: newUpstreamServer(client, c.Prefix, c.OnMode), config: c, now: time.Now}
	u.perSecond = u.main
	if c.PerSecond != nil {
		u.perSecond = newUpstreamServer(c.PerSecond, c.Prefix, c.OnMode)
	}
	return u, nil
}

// Servers returns the servers that count: one, or two with UpstreamConfig.PerSecond.
func (u *Upstream) Servers() []*UpstreamServer {
	if u.perSecond != u.main {
		return []*UpstreamServer{u.main, u.perSecond}
	}
	return []*UpstreamServer{u.main}
}

// upstreamCounter implements rules.StoreCounter.
type upstreamCounter struct {
	rules.StoreLimit
	seconds int64
}

func (*upstreamCounter) Close() {}

// limitOf returns the limit that judges a call.
func (c *upstreamCounter) limitOf(in *rules.StoreCall) sluice.Limit {
	if in.Limit != (sluice.Limit{}) {
		return in.Limit
	}
	return c.Limit
}

// Open implements rules.Store.
func (u *Upstream) Open(l rules.StoreLimit) (rules.StoreCounter, error) {
	unit := false
	for n := rules.Second; n <= rules.Week; n++ {
		unit = unit || n.Period() == l.Limit.Period
	}
	switch {
	case l.Atomic:
		return nil, errors.New("atomic or then: keys under upstream's names are in many places, and cannot be counted all or none; want the store's own names")
	case !l.Windows():
		return nil, fmt.Errorf("algorithm: %v; upstream's names count fixed windows only: want no algorithm, soft or block_for, or the store's own names", l.Algorithm)
	case l.Admitted:
		return nil, errors.New("count_denied: false; upstream's names count denied hits: want it deleted, or the store's own names")
	case l.Limit.Calendar() != (sluice.Calendar{}):
		return nil, fmt.Errorf("calendar: windows of %q; upstream's names count units of one length only: want a unit, or the store's own names", l.Limit)
	case l.Offset != 0 || !unit:
		return nil, fmt.Errorf("period: windows of %v that begin %v late; upstream's names count whole units only: want a unit, or the store's own names", l.Limit.Period, l.Offset)
	}
	return &upstreamCounter{l, int64(l.Limit.Period / time.Second)}, nil
}

// giveBack subtracts units from a count, down to 0, and keeps the time at which the count expires.
var giveBack = redis.NewScript(`
local held = tonumber(redis.call('GET', KEYS[1]) or '0')
local n = math.min(held, tonumber(ARGV[1]))
if n > 0 then held = redis.call('DECRBY', KEYS[1], string.format('%d', n)) end
return held`)

// Decide implements rules.Store: one pipeline to each server, of INCRBY and EXPIRE.
func (u *Upstream) Decide(calls []rules.StoreCall) error {
	if len(calls) > 0 && calls[0].Op == rules.Deny {
		return nil // as upstream, which subtracts refunds from any count of the present window
	}
	ctx, cancel := context.WithTimeout(context.Background(), u.config.Budget)
	defer cancel()
	now := u.now().Unix()
	counts := make([]*redis.IntCmd, len(calls))
	looks := make([]*redis.StringCmd, len(calls))
	backs := make([]*redis.Cmd, len(calls))
	trips := map[*UpstreamServer]*trip{}
	for i := range calls {
		in := &calls[i]
		c := in.Counter.(*upstreamCounter)
		to := u.serverOf(c)
		pipe := trips[to]
		if pipe == nil {
			pipe = &trip{Pipeliner: to.client.Pipeline(), to: to}
			trips[to] = pipe
		}
		pipe.calls++
		key, err := u.name(in.Key, now-now%c.seconds)
		if err != nil {
			return err
		}
		switch {
		case in.Op == rules.GiveBack:
			backs[i] = giveBack.Eval(ctx, pipe, []string{key}, strconv.FormatUint(in.Hits, 10))
		case in.Op == rules.Look || in.Hits == 0:
			looks[i] = pipe.Get(ctx, key)
		default:
			counts[i] = pipe.IncrBy(ctx, key, int64(in.Hits))
			pipe.Expire(ctx, key, time.Duration(c.seconds)*time.Second+u.jitter())
		}
	}
	for _, trip := range trips {
		if err := trip.exec(ctx); err != nil {
			return u.unavailable(calls, err)
		}
	}
	for i := range calls {
		held, err := int64(0), error(nil)
		switch {
		case backs[i] != nil:
			held, err = backs[i].Int64()
		case looks[i] != nil:
			if held, err = looks[i].Int64(); errors.Is(err, redis.Nil) {
				held, err = 0, nil
			}
		default:
			held, err = counts[i].Result()
		}
		if err != nil {
			return u.unavailable(calls, err)
		}
		u.serverOf(calls[i].Counter.(*upstreamCounter)).redis.Add(1)
		calls[i].Counter.(*upstreamCounter).answer(&calls[i], uint64(max(held, 0)), now)
	}
	return nil
}

// answer fills in the result of a call.
func (c *upstreamCounter) answer(in *rules.StoreCall, held uint64, now int64) {
	limit := c.limitOf(in)
	needed := held
	if in.Op == rules.Look {
		needed += in.Hits
	}
	in.Count, in.Counted = held, in.Op == rules.CountAll
	in.Decision = sluice.Decision{
		Allowed: needed <= uint64(limit.Rate), Limit: limit.Rate, Remaining: limit.Rate - int(min(held, uint64(limit.Rate))),
		ResetAfter: time.Duration(c.seconds-now%c.seconds) * time.Second,
	}
}

// unavailable answers calls without Redis.
func (u *Upstream) unavailable(calls []rules.StoreCall, err error) error {
	if u.config.OnUnavailable == redislimit.FailClosed {
		return fmt.Errorf("%w: %w", redislimit.ErrUnavailable, err)
	}
	for i := range calls {
		in := &calls[i]
		c := in.Counter.(*upstreamCounter)
		limit := c.limitOf(in).Rate
		in.Local = true
		in.Decision = sluice.Decision{Allowed: in.Op == rules.GiveBack || in.Hits <= uint64(limit), Limit: limit, Remaining: limit}
		u.serverOf(c).admitted(in)
	}
	return nil
}

// DecideAll implements rules.Store. It is not used, since Open refuses atomic limits.
func (u *Upstream) DecideAll([]rules.StoreCall) (int, error) {
	return -1, errors.New("rulestore: counts under upstream's names cannot be made all or none")
}

func (u *Upstream) serverOf(c *upstreamCounter) *UpstreamServer {
	if c.seconds == 1 {
		return u.perSecond
	}
	return u.main
}

func (u *Upstream) jitter() time.Duration {
	if u.config.Jitter < time.Second {
		return 0
	}
	return rand.N(u.config.Jitter/time.Second) * time.Second
}

// name returns upstream's name of a key in the window that begins at a second.
func (u *Upstream) name(key string, begin int64) (string, error) {
	domain, entries, err := rules.ParseStoreKey(key)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(u.config.Prefix)
	b.WriteString(domain)
	b.WriteByte('_')
	for _, e := range entries {
		b.WriteString(e.Key)
		b.WriteByte('_')
		b.WriteString(e.Value)
		b.WriteByte('_')
	}
	return b.String() + strconv.FormatInt(begin, 10), nil
}
