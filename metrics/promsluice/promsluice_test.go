package promsluice

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics"
)

func made(c sluice.Config) *sluice.Limiter {
	c.Limit = sluice.PerHour(1_000_000)
	return sluice.Must(sluice.New(c))
}

func collectorOf(name string, l *sluice.Limiter) *Collector {
	return sluice.Must(New(l.Metrics(name)))
}

func scrape(t testing.TB, g prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return w.Body.String()
}

func TestNew_Errors(t *testing.T) {
	l := made(sluice.Config{})
	for name, want := range map[string]string{"": "is empty", "\xff": "not UTF-8"} {
		_, err := New(l.Metrics(name))
		require.ErrorContains(t, err, want)
	}
	_, err := New(metrics.Set{})
	require.ErrorContains(t, err, "the Set is empty")
}

// TestCollector_Registries: a registry has a name once, and Unregister frees it; labels of their own let a registry have a name twice.
func TestCollector_Registries(t *testing.T) {
	l := made(sluice.Config{})
	registry := prometheus.NewPedanticRegistry()
	first := collectorOf("login", l)
	require.NoError(t, registry.Register(first))
	var already prometheus.AlreadyRegisteredError
	require.True(t, errors.As(registry.Register(collectorOf("login", made(sluice.Config{}))), &already))
	require.NoError(t, registry.Register(collectorOf("api", l)))
	assert.Contains(t, scrape(t, registry), `sluice_limiter_keys{limiter="login"} 0`)
	require.True(t, registry.Unregister(first))
	got := scrape(t, registry)
	assert.NotContains(t, got, "login")
	assert.Contains(t, got, `sluice_limiter_keys{limiter="api"} 0`)
	require.NoError(t, registry.Register(collectorOf("login", l)), "the name is free again")
	registry = prometheus.NewPedanticRegistry()
	for part := range 2 {
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"part": fmt.Sprint(part)}, registry).Register(collectorOf("library", l)))
	}
	for range 2 {
		got := scrape(t, registry)
		assert.Contains(t, got, `sluice_limiter_keys{limiter="library",part="0"} 0`)
		assert.Contains(t, got, `sluice_limiter_keys{limiter="library",part="1"} 0`)
	}
}

// TestCollector_WhileScraped: limiters come and go, and decide, while several read. No scrape fails, and no counter
// of one that stays goes down.
func TestCollector_WhileScraped(t *testing.T) {
	stays := made(sluice.Config{Stats: true})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectorOf("stays", stays))
	admitted := func() (last float64) {
		families, err := registry.Gather()
		assert.NoError(t, err)
		for _, f := range families {
			for _, m := range f.Metric {
				if f.GetName() == "sluice_decisions_total" && m.Label[0].GetValue() == "stays" && m.Label[1].GetValue() == "admitted" {
					last = m.Counter.GetValue()
				}
			}
		}
		return last
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := 0; !stop.Load(); i++ {
				c := collectorOf(fmt.Sprintf("comes-%d-%d", g, i%7), made(sluice.Config{Stats: true}))
				if assert.NoError(t, registry.Register(c)); !assert.True(t, registry.Unregister(c)) {
					return
				}
				stays.Allow("k")
			}
		})
	}
	for range 2 {
		all.Go(func() {
			last := 0.0
			for range 200 {
				now := admitted()
				assert.GreaterOrEqual(t, now, last)
				last = now
			}
			stop.Store(true)
		})
	}
	all.Wait()
	assert.EqualValues(t, stays.Stats().Admitted, admitted())
}
