package oracle

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/groundtruth"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGroundTruth reproduces every decision on every line of the real logs.
func TestGroundTruth(t *testing.T) {
	logs, err := groundtruth.Load("../..")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no shared/data/access beside the repository: the ground truth is not checked")
	}
	require.NoError(t, err)
	for _, log := range logs {
		for _, rule := range log.Rules {
			for _, name := range rule.Algorithms {
				t.Run(log.Name+"/"+rule.Name+"/"+name, func(t *testing.T) {
					a := slices.Index(names[:], name)
					m := New(Config{Algorithm: Algorithm(a), Rate: int64(rule.Limit), Period: int64(time.Minute)})
					got := groundtruth.Replay(log.Lines, func(client string, now int64) bool {
						return m.Take(client, now, 1).Allowed
					})
					assert.Equal(t, rule.Want, got)
				})
			}
		}
	}
}
