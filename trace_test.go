package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/groundtruth"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// trace is what random comparisons share.
type trace = traces.Trace[Config]

const (
	ms  = time.Millisecond
	sec = time.Second
)

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
