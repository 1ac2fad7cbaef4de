package countertest_test

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
	"github.com/sluice-go/sluice/rules/countertest"
)

// memory are counts of an engine, on a clock that stands.
func memory(*testing.T) countertest.Counts {
	clock := sluice.NewManualClock(time.Unix(1_700_000_000, 123_456_789))
	return countertest.Counts{
		Config:    func() rules.Config { return rules.Config{Clock: clock} },
		Processes: 1,
		Now:       func() time.Time { return time.Unix(0, clock.Now()) },
		Pass:      func(d time.Duration) { clock.Advance(d) },
		Exact:     true,
	}
}

func TestMemory(t *testing.T) { countertest.Run(t, memory) }
