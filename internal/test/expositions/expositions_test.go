package expositions

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics/otelsluice"
	"github.com/sluice-go/sluice/metrics/otelsluice/otelengine"
	"github.com/sluice-go/sluice/metrics/otelsluice/oteltier"
	"github.com/sluice-go/sluice/metrics/promsluice"
	"github.com/sluice-go/sluice/metrics/promsluice/promengine"
	"github.com/sluice-go/sluice/metrics/promsluice/promtier"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// sides are the two ways to Prometheus.
type sides struct {
	direct, exported *prometheus.Registry
	provider         *sdk.MeterProvider
}

func newSides(t *testing.T) *sides {
	t.Helper()
	s := &sides{direct: prometheus.NewPedanticRegistry(), exported: prometheus.NewPedanticRegistry()}
	e, err := exporter.New(exporter.WithRegisterer(s.exported), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	require.NoError(t, err)
	s.provider = sdk.NewMeterProvider(sdk.WithReader(e))
	return s
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

func TestLimiters(t *testing.T) {
	s := newSides(t)
	prom := promsluice.New()
	s.direct.MustRegister(prom)
	otel, err := otelsluice.New(otelsluice.Config{MeterProvider: s.provider})
	require.NoError(t, err)
	for name, c := range map[string]sluice.Config{
		"login": {Stats: true, BlockFor: time.Hour}, "trial": {Stats: true, Shadow: true}, "plain": {},
		"dropping": {MaxKeys: 1, Shards: 1}, "a \"name\"\nof \\ two lines, ü": {MaxKeys: 1, Shards: 1, Overflow: sluice.OverflowAdmitNew},
	} {
		c.Limit, c.Clock = sluice.PerHour(3), sluice.NewManualClock(time.Unix(1_000_000, 0))
		l, err := sluice.New(c)
		require.NoError(t, err)
		for i := range 20 {
			l.Allow(fmt.Sprint(i % 3))
		}
		require.NoError(t, prom.Add(name, l))
		require.NoError(t, otel.Add(name, l))
	}
	got := s.agree(t)
	assert.Equal(t, 3+2+4*5, strings.Count(got, "{limiter="))
	require.True(t, prom.Remove("trial"))
	require.True(t, otel.Remove("trial"))
	assert.NotContains(t, s.agree(t), "trial")
}

func TestTiers(t *testing.T) {
	s := newSides(t)
	prom := promtier.New()
	s.direct.MustRegister(prom)
	otel, err := oteltier.New(oteltier.Config{MeterProvider: s.provider})
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no way there")
	}})
	t.Cleanup(func() { client.Close() })
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(10), Prefix: "t"})
	require.NoError(t, err)
	tier, err := redislimit.NewTier(limiter, redislimit.TierConfig{Replicas: 1})
	require.NoError(t, err)
	require.NoError(t, prom.Add("api", tier))
	require.NoError(t, otel.Add("api", tier))
	assert.Contains(t, s.agree(t), "\n"+`sluice_tier_degraded{limiter="api"} 0`)
	for tier.Mode() == redislimit.ModeShared {
		_, err := tier.Take(t.Context(), "k", 1)
		require.NoError(t, err)
	}
	require.NoError(t, tier.Close(t.Context())) // and so nothing is counted any more
	assert.Contains(t, s.agree(t), "\n"+`sluice_tier_outages_total{limiter="api"} 1`)
}

func TestEngine(t *testing.T) {
	s := newSides(t)
	set, err := rules.Load([]rules.File{{Name: "d.yaml", Data: []byte(`
domain: d
descriptors:
- {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: seen, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: each, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: own, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: gcra, burst: 1}}
`)}}, rules.Options{})
	require.NoError(t, err)
	e, err := rules.New(set, rules.Config{Clock: sluice.NewManualClock(time.Unix(1_000_000, 0)), MaxSeries: 2})
	require.NoError(t, err)
	s.direct.MustRegister(promengine.New(e))
	_, err = otelengine.New(e, otelengine.Config{MeterProvider: s.provider})
	require.NoError(t, err)
	for i := range 12 {
		for _, key := range []string{"ten", "seen", "each", "own"} {
			req := rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: key, Value: fmt.Sprintf("\xff%d", i/5)}}, Refund: i == 9}}}
			require.NoError(t, e.Decide(&req, new(rules.Response)))
		}
	}
	three := uint64(3)
	hold := rules.Hold{ID: "h", Request: rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "ten", Value: "held"}}, Hits: &three}}}}
	require.NoError(t, e.Hold(&hold, new(rules.Response)))
	require.NoError(t, e.Settle(&hold))
	got := s.agree(t)
	assert.Contains(t, got, "\n"+`sluice_holds_settled_hits_total{domain="d",rule="d.ten"} 3`)
	assert.Contains(t, got, "\n"+`sluice_hits_total{domain="d",outcome="shadow",rule="d.seen"} 8`)
	assert.Contains(t, got, "\n"+`sluice_absorbed_hits_total{domain="d",rule="d.own"} 1`)
	assert.Contains(t, got, "\n"+`sluice_refunded_hits_total{domain="d",rule="d.ten"} 1`)
}
