package replay

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

const sec = int64(time.Second)

// event is a request at a second.
type event struct {
	at     int64
	client string
}

func replayed(t *testing.T, top int, events []event, rules ...string) Result {
	t.Helper()
	var parsed []Rule
	for _, text := range rules {
		rule, err := ParseRule(text)
		require.NoError(t, err)
		parsed = append(parsed, rule)
	}
	r, err := New(parsed, newClients(t))
	require.NoError(t, err)
	for _, e := range events {
		r.Add([]byte(e.client), e.at*sec, nil)
	}
	return r.Result(top)
}

// decided returns the rule's decision hash of the given letters.
func decided(letters string) string {
	digest := sha256.Sum256([]byte(letters))
	return hex.EncodeToString(digest[:])
}

func TestReplay_ClockIsCommonAndNeverGoesBack(t *testing.T) {
	events := []event{
		{60, "a"}, {125, "b"}, // b moves the clock into the window from 120
		{70, "a"}, // counts at 125: a window of its own
		{125, "a"},
		{120, "b"},
		{180, "b"}, {180, "a"},
	}
	res := replayed(t, 5, events, "fixed-window 1/m")
	assert.Equal(t, decided("AAADDAA"), res.Rules[0].DecisionsSHA256)
	assert.Equal(t, &FirstDenial{Request: 4, Time: 125 * sec}, res.Rules[0].FirstDenied)
	assert.EqualValues(t, 2, res.Late)
	assert.Equal(t, 55*time.Second, res.MaxLate)
	assert.Equal(t, 60*sec, res.First)
	assert.Equal(t, 180*sec, res.Last)
}

func TestReplay_FirstIsTheEarliestTimeNotTheFirst(t *testing.T) {
	res := replayed(t, 5, []event{{60, "a"}, {10, "a"}, {70, "a"}}, "gcra 1/m")
	assert.Equal(t, 10*sec, res.First)
	assert.Equal(t, 70*sec, res.Last)
}

func TestReplay_CountsByRule(t *testing.T) {
	var events []event
	for range 3 {
		events = append(events, event{0, "z"}, event{0, "y"}, event{0, "b"})
	}
	events = append(events, event{0, "z"}, event{1, "once"}, event{1, "a\xff"}, event{1, "a\xff"}, event{1, "a\xff"})
	res := replayed(t, 3, events, "sliding-log 1/m", "gcra unlimited", "token-bucket 0/s")
	assert.EqualValues(t, len(events), res.Requests)
	assert.Equal(t, 5, res.Clients)

	limited := res.Rules[0]
	assert.EqualValues(t, 5, limited.Allowed)
	assert.EqualValues(t, 9, limited.Denied)
	assert.Equal(t, 4, limited.LimitedClients)
	assert.Equal(t, []Client{
		{"z", 4, []int64{3, 0, 4}, nil}, {"a\xff", 3, []int64{2, 0, 3}, nil}, {"b", 3, []int64{2, 0, 3}, nil},
	}, limited.Top)

	unlimited := res.Rules[1]
	assert.Zero(t, unlimited.Denied)
	assert.Nil(t, unlimited.FirstDenied)
	assert.Empty(t, unlimited.Top)
	assert.Equal(t, decided(strings.Repeat("A", len(events))), unlimited.DecisionsSHA256)

	assert.EqualValues(t, 1, res.Rules[2].FirstDenied.Request)
	assert.Equal(t, 5, res.Rules[2].LimitedClients)
}

// TestReplay_StreaksAndTheHeaviest: a request that is allowed ends a streak of its client, and of no other.
func TestReplay_StreaksAndTheHeaviest(t *testing.T) {
	var events []event
	for i := range int64(9) { // under 1 in 3 s, "a" is denied two in a row, and the others all but the first
		events = append(events, event{i, "a"})
	}
	for i, n := range []int{8, 6, 4, 3, 2} {
		for range n {
			events = append(events, event{9, string(rune('b' + i))})
		}
	}
	res := replayed(t, 1, events, "gcra 1/3s", "gcra 9/3s", "gcra unlimited")
	assert.Equal(t, &Streak{"b", 7}, res.Rules[0].LongestStreak)
	assert.EqualValues(t, 7+6+5+3+2, res.Rules[0].HeaviestDenied, "a with its 6, and not f with its 1")
	assert.EqualValues(t, 24, res.Rules[0].Denied)
	assert.Nil(t, res.Rules[1].LongestStreak)
	assert.Zero(t, res.Rules[2].HeaviestDenied)
	res = replayed(t, 1, events[:9], "gcra 1/3s")
	assert.Equal(t, &Streak{"a", 2}, res.Rules[0].LongestStreak)
}

func TestReplay_HashCoversBatchesAndTheRest(t *testing.T) {
	for _, n := range []int{hashBatch - 1, hashBatch, hashBatch + 1, 3*hashBatch + 7} {
		events := make([]event, n)
		for i := range events {
			events[i] = event{0, "a"}
		}
		res := replayed(t, 1, events, "gcra 10/m")
		assert.Equal(t, decided(strings.Repeat("A", 10)+strings.Repeat("D", n-10)), res.Rules[0].DecisionsSHA256, n)
	}
}

// TestReplay_ForgetsNobody compares against counting by hand over far more clients
// than fit into the first tables, with pauses in which the limiters drop the idle.
func TestReplay_ForgetsNobody(t *testing.T) {
	const clients, perWindow = 20000, 2
	rng := rand.New(rand.NewPCG(1, 2))
	r, err := New([]Rule{{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(perWindow)}}, newClients(t))
	require.NoError(t, err)
	type window struct{ minute, count int64 }
	counts := make([]window, clients)
	var letters strings.Builder
	now := int64(0)
	for range 200000 {
		if rng.IntN(5000) == 0 {
			now += rng.Int64N(1000)
		}
		id := rng.IntN(clients)
		if counts[id].minute != now/60 {
			counts[id] = window{minute: now / 60}
		}
		if counts[id].count < perWindow {
			counts[id].count++
			letters.WriteByte('A')
		} else {
			letters.WriteByte('D')
		}
		r.Add([]byte{byte(id), byte(id >> 8)}, now*sec, nil)
	}
	require.Contains(t, letters.String(), "D")
	require.NotZero(t, r.rules[0].limiter.Stats().Swept)
	assert.Equal(t, decided(letters.String()), r.Result(0).Rules[0].DecisionsSHA256)
}

// TestReplay_LimitersForgetByTheClockOfTheLog has clients come back just before
// and just after they are idle, while newcomers make the limiter drop the idle.
func TestReplay_LimitersForgetByTheClockOfTheLog(t *testing.T) {
	r, err := New([]Rule{{Algorithm: sluice.GCRA, Limit: sluice.Per(1, 10*time.Minute)}}, newClients(t))
	require.NoError(t, err)
	var letters strings.Builder
	visit := func(number int64, now int64, letter byte) {
		r.Add([]byte{byte(number), byte(number >> 8)}, now*sec, nil)
		letters.WriteByte(letter)
	}
	for now := range int64(20000) {
		visit(now, now, 'A')
		if now >= 599 {
			visit(now-599, now, 'D')
		}
		if now >= 601 {
			visit(now-601, now, 'A')
		}
	}
	require.NotZero(t, r.rules[0].limiter.Stats().Swept)
	assert.Equal(t, decided(letters.String()), r.Result(0).Rules[0].DecisionsSHA256)
}

func TestNew_RefusesWhatTheLibraryRefuses(t *testing.T) {
	_, err := New([]Rule{{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(20).WithBurst(5)}}, newClients(t))
	require.Error(t, err)
	assert.True(t, strings.HasPrefix(err.Error(), "rule fixed-window 20/m burst 5: burst 5 with fixed-window; "), err)
}

func TestParseRule_IsTheInverseOfString(t *testing.T) {
	for _, a := range Algorithms() {
		for _, limit := range []sluice.Limit{sluice.PerDay(7), sluice.PerSecond(5).WithBurst(2), sluice.Unlimited, sluice.DenyAll} {
			want := Rule{Algorithm: a, Limit: limit}
			got, err := ParseRule(want.String())
			require.NoError(t, err)
			assert.Equal(t, want, got)
		}
	}
}

// TestParseRule_UnitsInUse are no rate, whatever the algorithm.
func TestParseRule_UnitsInUse(t *testing.T) {
	for _, a := range Algorithms() {
		_, err := ParseRule(a.String() + " 10 at once, lease 1m")
		require.ErrorContains(t, err, `limit "10 at once, lease 1m" is of requests that run, and a log does not tell how long they did; want a count per time, as in 60/m`)
	}
	_, err := ParseLimit("0 at once, lease 1h")
	require.Error(t, err)
}

func TestTimeline_KeepsEveryEventInItsColumn(t *testing.T) {
	rng := seeded.Rand(t)
	for range 200 {
		start := rng.Int64N(math.MaxInt64 / 2)
		span := int64(1) << rng.IntN(62)
		tl := newTimeline(start, 2)
		var times []int64
		now := start
		for now-start < span {
			times = append(times, now)
			tl.rows[0][tl.reach(now)]++
			now += 1 + rng.Int64N(span/20+1)
			if rng.IntN(5) == 0 {
				tl.columns(1) // changes nothing
			}
		}
		from, width, rows := tl.columns(1)
		want := make([]int64, len(rows[0]))
		for _, at := range times {
			want[(at-from)/int64(width)]++
		}
		require.Equal(t, want, rows[0])
		assert.LessOrEqual(t, len(want), maxColumns)
		assert.Zero(t, from%int64(width))
		assert.NotZero(t, want[0])
		assert.NotZero(t, want[len(want)-1])
		assert.Len(t, rows[1], len(want))
		assert.Contains(t, roundWidths(), width)
		if span > 1000 && len(times) > 3 {
			assert.Greater(t, len(want), maxColumns/6, "too few columns of %v", width)
		}
	}
}

func TestTimeline_Widths(t *testing.T) {
	for span, want := range map[time.Duration]time.Duration{
		0:                      1,
		59:                     1,
		60:                     2,
		125 * time.Millisecond: 5 * time.Millisecond,
		59 * time.Second:       time.Second,
		45 * time.Minute:       time.Minute,
		12 * time.Hour:         15 * time.Minute,
		84 * time.Hour:         2 * time.Hour,
		29 * day:               12 * time.Hour,
		90 * day:               2 * day,
		math.MaxInt64:          2000 * day,
	} {
		tl := newTimeline(0, 1)
		tl.reach(0)
		tl.reach(int64(span))
		_, width, _ := tl.columns(1)
		assert.Equal(t, want, width, span)

		tl = newTimeline(0, 1)
		tl.reach(int64(span))
		_, width, _ = tl.columns(time.Second)
		assert.Equal(t, max(want, time.Second), width, span)
	}
}

func TestSteps_EachDividesTheNextAndLeavesEnoughBins(t *testing.T) {
	for i, step := range steps[1:] {
		factor := step / steps[i]
		assert.Zero(t, step%steps[i])
		assert.Greater(t, maxBins/int(factor), maxColumns)
	}
	assert.Less(t, math.MaxInt64/int64(steps[len(steps)-1]), int64(maxBins))
}

func newClients(t *testing.T) *Clients {
	t.Helper()
	clients, err := NewClients(IPv6Prefix)
	require.NoError(t, err)
	return clients
}
