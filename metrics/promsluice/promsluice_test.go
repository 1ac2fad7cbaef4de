package promsluice

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

var update = flag.Bool("update", false, "write the golden files")

func made(c sluice.Config) *sluice.Limiter {
	if c.Clock == nil {
		c.Clock = sluice.NewManualClock(time.Unix(1_000_000, 0))
	}
	if c.Limit == (sluice.Limit{}) {
		c.Limit = sluice.PerHour(10)
	}
	return sluice.Must(sluice.New(c))
}

// exposition is what Prometheus gets. The registry checks all that it can.
func exposition(t testing.TB, collectors ...prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	return scrape(t, registry)
}

func scrape(t testing.TB, g prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return w.Body.String()
}

// exercised has limiters of which each series counts something, and one that counts no decisions.
func exercised(t testing.TB) *Collector {
	c := New()
	login := made(sluice.Config{Limit: sluice.PerHour(3), Stats: true, BlockFor: time.Hour})
	for range 9 {
		login.AllowN("secret", 1)
	}
	login.Allow("other")
	trial := made(sluice.Config{Limit: sluice.PerHour(2), Stats: true, Shadow: true})
	for range 7 {
		trial.Allow("secret")
	}
	full := made(sluice.Config{Limit: sluice.PerHour(2), MaxKeys: 1, Shards: 1, Overflow: sluice.OverflowDenyNew})
	dropping := made(sluice.Config{Limit: sluice.PerHour(2), MaxKeys: 1, Shards: 1})
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
	t.Cleanup(func() { cancel(); waiting.Wait() })
	for name, l := range map[string]*sluice.Limiter{"login": login, "trial": trial, "full": full, "dropping": dropping, "waited": waited, "a \"name\"\nof \\ two lines, ü": made(sluice.Config{})} {
		require.NoError(t, c.Add(name, l))
	}
	return c
}

// TestCollector_Golden: this is the exposition, to the letter.
func TestCollector_Golden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := exercised(t)
		synctest.Wait() // until they wait
		const file = "testdata/limiters.prom"
		got := exposition(t, c)
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, string(want), got)
		assert.NotContains(t, got, "secret", "keys are no labels")
	})
}

func TestPromtool_Limiters(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	text, err := os.ReadFile("testdata/limiters.prom")
	require.NoError(t, err)
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err)
	assert.Empty(t, string(out))
}

// TestCollector_OutcomesAddUp: each call is in one outcome, and it is the right one.
func TestCollector_OutcomesAddUp(t *testing.T) {
	rng := seeded.Rand(t)
	for _, shadow := range []bool{false, true} {
		clock := sluice.NewManualClock(time.Unix(1_000_000, 0))
		l := made(sluice.Config{Limit: sluice.PerSecond(5), Stats: true, Shadow: shadow, BlockFor: time.Second, Clock: clock})
		c := New()
		require.NoError(t, c.Add("api", l))
		want, blockedUntil := map[string]float64{}, map[string]int64{}
		for range 2000 {
			clock.Advance(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
			key := fmt.Sprint(rng.IntN(3))
			switch d := l.Take(key, 1+rng.IntN(4)); {
			case d.WouldDeny:
				want["shadow"]++
			case d.Allowed:
				want["admitted"]++
			case clock.Now() < blockedUntil[key]:
				want["blocked"]++
			default:
				want["denied"]++
				blockedUntil[key] = clock.Now() + int64(d.RetryAfter)
			}
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(c)
		got := map[string]float64{}
		for _, m := range family(t, registry, "sluice_decisions_total") {
			got[m.Label[1].GetValue()] = m.Counter.GetValue()
		}
		assert.Equal(t, want, got)
	}
}

func family(t testing.TB, g prometheus.Gatherer, name string) []*dto.Metric {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric
		}
	}
	return nil
}

// TestCollector_Names: what is refused changes nothing, and says what would be right.
func TestCollector_Names(t *testing.T) {
	c := New()
	l := made(sluice.Config{})
	l.Allow("k")
	require.NoError(t, c.Add("login", l))
	before := exposition(t, c)
	other := made(sluice.Config{})
	for _, x := range []struct {
		name    string
		limiter *sluice.Limiter
		want    string
	}{
		{"login", other, `promsluice: the name "login" is that of another limiter; want a name of its own, or Remove("login") before`},
		{"login", l, `promsluice: the name "login" is that of another limiter; want a name of its own, or Remove("login") before`},
		{"", other, `promsluice: the name is empty, which Prometheus takes for no label; want one such as "login"`},
		{"log\xffin", other, `promsluice: the name "log\xffin" is not UTF-8, as labels are; want one such as "login"`},
		{"new", nil, `promsluice: the limiter for the name "new" is nil; want one of sluice.New`},
	} {
		assert.EqualError(t, c.Add(x.name, x.limiter), x.want)
	}
	assert.Equal(t, before, exposition(t, c))
}

func TestCollector_Remove(t *testing.T) {
	c := New()
	l := made(sluice.Config{})
	require.NoError(t, c.Add("login", l))
	require.NoError(t, c.Add("api", l))
	assert.False(t, c.Remove("logi"))
	assert.True(t, c.Remove("login"))
	assert.False(t, c.Remove("login"))
	got := exposition(t, c)
	assert.NotContains(t, got, "login")
	assert.Contains(t, got, `sluice_limiter_keys{limiter="api"} 0`)
	require.NoError(t, c.Add("login", l), "the name is free again")
	assert.True(t, c.Remove("api"))
	assert.True(t, c.Remove("login"))
	assert.Empty(t, exposition(t, c))
}

// TestCollector_Registries: a registry has one collector, which the second one is told; labels of their own let it have more.
func TestCollector_Registries(t *testing.T) {
	first, second := New(), New()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(first))
	var already prometheus.AlreadyRegisteredError
	require.True(t, errors.As(registry.Register(second), &already))
	require.NoError(t, already.ExistingCollector.(*Collector).Add("library", made(sluice.Config{})))
	assert.Contains(t, scrape(t, registry), `sluice_limiter_keys{limiter="library"} 0`)
	require.True(t, registry.Unregister(first))
	assert.Empty(t, scrape(t, registry))
	registry = prometheus.NewPedanticRegistry()
	for i, c := range []*Collector{first, second} {
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"part": fmt.Sprint(i)}, registry).Register(c))
	}
	require.NoError(t, second.Add("library", made(sluice.Config{})))
	for range 2 { // labels are made once: the second time they are as they were
		got := scrape(t, registry)
		assert.Contains(t, got, `sluice_limiter_keys{limiter="library",part="0"} 0`)
		assert.Contains(t, got, `sluice_limiter_keys{limiter="library",part="1"} 0`)
	}
}

// TestCollector_WhileScraped: limiters come and go, and decide, while several read. No scrape fails, and no counter
// of one that stays goes down.
func TestCollector_WhileScraped(t *testing.T) {
	c, stays := New(), made(sluice.Config{Limit: sluice.PerHour(1_000_000), Stats: true})
	require.NoError(t, c.Add("stays", stays))
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	prometheus.WrapRegistererWith(prometheus.Labels{"again": "1"}, prometheus.WrapRegistererWithPrefix("x_", registry)).MustRegister(c)
	var stop atomic.Bool
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := 0; !stop.Load(); i++ {
				name := fmt.Sprintf("comes-%d-%d", g, i%7)
				if assert.NoError(t, c.Add(name, made(sluice.Config{Stats: true}))); !assert.True(t, c.Remove(name)) {
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
				for _, m := range family(t, registry, "sluice_decisions_total") {
					if m.Label[0].GetValue() == "stays" && m.Label[1].GetValue() == "admitted" {
						assert.GreaterOrEqual(t, m.Counter.GetValue(), last)
						last = m.Counter.GetValue()
					}
				}
			}
			stop.Store(true)
		})
	}
	all.Wait()
	assert.EqualValues(t, stays.Stats().Admitted, family(t, registry, "sluice_decisions_total")[0].Counter.GetValue())
}

// TestDocs_NameAllMetrics: the package's documentation has each metric, with its labels.
func TestDocs_NameAllMetrics(t *testing.T) {
	source, err := os.ReadFile("promsluice.go")
	require.NoError(t, err)
	for _, d := range descs {
		name := strings.Split(d.String(), `"`)[1]
		labels := "limiter"
		if d == decisionsDesc {
			labels += ",outcome"
		}
		assert.Contains(t, string(source), "//	"+name+"{"+labels+"} ")
	}
}
