//go:build !386

package differential

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/provider"
	"github.com/envoyproxy/ratelimit/src/redis"
	service "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	gostats "github.com/lyft/gostats"
	"github.com/mediocregopher/radix/v4"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// upstream is the other service without its sockets and its Redis, on the clock of a test.
type upstream struct {
	clock   *sluice.ManualClock
	service service.RateLimitServiceServer
	stats   *recorder
	merge   bool
}

// modes are settings that both services have.
type modes struct {
	shadow, quota, stop bool
	near                float32
}

func newUpstream(t *testing.T, clock *sluice.ManualClock, m modes) *upstream {
	logrus.SetOutput(io.Discard)
	// Its service reads these whenever it gets rules.
	t.Setenv("SHADOW_MODE", fmt.Sprint(m.shadow))
	t.Setenv("QUOTA_MODE", fmt.Sprint(m.quota))
	t.Setenv("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
	t.Setenv("RESPONSE_DYNAMIC_METADATA", "true")
	u := &upstream{clock: clock, stats: newRecorder()}
	store := &memory{clock: u, counts: map[string]*count{}}
	cache := redis.NewFixedRateLimitCacheImpl(store, nil, u, rand.New(rand.NewSource(1)), 0, nil, m.near, "", u.stats, m.stop)
	u.service = service.NewService(cache, u, u.stats, nil, u, m.shadow, true, false)
	return u
}

// UnixNow makes u a clock for the service, in seconds.
func (u *upstream) UnixNow() int64 { return u.clock.Now() / 1e9 }

// ConfigUpdateEvent makes u a source of rules that has none: load passes them on itself.
func (u *upstream) ConfigUpdateEvent() <-chan provider.ConfigUpdateEvent { return nil }

// Stop does nothing: there is nothing to stop.
func (u *upstream) Stop() {}

// loaded is rules on their way into the service.
type loaded struct{ rules config.RateLimitConfig }

func (l loaded) GetConfig() (config.RateLimitConfig, any) { return l.rules, nil }

// load puts files into force. The error is upstream's.
func (u *upstream) load(files []rules.File) error {
	c, err := parse(files, u.stats, u.merge)
	if err == nil {
		u.service.SetConfig(loaded{c}, false)
	}
	return err
}

// parse reads files as upstream does, which panics for errors.
func parse(files []rules.File, m stats.Manager, merge bool) (_ config.RateLimitConfig, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	var list []config.RateLimitConfigToLoad
	for _, f := range files {
		list = append(list, config.RateLimitConfigToLoad{Name: f.Name, ConfigYaml: config.ConfigFileContentToYaml(f.Name, string(f.Data))})
	}
	return config.NewRateLimitConfigImpl(list, m, merge), nil
}

// ask is one call. A panic, which ends upstream's process, is an error here.
func (u *upstream) ask(req *pb.RateLimitRequest) (resp *pb.RateLimitResponse, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return u.service.ShouldRateLimit(context.Background(), req)
}

// hits is a line of statistics.
type hits struct{ total, within, near, over, shadow uint64 }

func (h hits) plus(o hits) hits {
	return hits{h.total + o.total, h.within + o.within, h.near + o.near, h.over + o.over, h.shadow + o.shadow}
}

func (h hits) minus(o hits) hits {
	return hits{h.total - o.total, h.within - o.within, h.near - o.near, h.over - o.over, h.shadow - o.shadow}
}

// recorder is upstream's statistics, with a list of what they have been asked for.
type recorder struct {
	stats.Manager
	known   map[string]stats.RateLimitStats
	domains map[string]stats.DomainStats
}

func newRecorder() *recorder {
	return &recorder{
		Manager: stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.Settings{}),
		known:   map[string]stats.RateLimitStats{},
		domains: map[string]stats.DomainStats{},
	}
}

func (r *recorder) NewStats(key string) stats.RateLimitStats {
	s, ok := r.known[key]
	if !ok {
		s = r.Manager.NewStats(key)
		r.known[key] = s
	}
	return s
}

func (r *recorder) NewDomainStats(domain string) stats.DomainStats {
	r.domains[domain] = r.Manager.NewDomainStats(domain)
	return r.domains[domain]
}

// byPath is all lines.
func (r *recorder) byPath() map[string]hits {
	out := make(map[string]hits, len(r.known))
	for key, s := range r.known {
		out[key] = hits{s.TotalHits.Value(), s.WithinLimit.Value(), s.NearLimit.Value(), s.OverLimit.Value(), s.ShadowMode.Value()}
	}
	return out
}

// memory is a Redis with the three commands that upstream's fixed windows use. It drops a key when its
// time has come by the clock of the test.
type memory struct {
	clock  *upstream
	counts map[string]*count
}

type count struct{ value, expires int64 }

// command is a command in a pipeline.
type command struct {
	radix.Action
	name, key string
	argument  any
	result    *uint64
}

func (m *memory) PipeAppend(p redis.Pipeline, result any, name, key string, arguments ...any) redis.Pipeline {
	c := &command{name: name, key: key}
	if len(arguments) > 0 {
		c.argument = arguments[0]
	}
	c.result, _ = result.(*uint64)
	return append(p, redis.PipelineAction{Action: c, Key: key})
}

func (m *memory) PipeDo(p redis.Pipeline) error {
	for _, a := range p {
		if err := m.do(a.Action.(*command)); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) do(c *command) error {
	now := m.clock.UnixNow()
	at := m.counts[c.key]
	if at != nil && at.expires != 0 && at.expires <= now {
		delete(m.counts, c.key)
		at = nil
	}
	switch c.name {
	case "GET":
		if at != nil {
			*c.result = uint64(at.value)
		}
	case "INCRBY":
		by := c.argument.(uint64)
		if at == nil {
			at = &count{}
		}
		if by > math.MaxInt64 || at.value > math.MaxInt64-int64(by) {
			return redis.RedisError("ERR value is not an integer or out of range")
		}
		m.counts[c.key] = at
		at.value += int64(by)
		*c.result = uint64(at.value)
	case "EXPIRE":
		at.expires = now + c.argument.(int64)
	default:
		panic("a command that upstream has not used before: " + c.name)
	}
	return nil
}

func (m *memory) DoCmd(any, string, string, ...any) error { panic("upstream has not used it before") }
func (m *memory) Close() error                            { return nil }
func (m *memory) NumActiveConns() int                     { return 0 }

// TestMemory: the memory in the place of Redis does what Redis does.
func TestMemory(t *testing.T) {
	clock := sluice.NewManualClock(start)
	m := &memory{clock: &upstream{clock: clock}, counts: map[string]*count{}}
	add := func(key string, n uint64) (out uint64, err error) {
		p := m.PipeAppend(nil, &out, "INCRBY", key, n)
		return out, m.PipeDo(m.PipeAppend(p, nil, "EXPIRE", key, int64(10)))
	}
	get := func(key string) (out uint64) {
		require.NoError(t, m.PipeDo(m.PipeAppend(nil, &out, "GET", key)))
		return out
	}
	n, err := add("a", 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	clock.Advance(9e9)
	n, err = add("a", 2)
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	clock.Advance(9e9)
	require.EqualValues(t, 5, get("a"))
	require.Zero(t, get("b"))
	clock.Advance(1e9)
	require.Zero(t, get("a"))
	_, err = add("a", math.MaxInt64)
	require.NoError(t, err)
	_, err = add("a", 1)
	require.Error(t, err)
	_, err = add("b", math.MaxInt64+1)
	require.Error(t, err)
}
