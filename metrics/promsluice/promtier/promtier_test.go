package promtier

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

var update = flag.Bool("update", false, "write the golden files")

// exposition is what Prometheus gets. The registry checks all that it can.
func exposition(t testing.TB, collectors ...prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return w.Body.String()
}

// fixed is a Tier that has counted a different number of everything.
type fixed redislimit.Mode

func (fixed) Stats() redislimit.Stats {
	return redislimit.Stats{
		Redis: 1, Cache: 2, Lease: 3, Fallback: 4, Scripts: 5, Led: 6, Late: 7, Failed: 8, PoolTimeouts: 9, Outages: 10, Lent: 11, Returned: 12, DialErrors: 13,
	}
}

func (f fixed) Mode() redislimit.Mode { return redislimit.Mode(f) }

// TestCollector_Golden: this is the exposition, to the letter.
func TestCollector_Golden(t *testing.T) {
	c := New()
	require.NoError(t, c.add("api", fixed(redislimit.ModeShared)))
	require.NoError(t, c.add("out of order", fixed(redislimit.ModeDegraded)))
	const file = "testdata/tiers.prom"
	got := exposition(t, c)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

func TestPromtool_Tiers(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	text, err := os.ReadFile("testdata/tiers.prom")
	require.NoError(t, err)
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err)
	assert.Empty(t, string(out))
}

// unreachable returns a Tier whose server nobody reaches.
func unreachable(t testing.TB) *redislimit.Tier {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no way there")
	}})
	t.Cleanup(func() { client.Close() })
	limiter, err := redislimit.New(client, redislimit.Config{Limit: sluice.PerHour(10), Prefix: "t"})
	require.NoError(t, err)
	tier, err := redislimit.NewTier(limiter, redislimit.TierConfig{Replicas: 1})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tier.Close(context.Background())) })
	return tier
}

// TestCollector_Tier has a real Tier, in an outage.
func TestCollector_Tier(t *testing.T) {
	tier, c := unreachable(t), New()
	require.NoError(t, c.Add("api", tier))
	before := exposition(t, c)
	assert.Contains(t, before, "\n"+`sluice_tier_degraded{limiter="api"} 0`)
	calls := 0
	for ; tier.Mode() == redislimit.ModeShared; calls++ {
		_, err := tier.Take(t.Context(), "secret", 1)
		require.NoError(t, err)
	}
	got := exposition(t, c)
	assert.Contains(t, got, "\n"+`sluice_tier_degraded{limiter="api"} 1`)
	assert.Contains(t, got, "\n"+`sluice_tier_outages_total{limiter="api"} 1`)
	assert.Contains(t, got, "\n"+fmt.Sprintf(`sluice_tier_decisions_total{limiter="api",source="fallback"} %d`, calls))
	assert.NotContains(t, got, "secret", "keys are no labels")
	assert.NotContains(t, got, `cause="failed"} 0`)
}

// TestCollector_Names: what is refused changes nothing, and says what would be right.
func TestCollector_Names(t *testing.T) {
	c, tier := New(), unreachable(t)
	require.NoError(t, c.Add("api", tier))
	before := exposition(t, c)
	for _, x := range []struct {
		name string
		tier *redislimit.Tier
		want string
	}{
		{"api", tier, `promtier: the name "api" is that of another tier; want a name of its own, or Remove("api") before`},
		{"", tier, `promtier: the name is empty, which Prometheus takes for no label; want one such as "api"`},
		{"\xff", tier, `promtier: the name "\xff" is not UTF-8, as labels are; want one such as "api"`},
		{"new", nil, `promtier: the tier for the name "new" is nil; want one of redislimit.NewTier`},
	} {
		assert.EqualError(t, c.Add(x.name, x.tier), x.want)
	}
	assert.Equal(t, before, exposition(t, c))
	assert.False(t, c.Remove("new"))
	assert.True(t, c.Remove("api"))
	assert.False(t, c.Remove("api"))
	assert.Empty(t, exposition(t, c))
	require.NoError(t, c.Add("api", tier), "the name is free again")
}

// TestCollector_WhileScraped: tiers come and go while several read, and no scrape fails.
func TestCollector_WhileScraped(t *testing.T) {
	c, tier := New(), unreachable(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := range 300 {
				name := fmt.Sprint(g, i%7)
				assert.NoError(t, c.Add(name, tier))
				_, err := registry.Gather()
				assert.NoError(t, err)
				assert.True(t, c.Remove(name))
			}
		})
	}
	all.Wait()
}

// TestDocs_NameAllMetrics: the package's documentation has each metric, with its labels.
func TestDocs_NameAllMetrics(t *testing.T) {
	source, err := os.ReadFile("promtier.go")
	require.NoError(t, err)
	out := make(chan *prometheus.Desc, 20)
	New().Describe(out)
	close(out)
	n := 0
	for d := range out {
		_, labels, _ := strings.Cut(d.String(), "variableLabels: {")
		assert.Contains(t, string(source), "//	"+strings.Split(d.String(), `"`)[1]+"{"+strings.TrimSuffix(labels, "}}")+"} ")
		n++
	}
	assert.Equal(t, 8, n)
}

func TestCollector_AddStore(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	s, err := redislimit.NewStore(client, redislimit.StoreConfig{Prefix: "p", Replicas: 1})
	require.NoError(t, err)
	defer s.Close(context.Background())
	c := New()
	require.NoError(t, c.AddStore("all", s))
	require.ErrorContains(t, c.AddStore("all", s), "is that of another tier")
	require.ErrorContains(t, c.AddStore("none", nil), "want one of redislimit.NewStore")
	require.ErrorContains(t, c.AddStore("none", (*redislimit.Store)(nil)), "want one of redislimit.NewStore")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
}
