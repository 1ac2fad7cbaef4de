package limittest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// yearly is a limit of which nothing comes back while a test runs.
var yearly = sluice.Per(1000, 365*24*time.Hour)

// hammer has goroutines call a limiter of 1,000, much more often than it admits.
func hammer(r *Recorder, allow func(key string) bool) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2_000 {
				key := []string{"a", "b"}[i%2]
				r.Call(key, 1, func() bool { return allow(key) })
			}
		})
	}
	wg.Wait()
}

func TestRecorder_ConcurrentCalls(t *testing.T) {
	r := NewRecorder(nil)
	lim := sluice.Must(sluice.New(sluice.Config{Limit: yearly}))
	hammer(r, lim.Allow)
	require.NoError(t, r.Check(Of(lim, 0)))
	require.GreaterOrEqual(t, r.Admitted(), uint64(2000))

	// One that looks before it counts: what is planted is certain, whoever is faster.
	r = NewRecorder(nil)
	var counts [256]atomic.Int64
	hammer(r, func(key string) bool { return counts[key[0]].Add(1) <= 1002 })
	v := violation(r.Check(Bucket(yearly)))
	require.NotNil(t, v)
	require.Equal(t, v.Most+1, v.Admitted)
}

// TestRecorder_CallIsTransparent: it returns what the limiter said, and writes down what was admitted only.
func TestRecorder_CallIsTransparent(t *testing.T) {
	clock := sluice.NewManualClock(time.Unix(7, 0))
	r := NewRecorder(clock)
	assert.True(t, r.Call("k", 3, func() bool { clock.Advance(5); return true }))
	assert.False(t, r.Call("k", 3, func() bool { return false }))
	assert.True(t, r.Call("k", 0, func() bool { return true }))
	assert.Equal(t, []record{{7e9, 7e9 + 5, "k", 3}}, r.records)
	assert.Equal(t, uint64(3), r.Admitted())
}

// A backClock goes back, as a FastClock can.
type backClock struct{ now int64 }

func (c *backClock) Now() int64 { c.now -= 10; return c.now }

func TestRecorder_ClockThatGoesBack(t *testing.T) {
	r := NewRecorder(&backClock{1000})
	r.Call("k", 1, func() bool { return true })
	assert.Equal(t, []record{{990, 990, "k", 1}}, r.records)
	assert.NoError(t, r.Check(Bucket(sluice.PerSecond(1))))
}
