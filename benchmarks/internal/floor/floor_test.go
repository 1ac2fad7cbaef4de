package floor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

func TestRun_OneSampleARoundOfEveryPart(t *testing.T) {
	rows := run(3, 1<<10, all(1<<12, 1<<13))
	seen := map[string]bool{}
	for _, row := range rows {
		assert.False(t, seen[row.Part], "%s twice", row.Part)
		seen[row.Part] = true
		assert.Len(t, row.Samples, 3, row.Part)
		for _, ns := range row.Samples {
			assert.Positive(t, ns, row.Part)
		}
	}
	for _, name := range []string{
		Driver, TimeSince, TimeNow, SystemClock, FastClock, CoarseClock, NanoTime, Maphash, XXHash,
		Load, Add, CAS, Contended, Miss16, Miss160, MapLoad,
	} {
		assert.True(t, seen[name], name)
	}
}

// The driver makes each call as the speed of limiters is measured, and counts what is admitted.
func TestDriver_IsTheLoopThatLimitersAreMeasuredIn(t *testing.T) {
	clocks()[0].run(1001)
	assert.Equal(t, Driver, clocks()[0].name)
	assert.EqualValues(t, 1001, sinkInt.Load())
}

// A part that does not do the work is a floor too low.
func TestAtomics_DoTheWorkThatTheyAreTimedFor(t *testing.T) {
	for _, name := range []string{Add, CAS, Contended} {
		t.Run(name, func(t *testing.T) {
			var load, work func(int)
			for _, p := range atomics() {
				switch p.name {
				case Load:
					load = p.run
				case name:
					work = p.run
				}
			}
			require.NotNil(t, work)
			work(1001) // an odd number, so that its xor is the word
			load(1)
			want := int64(1001)
			if name == Contended {
				want = 1000 // half of them each
			}
			assert.Equal(t, want, sinkInt.Load())
		})
	}
}

func TestMisses_VisitEveryLineOnce(t *testing.T) {
	const lines = 64
	follow := misses(lines * 64)
	seen := map[int64]bool{}
	for range lines {
		follow(1)
		seen[sinkInt.Load()] = true
	}
	assert.Len(t, seen, lines)
}

// The strings of each workload of single calls on known keys are a part, which goes on where it has ended.
func TestStringsOf_GoOnThroughTheCalls(t *testing.T) {
	workloads := workload.All(workload.Sizes{Million: 2000, New: 1 << 10})
	parts := map[string]part{}
	for _, p := range stringsOf(workloads) {
		parts[p.name] = p
	}
	for _, name := range []string{"hot", "thousand", "denied", "zipf", "zipf-made", "zipf-stored", "uniform", "uniform-made", "uniform-stored"} {
		p, ok := parts[Strings(name)]
		require.True(t, ok, name)
		for _, n := range []int{7, 4001} {
			p.run(n)
			assert.EqualValues(t, n, sinkInt.Load(), name)
		}
	}
	assert.Len(t, parts, 9)
}
