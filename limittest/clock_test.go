package limittest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// clocks are those that are said to follow a bubble, if they are made in it.
var clocks = map[string]func() sluice.Clock{
	"system": sluice.SystemClock,
	"fast":   func() sluice.Clock { return sluice.NewFastClock() },
	"coarse": func() sluice.Clock { return sluice.NewCoarseClock(0) },
	"slow":   func() sluice.Clock { return sluice.NewCoarseClock(time.Minute) },
}

func TestClocks_MadeInABubbleFollowIt(t *testing.T) {
	for name, newClock := range clocks {
		synctest.Test(t, func(t *testing.T) {
			clock := newClock()
			require.NoError(t, CheckClock(clock), name)
			lag := time.Duration(0)
			if c, ok := clock.(*sluice.CoarseClock); ok {
				lag = c.Resolution()
			}
			for range 20 {
				time.Sleep(time.Hour)
				synctest.Wait() // a refresh that is due now
				apart := time.Now().UnixNano() - clock.Now()
				require.True(t, 0 <= apart && apart <= int64(lag), "%s is %d ns behind", name, apart)
			}
		})
	}
}

// TestClocks_LimitsFollowABubble: a key earns a unit by sleeping, and not without.
func TestClocks_LimitsFollowABubble(t *testing.T) {
	for name, newClock := range clocks {
		synctest.Test(t, func(t *testing.T) {
			lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2), Clock: newClock()}))
			require.True(t, lim.AllowN("k", 2), name)
			for range 5 {
				require.False(t, lim.Allow("k"), name)
				time.Sleep(30*time.Minute + time.Minute) // and a refresh of the slow one
				require.True(t, lim.Allow("k"), name)
			}
		})
	}
}

func TestFastClock_InABubbleIsTheSystemClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assert.True(t, strings.HasPrefix(sluice.NewFastClock().Source(), "system clock: "))
	})
}

// TestClocks_AcrossTheEdge: the package documentation says what each does.
func TestClocks_AcrossTheEdge(t *testing.T) {
	real := func(now int64) bool { return now > time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() }
	system, fast, coarse, parked := sluice.SystemClock(), sluice.NewFastClock(), sluice.NewCoarseClock(0), sluice.NewCoarseClock(0)
	fast.Now()
	coarse.Now()
	var made []sluice.Clock
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, time.Now().UnixNano(), system.Now())
		assert.True(t, real(coarse.Now()))
		assert.ErrorContains(t, CheckClock(coarse), "on this side of the bubble's edge")
		assert.Equal(t, time.Now().UnixNano(), parked.Now())
		assert.NoError(t, CheckClock(fast))
		assert.WithinDuration(t, time.Now(), time.Unix(0, fast.Now()), time.Second)
		made = []sluice.Clock{sluice.SystemClock(), sluice.NewFastClock(), sluice.NewCoarseClock(0)}
		made[2].Now()
		parked.Now() // so that it is not parked when the bubble ends
	})
	assert.NoError(t, CheckClock(system))
	assert.NoError(t, CheckClock(fast))
	assert.NoError(t, CheckClock(made[0]))
	assert.NoError(t, CheckClock(made[1]))
	assert.ErrorContains(t, CheckClock(made[2]), "on this side of the bubble's edge")
	assert.ErrorContains(t, CheckClock(parked), "on this side of the bubble's edge")
}

// TestLimiter_AcrossTheEdge: of a limiter on the system clock, or a fast one, a key that was charged outside stays as it was.
func TestLimiter_AcrossTheEdge(t *testing.T) {
	for _, clock := range []sluice.Clock{sluice.SystemClock(), sluice.NewFastClock()} {
		lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(1), Clock: clock}))
		require.True(t, lim.Allow("k"))
		synctest.Test(t, func(t *testing.T) {
			for range 3 {
				time.Sleep(time.Hour)
				assert.False(t, lim.Allow("k"))
				assert.True(t, lim.Allow("new"))
				assert.False(t, lim.Allow("new"))
			}
		})
	}
}

func TestCheckClock_Outside(t *testing.T) {
	for name, newClock := range clocks {
		if name != "slow" {
			assert.NoError(t, CheckClock(newClock()), name)
		}
	}
}

// A pacedClock is made of the time in a bubble.
type pacedClock func(since time.Duration) time.Duration

var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (c pacedClock) Now() int64 {
	return bubbleStart.Add(c(time.Since(bubbleStart))).UnixNano()
}

func TestCheckClock_Paces(t *testing.T) {
	for name, c := range map[string]struct {
		clock pacedClock
		right bool
	}{
		"exact":        {func(d time.Duration) time.Duration { return d }, true},
		"set apart":    {func(d time.Duration) time.Duration { return d + 24*time.Hour }, true},
		"far apart":    {func(d time.Duration) time.Duration { return d + 366*24*time.Hour }, false},
		"0.1% slow":    {func(d time.Duration) time.Duration { return d - d/1000 }, true},
		"1% slow":      {func(d time.Duration) time.Duration { return d - d/100 }, false},
		"1% fast":      {func(d time.Duration) time.Duration { return d + d/100 }, false},
		"stands still": {func(time.Duration) time.Duration { return time.Hour }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			err := CheckClock(c.clock)
			assert.Equal(t, c.right, err == nil, "%s: %v", name, err)
		})
	}
}

func TestCheckClock_SaysWhatToDo(t *testing.T) {
	assert.ErrorContains(t, CheckClock(nil), "want one")
	assert.ErrorContains(t, CheckClock(sluice.NewManualClock(time.Now())), "call its Advance instead of time.Sleep")
}
