package redislimit

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/metrics"
)

// measured has counted a different number of everything.
type measured Mode

func (measured) Stats() Stats {
	return Stats{
		Redis: 1, Cache: 2, Lease: 3, Fallback: 4, Scripts: 5, Led: 6, Late: 7, Failed: 8, PoolTimeouts: 9, Outages: 10, Lent: 11, Returned: 12, DialErrors: 13,
	}
}

func (c measured) Mode() Mode { return Mode(c) }

func TestMetrics(t *testing.T) {
	for mode, degraded := range map[Mode]uint64{ModeShared: 0, ModeDegraded: 1} {
		set, got := Metrics("api", measured(mode)), map[string]uint64{}
		set.Read(func(d *metrics.Desc, value uint64, labels ...string) {
			require.Len(t, labels, len(d.Labels))
			got[strings.Join(append([]string{strings.TrimPrefix(d.Name, "sluice.tier.")}, labels...), " ")] = value
		})
		require.Equal(t, map[string]uint64{
			"decisions redis": 1, "decisions cache": 2, "decisions lease": 3, "decisions fallback": 4, "degraded": degraded,
			"scripts": 5, "led_scripts": 6, "errors late": 7, "errors failed": 8, "errors pool_timeout": 9, "errors dial": 13, "outages": 10,
			"lent_units": 11, "returned_units": 12,
		}, got)
		require.Equal(t, []metrics.Label{{Name: "limiter", Value: "api"}}, set.Labels)
	}
	for _, none := range []Counted{nil, (*Tier)(nil), (*Store)(nil)} {
		require.PanicsWithValue(t, `redislimit: Metrics: what is to be called "api" is nil; want a Tier of NewTier, or a Store of NewStore`,
			func() { Metrics("api", none) })
	}
}

// TestMetrics_Documented: the documentation of Metrics has each metric.
func TestMetrics_Documented(t *testing.T) {
	source, err := os.ReadFile("metrics.go")
	require.NoError(t, err)
	for _, d := range tierMetrics {
		require.Contains(t, string(source), "//	"+d.Name+" ")
	}
}
