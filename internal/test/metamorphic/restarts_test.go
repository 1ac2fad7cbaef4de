package metamorphic

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A twin drives a limiter, and once there is one, the limiter that has been restored from
// it, and demands the same of both at every step. The first one is the model: that it is
// right is for others to show.
type twin struct {
	*trace
	lims []*sluice.Limiter // the one that goes on, and the restored one
	own  map[string]sluice.Limit
	most int // the largest capacity that a limit has had
}

var twinKeys = []string{"a", "b", "c", "d", "vip", "star"}

// restartLimit draws a limit that every other one can follow: in shorter windows there
// may be no room in a word for what has been spent under a larger limit, and after longer
// ones a block may end when one word cannot tell it, but two can.
func restartLimit(rng *rand.Rand, a sluice.Algorithm) sluice.Limit {
	l := randomLimit(rng, a)
	l.Rate, l.Burst = min(l.Rate, 1<<20), min(l.Burst, 1<<20)
	l.Period = min(max(l.Period, 10*time.Millisecond), 10*365*24*time.Hour)
	return l
}

// restartConfig draws a limit with options.
func restartConfig(rng *rand.Rand, v variant) sluice.Config {
	c := v.config()
	if c.Limit = restartLimit(rng, c.Algorithm); c.Offset != 0 {
		c.Offset = time.Duration(rng.Int64N(int64(time.Millisecond)))
	}
	c.Hash, c.Shards, c.MaxKeys = sluice.HashStable, 1<<rng.IntN(7), -1
	if rng.IntN(3) == 0 {
		c.Soft = 1 + rng.IntN(20)
	}
	switch rng.IntN(4) {
	case 0:
		c.BlockFor = c.Limit.Period
	case 1:
		c.BlockFor = time.Duration(1 + rng.Int64N(int64(c.Limit.Period)))
	}
	c.CountDenied = v.CountsDenied() && rng.IntN(3) == 0
	return c
}

// otherLimit draws one near the present one, with the same period if a log must forget
// nothing: a longer period makes units count again that Sweep may have dropped.
func (tw *twin) otherLimit(samePeriod bool) sluice.Limit {
	l := tw.Cfg.Limit
	if tw.stateless() || tw.Rng.IntN(3) == 0 {
		l = restartLimit(tw.Rng, tw.Cfg.Algorithm)
	} else {
		l.Rate = max(1, min(l.Rate*(1+tw.Rng.IntN(4))/(1+tw.Rng.IntN(4)), 1<<20))
		if tw.Cfg.Algorithm == sluice.SlidingLog {
			l.Rate = min(l.Rate, 100)
		}
		if l.Burst > 0 && !windowed(tw.Cfg.Algorithm) {
			l.Burst = 1 + tw.Rng.IntN(2*l.Burst)
		} else {
			l.Burst = 0
		}
	}
	if samePeriod {
		l.Period = tw.Cfg.Limit.Period
	}
	if tw.Rng.IntN(12) == 0 && tw.Cfg.Soft == 0 {
		l = []sluice.Limit{sluice.DenyAll, sluice.Unlimited}[tw.Rng.IntN(2)]
		l.Period = tw.Cfg.Limit.Period
	}
	return l
}

// stateless reports whether no state decides on keys without a limit of their own.
func (tw *twin) stateless() bool {
	return tw.Cfg.Limit.Rate == 0 || tw.Cfg.Limit.Rate == math.MaxInt
}

// both calls f with both limiters and demands the same answer.
func (tw *twin) both(what string, f func(l *sluice.Limiter) any) {
	tw.TB.Helper()
	var want any
	for i, l := range tw.lims {
		got := f(l)
		if i == 0 {
			tw.Note("%s: %+v", what, got)
			want = got
		} else if want != got {
			require.Equal(tw.TB, want, got, "%s\n%s", what, tw)
		}
	}
}

func (tw *twin) cost() int {
	b := max(1, tw.Cfg.Limit.Capacity())
	if tw.Cfg.Limit.Rate == math.MaxInt {
		b = 100
	}
	costs := []int{0, 1, 1, 2, b, b + 1, 1 + b/2, 1 + tw.Rng.IntN(b), 1 + tw.Rng.IntN(min(b, 5))}
	return costs[tw.Rng.IntN(len(costs))]
}

func (tw *twin) advance() {
	period := int64(tw.Cfg.Limit.Period)
	gaps := []int64{0, 0, 0, 1, period / 100, period / 7, period/7 + 1, period, 1 + tw.Rng.Int64N(period)}
	if d := gaps[tw.Rng.IntN(len(gaps))]; d < 1<<61-tw.Clock.Now() {
		tw.Clock.Advance(time.Duration(d))
	}
}

// step makes a random call.
func (tw *twin) step() {
	tw.advance()
	key, cost := twinKeys[tw.Rng.IntN(len(twinKeys))], tw.cost()
	call := fmt.Sprintf(" %s %d", key, cost)
	switch n := tw.Rng.IntN(64); {
	case n < 30:
		tw.both("Take"+call, func(l *sluice.Limiter) any { return l.Take(key, cost) })
	case n < 36:
		tw.both("AllowN"+call, func(l *sluice.Limiter) any { return l.AllowN(key, cost) })
	case n < 42:
		tw.both("Refund"+call, func(l *sluice.Limiter) any { l.Key(key).Refund(cost); return l.Key(key).Peek(1) })
	case n < 44 && !tw.stateless(): // else it depends on whether the key is tracked
		d := []time.Duration{1, tw.Cfg.Limit.Period, time.Hour, math.MaxInt64}[tw.Rng.IntN(4)]
		tw.both("Block "+key, func(l *sluice.Limiter) any { return l.Key(key).Block(d) })
	case n < 46:
		tw.both("Unblock "+key, func(l *sluice.Limiter) any { l.Key(key).Unblock(); return l.Key(key).Peek(1) })
	case n < 47:
		tw.both("Reset "+key, func(l *sluice.Limiter) any { l.Key(key).Reset(); return l.Key(key).Peek(1) })
	case n < 53:
		tw.reserve(key, cost)
	case n < 57:
		other := twinKeys[tw.Rng.IntN(len(twinKeys))]
		tw.both("TakeAll"+call+" "+other, func(l *sluice.Limiter) any {
			return sluice.TakeAll(sluice.Charge{Key: l.Key(key), Cost: cost}, sluice.Charge{Key: l.Key(other), Cost: 1})
		})
	case n < 59 && tw.Rng.IntN(2) == 0:
		tw.lims[tw.Rng.IntN(len(tw.lims))].Sweep()
	case n < 60:
		tw.setLimit(tw.otherLimit(tw.Cfg.Algorithm == sluice.SlidingLog))
	case n < 61:
		tw.setKeyLimit(key)
	case n < 62:
		tw.clearKeyLimit(key)
	default:
		tw.both("Peek"+call, func(l *sluice.Limiter) any { return l.Key(key).Peek(cost) })
	}
}

// reserve makes a reservation and settles it, or lets it stand.
func (tw *twin) reserve(key string, cost int) {
	settle, actual := tw.Rng.IntN(2) == 0, tw.Rng.IntN(2*max(1, cost))
	tw.both(fmt.Sprintf("Reserve %s %d, %v %d", key, cost, settle, actual), func(l *sluice.Limiter) any {
		r, err := l.Key(key).Reserve(cost, tw.Cfg.Limit.Period)
		if err != nil {
			return err
		}
		if settle {
			r.Settle(actual)
		}
		return fmt.Sprint(r.Delay(), l.Key(key).Peek(1))
	})
}

func (tw *twin) setLimit(limit sluice.Limit) {
	for _, l := range tw.lims {
		l.Sweep()
	}
	tw.both(fmt.Sprintf("SetLimit %v", limit), func(l *sluice.Limiter) any { return l.SetLimit(limit) == nil })
	tw.Cfg.Limit = tw.lims[0].Config().Limit
	tw.charged(tw.Cfg.Limit)
}

// charged notes how much keys may be charged under a limit.
func (tw *twin) charged(limit sluice.Limit) {
	if !constant(limit) {
		tw.most = max(tw.most, limit.Capacity()+tw.Cfg.Soft)
	}
}

// setKeyLimit gives a key a limit of its own.
func (tw *twin) setKeyLimit(key string) {
	limit := tw.otherLimit(tw.Cfg.Algorithm == sluice.SlidingLog)
	if key != "vip" && key != "star" || limit.Rate == 0 || limit.Rate == math.MaxInt {
		return
	}
	for _, l := range tw.lims {
		l.Sweep()
	}
	tw.both(fmt.Sprintf("Key.SetLimit %s %v", key, limit), func(l *sluice.Limiter) any {
		if l.Key(key).SetLimit(limit) != nil {
			return errors.New("refused")
		}
		tw.own[key] = limit
		tw.charged(limit)
		return l.Key(key).Peek(1)
	})
}

// clearKeyLimit takes it away again. (That could make windows forget what they cannot
// count, and is left out if that limit can count more.)
func (tw *twin) clearKeyLimit(key string) {
	if _, ok := tw.own[key]; ok && tw.countsNoMore() {
		delete(tw.own, key)
		tw.both("Key.ClearLimit "+key, func(l *sluice.Limiter) any { l.Key(key).ClearLimit(); return l.Key(key).Peek(1) })
	}
}

// countsNoMore reports whether the words of the limiter's own limit can count all that a key may have been charged.
func (tw *twin) countsNoMore() bool {
	return !tw.stateless() && tw.most <= tw.Cfg.Limit.Capacity()+tw.Cfg.Soft
}

// restart writes the first limiter, lets time pass, and restores the second one, in half
// of the cases under another limit, and with other limits of keys. The second one then has the keys
// that the first one has once Limiter.SetLimit and Key.SetLimit have put it under these limits.
func (tw *twin) restart() {
	orig := tw.lims[tw.Rng.IntN(len(tw.lims))] // also one that has been restored before
	var data bytes.Buffer
	require.NoError(tw.TB, orig.Snapshot(&data))
	tw.Note("at %d: %d bytes written", tw.Clock.Now(), data.Len())
	tw.advance()
	tw.lims = []*sluice.Limiter{orig}
	orig.Sweep()
	// One change a key, as there is one for Restore: each rounds up by itself.
	tw.setKeyLimit([]string{"vip", ""}[tw.Rng.IntN(2)])
	if tw.Rng.IntN(2) == 0 {
		tw.setLimit(tw.otherLimit(tw.Cfg.Algorithm == sluice.SlidingLog && len(tw.own) > 0))
	}
	// Under Unlimited and DenyAll units go on coming back as under the limit before, which the
	// limiter that is made for Restore has never had.
	if !tw.stateless() {
		tw.clearKeyLimit([]string{"star", ""}[tw.Rng.IntN(2)])
	}
	tw.Cfg.Shards = 1 << tw.Rng.IntN(7)
	l := mustNew(tw.TB, tw.Cfg)
	for key, limit := range tw.own {
		require.NoError(tw.TB, l.Key(key).SetLimit(limit))
	}
	require.NoError(tw.TB, l.Restore(&data), "%s", tw)
	for _, key := range twinKeys { // as of the snapshot
		if _, ok := tw.own[key]; !ok {
			l.Key(key).ClearLimit()
		}
	}
	tw.lims = append(tw.lims, l)
	for _, key := range twinKeys {
		tw.both("Peek "+key, func(l *sluice.Limiter) any { return l.Key(key).Peek(1) })
	}
}

// TestModel_RestoredDecidesAsTheOriginal, under the same limit and under others, for
// every variant with every option.
func TestModel_RestoredDecidesAsTheOriginal(t *testing.T) {
	for _, v := range variants {
		t.Run("variant="+v.Name(), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			for range depth.Ops() / 10_000 {
				c := restartConfig(rng, v)
				c.Clock = sluice.NewManualClock(time.Unix(0, []int64{0, start.UnixNano()}[rng.IntN(2)]))
				l, err := sluice.New(c)
				if err != nil {
					continue
				}
				tw := &twin{trace: &trace{TB: t, Rng: rng, Cfg: c, Clock: c.Clock.(*sluice.ManualClock)}, lims: []*sluice.Limiter{l}, own: map[string]sluice.Limit{}}
				tw.charged(c.Limit)
				for range 3 {
					for range 25 {
						tw.step()
					}
					tw.restart()
				}
				for range 25 {
					tw.step()
				}
			}
		})
	}
}
