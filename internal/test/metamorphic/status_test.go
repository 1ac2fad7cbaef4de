package metamorphic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/oracle"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/traces"
)

// windowAfter is when the window of a charge at now ends, of a key that is not ahead of now.
func windowAfter(c sluice.Config, now int64, reset time.Duration) time.Duration {
	switch {
	case c.Algorithm == sluice.FixedWindowFirstCharge && reset > 0:
		return reset
	case c.Algorithm == sluice.FixedWindowFirstCharge:
		return c.Limit.Period
	case c.Algorithm != sluice.FixedWindow && c.Algorithm != sluice.SlidingWindow && c.Algorithm != sluice.TokenBucketInterval:
		return 0
	}
	period, since := uint64(c.Limit.Period), uint64(now)
	if c.Offset > 0 {
		since += period - uint64(c.Offset)
	}
	return time.Duration(period - since%period)
}

// statusOf is what the exact model makes of a key, tried for what the limiter says first.
func statusOf(c sluice.Config, model *oracle.Model, name string, now int64, got sluice.Status) sluice.Status {
	seen := sluice.Decision{Remaining: got.Remaining + c.Soft, RetryAfter: got.NextAfter, ResetAfter: got.ResetAfter}
	d := fromOracle(model.Guess(guess(seen)).Peek(name, now, 0))
	s := sluice.Status{Limit: c.Limit, Remaining: max(0, d.Remaining-c.Soft), ResetAfter: d.ResetAfter}
	next := int64(max(d.Remaining, c.Soft)) + 1
	if d.Remaining == 0 {
		next = 1
	}
	if next <= int64(capacity(c)) {
		s.NextAfter = time.Duration(model.Peek(name, now, next).RetryAfter)
	}
	s.WindowAfter = windowAfter(c, now, d.ResetAfter)
	return s
}

// TestModel_StatusIsExact on random traces of all variants, in all fields, through all forms.
func TestModel_StatusIsExact(t *testing.T) {
	for _, variant := range variants {
		t.Run("variant="+variant.Name(), func(t *testing.T) {
			rng := seeded.Rand(t)
			missing, soft := 0, 0
			for range depth.Of(200, 400, 5_000) {
				c := variant.random(rng)
				if _, err := sluice.New(c); err != nil {
					continue // more than a word can tell
				}
				tr := newTracer(t, rng, c, false)
				if rng.IntN(3) == 0 && c.Limit.Capacity() < 1<<20 && c.Limit.Period <= 24*time.Hour {
					tr.Cfg.Soft = 1 + rng.IntN(4)
					l, err := sluice.New(tr.Cfg)
					if err != nil {
						continue // a count that leaves too few bits
					}
					tr.lim, tr.model = l, traces.NewCounting(oracleConfig(tr.Cfg))
				}
				for range 20 {
					tr.advance(tr.gap())
					cost := tr.cost()
					tr.Note("cost %d", cost)
					d := tr.lim.Take("k", cost)
					tr.model.Guess(guess(d)).Take("k", tr.now, int64(cost))
					k, got := tr.lim.Key("k"), tr.lim.Key("k").Status()
					want := statusOf(tr.Cfg, tr.model, "k", tr.now, got)
					tr.Equal(want, got, "Limiter.Status")
					tr.Equal(want, k.Status(), "Key.Status")
					tr.Equal(k.Peek(cost), k.PeekAt(tr.now, cost), "PeekAt")
					if want.NextAfter > 0 && want.NextAfter < sluice.Never && tr.now < tr.stop-int64(want.NextAfter) {
						missing++
						var before, after sluice.Status
						tr.told.earlier(1-int64(want.NextAfter), func() { before = k.Status() })
						tr.told.earlier(-int64(want.NextAfter), func() { after = k.Status() })
						tr.Equal(want.Remaining, before.Remaining, "Remaining 1 ns before NextAfter")
						if tr.Cfg.Soft == 0 {
							require.Greater(t, after.Remaining, want.Remaining, "NextAfter\n%s", tr)
						} else {
							soft++
							require.True(t, after.Remaining > want.Remaining || want.Remaining == 0 && k.PeekAt(tr.now+int64(want.NextAfter), 1).Allowed, "NextAfter\n%s", tr)
						}
					}
				}
			}
			require.NotZero(t, missing)
			require.NotZero(t, soft)
		})
	}
}
