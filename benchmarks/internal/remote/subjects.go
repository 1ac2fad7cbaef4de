package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

// A Limit is the same GCRA for all subjects: so many units a period, and as many at once.
type Limit struct {
	Units  int
	Period time.Duration
}

// A Take charges a unit to a key, or denies.
type Take func(ctx context.Context, key string) (allowed bool, err error)

// A Subject is a limiter, set up the way its documentation does.
type Subject struct {
	Name string
	New  func(addr string, limit Limit, replicas int) (take Take, end func(), err error)
}

// Base is the subject that all other subjects are compared with.
const Base = "redis_rate"

// Subjects returns the subjects of a workload.
func Subjects(w Workload) []Subject {
	subjects := []Subject{
		{"redislimit.Limiter", newLimiter},
		{"redislimit.Tier", tierOf("tier", redislimit.TierConfig{Budget: 10 * time.Second})},
		{"redislimit.Tier, leading", leadingTier("leading", redislimit.TierConfig{Budget: 10 * time.Second})},
		{"redislimit.Tier, leases", tierOf("leases", redislimit.TierConfig{Budget: time.Second, Lease: redislimit.Lease{Max: 1000, Life: time.Second}})},
		{Base, newRedisRate},
		{"throttled", newThrottled},
		{"rueidis", newRueidis},
	}
	if w.Callers == 1 && w.Keys == 1 {
		// Every other call settles a lease and asks for another: the work of Redis for that. With many
		// keys, leases that nobody spends would be given back while other subjects are measured.
		single := redislimit.TierConfig{Budget: time.Second, Lease: redislimit.Lease{Max: 1, Life: time.Second}}
		subjects = append(subjects, Subject{"redislimit.Tier, leases of 1", tierOf("single", single)})
	}
	if w.Load > 0 {
		// Leases leave Redis a few dozen calls a second, and each of them finds caches that other programs
		// have filled. This is the time of the other subjects' script then.
		subjects = append(subjects, Subject{fmt.Sprintf("%s, 1 call in %d", Base, seldom), rarely(newRedisRate)})
	}
	return subjects
}

// seldom is how many decisions there are to one call of the script with leases, under a load.
const seldom = 150

// rarely returns a function that makes limiters of which one call in so many asks Redis, and
// the others are admitted.
func rarely(limiter func(string, Limit, int) (Take, func(), error)) func(string, Limit, int) (Take, func(), error) {
	return func(addr string, limit Limit, replicas int) (Take, func(), error) {
		take, end, err := limiter(addr, limit, replicas)
		var calls atomic.Int64
		return func(ctx context.Context, key string) (bool, error) {
			if calls.Add(1)%seldom != 1 {
				return true, ctx.Err()
			}
			return take(ctx, key)
		}, end, err
	}
}

func connect(addr string) *redis.Client { return redis.NewClient(&redis.Options{Addr: addr}) }

// newShared returns a limiter with keys of its own.
func newShared(client redis.UniversalClient, prefix string, limit Limit) (*redislimit.Limiter, error) {
	return redislimit.New(client, redislimit.Config{Limit: sluice.Per(limit.Units, limit.Period), Prefix: prefix})
}

func newLimiter(addr string, limit Limit, _ int) (Take, func(), error) {
	client := connect(addr)
	l, err := newShared(client, "limiter", limit)
	return func(ctx context.Context, key string) (bool, error) {
		d, err := l.Take(ctx, key, 1)
		return d.Allowed, err
	}, func() { client.Close() }, err
}

// tierOf returns a function that makes a tier of c, with a client of go-redis.
func tierOf(prefix string, c redislimit.TierConfig) func(string, Limit, int) (Take, func(), error) {
	return tierBy(func(addr string) (redis.UniversalClient, error) { return connect(addr), nil }, prefix, c)
}

// leadingTier is tierOf with a client by which callers lead.
func leadingTier(prefix string, c redislimit.TierConfig) func(string, Limit, int) (Take, func(), error) {
	return tierBy(func(addr string) (redis.UniversalClient, error) {
		return redislimit.NewClient(&redis.Options{Addr: addr})
	}, prefix, c)
}

// tierBy returns a function that makes a tier of c. Its budget is one that no call misses, so that
// the answers come from Redis, from memory and from leases; a call that misses it is an error.
func tierBy(connect func(addr string) (redis.UniversalClient, error), prefix string, c redislimit.TierConfig) func(string, Limit, int) (Take, func(), error) {
	c.OnUnavailable = redislimit.FailClosed
	return func(addr string, limit Limit, replicas int) (Take, func(), error) {
		c := c
		c.Replicas = replicas
		client, err := connect(addr)
		if err != nil {
			return nil, nil, err
		}
		l, err := newShared(client, prefix, limit)
		if err != nil {
			return nil, nil, err
		}
		tier, err := redislimit.NewTier(l, c)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, key string) (bool, error) {
				d, err := tier.Take(ctx, key, 1)
				return d.Allowed, err
			}, func() {
				_ = tier.Close(context.Background()) // of a server that is about to end
				client.Close()
			}, nil
	}
}

func newRedisRate(addr string, limit Limit, _ int) (Take, func(), error) {
	client := connect(addr)
	l := redis_rate.NewLimiter(client)
	quota := redis_rate.Limit{Rate: limit.Units, Burst: limit.Units, Period: limit.Period}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key, quota)
		return err == nil && r.Allowed > 0, err
	}, func() { client.Close() }, nil
}

// newThrottled lets it try to swap as often as it takes: it gives up after 10 times otherwise,
// with an error, which is most calls of 128 callers on one key.
func newThrottled(addr string, limit Limit, _ int) (Take, func(), error) {
	client := connect(addr)
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, nil, err
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(limit.Units, limit.Period), MaxBurst: limit.Units - 1}
	l, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return nil, nil, err
	}
	l.SetMaxCASAttemptsLimit(1 << 20)
	return func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}, func() { client.Close() }, nil
}

// gcra is as little as a script can do for the decision and the times that go with it: for a
// client that has no limiter of this kind.
const gcra = `local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local new = tat + ARGV[1]
local wait = new - now - ARGV[2]
if wait > 0 then return {0, wait, tat - now} end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000))
return {1, 0, new - now}`

func newRueidis(addr string, limit Limit, _ int) (Take, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		return nil, nil, err
	}
	script := rueidis.NewLuaScript(gcra)
	period := limit.Period.Microseconds()
	args := []string{strconv.FormatFloat(float64(period)/float64(limit.Units), 'g', -1, 64), strconv.FormatInt(period, 10)}
	return func(ctx context.Context, key string) (bool, error) {
		reply, err := script.Exec(ctx, client, []string{"rueidis:" + key}, args).AsIntSlice()
		if err == nil && len(reply) != 3 {
			err = errors.New("the script has not answered with three numbers")
		}
		return err == nil && reply[0] == 1, err
	}, client.Close, nil
}
