package otelsluice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics"
)

func made(c sluice.Config) *sluice.Limiter {
	c.Clock = sluice.NewManualClock(time.Unix(1_000_000, 0))
	if c.Limit == (sluice.Limit{}) {
		c.Limit = sluice.PerHour(10)
	}
	return sluice.Must(sluice.New(c))
}

func newCollector(t testing.TB, limit int, options ...sdk.Option) (*Collector, *sdk.ManualReader) {
	t.Helper()
	reader := sdk.NewManualReader()
	return New(Config{MeterProvider: sdk.NewMeterProvider(append(options, sdk.WithReader(reader))...), CardinalityLimit: limit}), reader
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

// TestCollector_Values: each instrument tells what the limiter has counted. That all names and values are those of
// package promsluice is tested in internal/test/expositions.
func TestCollector_Values(t *testing.T) {
	c, reader := newCollector(t, 0)
	login := made(sluice.Config{Limit: sluice.PerHour(3), Stats: true, BlockFor: time.Hour, MaxKeys: 1, Shards: 1, Overflow: sluice.OverflowDenyNew})
	trial := made(sluice.Config{Limit: sluice.PerHour(2), Shadow: true, Stats: true})
	for range 9 {
		login.Allow("secret")
		trial.Allow("secret")
	}
	login.Allow("other")
	require.NoError(t, c.Add(login.Metrics("login")))
	require.NoError(t, c.Add(trial.Metrics("trial")))
	require.NoError(t, c.Add(made(sluice.Config{}).Metrics("plain")))
	assert.Equal(t, map[string]int64{
		"sluice.decisions limiter=login,outcome=admitted": 3,
		"sluice.decisions limiter=login,outcome=blocked":  5,
		"sluice.decisions limiter=login,outcome=denied":   2,
		"sluice.decisions limiter=trial,outcome=admitted": 2,
		"sluice.decisions limiter=trial,outcome=shadow":   7,
		"sluice.limiter.evicted limiter=login":            0,
		"sluice.limiter.evicted limiter=plain":            0,
		"sluice.limiter.evicted limiter=trial":            0,
		"sluice.limiter.keys limiter=login":               1,
		"sluice.limiter.keys limiter=plain":               0,
		"sluice.limiter.keys limiter=trial":               1,
		"sluice.limiter.untracked limiter=login":          1,
		"sluice.limiter.untracked limiter=plain":          0,
		"sluice.limiter.untracked limiter=trial":          0,
		"sluice.limiter.waiting limiter=login":            0,
		"sluice.limiter.waiting limiter=plain":            0,
		"sluice.limiter.waiting limiter=trial":            0,
	}, told(t, reader))
}

// TestCollector_Names: what is refused changes nothing, and says what would be right.
func TestCollector_Names(t *testing.T) {
	c, reader := newCollector(t, 0)
	l := made(sluice.Config{})
	l.Allow("k")
	require.NoError(t, c.Add(l.Metrics("login")))
	before := told(t, reader)
	other := made(sluice.Config{})
	for _, x := range []struct {
		set  metrics.Set
		want string
	}{
		{other.Metrics("login"), `otelsluice: there is another limiter "login"; want a name of its own, a Collector with other Attributes, or Remove before`},
		{l.Metrics("login"), `otelsluice: there is another limiter "login"; want a name of its own, a Collector with other Attributes, or Remove before`},
		{other.Metrics(""), `metrics: the label "limiter" is empty, which Prometheus takes for no label; want a name such as "login"`},
		{other.Metrics("log\xffin"), `metrics: the label "limiter" is "log\xffin", which is not UTF-8; want a name such as "login"`},
		{metrics.Set{}, `metrics: the Set is empty; want the Metrics of a limiter, a tier or an engine`},
	} {
		assert.EqualError(t, c.Add(x.set), x.want)
	}
	assert.Equal(t, before, told(t, reader))
}

func TestCollector_Remove(t *testing.T) {
	c, reader := newCollector(t, 0)
	l := made(sluice.Config{})
	require.NoError(t, c.Add(l.Metrics("login")))
	assert.False(t, c.Remove(l.Metrics("logi")))
	assert.Len(t, told(t, reader), 4)
	assert.True(t, c.Remove(l.Metrics("login")))
	assert.False(t, c.Remove(l.Metrics("login")))
	assert.Empty(t, told(t, reader))
	require.NoError(t, c.Add(l.Metrics("login")), "the name is free again")
	assert.Len(t, told(t, reader), 4)
}

// TestCollector_Cardinality: nothing gets into the SDK's overflow, whichever the limit and the limiters are, and
// what Remove takes out makes room.
func TestCollector_Cardinality(t *testing.T) {
	limiters := []*sluice.Limiter{made(sluice.Config{Stats: true}), made(sluice.Config{Stats: true, Shadow: true}), made(sluice.Config{})}
	for _, x := range []struct{ limit, each, want int }{
		{0, 0, 666}, {0, 1, 999}, {0, 2, 1999}, {7, 0, 2}, {7, 1, 3}, {7, 2, 6}, {1, 2, 0}, {3000, 0, 999},
	} {
		options := []sdk.Option{}
		if x.limit != 0 {
			options = append(options, sdk.WithCardinalityLimit(x.limit))
		}
		c, reader := newCollector(t, x.limit, options...)
		n := 0
		var err error
		for ; err == nil; n++ {
			err = c.Add(limiters[x.each].Metrics(fmt.Sprint(n)))
		}
		n--
		assert.Equal(t, x.want, n, "%+v", x)
		limit := x.limit
		if limit == 0 {
			limit = 2000
		}
		assert.EqualError(t, err, fmt.Sprintf(`otelsluice: limiter "%d" would be one too many for a CardinalityLimit of %d; want fewer, or a higher limit here and in the SDK (WithCardinalityLimit)`, n, limit))
		got := told(t, reader)
		assert.Len(t, got, n*(4+[]int{3, 2, 0}[x.each]))
		for name := range got {
			require.NotContains(t, name, "overflow")
		}
		if n > 0 {
			require.True(t, c.Remove(limiters[0].Metrics("0")))
			require.NoError(t, c.Add(limiters[x.each].Metrics("0")))
			require.Error(t, c.Add(limiters[x.each].Metrics("another")))
		}
	}
	c, _ := newCollector(t, -1)
	for i := range 3000 {
		require.NoError(t, c.Add(limiters[0].Metrics(fmt.Sprint(i))))
	}
}

// TestCollector_Attributes: sources without names, such as engines, are told apart by the attributes of two Collectors.
func TestCollector_Attributes(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	keys := &metrics.Desc{Name: "sluice.keys", Kind: metrics.UpDown, Labels: []string{"unit"}}
	set := metrics.Set{Descs: []*metrics.Desc{keys}, Read: func(yield metrics.Yield) { yield(keys, 7, "minute") }}
	for _, engine := range []string{"a", "b"} {
		c := New(Config{MeterProvider: provider, Attributes: []attribute.KeyValue{attribute.String("engine", engine)}})
		require.NoError(t, c.Add(set))
		require.ErrorContains(t, c.Add(set), "there is another one without a name")
	}
	assert.Equal(t, map[string]int64{"sluice.keys engine=a,unit=minute": 7, "sluice.keys engine=b,unit=minute": 7}, told(t, reader))
}

// TestCollector_TwoOfAProvider: the SDK adds up what they observe of the same name, as the documentation says.
func TestCollector_TwoOfAProvider(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	for range 2 {
		c := New(Config{MeterProvider: provider})
		l := made(sluice.Config{})
		l.Allow("k")
		require.NoError(t, c.Add(l.Metrics("login")))
	}
	assert.EqualValues(t, 2, told(t, reader)["sluice.limiter.keys limiter=login"])
}

// TestCollector_WhileAsked: limiters come and go, and decide, while several read.
func TestCollector_WhileAsked(t *testing.T) {
	readers := []*sdk.ManualReader{sdk.NewManualReader(), sdk.NewManualReader()}
	c := New(Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(readers[0]), sdk.WithReader(readers[1]))})
	stays := made(sluice.Config{Limit: sluice.PerHour(1_000_000), Stats: true})
	require.NoError(t, c.Add(stays.Metrics("stays")))
	var all sync.WaitGroup
	for g := range 2 {
		all.Go(func() {
			for i := range 500 {
				name := fmt.Sprintf("comes-%d-%d", g, i%7)
				assert.NoError(t, c.Add(stays.Metrics(name)))
				stays.Allow("k")
				assert.True(t, c.Remove(stays.Metrics(name)))
			}
		})
		all.Go(func() {
			last := int64(0)
			for range 300 {
				now := told(t, readers[g])["sluice.decisions limiter=stays,outcome=admitted"]
				assert.GreaterOrEqual(t, now, last)
				last = now
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 1000, told(t, readers[0])["sluice.decisions limiter=stays,outcome=admitted"])
}

// failing makes no instrument, or takes no callback.
type failing struct {
	noop.MeterProvider
	callback bool
}

type failingMeter struct {
	noop.Meter
	callback bool
}

func (f failing) Meter(string, ...metric.MeterOption) metric.Meter {
	return failingMeter{callback: f.callback}
}

func (f failingMeter) Int64ObservableCounter(string, ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	if f.callback {
		return noop.Int64ObservableCounter{}, nil
	}
	return nil, errors.New("no instruments today")
}

func (f failingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errors.New("no callbacks today")
}

func TestAdd_Errors(t *testing.T) {
	l := made(sluice.Config{})
	assert.ErrorContains(t, New(Config{MeterProvider: failing{}}).Add(l.Metrics("login")), "otelsluice: no instruments today")
	assert.EqualError(t, New(Config{MeterProvider: failing{callback: true}}).Add(l.Metrics("login")), "otelsluice: no callbacks today")
}

// TestNew_Global: without a MeterProvider it is the global one.
func TestNew_Global(t *testing.T) {
	before := otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	otel.SetMeterProvider(provider)
	c := New(Config{})
	require.NoError(t, c.Add(made(sluice.Config{}).Metrics("login")))
	assert.Len(t, told(t, reader), 4)
	require.NoError(t, provider.Shutdown(context.Background()))
}

// BenchmarkCollect is of as many limiters as the SDK's default has room for.
func BenchmarkCollect(b *testing.B) {
	c, reader := newCollector(b, 0)
	for i := range 666 {
		require.NoError(b, c.Add(sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10), Stats: true})).Metrics(fmt.Sprintf("limiter-%d", i))))
	}
	var all metricdata.ResourceMetrics
	for b.Loop() {
		require.NoError(b, reader.Collect(b.Context(), &all))
	}
}
