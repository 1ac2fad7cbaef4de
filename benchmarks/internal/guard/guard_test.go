package guard

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/speed"
)

func TestJudge_RatiosAreThoseOfTheRounds(t *testing.T) {
	bounds := []Bound{{system, diy, "hot", 0.85}, {coarse, diy, "hot", 0.3}, {system, diy, "denied", 0.85}, {system, hashed, "hot", 1.2}}
	rows := judge(bounds, []results.Speed{
		{Subject: diy, Workload: "hot", Samples: []float64{100, 300, 100}}, // a slow round
		{Subject: hashed, Workload: "hot", Samples: []float64{50, 150, 50}},
		{Subject: system, Workload: "hot", Samples: []float64{60, 180, 90}},
		{Subject: coarse, Workload: "hot", Samples: []float64{31, 93, 31}},
		{Subject: system, Workload: "denied", Samples: []float64{50}},
	})
	require.Len(t, rows, 4)
	assert.InDelta(t, 0.6, rows[0].Ratio, 1e-9)
	assert.False(t, rows[0].Lost())
	assert.InDelta(t, 0.31, rows[1].Ratio, 1e-9)
	assert.True(t, rows[1].Lost())
	assert.True(t, rows[2].Lost(), "there is no baseline to compare with")
	assert.InDelta(t, 1.2, rows[3].Ratio, 1e-9, "each bound has a baseline of its own")
}

func TestRow_Lost(t *testing.T) {
	for ratio, lost := range map[float64]bool{0.1: false, 0.85: false, 0.8501: true, 3: true, math.NaN(): true, math.Inf(1): true} {
		r := Row{Bound{system, diy, "hot", 0.85}, ratio}
		assert.Equal(t, lost, r.Lost(), "%v", r)
	}
	assert.Equal(t, "sluice GCRA                hot       0.60 of the time of 30 lines on xsync, at most 0.85",
		Row{Bound{system, diy, "hot", 0.85}, 0.6}.String())
}

// Every bound is about something that is measured.
func TestRun_MeasuresEveryBound(t *testing.T) {
	rows, err := Run(t.Context(), speed.Config{Rounds: 1, Round: time.Millisecond})
	require.NoError(t, err)
	require.Len(t, rows, len(Bounds))
	for _, r := range rows {
		assert.Greater(t, r.Ratio, 0.0, "%v", r)
	}
}
