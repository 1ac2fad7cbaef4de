package otelengine

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

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

// TestCollector_Values: what an engine has counted is told. That all names and values are those of package
// promengine is tested in internal/test/expositions.
func TestCollector_Values(t *testing.T) {
	e, reader := newEngine(t, rules.Config{}), sdk.NewManualReader()
	c, err := New(e, Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
	require.NoError(t, err)
	for range 12 {
		decide(t, e, "d", "ten", "x", rules.Descriptor{})
		decide(t, e, "d", "seen", "x", rules.Descriptor{})
	}
	decide(t, e, "d", "ten", "x", rules.Descriptor{Refund: true})
	decide(t, e, "nobody's", "ten", "x", rules.Descriptor{})
	got := told(t, reader)
	for name, want := range map[string]int64{
		"sluice.hits domain=d,outcome=within,rule=d.ten":  8,
		"sluice.hits domain=d,outcome=near,rule=d.ten":    2,
		"sluice.hits domain=d,outcome=over,rule=d.ten":    2,
		"sluice.hits domain=d,outcome=shadow,rule=d.seen": 11,
		"sluice.refunded_hits domain=d,rule=d.ten":        1,
		"sluice.requests code=ok,domain=d":                23,
		"sluice.requests code=over_limit,domain=d":        2,
		"sluice.config.generation ":                       1,
		"sluice.keys unit=minute":                         2,
		"sluice.evicted ":                                 0,
		"sluice.untracked ":                               0,
		"sluice.unknown_domain ":                          1,
		"sluice.shadowed ":                                0,
	} {
		assert.Contains(t, got, name)
		assert.Equal(t, want, got[name], name)
	}
	assert.Len(t, got, 4*4+1+2+1+8+5+7)
	require.NoError(t, c.Unregister())
	assert.Empty(t, told(t, reader))
}

// TestCollector_Cardinality: beyond the SDK's limit the total is right, and the same rules are kept apart each
// time. With the limit that the documentation names all of them are.
func TestCollector_Cardinality(t *testing.T) {
	const values = 600
	for _, limit := range []int{0, 4*(4+values) + 1} {
		e, reader := newEngine(t, rules.Config{MaxSeries: values}), sdk.NewManualReader()
		options := []sdk.Option{sdk.WithReader(reader)}
		if limit != 0 {
			options = append(options, sdk.WithCardinalityLimit(limit))
		}
		_, err := New(e, Config{MeterProvider: sdk.NewMeterProvider(options...)})
		require.NoError(t, err)
		for i := range values {
			decide(t, e, "d", "each", fmt.Sprint(i), rules.Descriptor{})
		}
		first, second := told(t, reader), told(t, reader)
		assert.Equal(t, first, second)
		sum, sets := int64(0), 0
		for name, v := range first {
			if strings.HasPrefix(name, "sluice.hits ") {
				sum, sets = sum+v, sets+1
			}
		}
		assert.EqualValues(t, values, sum)
		if limit == 0 {
			assert.Equal(t, 2000, sets)
			assert.Contains(t, first, "sluice.hits otel.metric.overflow=true")
		} else {
			assert.Equal(t, limit-1, sets)
			assert.NotContains(t, first, "sluice.hits otel.metric.overflow=true")
		}
	}
}

// TestCollector_SeveralEngines: an attribute tells them apart.
func TestCollector_SeveralEngines(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	attributes := []attribute.KeyValue{attribute.String("engine", "")}
	for _, name := range []string{"a", "b"} {
		e := newEngine(t, rules.Config{})
		attributes[0] = attribute.String("engine", name)
		_, err := New(e, Config{MeterProvider: provider, Attributes: attributes})
		require.NoError(t, err)
		decide(t, e, "d", "ten", "x", rules.Descriptor{})
	}
	got := told(t, reader)
	assert.EqualValues(t, 1, got["sluice.keys engine=a,unit=minute"])
	assert.EqualValues(t, 1, got["sluice.keys engine=b,unit=minute"])
	_, err := New(nil, Config{MeterProvider: provider})
	assert.EqualError(t, err, "otelengine: the engine is nil; want one of rules.New")
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
	assert.Empty(t, c.hits(nil))
	assert.EqualValues(t, 1, c.hits(series(1, 0, 0, 0))[within], "a rule that was gone begins anew")
}

func TestCollector_AttributesAreText(t *testing.T) {
	got := new(Collector).hits([]rules.Series{{Domain: "d", Path: "d.\xff", Total: 1}, {Domain: "d", Path: "d.\xfe", Total: 2}})
	assert.EqualValues(t, 3, got[labels{"d", "d.\uFFFD", "within"}])
}

// TestCollector_WhileAsked: two read while the engine decides, and gets other rules.
func TestCollector_WhileAsked(t *testing.T) {
	e, reader := newEngine(t, rules.Config{}), sdk.NewManualReader()
	_, err := New(e, Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
	require.NoError(t, err)
	set, _ := e.Set()
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := range 30 {
				decide(t, e, "d", "each", fmt.Sprint(g, i), rules.Descriptor{})
				assert.NoError(t, e.Swap(set))
				told(t, reader)
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 61, told(t, reader)["sluice.config.generation "])
}

// TestNew_Global: without a MeterProvider it is the global one.
func TestNew_Global(t *testing.T) {
	before := otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	reader := sdk.NewManualReader()
	otel.SetMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	_, err := New(newEngine(t, rules.Config{}), Config{})
	require.NoError(t, err)
	assert.NotEmpty(t, told(t, reader))
}

// TestDocs_NameAllInstruments: the package's documentation has each instrument.
func TestDocs_NameAllInstruments(t *testing.T) {
	e, reader := newEngine(t, rules.Config{}), sdk.NewManualReader()
	_, err := New(e, Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
	require.NoError(t, err)
	for range 4 {
		decide(t, e, "d", "own", "x", rules.Descriptor{})
	}
	decide(t, e, "d", "own", "x", rules.Descriptor{Refund: true})
	one := uint64(1)
	hold := rules.Hold{Request: rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "own", Value: "y"}}, Hits: &one}}}}
	require.NoError(t, e.Hold(&hold, new(rules.Response)))
	require.NoError(t, e.Settle(&hold))
	source, err := os.ReadFile("otelengine.go")
	require.NoError(t, err)
	names := map[string]bool{}
	for name := range told(t, reader) {
		name, _, _ = strings.Cut(name, " ")
		names[name] = true
		assert.Contains(t, string(source), "//	"+name+" ")
	}
	assert.Len(t, names, 15)
}
