package oracle

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/groundtruth"
	"github.com/stretchr/testify/assert"
)

// TestGroundTruth reproduces every decision on every line of the real logs.
func TestGroundTruth(t *testing.T) {
	groundtruth.ForEach(t, "../../..", func(t *testing.T, log groundtruth.Log, rule groundtruth.Rule, name string) {
		a := slices.Index(names[:], name)
		m := New(Config{Algorithm: Algorithm(a), Rate: int64(rule.Limit), Period: int64(time.Minute)})
		got := groundtruth.Replay(log.Lines, func(client string, now int64) bool {
			return m.Take(client, now, 1).Allowed
		})
		assert.Equal(t, rule.Want, got)
	})
}
