package metamorphic

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// twins are two limiters that are told the same in different words: after each of their
// calls no key of one can be told from that of the other.
type twins struct {
	*trace
	a, b   *sluice.Limiter
	limits []sluice.Limit          // of b
	dated  bool                    // some are by a calendar, and a is told of days by a calendar too
	second time.Duration           // the unit of time: a second, or half a day of calendars
	own    map[string]sluice.Limit // of a
}

func newTwins(t *testing.T, rng *rand.Rand, c sluice.Config, dated bool) *twins {
	tw := &twins{trace: &trace{TB: t, Rng: rng, Clock: sluice.NewManualClock(start)}, dated: dated, second: time.Second, own: map[string]sluice.Limit{}}
	c.Hash, c.Clock = sluice.HashStable, tw.Clock
	tw.limits = []sluice.Limit{sluice.Per(6, time.Second), sluice.Per(12, 7*time.Second), sluice.PerMinute(3), sluice.Per(40, time.Second), sluice.DenyAll, sluice.Unlimited}
	switch {
	case dated:
		tw.second = 12 * time.Hour
		tw.Clock.Set(time.Date(2026, time.October, 30, 9, 0, 0, 1, time.UTC))
		summer := sluice.Calendar{Unit: sluice.CalendarDay, Zone: "America/New_York"} // which ends two days after the traces begin
		tw.limits = []sluice.Limit{sluice.PerDay(6), sluice.PerCalendar(12, summer), sluice.PerCalendar(3, sluice.Calendar{Unit: sluice.CalendarMonth, Zone: "Asia/Seoul", Day: 15}),
			sluice.PerDay(40), sluice.DenyAll, sluice.Unlimited}
	case !windowed(c.Algorithm):
		tw.limits = append(tw.limits, sluice.Per(7, 3*time.Second).WithBurst(2), sluice.PerSecond(3).WithBurst(17))
	}
	c.Limit = tw.limits[rng.IntN(3)]
	if rng.IntN(3) == 0 {
		c.Soft = 1 + rng.IntN(5)
	}
	if rng.IntN(3) == 0 {
		c.BlockFor = time.Duration(rng.Int64N(int64(10 * tw.second)))
	}
	c.CountDenied = windowed(c.Algorithm) && c.Algorithm != sluice.InFlight && rng.IntN(3) == 0
	c.Stats = rng.IntN(2) == 0
	if c.Offset != 0 {
		c.Offset = time.Duration(1 + rng.Int64N(int64(time.Second)-1))
	}
	tw.Cfg = c
	tw.b = mustNew(t, c)
	c.Limit = tw.forA(c.Limit)
	tw.a = mustNew(t, c)
	return tw
}

// forA returns the limit that a is told for the limit l of b. A day of a calendar in UTC is a window of 24 hours.
func (tw *twins) forA(l sluice.Limit) sluice.Limit {
	if !tw.dated || l != sluice.PerDay(l.Rate) {
		return l
	}
	return sluice.PerCalendar(l.Rate, sluice.Calendar{Unit: sluice.CalendarDay})
}

func (tw *twins) cost() int { return tw.Rng.IntN(20) }

// step makes one call of each.
func (tw *twins) step() {
	key := string(rune('a' + tw.Rng.IntN(3)))
	cost := tw.cost()
	name := ""
	switch tw.Rng.IntN(24) {
	case 0, 1:
		name = "advance"
		tw.Clock.Advance(time.Duration(tw.Rng.Int64N(int64(3 * tw.second))))
	case 2:
		name = "take all"
		tw.alike(tw.b.Take(key, cost).Allowed, sluice.TakeAll(sluice.Charge{Key: tw.a.Key(key), Cost: cost}).Allowed)
	case 3, 4:
		name = "take up to"
		tw.takeUpTo(key, cost)
	case 5:
		name = "debit"
		tw.charge(key, cost)
	case 6:
		name = "reserve and cancel"
		if r, err := tw.a.Key(key).Reserve(cost, time.Duration(tw.Rng.Int64N(int64(60*tw.second)))); err == nil {
			r.Cancel()
		}
	case 7:
		name = "reserve and settle"
		tw.reserve(key, cost)
	case 8:
		name = "sweep"
		tw.a.Sweep()
	case 9:
		name = "restore"
		tw.restore()
	case 10:
		name = "set the same"
		require.NoError(tw.TB, tw.a.SetLimit(tw.a.Config().Limit))
		if l, ok := tw.own[key]; ok {
			require.NoError(tw.TB, tw.a.Key(key).SetLimit(l))
		}
	case 11:
		name = "there and back"
		tw.thereAndBack(key)
	case 12:
		l := tw.limits[tw.Rng.IntN(len(tw.limits))]
		name = fmt.Sprintf("set limit %v", l)
		ea, eb := tw.a.SetLimit(tw.forA(l)), tw.b.SetLimit(l)
		require.Equal(tw.TB, ea, eb)
	case 13:
		l := tw.limits[tw.Rng.IntN(len(tw.limits))]
		name = fmt.Sprintf("set key limit %v", l)
		ea, eb := tw.a.Key(key).SetLimit(tw.forA(l)), tw.b.Key(key).SetLimit(l)
		require.Equal(tw.TB, ea, eb)
		if ea == nil {
			tw.own[key] = tw.forA(l)
		}
	case 14:
		name = "clear"
		tw.a.Key(key).ClearLimit()
		tw.b.Key(key).ClearLimit()
		delete(tw.own, key)
	case 15:
		name = "block"
		if tw.Rng.IntN(2) == 0 {
			d := time.Duration(tw.Rng.Int64N(int64(4 * tw.second)))
			tw.a.Key(key).Block(d)
			tw.b.Key(key).Block(d)
		} else {
			tw.a.Key(key).Unblock()
			tw.b.Key(key).Unblock()
		}
	case 16:
		name = "refund"
		tw.a.Key(key).Refund(cost)
		tw.b.Key(key).Refund(cost)
	case 17:
		name = "bring the same"
		tw.alike(tw.b.Take(key, cost), tw.bring(tw.a, key, tw.a.Key(key).Limit()).Take(cost))
		tw.alike(tw.b.Take(key, 1), tw.a.Take(key, 1)) // back under its limit, by which time goes on
	case 18:
		l := tw.limits[tw.Rng.IntN(len(tw.limits))]
		name = fmt.Sprintf("bring %v", l)
		tw.alike(tw.bring(tw.b, key, l).Peek(cost), tw.bring(tw.a, key, tw.forA(l)).Peek(cost))
		taken, d := tw.bring(tw.a, key, tw.forA(l)).TakeUpTo(cost)
		want, e := tw.bring(tw.b, key, l).TakeUpTo(cost)
		tw.alike(want, taken)
		tw.alike(e, d)
		tw.alike(tw.b.Take(key, 1), tw.a.Take(key, 1))
	default:
		name = "take"
		tw.alike(tw.b.Take(key, cost), tw.a.Take(key, cost))
	}
	tw.Note("%s: %s %d", key, name, cost)
	tw.same()
}

func (tw *twins) bring(l *sluice.Limiter, key string, limit sluice.Limit) sluice.Key {
	k, err := l.Key(key).WithLimit(limit)
	require.NoError(tw.TB, err)
	return k
}

func (tw *twins) takeUpTo(key string, cost int) {
	taken, d := tw.a.Key(key).TakeUpTo(cost)
	n := cost
	for n > 1 && !tw.b.Key(key).Peek(n).Allowed {
		n--
	}
	want := tw.b.Take(key, n)
	tw.alike(want, d)
	if !want.Allowed {
		n = 0
	}
	tw.alike(max(n, 0), taken)
}

func (tw *twins) charge(key string, cost int) {
	if tw.Cfg.Algorithm == sluice.SlidingLog && !tw.b.Key(key).Peek(cost).Allowed {
		return // what it counts beyond the limit depends on the limits that it has had
	}
	tw.a.Key(key).Debit(cost)
	if cost > 0 && tw.b.Key(key).Peek(cost).Allowed {
		tw.b.Take(key, cost)
	} else {
		tw.b.Key(key).Debit(cost)
	}
}

func (tw *twins) reserve(key string, cost int) {
	used := tw.Rng.IntN(cost + 1)
	r, err := tw.a.Key(key).Reserve(cost, 0)
	if err != nil {
		return
	}
	r.Settle(used)
	if used > 0 {
		tw.alike(true, tw.b.Take(key, used).Allowed)
	}
}

func (tw *twins) restore() {
	c := tw.a.Config()
	for _, l := range append(slices.Collect(maps.Values(tw.own)), c.Limit) {
		if l == sluice.DenyAll || l == sluice.Unlimited {
			return // under which units come back as under the limit before
		}
	}
	var data bytes.Buffer
	require.NoError(tw.TB, tw.a.Snapshot(&data))
	next := mustNew(tw.TB, c)
	require.NoError(tw.TB, next.Restore(&data), "%s", tw)
	tw.a = next
}

func (tw *twins) thereAndBack(key string) {
	other := []sluice.Limit{sluice.DenyAll, sluice.Unlimited}[tw.Rng.IntN(2)]
	if l, ok := tw.own[key]; ok {
		require.NoError(tw.TB, tw.a.Key(key).SetLimit(other))
		require.NoError(tw.TB, tw.a.Key(key).SetLimit(l))
		return
	}
	l := tw.a.Config().Limit
	require.NoError(tw.TB, tw.a.SetLimit(other))
	require.NoError(tw.TB, tw.a.SetLimit(l))
}

// alike demands that both have answered the same.
func (tw *twins) alike(want, got any) { tw.Equal(want, got, "of twins") }

// same demands that no key can be told from its twin.
func (tw *twins) same() {
	for _, key := range []string{"a", "b", "c"} {
		for _, cost := range []int{0, 1, 2, 6, 12, 17} {
			want, got := tw.b.Key(key).Peek(cost), tw.a.Key(key).Peek(cost)
			if want != got {
				require.Equal(tw.TB, want, got, "Peek of %s %d\n%s", key, cost, tw)
			}
		}
	}
}

// TestModel_TwinsAreAlike: there are several ways to say the same to a limiter.
func TestModel_TwinsAreAlike(t *testing.T) {
	rng := seeded.Rand(t)
	for _, variant := range variants {
		t.Run(variant.Name(), func(t *testing.T) { runTwins(t, rng, variant.config(), false) })
	}
	t.Run("by a calendar", func(t *testing.T) { runTwins(t, rng, sluice.Config{Algorithm: sluice.FixedWindow}, true) })
}

func runTwins(t *testing.T, rng *rand.Rand, c sluice.Config, dated bool) {
	for range 200 {
		tw := newTwins(t, rng, c, dated)
		for range 30 {
			tw.step()
		}
	}
}
