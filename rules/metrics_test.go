package rules

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/metrics"
)

// told returns all values of a reading, by metric and labels.
func told(t testing.TB, read func(metrics.Yield)) map[string]uint64 {
	all := map[string]uint64{}
	read(func(d *metrics.Desc, value uint64, labels ...string) {
		assert.Len(t, labels, len(d.Labels), d.Name)
		name := strings.Join(append([]string{strings.TrimPrefix(d.Name, "sluice.")}, labels...), " ")
		assert.NotContains(t, all, name)
		all[name] = value
	})
	return all
}

// toldHits returns the hits that r tells of a rule d.k with these statistics.
func (r *metricsReader) toldHits(t testing.TB, series ...Series) map[string]uint64 {
	return told(t, func(yield metrics.Yield) { r.readHits(series, yield) })
}

// TestMetrics_NeverGoDown reads the statistics as they may look in the middle of a count.
func TestMetrics_NeverGoDown(t *testing.T) {
	r := new(metricsReader)
	within := func(total, near, over, shadow uint64) uint64 {
		return r.toldHits(t, Series{Domain: "d", Path: "d.k", Total: total, Near: near, Over: over, Shadow: shadow})["hits d d.k within"]
	}
	require.EqualValues(t, 10, within(10, 0, 0, 0))
	require.EqualValues(t, 10, within(10, 0, 3, 0), "not 7: that would be a new beginning")
	require.EqualValues(t, 12, within(15, 0, 3, 0))
	require.EqualValues(t, 12, within(2, 1, 3, 4), "not 2^64 less something")
	require.EqualValues(t, 3, r.toldHits(t, Series{Domain: "d", Path: "d.k", Over: 3})["hits d d.k over"])
	require.Empty(t, r.toldHits(t))
	require.EqualValues(t, 1, within(1, 0, 0, 0), "a rule that was gone begins anew")
}

func TestMetrics_LabelsAreText(t *testing.T) {
	got := new(metricsReader).toldHits(t, Series{Domain: "d", Path: "d.\xff", Total: 1}, Series{Domain: "d", Path: "d.\xfe", Total: 2, Unlimited: 4})
	require.EqualValues(t, 7, got["hits d d.\uFFFD within"])
}

// TestMetrics_WhileAsked: two read while the engine decides, and gets other rules.
func TestMetrics_WhileAsked(t *testing.T) {
	w := newWorld(t, Config{}, "domain: d\ndescriptors:\n- {key: each, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n")
	all := w.Engine.Metrics()
	set, before := w.Set()
	var both sync.WaitGroup
	for g := range 2 {
		both.Go(func() {
			for i := range 30 {
				req := Request{Domain: "d", Descriptors: []Descriptor{{Entries: []Entry{{"each", fmt.Sprint(g, i)}}}}}
				assert.NoError(t, w.Decide(&req, new(Response)))
				assert.NoError(t, w.Swap(set))
				told(t, all.Read)
			}
		})
	}
	both.Wait()
	require.EqualValues(t, before+60, told(t, all.Read)["config.generation"])
}

// TestMetrics_Documented: the documentation of Metrics has each metric.
func TestMetrics_Documented(t *testing.T) {
	source, err := os.ReadFile("metrics.go")
	require.NoError(t, err)
	for _, d := range engineMetrics {
		require.Contains(t, string(source), "//	"+d.Name+" ")
	}
}
