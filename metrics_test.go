package sluice

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/metrics"
)

// metricsOf returns all values that a limiter tells, by the name of the metric and the outcome.
func metricsOf(l *Limiter) map[string]uint64 {
	all := map[string]uint64{}
	l.Metrics("k").Read(func(d *metrics.Desc, value uint64, labels ...string) {
		all[strings.Join(append([]string{d.Name}, labels...), " ")] += value
	})
	return all
}

// TestMetrics_OutcomesAddUp: each call is in one outcome, and it is the right one.
func TestMetrics_OutcomesAddUp(t *testing.T) {
	rng := seeded.Rand(t)
	for _, shadow := range []bool{false, true} {
		l, clock := newFrozen(t, Config{Limit: PerSecond(5), Stats: true, Shadow: shadow, BlockFor: time.Second})
		want, blockedUntil := map[string]uint64{}, map[string]int64{}
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
		got := map[string]uint64{}
		for name, n := range metricsOf(l) {
			if outcome, ok := strings.CutPrefix(name, "sluice.decisions "); ok {
				got[outcome] = n
			}
		}
		require.Equal(t, want, got)
	}
}

// TestMetrics_Keys: each of these counts what it says, and a limiter without Stats no decisions.
func TestMetrics_Keys(t *testing.T) {
	deny := Config{Limit: PerHour(2), MaxKeys: 1, Shards: 1, Overflow: OverflowDenyNew}
	full, _ := newFrozen(t, deny)
	deny.Overflow = OverflowEvictSoonest
	dropping, _ := newFrozen(t, deny)
	for i := range 4 {
		full.Allow(fmt.Sprint("secret", i))
		dropping.Allow(fmt.Sprint("secret", i))
	}
	want := map[string]uint64{"sluice.limiter.evicted": 0, "sluice.limiter.untracked": 3, "sluice.limiter.keys": 1, "sluice.limiter.waiting": 0}
	require.Equal(t, want, metricsOf(full))
	want["sluice.limiter.evicted"], want["sluice.limiter.untracked"] = 3, 0
	require.Equal(t, want, metricsOf(dropping))
	require.Equal(t, []metrics.Label{{Name: "limiter", Value: "login"}}, full.Metrics("login").Labels)
}

// TestMetrics_Documented: the documentation of Metrics has each metric.
func TestMetrics_Documented(t *testing.T) {
	source, err := os.ReadFile("metrics.go")
	require.NoError(t, err)
	for _, d := range limiterMetrics {
		require.Contains(t, string(source), "//	"+d.Name+" ")
	}
}
