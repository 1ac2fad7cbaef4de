package sluice

import (
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice/internal/counter"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// byCounter is set in a process of its own, in which a FastClock goes by the counter.
const byCounter = "SLUICE_TEST_BY_COUNTER"

// TestFastClock_ByTheCounter runs the tests of FastClocks again as a test with benchmarks does.
func TestFastClock_ByTheCounter(t *testing.T) {
	if os.Getenv(byCounter) != "" {
		if why := counter.Unfit(); why == "" {
			require.Equal(t, counter.Name, NewFastClock().Source())
		}
		return
	}
	require.Contains(t, NewFastClock().Source(), "system clock: ")
	again := exec.Command(os.Args[0], "-test.run=^Test(FastClock|Clocks)_", "-test.bench=^$")
	again.Env = append(os.Environ(), byCounter+"=1")
	out, err := again.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestFastClock_ConcurrentReadingsHardlyGoBack(t *testing.T) {
	clock := NewFastClock()
	readConcurrently(clock, func(earlier, later int64) {
		assert.GreaterOrEqual(t, later, earlier-int64(time.Millisecond), clock.Source())
	}, 20_000)
}

// TestClocks_OneReadingForManyLimiters: what all clocks of a kind say is of one instant.
func TestClocks_OneReadingForManyLimiters(t *testing.T) {
	since := map[string][]int64{}
	var claims []claim
	for range 50 {
		for _, clock := range []Clock{NewFastClock(), SystemClock()} {
			claims = append(claims, claim{asked: asked{lim: mustNew(t, Config{Limit: PerSecond(1), Clock: clock, MaxKeys: 1})}})
		}
	}
	readClocks(claims)
	for i := range claims {
		switch clock := claims[i].lim.clock.(type) {
		case *FastClock:
			since["fast"] = append(since["fast"], claims[i].now-clock.zero)
		case *systemClock:
			since["system"] = append(since["system"], claims[i].now-clock.zero)
		}
	}
	for kind, all := range since {
		require.Len(t, all, 50)
		require.Equal(t, slices.Repeat(all[:1], 50), all, kind)
	}
}

// A FastClock shows the time of a SystemClock made at the same time, whenever the first FastClock was made. A process that is
// interrupted while it makes a clock, between the two readings of that, has it off by as long: the best of many counts.
func TestFastClock_AgreesWithASystemClock(t *testing.T) {
	least := int64(math.MaxInt64)
	for range 100 {
		apart := NewFastClock().zero - newSystemClock().zero
		least = min(least, max(apart, -apart))
	}
	require.Less(t, least, int64(time.Millisecond))
}

// Inside a bubble time stands still while the counter runs.
func TestFastClock_FollowsABubble(t *testing.T) {
	outside := NewFastClock()
	outside.Now()
	if os.Getenv(byCounter) != "" {
		time.Sleep(20 * time.Millisecond) // see FastClock: a bubble must not begin right after a reading
	}
	synctest.Test(t, func(t *testing.T) {
		for _, clock := range []*FastClock{NewFastClock(), outside} {
			ahead := clock.Now() - time.Now().UnixNano() // by how much the wall clock was set between two clocks made outside
			require.InDelta(t, 0, ahead, float64(time.Second))
			require.True(t, strings.HasPrefix(clock.Source(), "system clock: "), clock.Source())
			l := mustNew(t, Config{Limit: PerMinute(7), Clock: clock})
			require.True(t, l.timed, "it tells the system's time, so a timer may sweep")
			for range 50 {
				require.Equal(t, time.Now().UnixNano()+ahead, clock.Now())
				d := l.Take("k", 1)
				for ; d.Allowed; d = l.Take("k", 1) {
				}
				time.Sleep(d.RetryAfter - 1)
				require.False(t, l.Allow("k"), "1 ns before RetryAfter")
				time.Sleep(time.Nanosecond)
				require.True(t, l.Allow("k"), "at RetryAfter")
			}
		}
	})
	require.WithinDuration(t, time.Now(), time.Unix(0, outside.Now()), time.Hour, "outside again")
}

// A staggeringClock is up to 1 us behind, by another time at each reading, as processors'
// counters can make a FastClock.
type staggeringClock struct {
	exact ManualClock
	rng   *rand.Rand
	said  []int64
}

func (c *staggeringClock) Now() int64 {
	now := c.exact.Now() - c.rng.Int64N(int64(time.Microsecond)+1)
	c.said = append(c.said, now)
	return now
}

// Whatever is admitted, the exact model admits at the newest time that the key has been
// charged at, or forgotten as idle. The limiter is swept and its keys are looked at in between.
func TestFastClock_ModelAdmitsWhatIsAdmittedBehindTime(t *testing.T) {
	for _, variant := range variants {
		t.Run(variantName(variant), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range depth.Of(20, 60, 300) {
				staggering(t, rng, variant)
			}
		})
	}
}

func staggering(t *testing.T, rng *rand.Rand, variant Config) {
	clock := &staggeringClock{rng: rng}
	clock.exact.now.Store(start.UnixNano())
	c := randomConfig(rng, variant)
	c.Clock, c.TTL, c.MaxKeys = clock, time.Duration(1+rng.IntN(5000)), 1000
	l, err := New(c)
	if err != nil {
		return // a limit that no limiter takes
	}
	model := traces.NewCounting(oracleConfig(c))
	newest := map[string]int64{}
	keys := []string{"a", "b", "c"}
	for range 300 {
		key := keys[rng.IntN(len(keys))]
		gaps := []int64{0, 0, rng.Int64N(100), rng.Int64N(1000), rng.Int64N(5000), min(traces.RandomGap(rng, tracedLimit(c.Limit), c.Offset, clock.exact.Now()), 1<<50)}
		clock.exact.now.Add(gaps[rng.IntN(len(gaps))])
		switch rng.IntN(8) {
		case 0:
			l.Sweep()
		case 1:
			l.Key(key).Peek(1)
		default:
			cost, id := traces.RandomCost(rng, c.Limit.burst()), l.Key(key).id
			tracked := l.locate(id).slot != nil
			clock.said = nil
			d := l.Take(key, cost)
			if !d.Allowed || cost <= 0 {
				continue
			}
			now := clock.said[0] // a new key's shard asks again, to find out what is idle
			newest[key] = max(newest[key], now)
			if !tracked {
				newest[key] = max(newest[key], l.shardOf(id).floor)
			}
			want := model.Take(key, newest[key], int64(cost))
			require.True(t, want.Allowed, "%s cost %d: admitted at %d, and the model denies at %d: %+v\n%v",
				key, cost, now, newest[key], want, c)
		}
	}
}
