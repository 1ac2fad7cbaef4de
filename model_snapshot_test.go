package sluice

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/seeded"
)

// A twin drives a limiter, and once there is one, the limiter that has been restored from
// it, and demands the same of both at every step. The first one is the model: that it is
// right is for others to show.
type twin struct {
	*trace
	lims  []*Limiter // the one that goes on, and the restored one
	plans map[string]Limit
}

var twinKeys = []string{"a", "b", "c", "d", "vip", "star"}

// restartLimit draws a limit that every other one can follow: in shorter windows there
// may be no room in a word for what has been spent under a larger limit, and after longer
// ones a block may end when one word cannot tell it, but two can.
func restartLimit(rng *rand.Rand, a Algorithm) Limit {
	l := randomLimit(rng, a)
	l.Rate, l.Burst = min(l.Rate, 1<<20), min(l.Burst, 1<<20)
	l.Period = min(max(l.Period, 10*time.Millisecond), 10*365*day)
	return l
}

// restartConfig draws a limit with options.
func restartConfig(rng *rand.Rand, variant Config) Config {
	c := variant
	if c.Limit = restartLimit(rng, c.Algorithm); c.Offset != 0 {
		c.Offset = time.Duration(rng.Int64N(int64(time.Millisecond)))
	}
	c.Hash, c.Shards, c.MaxKeys = HashStable, 1<<rng.IntN(7), -1
	if rng.IntN(3) == 0 {
		c.Soft = 1 + rng.IntN(20)
	}
	switch rng.IntN(4) {
	case 0:
		c.BlockFor = c.Limit.Period
	case 1:
		c.BlockFor = time.Duration(1 + rng.Int64N(int64(c.Limit.Period)))
	}
	c.CountDenied = c.Algorithm.countsDenied() && rng.IntN(3) == 0
	return c
}

// otherLimit draws one near the present one, with the same period if a log must forget
// nothing: a longer period makes units count again that Sweep may have dropped.
func (tw *twin) otherLimit(samePeriod bool) Limit {
	l := tw.Cfg.Limit
	if tw.stateless() || tw.Rng.IntN(3) == 0 {
		l = restartLimit(tw.Rng, tw.Cfg.Algorithm)
	} else {
		l.Rate = max(1, min(l.Rate*(1+tw.Rng.IntN(4))/(1+tw.Rng.IntN(4)), 1<<20))
		if tw.Cfg.Algorithm == SlidingLog {
			l.Rate = min(l.Rate, 100)
		}
		if l.Burst > 0 && !tw.Cfg.Algorithm.windowed() {
			l.Burst = 1 + tw.Rng.IntN(2*l.Burst)
		} else {
			l.Burst = 0
		}
	}
	if samePeriod {
		l.Period = tw.Cfg.Limit.Period
	}
	if tw.Rng.IntN(12) == 0 && tw.Cfg.Soft == 0 {
		l = []Limit{DenyAll, Unlimited}[tw.Rng.IntN(2)]
		l.Period = tw.Cfg.Limit.Period
	}
	return l
}

// stateless reports whether no state decides on keys without a limit of their own.
func (tw *twin) stateless() bool {
	return tw.Cfg.Limit.Rate == 0 || tw.Cfg.Limit.Rate == math.MaxInt
}

// both calls f with both limiters and demands the same answer.
func (tw *twin) both(what string, f func(l *Limiter) any) {
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
	b := max(1, tw.Cfg.Limit.burst())
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
		tw.both("Take"+call, func(l *Limiter) any { return l.Take(key, cost) })
	case n < 36:
		tw.both("AllowN"+call, func(l *Limiter) any { return l.AllowN(key, cost) })
	case n < 42:
		tw.both("Refund"+call, func(l *Limiter) any { l.Key(key).Refund(cost); return l.Peek(key, 1) })
	case n < 44 && !tw.stateless(): // else it depends on whether the key is tracked
		d := []time.Duration{1, tw.Cfg.Limit.Period, time.Hour, math.MaxInt64}[tw.Rng.IntN(4)]
		tw.both("Block "+key, func(l *Limiter) any { return l.Block(key, d) })
	case n < 46:
		tw.both("Unblock "+key, func(l *Limiter) any { l.Key(key).Unblock(); return l.Peek(key, 1) })
	case n < 47:
		tw.both("Reset "+key, func(l *Limiter) any { l.Reset(key); return l.Peek(key, 1) })
	case n < 53:
		tw.reserve(key, cost)
	case n < 57:
		other := twinKeys[tw.Rng.IntN(len(twinKeys))]
		tw.both("TakeAll"+call+" "+other, func(l *Limiter) any {
			return TakeAll(Charge{l.Key(key), cost}, Charge{l.Key(other), 1})
		})
	case n < 59 && tw.Rng.IntN(2) == 0:
		tw.lims[tw.Rng.IntN(len(tw.lims))].Sweep()
	case n < 60:
		tw.setLimit(tw.otherLimit(tw.Cfg.Algorithm == SlidingLog))
	case n < 61:
		tw.setKeyLimit(key)
	case n < 62:
		tw.clearKeyLimit(key)
	default:
		tw.both("Peek"+call, func(l *Limiter) any { return l.Peek(key, cost) })
	}
}

// reserve makes a reservation and settles it, or lets it stand.
func (tw *twin) reserve(key string, cost int) {
	settle, actual := tw.Rng.IntN(2) == 0, tw.Rng.IntN(2*max(1, cost))
	tw.both(fmt.Sprintf("Reserve %s %d, %v %d", key, cost, settle, actual), func(l *Limiter) any {
		r, err := l.Reserve(key, cost, tw.Cfg.Limit.Period)
		if err != nil {
			return err
		}
		if settle {
			r.Settle(actual)
		}
		return fmt.Sprint(r.Delay(), l.Peek(key, 1))
	})
}

func (tw *twin) setLimit(limit Limit) {
	for _, l := range tw.lims {
		l.Sweep()
	}
	tw.both(fmt.Sprintf("SetLimit %v", limit), func(l *Limiter) any { return l.SetLimit(limit) == nil })
	tw.Cfg.Limit = tw.lims[0].Config().Limit
}

// setKeyLimit gives a key a limit of its own.
func (tw *twin) setKeyLimit(key string) {
	limit := tw.otherLimit(tw.Cfg.Algorithm == SlidingLog)
	if key != "vip" && key != "star" || limit.Rate == 0 || limit.Rate == math.MaxInt {
		return
	}
	for _, l := range tw.lims {
		l.Sweep()
	}
	tw.both(fmt.Sprintf("SetKeyLimit %s %v", key, limit), func(l *Limiter) any {
		if l.SetKeyLimit(key, limit) != nil {
			return errors.New("refused")
		}
		tw.plans[key] = limit
		return l.Peek(key, 1)
	})
}

// clearKeyLimit takes it away again. (That could make windows forget what they cannot
// count, and is left out if the plan can count more.)
func (tw *twin) clearKeyLimit(key string) {
	if _, ok := tw.plans[key]; ok && tw.countsNoMore(key) {
		delete(tw.plans, key)
		tw.both("ClearKeyLimit "+key, func(l *Limiter) any { l.ClearKeyLimit(key); return l.Peek(key, 1) })
	}
}

// countsNoMore reports whether main can count what the key's plan can.
func (tw *twin) countsNoMore(key string) bool {
	for _, l := range tw.lims {
		if l.policyOf(l.Key(key).id).reach > l.current.Load().reach {
			return false
		}
	}
	return true
}

// restart writes the first limiter, lets time pass, and restores the second one, in half
// of the cases under another limit, and with other limits of keys. What SetLimit and
// SetKeyLimit make of the first one is what is to be seen.
func (tw *twin) restart() {
	orig := tw.lims[tw.Rng.IntN(len(tw.lims))] // also one that has been restored before
	data := snapshotOf(tw.TB, orig)
	tw.Note("at %d: %d bytes written", tw.Clock.Now(), len(data))
	tw.advance()
	tw.lims = []*Limiter{orig}
	orig.Sweep()
	// One change a key, as there is one for Restore: each rounds up by itself.
	tw.setKeyLimit([]string{"vip", ""}[tw.Rng.IntN(2)])
	if tw.Rng.IntN(2) == 0 {
		tw.setLimit(tw.otherLimit(tw.Cfg.Algorithm == SlidingLog && len(tw.plans) > 0))
	}
	// Under Unlimited and DenyAll units go on coming back as under the limit before, which the
	// limiter that is made for Restore has never had.
	if !tw.stateless() {
		tw.clearKeyLimit([]string{"star", ""}[tw.Rng.IntN(2)])
	}
	tw.Cfg.Shards = 1 << tw.Rng.IntN(7)
	l := mustNew(tw.TB, tw.Cfg)
	for key, limit := range tw.plans {
		require.NoError(tw.TB, l.SetKeyLimit(key, limit))
	}
	require.NoError(tw.TB, l.Restore(bytes.NewReader(data)), "%s", tw)
	for id := range limitsOf(l) { // as of the snapshot
		if name := tw.nameOf(l, l.KeyHash(id)); tw.plans[name] == (Limit{}) {
			l.ClearKeyLimit(name)
		}
	}
	tw.lims = append(tw.lims, l)
	for _, key := range twinKeys {
		tw.both("Peek "+key, func(l *Limiter) any { return l.Peek(key, 1) })
	}
}

func (tw *twin) nameOf(l *Limiter, k Key) string {
	i := slices.IndexFunc(twinKeys, func(name string) bool { return l.Key(name) == k })
	return twinKeys[i]
}

// TestSnapshot_RestoredDecidesAsTheOriginal, under the same limit and under others, for
// every variant with every option.
func TestSnapshot_RestoredDecidesAsTheOriginal(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variantName(variant), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			for range depth.Ops() / 10_000 {
				c := restartConfig(rng, variant)
				c.Clock = NewManualClock(time.Unix(0, []int64{0, start.UnixNano()}[rng.IntN(2)]))
				l, err := New(c)
				if err != nil {
					continue
				}
				tw := &twin{trace: &trace{TB: t, Rng: rng, Cfg: c, Clock: c.Clock.(*ManualClock)}, lims: []*Limiter{l}, plans: map[string]Limit{}}
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
