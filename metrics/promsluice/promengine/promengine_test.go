package promengine

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

var update = flag.Bool("update", false, "write the golden files")

const someRules = `
domain: d
descriptors:
- {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: seen, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: each, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: own, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: gcra, burst: 3}}
`

func newEngine(t testing.TB, c rules.Config) *rules.Engine {
	t.Helper()
	set, err := rules.Load([]rules.File{{Name: "d.yaml", Data: []byte(someRules)}}, rules.Options{})
	require.NoError(t, err)
	c.Clock = sluice.NewManualClock(time.Unix(1_000_000, 0))
	e, err := rules.New(set, c)
	require.NoError(t, err)
	return e
}

func decide(t testing.TB, e *rules.Engine, domain, key, value string, d rules.Descriptor) {
	d.Entries = []rules.Entry{{Key: key, Value: value}}
	assert.NoError(t, e.Decide(&rules.Request{Domain: domain, Descriptors: []rules.Descriptor{d}}, new(rules.Response)))
}

// exercised returns an engine that has counted something of everything.
func exercised(t testing.TB) *rules.Engine {
	e := newEngine(t, rules.Config{MaxSeries: 2, Shadow: true})
	for i := range 12 {
		for _, key := range []string{"ten", "seen", "own", "nothing"} {
			decide(t, e, "d", key, "x", rules.Descriptor{})
		}
		decide(t, e, "d", "each", fmt.Sprintf("\xff%d", i/5), rules.Descriptor{})
	}
	decide(t, e, "d", "ten", "x", rules.Descriptor{Refund: true})
	decide(t, e, "d", "own", "x", rules.Descriptor{Refund: true})
	decide(t, e, "nobody's", "ten", "x", rules.Descriptor{})
	return e
}

func exposition(t testing.TB, g prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return w.Body.String()
}

// TestCollector_Golden: this is the exposition, to the letter. The service's tests compare it with the service's.
func TestCollector_Golden(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(New(exercised(t)))
	const file = "testdata/engine.prom"
	got := exposition(t, registry)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

func TestPromtool_Engine(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	text, err := os.ReadFile("testdata/engine.prom")
	require.NoError(t, err)
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err)
	assert.Empty(t, string(out))
}

// TestCollector_SeveralEngines: a label tells them apart. Without one the second is refused, and so is an
// engine that is registered twice.
func TestCollector_SeveralEngines(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	a, b := newEngine(t, rules.Config{}), newEngine(t, rules.Config{})
	c := New(a)
	require.NoError(t, registry.Register(c))
	var already prometheus.AlreadyRegisteredError
	assert.True(t, errors.As(registry.Register(New(a)), &already))
	assert.True(t, errors.As(registry.Register(New(b)), &already))
	assert.True(t, registry.Unregister(c))
	assert.Empty(t, exposition(t, registry))

	registry = prometheus.NewPedanticRegistry()
	for name, e := range map[string]*rules.Engine{"a": a, "b": b} {
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"engine": name}, registry).Register(New(e)))
	}
	decide(t, b, "d", "ten", "x", rules.Descriptor{})
	got := exposition(t, registry)
	assert.Contains(t, got, `sluice_keys{engine="a",unit="minute"} 0`)
	assert.Contains(t, got, `sluice_keys{engine="b",unit="minute"} 1`)
	assert.PanicsWithValue(t, "promengine: the engine is nil; want one of rules.New", func() { New(nil) })
}

// TestCollector_NeverGoesDown reads the statistics as they may look in the middle of a count.
func TestCollector_NeverGoesDown(t *testing.T) {
	c := new(Collector)
	within := labels{"d", "d.k", "within"}
	series := func(total, near, over, shadow uint64) []rules.Series {
		return []rules.Series{{Domain: "d", Path: "d.k", Total: total, Near: near, Over: over, Shadow: shadow}}
	}
	assert.EqualValues(t, 10, c.hits(series(10, 0, 0, 0))[within])
	assert.EqualValues(t, 10, c.hits(series(10, 0, 3, 0))[within], "not 7: that would be a new beginning")
	assert.EqualValues(t, 12, c.hits(series(15, 0, 3, 0))[within])
	assert.EqualValues(t, 12, c.hits(series(2, 1, 3, 4))[within], "not 2^64 less something")
	assert.EqualValues(t, 3, c.hits(series(2, 1, 3, 4))[labels{"d", "d.k", "over"}])
	assert.Empty(t, c.hits(nil))
	assert.EqualValues(t, 1, c.hits(series(1, 0, 0, 0))[within], "a rule that was gone begins anew")
}

func TestCollector_LabelsAreText(t *testing.T) {
	got := new(Collector).hits([]rules.Series{{Domain: "d", Path: "d.\xff", Total: 1}, {Domain: "d", Path: "d.\xfe", Total: 2}})
	assert.EqualValues(t, 3, got[labels{"d", "d.\uFFFD", "within"}])
}

// TestCollector_WhileScraped: two read while the engine decides, and gets other rules. No scrape fails.
func TestCollector_WhileScraped(t *testing.T) {
	e := newEngine(t, rules.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(e))
	set, _ := e.Set()
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := range 30 {
				decide(t, e, "d", "each", fmt.Sprint(g, i), rules.Descriptor{})
				assert.NoError(t, e.Swap(set))
				_, err := registry.Gather()
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	assert.Contains(t, exposition(t, registry), "sluice_config_generation 61")
}

// TestDocs_NameAllMetrics: the package's documentation has each metric, with its labels.
func TestDocs_NameAllMetrics(t *testing.T) {
	source, err := os.ReadFile("promengine.go")
	require.NoError(t, err)
	out := make(chan *prometheus.Desc, 20)
	New(newEngine(t, rules.Config{})).Describe(out)
	close(out)
	n := 0
	for d := range out {
		_, labels, _ := strings.Cut(d.String(), "variableLabels: {")
		if labels = "{" + strings.TrimSuffix(labels, "}"); labels == "{}" {
			labels = ""
		}
		assert.Contains(t, string(source), "//	"+strings.Split(d.String(), `"`)[1]+labels+" ")
		n++
	}
	assert.Equal(t, 15, n)
}

// TestCollector_Unlimited: hits of unlimited rules are within.
func TestCollector_Unlimited(t *testing.T) {
	set, err := rules.Load([]rules.File{{Name: "d.yaml", Data: []byte("domain: d\ndescriptors: [{key: free, rate_limit: {unlimited: true}}]\n")}}, rules.Options{})
	require.NoError(t, err)
	e, err := rules.New(set, rules.Config{})
	require.NoError(t, err)
	decide(t, e, "d", "free", "x", rules.Descriptor{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(e))
	assert.Contains(t, exposition(t, registry), `sluice_hits_total{domain="d",outcome="within",rule="d.free"} 1`)
}
