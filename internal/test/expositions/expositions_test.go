package expositions

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/metrics"
	"github.com/sluice-go/sluice/metrics/otelsluice"
	"github.com/sluice-go/sluice/metrics/promsluice"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// sides are the two ways to Prometheus.
type sides struct {
	direct, exported *prometheus.Registry
	otel             *otelsluice.Collector
}

func newSides(t *testing.T) *sides {
	t.Helper()
	s := &sides{direct: prometheus.NewPedanticRegistry(), exported: prometheus.NewPedanticRegistry()}
	e, err := exporter.New(exporter.WithRegisterer(s.exported), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	require.NoError(t, err)
	s.otel = otelsluice.New(otelsluice.Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(e))})
	return s
}

func (s *sides) add(t *testing.T, set metrics.Set) *promsluice.Collector {
	t.Helper()
	c, err := promsluice.New(set)
	require.NoError(t, err)
	require.NoError(t, s.direct.Register(c))
	require.NoError(t, s.otel.Add(set))
	return c
}

func scrape(t *testing.T, g prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return w.Body.String()
}

// agree compares the two, to the letter: names, helps, types, labels, values and order. It returns what both are.
func (s *sides) agree(t *testing.T) string {
	t.Helper()
	direct := scrape(t, s.direct)
	require.NotEmpty(t, direct)
	assert.Equal(t, direct, scrape(t, s.exported))
	return direct
}

var update = flag.Bool("update", false, "write the golden files")

// golden compares what both tell with a file, to the letter, and has promtool look at it.
func (s *sides) golden(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	got := s.agree(t)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
	assert.NotContains(t, got, "secret", "keys are no labels")
}

func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	for _, name := range []string{"limiters.prom", "queues.prom", "tiers.prom", "engine.prom"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = bytes.NewReader(text)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err)
		assert.Empty(t, string(out))
	}
}

// TestLimiters has limiters with a count in each series, and a limiter that counts no decisions.
func TestLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSides(t)
		made := func(c sluice.Config) *sluice.Limiter {
			c.Limit, c.Clock = cmp.Or(c.Limit, sluice.PerHour(2)), sluice.NewManualClock(time.Unix(1_000_000, 0))
			return sluice.Must(sluice.New(c))
		}
		login := made(sluice.Config{Limit: sluice.PerHour(3), Stats: true, BlockFor: time.Hour})
		trial := made(sluice.Config{Stats: true, Shadow: true})
		for range 9 {
			login.Allow("secret")
		}
		login.Allow("other")
		for range 7 {
			trial.Allow("secret")
		}
		full := made(sluice.Config{MaxKeys: 1, Shards: 1, Overflow: sluice.OverflowDenyNew})
		dropping := made(sluice.Config{MaxKeys: 1, Shards: 1})
		for i := range 4 {
			full.Allow(fmt.Sprint("secret", i))
			dropping.Allow(fmt.Sprint("secret", i))
		}
		waited := made(sluice.Config{Limit: sluice.PerHour(1), Stats: true})
		require.True(t, waited.Allow("secret"))
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() { assert.ErrorIs(t, waited.Wait(ctx, "secret", 1), context.Canceled) })
		}
		synctest.Wait() // until they wait
		all := map[string]*sluice.Limiter{"login": login, "trial": trial, "full": full, "dropping": dropping, "waited": waited,
			"a \"name\"\nof \\ two lines, ü": made(sluice.Config{})}
		collectors := map[string]*promsluice.Collector{}
		for name, l := range all {
			collectors[name] = s.add(t, l.Metrics(name))
		}
		s.golden(t, "limiters.prom")
		require.True(t, s.direct.Unregister(collectors["trial"]))
		require.True(t, s.otel.Remove(trial.Metrics("trial")))
		assert.NotContains(t, s.agree(t), "trial")
		cancel()
		waiting.Wait()
	})
}

// TestQueues has a queue with a count in each series.
func TestQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue, err := httplimit.NewQueue(httplimit.QueueConfig{MaxWaiting: 1, MaxPerKey: 1, MaxWait: time.Hour})
		require.NoError(t, err)
		clock := sluice.NewManualClock(time.Unix(1_000_000, 0))
		limit, err := httplimit.New(httplimit.Config{Queue: queue, Policies: []httplimit.Policy{{
			Name: "calls", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1), Clock: clock})), Key: func(*http.Request) (string, error) { return "secret", nil },
		}}})
		require.NoError(t, err)
		handler := limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		call := func(ctx context.Context) {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		}
		call(t.Context())
		for range 2 {
			ctx, gone := context.WithCancel(t.Context())
			go call(ctx)
			synctest.Wait() // until it waits
			call(t.Context())
			gone()
			synctest.Wait()
		}
		go call(t.Context())
		synctest.Wait()
		clock.Advance(time.Minute)
		time.Sleep(time.Minute)
		ctx, gone := context.WithCancel(t.Context())
		go call(ctx)
		synctest.Wait()
		s := newSides(t)
		s.add(t, queue.Metrics("front"))
		s.golden(t, "queues.prom")
		gone()
		synctest.Wait()
	})
}

// counted is a Tier that has counted a different number of everything.
type counted redislimit.Mode

func (counted) Stats() redislimit.Stats {
	return redislimit.Stats{
		Redis: 1, Cache: 2, Lease: 3, Fallback: 4, Scripts: 5, Led: 6, Late: 7, Failed: 8, PoolTimeouts: 9, Outages: 10, Lent: 11, Returned: 12, DialErrors: 13,
	}
}

func (c counted) Mode() redislimit.Mode { return redislimit.Mode(c) }

func TestTiers(t *testing.T) {
	s := newSides(t)
	s.add(t, redislimit.Metrics("api", counted(redislimit.ModeShared)))
	s.add(t, redislimit.Metrics("out of order", counted(redislimit.ModeDegraded)))
	s.golden(t, "tiers.prom")
}

// TestTiers_Outage has a real Tier, in an outage.
func TestTiers_Outage(t *testing.T) {
	s := newSides(t)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no way there")
	}})
	t.Cleanup(func() { client.Close() })
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(10), Prefix: "t"})
	require.NoError(t, err)
	tier, err := redislimit.NewTier(limiter, redislimit.TierConfig{Replicas: 1})
	require.NoError(t, err)
	s.add(t, redislimit.Metrics("api", tier))
	assert.Contains(t, s.agree(t), "\n"+`sluice_tier_degraded{limiter="api"} 0`)
	calls := 0
	for ; tier.Mode() == redislimit.ModeShared; calls++ {
		_, err := tier.Take(t.Context(), "secret", 1)
		require.NoError(t, err)
	}
	require.NoError(t, tier.Close(t.Context())) // and so nothing is counted any more
	got := s.agree(t)
	assert.Contains(t, got, "\n"+`sluice_tier_outages_total{limiter="api"} 1`)
	assert.Contains(t, got, "\n"+fmt.Sprintf(`sluice_tier_decisions_total{limiter="api",source="fallback"} %d`, calls))
	assert.NotContains(t, got, `cause="failed"} 0`)
}

const someRules = `
domain: d
descriptors:
- {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: seen, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: each, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: own, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: gcra, burst: 3}}
- {key: free, rate_limit: {unlimited: true}}
`

func newEngine(t *testing.T, c rules.Config) *rules.Engine {
	t.Helper()
	set, err := rules.Load([]rules.File{{Name: "d.yaml", Data: []byte(someRules)}}, rules.Options{})
	require.NoError(t, err)
	c.Clock = sluice.NewManualClock(time.Unix(1_000_000, 0))
	e, err := rules.New(set, c)
	require.NoError(t, err)
	return e
}

func decide(t *testing.T, e *rules.Engine, domain, key, value string, d rules.Descriptor) {
	t.Helper()
	d.Entries = []rules.Entry{{Key: key, Value: value}}
	require.NoError(t, e.Decide(&rules.Request{Domain: domain, Descriptors: []rules.Descriptor{d}}, new(rules.Response)))
}

// TestEngine has an engine that has counted something of everything.
func TestEngine(t *testing.T) {
	s, e := newSides(t), newEngine(t, rules.Config{MaxSeries: 2, Shadow: true})
	s.add(t, e.Metrics())
	for i := range 12 {
		for _, key := range []string{"ten", "seen", "own", "nothing"} {
			decide(t, e, "d", key, "x", rules.Descriptor{})
		}
		decide(t, e, "d", "each", fmt.Sprintf("\xff%d", i/5), rules.Descriptor{})
	}
	decide(t, e, "d", "free", "x", rules.Descriptor{})
	for _, key := range []string{"ten", "own"} {
		decide(t, e, "d", key, "x", rules.Descriptor{Refund: true})
	}
	decide(t, e, "nobody's", "ten", "x", rules.Descriptor{})
	three := uint64(3)
	hold := rules.Hold{ID: "h", Request: rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "ten", Value: "held"}}, Hits: &three}}}}
	require.NoError(t, e.Hold(&hold, new(rules.Response)))
	require.NoError(t, e.Settle(&hold))
	s.golden(t, "engine.prom")
}

// TestEngine_Several: a label tells them apart. Without one the second is refused.
func TestEngine_Several(t *testing.T) {
	a, b := newEngine(t, rules.Config{}), newEngine(t, rules.Config{})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(sluice.Must(promsluice.New(a.Metrics()))))
	var already prometheus.AlreadyRegisteredError
	require.True(t, errors.As(registry.Register(sluice.Must(promsluice.New(b.Metrics()))), &already))
	registry = prometheus.NewPedanticRegistry()
	for name, e := range map[string]*rules.Engine{"a": a, "b": b} {
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"engine": name}, registry).Register(sluice.Must(promsluice.New(e.Metrics()))))
	}
	decide(t, b, "d", "ten", "x", rules.Descriptor{})
	got := scrape(t, registry)
	assert.Contains(t, got, `sluice_keys{engine="a",unit="minute"} 0`)
	assert.Contains(t, got, `sluice_keys{engine="b",unit="minute"} 1`)
}
