package recommend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// nginxJudge decides as limit_req does, denials included, which leave its state alone.
func nginxJudge(rate sluice.Limit, burst int64) func(client int, now int64) bool {
	type node struct{ excess, last int64 }
	nodes := map[int]*node{}
	milli := int64(rate.Rate) * 1000
	if rate.Period == time.Minute {
		milli /= 60
	}
	return func(client int, now int64) bool {
		ms := now / 1e6
		n := nodes[client]
		if n == nil {
			nodes[client] = &node{0, ms}
			return true
		}
		excess := max(0, n.excess-milli*(ms-n.last)/1000+1000)
		if excess > burst*1000 {
			return false
		}
		n.excess, n.last = excess, ms
		return true
	}
}

// haproxyJudge decides as a rule on http_req_rate does, which has counted the request by then.
func haproxyJudge(period time.Duration, most int64) func(client int, now int64) bool {
	type counter struct{ tick, curr, prev int64 }
	counters := map[int]*counter{}
	p := period.Milliseconds()
	return func(client int, now int64) bool {
		ms := now / 1e6
		c := counters[client]
		if c == nil {
			c = &counter{tick: -2 * p}
			counters[client] = c
		}
		if ms-c.tick >= p {
			c.prev, c.curr = c.curr, 0
			if c.tick += p; ms-c.tick >= p {
				c.prev, c.tick = 0, ms
			}
			c.tick &^= 1
		}
		c.curr++
		return c.curr+max(0, c.prev*(c.tick+p-ms)/p) <= most
	}
}

// TestRecommend_Proxies: with one unit less nginx and HAProxy deny something to more clients than the goal.
func TestRecommend_Proxies(t *testing.T) {
	rng := seeded.Rand(t)
	burst := 0
	for range depth.Of(200, 1000, 5000) {
		requests, c := generate(rng), drawConfig(rng)
		res, err := newLog(t, requests).Recommend(c)
		require.NoError(t, err)
		if res.DeniedClients == res.Evidence.Clients {
			continue
		}
		require.LessOrEqual(t, judgeBy(requests, haproxyJudge(c.Per, res.HAProxy.Need)), res.DeniedClients)
		require.Greater(t, judgeBy(requests, haproxyJudge(c.Per, res.HAProxy.Need-1)), res.DeniedClients)
		if res.Nginx.Rate == (sluice.Limit{}) {
			continue
		}
		require.LessOrEqual(t, judgeBy(requests, nginxJudge(res.Nginx.Rate, res.Nginx.Need)), res.DeniedClients)
		if res.Nginx.Need > 0 {
			burst++
			require.Greater(t, judgeBy(requests, nginxJudge(res.Nginx.Rate, res.Nginx.Need-1)), res.DeniedClients)
		}
	}
	assert.Positive(t, burst)
}

func TestNginxRate(t *testing.T) {
	for text, want := range map[sluice.Limit]sluice.Limit{
		sluice.PerSecond(5):               sluice.PerSecond(5),
		sluice.PerMinute(7):               sluice.PerMinute(7),
		sluice.PerMinute(60):              sluice.PerSecond(1),
		sluice.PerHour(1):                 sluice.PerMinute(1),
		sluice.PerHour(61):                sluice.PerMinute(2),
		sluice.PerDay(1_000_000):          sluice.PerMinute(695),
		sluice.Per(2, time.Second*3/2):    sluice.PerMinute(80),
		sluice.PerSecond(20_000_000):      sluice.DenyAll,
		sluice.Per(1<<30, time.Second/60): sluice.DenyAll,
	} {
		assert.Equal(t, want, nginxRate(text), text)
	}
}
