package compare

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

func newComparison(t *testing.T, limit sluice.Limit) (*Comparison, *replay.Clients) {
	t.Helper()
	clients, err := replay.NewClients(replay.IPv6Prefix)
	require.NoError(t, err)
	c, err := New(limit, replay.Algorithms(), clients)
	require.NoError(t, err)
	return c, clients
}

func compared(t *testing.T, pattern string, limit sluice.Limit, seed uint64, requests int) Result {
	t.Helper()
	arrivals, err := Arrivals(pattern, limit, seed, requests)
	require.NoError(t, err)
	c, clients := newComparison(t, limit)
	for a := range arrivals {
		c.Decide(clients.ID([]byte(a.Key)), a.At)
	}
	res, err := c.Result(5)
	require.NoError(t, err)
	return res
}

// TestBoundary_OnlyTheFixedWindowPassesTwiceItsLimit in a period, whatever the limit.
func TestBoundary_OnlyTheFixedWindowPassesTwiceItsLimit(t *testing.T) {
	for _, limit := range []sluice.Limit{sluice.PerMinute(30), sluice.PerSecond(1), sluice.PerHour(7), sluice.Per(100, 1234*time.Millisecond)} {
		res := compared(t, "boundary", limit, 1, 0)
		assert.EqualValues(t, 20*limit.Rate, res.Replay.Requests)
		for i, a := range res.Algorithms {
			want := limit.Rate
			if res.Replay.Rules[i].Rule.Algorithm == sluice.FixedWindow {
				want *= 2
			}
			assert.Equal(t, want, a.Most[1], "%v", res.Replay.Rules[i].Rule)
		}
	}
}

// TestPatterns_KeepThePromise, ask for what they say, and are the same for the same seed.
func TestPatterns_KeepThePromise(t *testing.T) {
	for _, p := range Patterns {
		limit := sluice.Per(20, 70*time.Second)
		res := compared(t, p.Name, limit, 5, 0)
		want := map[string]int64{"steady": 800, "poisson": 400, "bursty": 400, "boundary": 400, "flood": 10_000, "diurnal": 24_685}
		assert.Equal(t, want[p.Name], res.Replay.Requests, p.Name)
		for i, a := range res.Algorithms {
			for j := range res.Spans {
				assert.LessOrEqual(t, a.Most[j], a.Bound[j])
				assert.Positive(t, a.Most[j])
			}
			if res.Replay.Rules[i].Rule.Algorithm != sluice.SlidingLog {
				assert.InDelta(t, 26, a.Bytes, 8)
			} else {
				assert.Greater(t, a.Bytes, 8*20.0)
			}
		}
		if p.Name == "steady" {
			assert.InDelta(t, 400, res.Line, 1)
		}
		if p.Name == "flood" {
			assert.Zero(t, res.Line)
		}
		again, other := compared(t, p.Name, limit, 5, 0), compared(t, p.Name, limit, 6, 0)
		assert.Equal(t, res.Replay, again.Replay)
		if p.Name == "poisson" || p.Name == "diurnal" {
			assert.NotEqual(t, res.Replay, other.Replay)
		}
		assert.EqualValues(t, 13, compared(t, p.Name, limit, 5, 13).Replay.Requests)
	}
}

// TestWindow beside counting by hand.
func TestWindow(t *testing.T) {
	rng := seeded.Rand(t)
	for range 300 {
		w := window{span: 1 + rng.Int64N(50)}
		times := map[int][]int64{}
		now, most := int64(0), 0
		for range 1 + rng.IntN(200) {
			now += rng.Int64N(4) * rng.Int64N(20)
			client := rng.IntN(3)
			w.admit(client, now)
			times[client] = append(times[client], now)
			first, _ := slices.BinarySearch(times[client], now-w.span+1)
			most = max(most, len(times[client])-first)
			require.Equal(t, most, w.most)
		}
	}
}

func TestArrivals_Refuses(t *testing.T) {
	_, err := Arrivals("x", sluice.PerSecond(1), 1, 0)
	assert.ErrorContains(t, err, `unknown pattern "x": want one of steady, poisson, bursty, boundary, flood, diurnal`)
	_, err = Arrivals("diurnal", sluice.PerSecond(1000), 1, 0)
	assert.ErrorContains(t, err, "has more than 10000000 requests: want --requests, or a lower --limit")
	arrivals, err := Arrivals("diurnal", sluice.PerSecond(1000), 1, 10)
	require.NoError(t, err)
	assert.Len(t, slices.Collect(arrivals), 10)
}

// TestNew_WindowsHaveNoBurst, and all have the rate.
func TestNew_WindowsHaveNoBurst(t *testing.T) {
	c, _ := newComparison(t, sluice.PerMinute(60).WithBurst(5))
	var bursts []string
	for _, r := range c.rules {
		bursts = append(bursts, strconv.Itoa(r.Limit.Burst))
	}
	assert.Equal(t, []string{"5", "5", "5", "0", "0", "0"}, bursts)
}
