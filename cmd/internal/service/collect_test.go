package service

import (
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"testing"

	"github.com/stretchr/testify/require"
)

func gcPercent() int {
	now := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
	runtimemetrics.Read(now)
	return int(now[0].Value.Uint64())
}

// TestPutOffCollecting: the garbage collector waits for a while, and is then as it was before, also
// where a load panics, and where somebody has turned it off, or has said how often it runs.
func TestPutOffCollecting(t *testing.T) {
	for _, percent := range []int{90, -1, 80} {
		own := percent == 80
		t.Setenv("GOGC", map[bool]string{true: "80"}[own])
		before := debug.SetGCPercent(percent)
		want := gcPercent()
		called := false
		require.PanicsWithValue(t, "no rules", func() {
			putOffCollecting(64<<20, func() {
				called = true
				if percent > 0 && !own {
					require.Greater(t, gcPercent(), percent)
				} else {
					require.Equal(t, want, gcPercent())
				}
				panic("no rules")
			})
		})
		require.True(t, called)
		require.Equal(t, want, gcPercent())
		debug.SetGCPercent(before)
	}
}
