package sluice

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/require"
)

// TestFixedWindow_BoundariesAreUnixTime, not the key's first charge.
func TestFixedWindow_BoundariesAreUnixTime(t *testing.T) {
	for _, l := range []Limit{PerSecond(1), PerMinute(1), PerHour(1), PerDay(1), Per(1, 7*time.Second)} {
		lim := mustNew(t, Config{Algorithm: FixedWindow, Limit: l, Clock: NewManualClock(start)})
		want := l.Period - time.Duration(start.UnixNano()%int64(l.Period))
		require.Equal(t, want, lim.Take("k", 1).ResetAfter, "%v", l)
	}
}

// TestFixedWindow_WordHoldsNumberAndCount, which has what the number leaves until 2262.
func TestFixedWindow_WordHoldsNumberAndCount(t *testing.T) {
	alg, err := newFixedWindow(PerSecond(1_000_000), 0, 1_000_000)
	require.Nil(t, err)
	word, ok := alg.charge(0, 5_000_000_007, 999_999)
	require.True(t, ok)
	require.Equal(t, uint64(5)<<30|999_999, word)
}

// TestFixedWindow_OffsetMakesTheDayOfATimeZone, as the documentation says.
func TestFixedWindow_OffsetMakesTheDayOfATimeZone(t *testing.T) {
	korea := time.FixedZone("KST", 9*60*60)
	for _, c := range []struct {
		offset time.Duration
		starts time.Time
	}{
		{15 * time.Hour, time.Date(2026, 9, 22, 0, 0, 0, 0, korea)},
		{0, time.Date(2026, 9, 22, 9, 0, 0, 0, korea)},
	} {
		clock := NewManualClock(c.starts.Add(-1))
		l := mustNew(t, Config{Algorithm: FixedWindow, Limit: PerDay(10), Offset: c.offset, Clock: clock})
		require.Equal(t, time.Duration(1), l.Take("k", 10).ResetAfter)
		clock.Advance(1)
		require.Equal(t, day, l.Take("k", 10).ResetAfter)
	}
	monday := time.Date(2026, 9, 21, 0, 0, 0, 0, time.UTC)
	require.Equal(t, time.Monday, monday.Weekday())
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: Per(10, 7*day), Offset: 4 * day, Clock: NewManualClock(monday)})
	require.Equal(t, 7*day, l.Take("k", 1).ResetAfter)
}

// TestFixedWindow_BeforeTheFirstOffset 1970 lies in a window that began before it.
func TestFixedWindow_BeforeTheFirstOffset(t *testing.T) {
	l := mustNew(t, Config{Algorithm: FixedWindow, Limit: Per(3, 10), Offset: 4, Clock: NewManualClock(time.Unix(0, 0))})
	k := l.Key("k")
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 1, ResetAfter: 4}, k.TakeAt(0, 2))
	require.Equal(t, Decision{Limit: 3, Remaining: 1, RetryAfter: 1, ResetAfter: 1}, k.TakeAt(3, 2))
	require.Equal(t, Decision{Allowed: true, Limit: 3, ResetAfter: 10}, k.TakeAt(4, 3))
	k.Reset()
	require.True(t, k.AllowAt(3, 2))
	l.refundAt(k.id, 3, 1)
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 2, ResetAfter: 1}, k.PeekAt(3, 0))
	require.Equal(t, uint64(4), l.policyOf(0).alg.idleAt(wordOf(l, k.id)))
}

// TestFixedWindowFirstCharge_KeysHaveWindowsOfTheirOwn.
func TestFixedWindowFirstCharge_KeysHaveWindowsOfTheirOwn(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: FixedWindowFirstCharge, Limit: PerMinute(1)})
	for i := range 50 {
		require.True(t, l.KeyUint64(uint64(i)).Allow())
		clock.Advance(sec)
	}
	for i := range 50 {
		require.Equal(t, 10*sec+time.Duration(i)*sec, l.KeyUint64(uint64(i)).Peek(0).ResetAfter)
	}
}

func TestFixedWindowFirstCharge_Reset(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: FixedWindowFirstCharge, Limit: PerMinute(3)})
	require.True(t, l.AllowN("k", 3))
	clock.Advance(20 * sec)
	l.Key("k").Reset()
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 3}, l.Key("k").Peek(0))
	require.Equal(t, time.Minute, l.Take("k", 1).ResetAfter, "a window of its own, not the old one")
	l.Key("k").Reset()
	older := clock.Now() - 100
	require.Equal(t, time.Minute, l.Key("k").TakeAt(older, 1).ResetAfter, "nothing is remembered")
}

// TestFixedWindowFirstCharge_Refund of all units ends the window; the next one does not
// begin before it.
func TestFixedWindowFirstCharge_Refund(t *testing.T) {
	l, clock := newFrozen(t, Config{Algorithm: FixedWindowFirstCharge, Limit: PerMinute(3)})
	k := l.Key("k")
	require.True(t, k.AllowN(3))
	clock.Advance(20 * sec)
	k.Refund(2)
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 2, ResetAfter: 40 * sec}, k.Peek(0))
	k.Refund(2)
	require.Equal(t, Decision{Allowed: true, Limit: 3, Remaining: 3}, k.Peek(0))
	first := clock.Now() - int64(20*sec)
	require.Equal(t, time.Minute+5, k.PeekAt(first-5, 1).ResetAfter, "an older call is charged where the window was")
	again := l.Key("again")
	require.True(t, again.AllowAt(first, 3))
	l.refundAt(again.id, first, 3)
	require.Equal(t, time.Minute+5, again.TakeAt(first-5, 1).ResetAfter)
	require.Equal(t, time.Minute, again.TakeAt(first, 1).ResetAfter, "so it was charged there")
	require.Equal(t, time.Minute, k.Take(1).ResetAfter, "and a new one begins a new window")
	again.Reset()
	clock.Advance(time.Minute)
	before := snapshot(l)
	k.Refund(1)
	require.Equal(t, before, snapshot(l), "it has come back by itself")
	require.True(t, k.AllowN(3))
	k.Refund(3)
	require.Equal(t, 2, l.Sweep(), "keys without units are idle")
}

// TestFixedWindowFirstCharge_EndOfTime: a window that reaches beyond the clock's end
// does not end.
func TestFixedWindowFirstCharge_EndOfTime(t *testing.T) {
	for _, period := range []time.Duration{1, 2, sec, math.MaxInt64} {
		l := mustNew(t, Config{Algorithm: FixedWindowFirstCharge, Limit: Per(3, period)})
		k := l.Key("k")
		require.Equal(t, Decision{Allowed: true, Limit: 3, ResetAfter: Never}, k.TakeAt(math.MaxInt64, 3))
		require.Equal(t, Decision{Limit: 3, RetryAfter: Never, ResetAfter: Never}, k.TakeAt(math.MaxInt64, 1))
		require.Equal(t, Decision{Limit: 3, RetryAfter: Never, ResetAfter: Never}, k.TakeAt(0, 1), "older")
		k = l.Key("last")
		begin := math.MaxInt64 - int64(period)
		require.Equal(t, Decision{Allowed: true, Limit: 3, ResetAfter: period}, k.TakeAt(begin, 3))
		require.Equal(t, Decision{Limit: 3, RetryAfter: 1, ResetAfter: 1}, k.TakeAt(math.MaxInt64-1, 1))
		require.True(t, k.AllowAt(math.MaxInt64, 3))
	}
}

// TestFixedWindowFirstCharge_AWordComesWithOneTail: whatever happens to a key, two
// states with the same word are the same state. That is what a reader relies on who
// finds the word as it was.
func TestFixedWindowFirstCharge_AWordComesWithOneTail(t *testing.T) {
	rng := seeded.Rand(t)
	for range 200 {
		wide, err := newFirstChargeWindow(Per(1+rng.IntN(5), time.Duration(1+rng.IntN(20))), 5)
		require.Nil(t, err)
		a := wide.(*firstChargeWindow)
		var word uint64
		tail := make([]atomic.Uint64, 1)
		seen := map[uint64]uint64{0: 0}
		for now := int64(0); now < 2000; now += int64(rng.IntN(8)) {
			at := max(0, now-int64(rng.IntN(10))) // older ones, too
			before := word
			switch op, cost := rng.IntN(8), 1+rng.IntN(int(a.limit)); {
			case op == 0 && word != 0:
				word = a.reset(state{word, tail})
				require.NotEqual(t, before, word)
			case op <= 2 && word != 0:
				word = a.refund(state{word, tail}, at, cost)
			case a.admit(state{word, tail}, at, cost):
				word = a.commit(state{word, tail}, at, cost)
				require.NotEqual(t, before, word, "a charge that no reader would notice")
			}
			require.Zero(t, word&locked)
			began, known := seen[word]
			require.True(t, !known || began == tail[0].Load(), "the word %x came with %d and with %d", word, began, tail[0].Load())
			seen[word] = tail[0].Load()
		}
	}
}

// TestFixedWindowFirstCharge_VersionGoesRound: past its last value it starts over at 1,
// without touching the lock bit, and never as the word of a fresh key.
func TestFixedWindowFirstCharge_VersionGoesRound(t *testing.T) {
	for _, rate := range []int{1, 1000, maxFirstCharge - 1} {
		wide, err := newFirstChargeWindow(Per(rate, 10), rate)
		require.Nil(t, err)
		a := wide.(*firstChargeWindow)
		require.GreaterOrEqual(t, 62-a.bits, 31)
		word := uint64(1<<(62-a.bits)-3)<<a.bits | uint64(rate)
		tail := make([]atomic.Uint64, 1)
		var versions []uint64
		for i := range int64(3) {
			word = a.commit(state{word, tail}, 100+20*i, rate)
			require.Less(t, word, uint64(locked))
			require.NotEqual(t, uint64(moved), word|locked)
			versions = append(versions, word>>a.bits)
			word = a.refund(state{word, tail}, 100+20*i, rate)
			require.NotZero(t, word)
		}
		require.Equal(t, []uint64{1<<(62-a.bits) - 2, 1, 2}, versions)
	}
}

func TestFixedWindowFirstCharge_RefusesWhatItCannotKeep(t *testing.T) {
	c := Config{Algorithm: FixedWindowFirstCharge, Limit: PerDay(maxFirstCharge)}
	_, err := New(c)
	require.NoError(t, err) // Unlimited, on a 32-bit machine
	if strconv.IntSize == 64 {
		c.Limit.Rate++
		requireConfigError(t, c, "Limit.Rate",
			"2147483648 with a window that begins at the first charge, whose count has 31 bits; want at most 2147483647, or fixed-window")
	}
}

// TestConcurrent_TornReadsOfAWindowDoNotCount: windows are over and full, and all
// callers come at once. One that reads the old count with the new beginning must look
// again, and one that reads the new count with the old beginning, too.
func TestConcurrent_TornReadsOfAWindowDoNotCount(t *testing.T) {
	const limit, callers = 40, 4
	retried := int64(0)
	for rounds := 0; rounds < 2000 && (rounds < 50 || retried < 50); rounds++ {
		l, clock := newFrozen(t, Config{Algorithm: FixedWindowFirstCharge, Limit: PerSecond(limit)})
		yieldBeforeSwap(l)
		for range 10 {
			require.True(t, l.AllowN("k", limit))
			clock.Advance(sec)
			var admitted atomic.Int64
			goDo(callers, func(g int) {
				for range limit/callers + rand.IntN(3) {
					if g%2 == 0 && l.Allow("k") || g%2 == 1 && l.Take("k", 1).Allowed {
						admitted.Add(1)
					}
					if d := l.Key("k").Peek(0); d.ResetAfter != 0 && d.ResetAfter != sec {
						t.Errorf("Peek sees a window that ends in %v", d.ResetAfter)
					}
				}
			})()
			require.Equal(t, int64(limit), admitted.Load())
			l.Key("k").Reset()
		}
		retried += l.lostRaces.Value()
	}
	require.GreaterOrEqual(t, retried, int64(50), "few swaps failed: the race was not run")
}
