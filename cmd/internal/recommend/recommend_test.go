package recommend

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/spool"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// request is one of a log, in its order.
type request struct {
	client int
	at     int64
}

func newLog(t *testing.T, requests []request) *Log {
	t.Helper()
	clients, err := replay.NewClients(replay.IPv6Prefix)
	l := NewLog(clients, math.MaxInt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	for _, q := range requests {
		require.NoError(t, l.Add([]byte("c"+strconv.Itoa(q.client)), q.at))
	}
	return l
}

// judge counts the clients that a limiter denies something, without any code of this package: one request after the other, at the latest
// time so far.
func judge(t *testing.T, algorithm sluice.Algorithm, limit sluice.Limit, requests []request) int {
	t.Helper()
	clock := sluice.NewManualClock(time.Unix(0, 0))
	limiter, err := sluice.New(sluice.Config{Algorithm: algorithm, Limit: limit, MaxKeys: -1, Clock: clock})
	require.NoError(t, err)
	return judgeBy(requests, func(client int, now int64) bool {
		clock.Set(time.Unix(0, now))
		return limiter.KeyUint64(uint64(client)).AllowAt(now, 1)
	})
}

// oracles counts by the exact models.
func oracles(algorithm sluice.Algorithm, limit sluice.Limit, requests []request) int {
	kinds := map[sluice.Algorithm]oracle.Algorithm{
		sluice.GCRA: oracle.GCRA, sluice.TokenBucket: oracle.TokenBucket, sluice.LeakyBucket: oracle.LeakyBucket,
		sluice.SlidingWindow: oracle.SlidingWindow, sluice.SlidingLog: oracle.SlidingLog, sluice.FixedWindow: oracle.FixedWindow,
	}
	model := oracle.New(oracle.Config{Algorithm: kinds[algorithm], Rate: int64(limit.Rate), Period: int64(limit.Period), Burst: int64(limit.Burst), Grid: true})
	return judgeBy(requests, func(client int, now int64) bool { return model.Take(strconv.Itoa(client), now, 1).Allowed })
}

func judgeBy(requests []request, allow func(client int, now int64) bool) int {
	denied := map[int]bool{}
	now := int64(0)
	for _, q := range requests {
		now = max(now, q.at)
		if !allow(q.client, now) {
			denied[q.client] = true
		}
	}
	return len(denied)
}

// less is the limit with one unit less at once.
func less(algorithm sluice.Algorithm, limit sluice.Limit) sluice.Limit {
	switch {
	case limit.Capacity() == 1:
		return sluice.DenyAll
	case limit.Burst != 0:
		return limit.WithBurst(limit.Burst - 1)
	}
	limit.Rate--
	return limit
}

// generate makes a log: clients of very different habits, some that come in bursts and some all the time, on clocks from seconds to nanoseconds, and
// a few requests that are late.
func generate(rng *rand.Rand) (requests []request) {
	clients, n := 1+rng.IntN(60), 1+rng.IntN(400)
	unit := []int64{1, 1000, int64(time.Millisecond), int64(time.Second)}[rng.IntN(4)]
	pause := 1 + rng.Int64N(int64(1)<<rng.IntN(37))
	at := rng.Int64N(2e18)
	if rng.IntN(4) == 0 {
		at = rng.Int64N(100 * int64(time.Second))
	}
	favourite := rng.IntN(clients)
	for len(requests) < n {
		client := rng.IntN(clients)
		if rng.IntN(2) == 0 {
			client = favourite
		}
		at += rng.Int64N(pause)
		for range 1 + rng.IntN(1<<rng.IntN(5)) {
			late := int64(0)
			if rng.IntN(8) == 0 {
				late = rng.Int64N(pause)
			}
			requests = append(requests, request{client, max(0, at-late) / unit * unit})
			at += rng.Int64N(1 + pause/100)
		}
	}
	return requests
}

func drawConfig(rng *rand.Rand) Config {
	c := Config{
		Denied: []Share{0, percent / 10, percent, 5 * percent, 20 * percent, Share(rng.Int64N(int64(whole)))}[rng.IntN(6)],
		Per: []time.Duration{10 * time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour,
			time.Duration(10+rng.IntN(100_000)) * time.Millisecond}[rng.IntN(6)],
		Algorithms: replay.Algorithms(),
	}
	if rng.IntN(2) == 0 {
		c.Rate = sluice.Per(1+rng.IntN(1000), time.Duration(1+rng.Int64N(int64(time.Hour))))
	}
	return c
}

// TestRecommend_OneUnitLessDeniesMore: on generated logs, each limit denies at most the goal, and with one unit less more. The limiters
// themselves are the judge, and of every tenth log the exact models.
func TestRecommend_OneUnitLessDeniesMore(t *testing.T) {
	rng := seeded.Rand(t)
	tight := 0
	for i := range depth.Of(200, 1000, 5000) {
		requests, c := generate(rng), drawConfig(rng)
		l := newLog(t, requests)
		res, err := l.Recommend(c)
		require.NoError(t, err)
		requireExact(t, res, requests, i%10 == 0)
		requireWhole(t, l, res)
		requireFrontier(t, res, requests, rng)
		if res.DeniedClients < l.Clients.Len() {
			tight++
		}
	}
	assert.Positive(t, tight)
}

// requireExact looks at the recommended limits.
func requireExact(t *testing.T, res Result, requests []request, models bool) {
	t.Helper()
	require.Len(t, res.Choices, len(res.Algorithms))
	evidence := res.Evidence.Rules
	for _, choice := range res.Choices {
		require.Empty(t, choice.Refused)
		algorithm, limit := choice.Rule.Algorithm, choice.Rule.Limit
		denied := judge(t, algorithm, limit, requests)
		require.LessOrEqual(t, denied, res.DeniedClients, "%v of %+v", choice.Rule, res.Config)
		require.Equal(t, denied, evidence[0].LimitedClients, "the evidence is what happens")
		evidence = evidence[1:]
		if res.DeniedClients == res.Evidence.Clients {
			continue
		}
		require.Greater(t, judge(t, algorithm, less(algorithm, limit), requests), res.DeniedClients, "%v of %+v", choice.Rule, res.Config)
		if models {
			require.LessOrEqual(t, oracles(algorithm, limit, requests), res.DeniedClients)
			require.Greater(t, oracles(algorithm, less(algorithm, limit), requests), res.DeniedClients)
		}
	}
}

// requireWhole replays all requests of all clients, and demands the evidence, for which most clients are not asked about.
func requireWhole(t *testing.T, l *Log, res Result) {
	t.Helper()
	var rules []replay.Rule
	for _, choice := range res.Choices {
		rules = append(rules, choice.Rule)
	}
	want, err := l.Replay(rules, res.Top, res.Sparklines)
	require.NoError(t, err)
	require.Equal(t, want, res.Evidence)
}

// requireFrontier looks at a few points of the frontier.
func requireFrontier(t *testing.T, res Result, requests []request, rng *rand.Rand) {
	t.Helper()
	for range 3 {
		p, column := res.Frontier[rng.IntN(len(res.Frontier))], rng.IntN(len(res.Columns))
		burst, goal := p.Bursts[column], res.Columns[column].Denied
		if burst == 0 || goal == res.Evidence.Clients {
			continue
		}
		limit := p.Rate.WithBurst(int(burst))
		require.LessOrEqual(t, judge(t, sluice.GCRA, limit, requests), goal, "%v", limit)
		require.Greater(t, judge(t, sluice.GCRA, less(sluice.GCRA, limit), requests), goal, "%v", limit)
	}
}

// TestRecommend_Peaks beside counting by hand.
func TestRecommend_Peaks(t *testing.T) {
	rng := seeded.Rand(t)
	for range 100 {
		requests := generate(rng)
		l := newLog(t, requests)
		res, err := l.Recommend(Config{Per: time.Minute, Algorithms: replay.Algorithms()[:1]})
		require.NoError(t, err)
		for _, peak := range res.Peaks {
			times, most := map[int][]int64{}, map[int]int64{}
			now := int64(0)
			for _, q := range requests {
				now = max(now, q.at)
				times[q.client] = append(times[q.client], now)
				n := int64(0)
				for _, at := range times[q.client] {
					if at > now-int64(peak.Span) {
						n++
					}
				}
				most[q.client] = max(most[q.client], n)
			}
			var all []int64
			for _, n := range most {
				all = append(all, n)
			}
			slices.Sort(all)
			at := func(p float64) int64 { return all[int(math.Ceil(p*float64(len(all))/1000-1e-9))-1] }
			require.Equal(t, []int64{at(500), at(900), at(990), at(999), all[len(all)-1]}, []int64{peak.P50, peak.P90, peak.P99, peak.P999, peak.Most}, peak.Span)
			id, err := strconv.Atoi(peak.Client[1:])
			require.NoError(t, err)
			require.Equal(t, peak.Most, most[id], "the client has that peak")
		}
	}
}

// TestRecommend_TheTightestRate: no rate of the frontier would admit a client less in a period.
func TestRecommend_TheTightestRate(t *testing.T) {
	rng := seeded.Rand(t)
	for range 200 {
		c := drawConfig(rng)
		c.Rate = sluice.Limit{}
		requests := generate(rng)
		res, err := newLog(t, requests).Recommend(c)
		require.NoError(t, err)
		best := res.Choices[0]
		highest := sluice.Limit{}
		goal := slices.IndexFunc(res.Columns, func(k Column) bool { return k.Share == c.Denied })
		for _, p := range res.Frontier {
			if burst := p.Bursts[goal]; burst > 0 {
				most, err := worstCase(sluice.GCRA, p.Rate.WithBurst(int(burst)), c.Per)
				require.NoError(t, err)
				require.LessOrEqual(t, best.Most, most, "%v against %v burst %d", best.Rule, p.Rate, burst)
				if most == best.Most {
					highest = p.Rate
				}
			}
		}
		require.Equal(t, highest, best.Rule.Limit.WithBurst(0), "the highest of equal ones")
	}
}

// TestRecommend_MoreThanALimiterCanTell: a debt of centuries is no burst, and the frontier goes on where there is one.
func TestRecommend_MoreThanALimiterCanTell(t *testing.T) {
	var b *buckets
	see := func(client int, now int64, times int) {
		b.see(slices.Repeat([]spool.Request{{Client: client, Now: now}}, times))
	}
	needs := func(i int) []int64 {
		out := make([]int64, len(b.states)/len(b.rates))
		b.needs(i, out)
		return out
	}
	b = newBuckets([]sluice.Limit{sluice.PerHour(1), sluice.PerDay(1)}, 2, nil)
	see(0, math.MaxInt64, 100_000)
	see(1, 5, 1)
	assert.Equal(t, []int64{100_000, 1}, needs(0))
	assert.Equal(t, []int64{none, 1}, needs(1))
	b = newBuckets([]sluice.Limit{sluice.PerDay(1)}, 1, b)
	most := int(maxTicks / (24 * int64(time.Hour)))
	see(0, 7, most)
	assert.Equal(t, []int64{int64(most)}, needs(0))
	_, err := sluice.New(sluice.Config{Limit: sluice.PerDay(1).WithBurst(most)})
	require.NoError(t, err)
	_, err = sluice.New(sluice.Config{Limit: sluice.PerDay(1).WithBurst(most + 1)})
	require.Error(t, err)
	see(0, 7, 1)
	assert.Equal(t, []int64{none}, needs(0))
	see(0, math.MaxInt64, 1)
	assert.Equal(t, []int64{none}, needs(0), "what was too much once is")
	b = newBuckets([]sluice.Limit{sluice.Per(1, maxTicks/1024)}, 1, nil)
	see(0, 0, 1024)
	assert.Equal(t, []int64{1024}, needs(0), "just as much as a limiter can tell")
	b = newBuckets([]sluice.Limit{sluice.PerHour(1), sluice.PerDay(1)}, 2, b)
	see(1, 0, 3)
	assert.Equal(t, []int64{none, 3}, needs(1), "the memory of the meter before is too small")
}

func TestLog_TooManyClients(t *testing.T) {
	clients, err := replay.NewClients(replay.IPv6Prefix)
	l := NewLog(clients, 2)
	require.NoError(t, err)
	for _, client := range []string{"a", "b", "a"} {
		require.NoError(t, l.Add([]byte(client), 1))
	}
	err = l.Add([]byte("c"), 1)
	assert.Equal(t, TooManyClients(2), err)
	assert.ErrorContains(t, err, "more than 2 clients: want --max-clients")
}

func TestShare(t *testing.T) {
	for text, want := range map[string]Share{"0%": 0, "100%": whole, "99.9%": whole - percent/10, "0.000001%": 1, "5.5%": 55 * percent / 10, "007%": 7 * percent} {
		got, err := ParseShare(text)
		require.NoError(t, err)
		assert.Equal(t, want, got, text)
		again, err := ParseShare(got.String())
		require.NoError(t, err)
		assert.Equal(t, got, again)
	}
	assert.Equal(t, "99.9%", (whole - percent/10).String())
	assert.Equal(t, "0.1%", (whole - percent/10).Rest().String())
	for _, text := range []string{"", "%", "99.9", "100.1%", "-1%", "1.%", "1.0000001%", "1e1%", "99,9%", "0x1%", "999999999999999999999%", "+1%"} {
		_, err := ParseShare(text)
		assert.ErrorContains(t, err, "want a percentage", text)
	}
	rng := seeded.Rand(t)
	for range 10_000 {
		s, n := Share(rng.Int64N(int64(whole)+1)), rng.IntN(1<<30)
		want := int64(float64(s) / float64(whole) * float64(n))
		got := int64(s.Of(n))
		require.LessOrEqual(t, max(got-want, want-got), int64(1), fmt.Sprint(s, n))
	}
	for n, want := range map[int]int{0: 0, 999: 0, 1000: 1, 1753: 1, 1999: 1, 2000: 2, 1 << 30: 1073741} {
		assert.Equal(t, want, (percent / 10).Of(n), n)
	}
	assert.Equal(t, 1<<30, whole.Of(1<<30))
}

// TestTail: each number of clients is right, the first is all of them, and the last those with the most.
func TestTail(t *testing.T) {
	rng := seeded.Rand(t)
	for range 1000 {
		needs := make([]int64, 1+rng.IntN(300))
		for i := range needs {
			needs[i] = 1 + rng.Int64N(1<<rng.IntN(20))
		}
		slices.Sort(needs)
		out := tail(needs)
		require.Equal(t, Tail{needs[0], len(needs)}, out[0])
		require.Equal(t, needs[len(needs)-1], out[len(out)-1].Requests)
		require.Less(t, len(out), 150, "few enough for a table")
		for i, p := range out {
			first, found := slices.BinarySearch(needs, p.Requests)
			require.True(t, found)
			require.Equal(t, len(needs)-first, p.Clients)
			if i > 0 {
				require.Greater(t, p.Requests, out[i-1].Requests)
			}
		}
	}
}
