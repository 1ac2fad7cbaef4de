package redislimit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestBreaker_OneRule goes through all sequences of 14 outcomes, of 1, 3 or 9 calls each: a breaker that returns opens at the
// outcome at which a closed one opens, and at no other; and so does one whose return ends in the middle.
func TestBreaker_OneRule(t *testing.T) {
	const length = 14
	begin := time.Unix(1_700_000_000, 0)
	for _, calls := range []int{1, 3, 9} {
		for outcomes := range 1 << length {
			closed, returning, closes := breaker{}, breaker{}, breaker{}
			returning.returns(begin)
			closes.returns(begin)
			for i := range length {
				now := begin.Add(time.Duration(i) * 20 * time.Millisecond)
				if i == length/2 && closes.state == breakerReturning {
					closes.closes()
				}
				ok := outcomes>>i&1 == 0
				opens := closed.note(now, now, calls, ok)
				if opens != returning.note(now, now, calls, ok) || opens != closes.note(now, now, calls, ok) {
					t.Fatalf("outcome %d of %014b, of %d calls: a closed breaker opens is %v, one that returns differs", i, outcomes, calls, opens)
				}
				if opens {
					break
				}
			}
		}
	}
}

// A noise makes some answers late, on their way back.
type noise func(now time.Duration) (late time.Duration)

// threePercent makes 3 of 100 answers 10 ms late, and no two that are near each other.
func threePercent(r *rand.Rand) noise {
	next := 0
	return func(time.Duration) time.Duration {
		if next--; next > 0 {
			return 0
		}
		next = 17 + r.IntN(33)
		return 10 * time.Millisecond
	}
}

// busy is a machine without processor time to spare: on average 20 times a second nothing of it runs for 5 to 9 ms.
func busy(r *rand.Rand) noise {
	var from, to time.Duration
	return func(now time.Duration) time.Duration {
		for now >= to {
			from = to + 10*time.Millisecond + time.Duration(r.ExpFloat64()*float64(33*time.Millisecond))
			to = from + 5*time.Millisecond + time.Duration(r.IntN(4000))*time.Microsecond
		}
		if now < from {
			return 0
		}
		return to - now
	}
}

// often makes so many of 100 answers 1 to 30 ms late.
func often(percent int) func(*rand.Rand) noise {
	return func(r *rand.Rand) noise {
		return func(time.Duration) time.Duration {
			if r.IntN(100) >= percent {
				return 0
			}
			return time.Duration(1+r.IntN(30)) * time.Millisecond
		}
	}
}

var noises = map[string]func(*rand.Rand) noise{"3% of answers late": threePercent, "busy machine": busy}

// isNoisy adds a noise to the answers.
func (c *comeback) isNoisy(n noise) {
	c.redis.trip = func() time.Duration { return 200*time.Microsecond + n(time.Since(c.begun))/2 }
}

// TestBreaker_Noise: answers that now and then are late make a primary no outage, nor do they after one: what is degraded after an outage of
// 1.5 s is degraded before it, which is never.
func TestBreaker_Noise(t *testing.T) {
	rng := seeded.Rand(t)
	for name, noise := range noises {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newComeback(t, false)
				c.isNoisy(noise(rng))
				for range comebackReplicas {
					c.join(always("a"))
				}
				require.Zero(t, c.degraded(5*time.Second), "before the outage")
				end := c.redis.stops()
				time.Sleep(1500 * time.Millisecond)
				require.Equal(t, 1.0, c.degraded(100*time.Millisecond), "in the outage")
				end()
				time.Sleep(findsOut + returnPause + 2*longestPause)
				require.Zero(t, c.degraded(10*time.Second), "after the outage")
				c.leave()
			})
		})
	}
}

// degraded returns the part of a span from now on in which replicas are degraded.
func (c *comeback) degraded(span time.Duration) float64 {
	seen, all := 0, 0
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, tier := range c.tiers {
			all++
			if tier.Mode() == ModeDegraded {
				seen++
			}
		}
	}
	return float64(seen) / float64(all)
}

// TestComeback_Noise: however many answers are late, before, in and after an outage, all that replicas are admitted beyond WorstCase is
// a burst, or a unit for each replica; what shares admit in place of late answers, as they would without an outage; and what the shares
// of replicas whose probes are late let through while others have closed already.
func TestComeback_Noise(t *testing.T) {
	rng := seeded.Rand(t)
	runs := 3
	if !testing.Short() {
		runs = 20
	}
	worst := 0.0
	for name, noise := range map[string]func(*rand.Rand) noise{
		"3%": threePercent, "busy": busy, "10%": often(10), "30%": often(30), "45%": often(45), "70%": often(70),
	} {
		for run := range runs {
			down := time.Duration(100+rng.IntN(2500)) * time.Millisecond
			t.Run(fmt.Sprintf("%s/%d/%v", name, run, down), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					got, bound := comeBackNoisy(t, noise(rng), down)
					worst = max(worst, got/bound)
					require.LessOrEqual(t, got, bound)
				})
			})
		}
	}
	t.Logf("at most %.2f of the bound", worst)
}

// comeBackNoisy has an outage for as long, and returns what was admitted beyond WorstCase, and how much that may be.
func comeBackNoisy(t *testing.T, n noise, down time.Duration) (got, bound float64) {
	c := newComeback(t, false)
	c.isNoisy(n)
	for range comebackReplicas {
		c.join(always("a"))
	}
	time.Sleep(time.Second)
	end := c.redis.stops()
	time.Sleep(down)
	end()
	apart := time.Duration(0)
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		open, closed := 0, 0
		for _, tier := range c.tiers {
			l := tier.router.first
			l.mu.Lock()
			switch l.breaker.state {
			case breakerOpen:
				open++
			case breakerClosed:
				closed++
			}
			l.mu.Unlock()
		}
		if closed > 0 {
			apart += time.Duration(open) * time.Millisecond
		}
	}
	got = c.leave()
	share := float64(c.limit.Rate) / comebackReplicas
	return got, float64(c.limit.Burst) + comebackReplicas + float64(c.late) + share*apart.Seconds()
}
