package replay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestSparkline: the counts are those of equal parts, whenever the log has grown, and there are more than half of the most unless it is short.
func TestSparkline(t *testing.T) {
	rng := seeded.Rand(t)
	for range 2000 {
		var s sparkline
		var times []int64
		now, pause := int64(0), int64(1)<<rng.IntN(50)
		for range rng.IntN(60) {
			now += rng.Int64N(pause)
			times = append(times, now)
			s.see(now)
		}
		length := now + rng.Int64N(pause)
		got := s.parts(length)
		want := make([]int64, len(got))
		width := int64(1)
		for length/width >= maxParts {
			width *= 2
		}
		for _, at := range times {
			want[at/width]++
		}
		require.Equal(t, want, got)
		require.Len(t, got, int(length/width)+1)
		require.True(t, len(got) > maxParts/2 || width == 1)
	}
}

// TestReplay_Sparklines: they are there if asked for, and have all denials of the client.
func TestReplay_Sparklines(t *testing.T) {
	for _, asked := range []bool{true, false} {
		clients, err := NewClients(IPv6Prefix)
		require.NoError(t, err)
		rule, err := ParseRule("gcra 1/h")
		require.NoError(t, err)
		r, err := New([]Rule{rule}, clients)
		require.NoError(t, err)
		if asked {
			r.Sparklines()
		}
		for at := range int64(10) {
			r.Add([]byte("a"), 1000+at, nil)
		}
		r.Add([]byte("b"), 1063, nil)
		top := r.Result(5).Rules[0].Top
		require.Len(t, top, 1)
		if asked {
			require.Equal(t, append([]int64{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, make([]int64, 54)...), top[0].OverTime)
		} else {
			require.Nil(t, top[0].OverTime)
		}
	}
}
