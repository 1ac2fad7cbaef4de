package oteltier

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/redislimit"
)

func newCollector(t testing.TB) (*Collector, *sdk.ManualReader) {
	t.Helper()
	reader := sdk.NewManualReader()
	c, err := New(Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
	require.NoError(t, err)
	return c, reader
}

// told is what a reader gets: values by name and attributes.
func told(t testing.TB, reader *sdk.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	out := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[int64]
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				points = data.DataPoints
			case metricdata.Gauge[int64]:
				points = data.DataPoints
			}
			for _, p := range points {
				out[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
			}
		}
	}
	return out
}

// fixed is a Tier that has counted a different number of everything.
type fixed redislimit.Mode

func (fixed) Stats() redislimit.Stats {
	return redislimit.Stats{
		Redis: 1, Cache: 2, Lease: 3, Fallback: 4, Scripts: 5, Led: 6, Late: 7, Failed: 8, PoolTimeouts: 9, Outages: 10, Lent: 11, Returned: 12, DialErrors: 13,
	}
}

func (f fixed) Mode() redislimit.Mode { return redislimit.Mode(f) }

// TestCollector_Values: each instrument tells what the Tier has counted, by the names that the exporter makes those of
// package promtier of.
func TestCollector_Values(t *testing.T) {
	c, reader := newCollector(t)
	require.NoError(t, c.add("api", fixed(redislimit.ModeDegraded)))
	assert.Equal(t, map[string]int64{
		"sluice.tier.decisions limiter=api,source=redis":    1,
		"sluice.tier.decisions limiter=api,source=cache":    2,
		"sluice.tier.decisions limiter=api,source=lease":    3,
		"sluice.tier.decisions limiter=api,source=fallback": 4,
		"sluice.tier.scripts limiter=api":                   5,
		"sluice.tier.led_scripts limiter=api":               6,
		"sluice.tier.errors cause=late,limiter=api":         7,
		"sluice.tier.errors cause=failed,limiter=api":       8,
		"sluice.tier.errors cause=pool_timeout,limiter=api": 9,
		"sluice.tier.errors cause=dial,limiter=api":         13,
		"sluice.tier.outages limiter=api":                   10,
		"sluice.tier.lent_units limiter=api":                11,
		"sluice.tier.returned_units limiter=api":            12,
		"sluice.tier.degraded limiter=api":                  1,
	}, told(t, reader))
	assert.True(t, c.Remove("api"))
	assert.Empty(t, told(t, reader))
	require.NoError(t, c.add("api", fixed(redislimit.ModeShared)))
	assert.EqualValues(t, 0, told(t, reader)["sluice.tier.degraded limiter=api"])
	require.NoError(t, c.Unregister())
	assert.Empty(t, told(t, reader))
}

// TestCollector_Cardinality: nothing gets into the SDK's overflow, and one Tier more is refused.
func TestCollector_Cardinality(t *testing.T) {
	c, reader := newCollector(t)
	for i := range 499 {
		require.NoError(t, c.add(fmt.Sprint(i), fixed(0)))
	}
	assert.EqualError(t, c.add("last", fixed(0)), `oteltier: the tier "last" would be one more than 499, for which the SDK keeps no attributes apart; want fewer`)
	got := told(t, reader)
	assert.Len(t, got, 499*14)
	for name := range got {
		require.NotContains(t, name, "overflow")
	}
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
	tier := unreachable(t)
	c, reader := newCollector(t)
	require.NoError(t, c.Add("api", tier))
	assert.EqualValues(t, 0, told(t, reader)["sluice.tier.degraded limiter=api"])
	calls := 0
	for ; tier.Mode() == redislimit.ModeShared; calls++ {
		_, err := tier.Take(t.Context(), "secret", 1)
		require.NoError(t, err)
	}
	got := told(t, reader)
	assert.EqualValues(t, 1, got["sluice.tier.degraded limiter=api"])
	assert.EqualValues(t, 1, got["sluice.tier.outages limiter=api"])
	assert.EqualValues(t, calls, got["sluice.tier.decisions limiter=api,source=fallback"])
}

// TestCollector_Names: what is refused changes nothing, and says what would be right.
func TestCollector_Names(t *testing.T) {
	tier := unreachable(t)
	c, reader := newCollector(t)
	require.NoError(t, c.Add("api", tier))
	before := told(t, reader)
	for _, x := range []struct {
		name string
		tier *redislimit.Tier
		want string
	}{
		{"api", tier, `oteltier: the name "api" is that of another tier; want a name of its own, or Remove("api") before`},
		{"", tier, `oteltier: the name is empty, which Prometheus takes for no label; want one such as "api"`},
		{"\xff", tier, `oteltier: the name "\xff" is not UTF-8, as attributes are; want one such as "api"`},
		{"new", nil, `oteltier: the tier for the name "new" is nil; want one of redislimit.NewTier`},
	} {
		assert.EqualError(t, c.Add(x.name, x.tier), x.want)
	}
	assert.Equal(t, before, told(t, reader))
	assert.False(t, c.Remove("new"))
}

// TestCollector_WhileAsked: Tiers come and go while several read.
func TestCollector_WhileAsked(t *testing.T) {
	c, reader := newCollector(t)
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := range 200 {
				name := fmt.Sprint(g, i%7)
				assert.NoError(t, c.add(name, fixed(0)))
				told(t, reader)
				assert.True(t, c.Remove(name))
			}
		})
	}
	all.Wait()
	assert.Empty(t, told(t, reader))
}

// TestNew_Global: without a MeterProvider it is the global one.
func TestNew_Global(t *testing.T) {
	before := otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	reader := sdk.NewManualReader()
	otel.SetMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	c, err := New(Config{})
	require.NoError(t, err)
	require.NoError(t, c.add("api", fixed(0)))
	assert.Len(t, told(t, reader), 14)
}

// TestDocs_NameAllInstruments: the package's documentation has each instrument.
func TestDocs_NameAllInstruments(t *testing.T) {
	c, reader := newCollector(t)
	require.NoError(t, c.add("api", fixed(0)))
	source, err := os.ReadFile("oteltier.go")
	require.NoError(t, err)
	for name := range told(t, reader) {
		name, _, _ = strings.Cut(name, " ")
		assert.Contains(t, string(source), "//	"+name+" ")
	}
}
