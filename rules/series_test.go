package rules

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDynamic_OneSeriesAPath: calls that ask for a new path at the same time get one series, and take
// one of those that there can be.
func TestDynamic_OneSeriesAPath(t *testing.T) {
	const rounds, callers = 200, 4
	e, err := New(mustLoad(t, "domain: d\ndescriptors:\n- {key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}\n"), Config{MaxSeries: 2 * rounds})
	require.NoError(t, err)
	d := e.now.Load().domains["d"].dynamic
	for round := range rounds {
		list := entries(fmt.Sprint("k=", round))
		rule := e.now.Load().set.Match("d", list)
		var got [callers]*series
		var ready, done sync.WaitGroup
		d.mutex.Lock() // all look, find nothing, and wait here
		for i := range callers {
			ready.Add(1)
			done.Add(1)
			go func() {
				defer done.Done()
				ready.Done()
				got[i] = d.get(rule, list)
			}()
		}
		ready.Wait()
		d.mutex.Unlock()
		done.Wait()
		for _, s := range got {
			require.NotNil(t, s)
			require.Same(t, got[0], s)
		}
	}
	require.EqualValues(t, rounds, e.seriesLeft.Load())
}

// TestDynamic_Close: series that a domain leaves behind are others' again, once, whatever calls of old rules do.
func TestDynamic_Close(t *testing.T) {
	e, err := New(mustLoad(t, "domain: d\ndescriptors:\n- {key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}\n"), Config{MaxSeries: 5})
	require.NoError(t, err)
	d := e.now.Load().domains["d"].dynamic
	rule := e.now.Load().set.Match("d", entries("k=a"))
	require.NotNil(t, d.get(rule, entries("k=a")))
	require.NotNil(t, d.get(rule, entries("k=b")))
	d.close()
	require.EqualValues(t, 5, e.seriesLeft.Load())
	require.Nil(t, d.get(rule, entries("k=a")))
	d.close()
	require.EqualValues(t, 5, e.seriesLeft.Load())
}

// TestSeries_LongPath: a path that is made of long values has no series of its own, so that the
// number of series bounds the memory.
func TestSeries_LongPath(t *testing.T) {
	w := newWorld(t, Config{}, "domain: d\ndescriptors:\n- {key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	fits := strings.Repeat("x", maxSeriesPath-len("d.k_"))
	w.one("k=" + fits)
	w.one("k=" + fits + "y")
	require.EqualValues(t, 1, w.series("d.k_"+fits).Total)
	require.EqualValues(t, 1, w.series("other").Total)
}
