package traces

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/oracle"
)

// TestWordsOf at limits that are worked out by hand.
func TestWordsOf(t *testing.T) {
	second := int64(time.Second)
	for _, c := range []struct {
		oracle.Config
		Words
	}{
		{oracle.Config{Algorithm: oracle.GCRA, Rate: 10, Period: second}, Words{}},
		// 2262 is in second 9,223,372,036, of 34 bits, and 3/4 of 2^34 is more than that.
		{oracle.Config{Algorithm: oracle.FixedWindow, Rate: 10, Period: second}, Words{1<<30 - 1, false, true}},
		{oracle.Config{Algorithm: oracle.FixedWindow, Rate: 1 << 30, Period: second}, Words{1<<31 - 1, false, false}},
		{oracle.Config{Algorithm: oracle.TokenBucket, Interval: true, Rate: 3, Burst: 1 << 30, Period: second}, Words{1<<31 - 1, false, false}},
		{oracle.Config{Algorithm: oracle.SlidingWindow, Rate: 10, Period: second}, Words{1<<15 - 1, false, true}},
		{oracle.Config{Algorithm: oracle.SlidingWindow, Rate: 1 << 15, Period: second}, Words{1<<28 - 1, true, true}},
		{oracle.Config{Algorithm: oracle.FixedWindow, FirstCharge: true, Rate: 10, Period: second}, Words{1<<28 - 1, false, true}},
		{oracle.Config{Algorithm: oracle.FixedWindow, FirstCharge: true, Rate: 1 << 29, Period: second}, Words{1<<30 - 1, false, true}},
		// 2^63 is in window 2, of 2 bits; or in window 3, of 3, since window 0 has begun before 1970.
		{oracle.Config{Algorithm: oracle.FixedWindow, Rate: 10, Period: 1 << 62, Offset: 1}, Words{1<<61 - 1, false, true}},
		{oracle.Config{Algorithm: oracle.FixedWindow, Rate: 10, Period: 1 << 62}, Words{1<<62 - 1, false, true}},
	} {
		require.Equal(t, c.Words, WordsOf(c.Config), "%+v", c.Config)
	}
}

// TestBytes_SpendsOneANumber: its high bits, and goes on after the last.
func TestBytes_SpendsOneANumber(t *testing.T) {
	b := NewBytes([]byte{255, 0, 128})
	rng := rand.New(b)
	require.Equal(t, []int{99, 0, 50}, []int{rng.IntN(100), rng.IntN(100), rng.IntN(100)})
	require.False(t, b.Left())
	first := b.Uint64()
	require.NotEqual(t, first, b.Uint64())
}
