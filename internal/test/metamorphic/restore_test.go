package metamorphic

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestModel_RestoredGoesOn: a limiter that is written and restored again and again is, to
// its exact model, one that never stopped.
func TestModel_RestoredGoesOn(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variant.Name(), func(t *testing.T) {
			t.Parallel()
			rng := seeded.Rand(t)
			for range depth.Ops() / 20_000 {
				c := variant.random(rng)
				c.Hash = sluice.HashStable
				if _, err := sluice.New(c); err != nil {
					continue
				}
				tr := newTracer(t, rng, c, false)
				for range 5 {
					tr.run(20, false)
					tr.Cfg.Shards = 1 << rng.IntN(7)
					tr.lim = restored(t, tr.Cfg, tr.lim)
				}
			}
		})
	}
}

// restored returns a limiter that goes on with the state of l.
func restored(tb testing.TB, c sluice.Config, l *sluice.Limiter) *sluice.Limiter {
	tb.Helper()
	var data bytes.Buffer
	require.NoError(tb, l.Snapshot(&data))
	next := mustNew(tb, c)
	require.NoError(tb, next.Restore(&data))
	return next
}
