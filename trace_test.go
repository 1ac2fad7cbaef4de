package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/groundtruth"
	"github.com/sluice-go/sluice/internal/traces"
)

// trace is what random comparisons share.
type trace = traces.Trace[Config]

// A traceRow is one call in a scenario worked out by hand: cost units at a time
// after the scenario's start, and what is then to be seen.
type traceRow struct {
	at        time.Duration
	cost      int
	ok        bool
	remaining int
	retry     time.Duration
	reset     time.Duration
}

// runTrace plays the rows from a minute's edge, on one key, as calls of Take.
func runTrace(t *testing.T, c Config, rows []traceRow) {
	t.Helper()
	playTrace(t, c, rows, Key.TakeAt)
}

func playTrace(t *testing.T, c Config, rows []traceRow, call func(k Key, now int64, cost int) Decision) {
	t.Helper()
	t0 := time.Unix(1_790_000_100, 0)
	c.Clock = NewManualClock(t0)
	l := mustNew(t, c)
	for i, r := range rows {
		want := Decision{Allowed: r.ok, Limit: int(l.policyOf(0).burst), Remaining: r.remaining, RetryAfter: r.retry, ResetAfter: r.reset}
		got := call(l.Key("k"), t0.Add(r.at).UnixNano(), r.cost)
		assert.Equal(t, want, got, "row %d: %d units at %v", i, r.cost, r.at)
	}
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// bucketTrace holds for the three algorithms that agree with each other: 2 a
// second, 4 at once.
var bucketTrace = []traceRow{
	{at: 0, cost: 3, ok: true, remaining: 1, reset: 1500 * ms},
	{at: 0, cost: 2, ok: false, remaining: 1, retry: 500 * ms, reset: 1500 * ms},
	{at: 0, cost: 1, ok: true, remaining: 0, reset: 2 * sec},
	{at: 0, cost: 1, ok: false, remaining: 0, retry: 500 * ms, reset: 2 * sec},
	{at: 500*ms - 1, cost: 1, ok: false, remaining: 0, retry: 1, reset: 1500*ms + 1},
	{at: 500 * ms, cost: 1, ok: true, remaining: 0, reset: 2 * sec},
	{at: 1400 * ms, cost: 4, ok: false, remaining: 1, retry: 1100 * ms, reset: 1100 * ms},
	{at: 1400 * ms, cost: 5, ok: false, remaining: 1, retry: Never, reset: 1100 * ms},
	{at: 2500 * ms, cost: 4, ok: true, remaining: 0, reset: 2 * sec},
	{at: time.Hour, cost: 1, ok: true, remaining: 3, reset: 500 * ms},
	{at: time.Hour - sec, cost: 1, ok: true, remaining: 0, reset: 2 * sec}, // older: 1 s earns nothing
	{at: time.Hour - sec, cost: 1, ok: false, remaining: 0, retry: 500 * ms, reset: 2 * sec},
	{at: time.Hour, cost: 2, ok: true, remaining: 0, reset: 2 * sec},
}

// TestGroundTruth_RealLogs reproduces the decision on every line of real access
// logs, as two independent exact programs took it, through Allow on the log's
// clock and through AllowAt.
func TestGroundTruth_RealLogs(t *testing.T) {
	groundtruth.ForEach(t, ".", func(t *testing.T, log groundtruth.Log, rule groundtruth.Rule, name string) {
		var a Algorithm
		require.NoError(t, a.UnmarshalText([]byte(name)))
		clock := NewManualClock(time.Unix(0, 0))
		c := Config{Algorithm: a, Limit: PerMinute(rule.Limit), Hash: HashStable, Clock: clock}
		byClock := mustNew(t, c)
		// The clock of this one is years ahead of the log, and must not matter to
		// growth and overflow.
		c.Clock = NewManualClock(start)
		byTime := mustNew(t, c)
		assert.Equal(t, rule.Want, groundtruth.Replay(log.Lines, func(client string, now int64) bool {
			clock.Set(time.Unix(0, now))
			return byClock.Allow(client)
		}))
		assert.Equal(t, rule.Want, groundtruth.Replay(log.Lines, func(client string, now int64) bool {
			return byTime.Key(client).AllowAt(now, 1)
		}))
	})
}
