package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/depth"
	"github.com/sluice-go/sluice/internal/seeded"
)

// TestRefund: streams take estimates of some services and settle with others, denied ones, too. All that was admitted and
// kept is at most the limit, with leases on. The first refunds of a domain, which others have not heard of, give nothing back.
func TestRefund(t *testing.T) {
	server := anyServer(t)
	limits := []Limit{
		{Name: "window", Algorithm: sluice.FixedWindow, Requests: 1000, Unit: "day"},
		{Name: "bucket", Algorithm: sluice.GCRA, Requests: 1000, Unit: "day"},
		{Name: "log", Algorithm: sluice.SlidingLog, Requests: 1000, Unit: "day"},
	}
	f := start(t, Rules(limits...), 3, server.Addr, "--replicas", "3", "--store-budget", "5s")
	f.Warm()
	r := seeded.Rand(t)

	began := time.Now()
	for _, l := range limits {
		for i := range 3 { // at once, at each service
			value := fmt.Sprint("first", i)
			ok, _, err := take(f.Services[i], l.Name, value, 10)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, give(f.Services[i], l.Name, value, 10))
			_, left, err := take(f.Services[(i+1)%3], l.Name, value, 0)
			require.NoError(t, err)
			if time.Since(began) < 4*time.Second { // else a busy machine has let them pass
				require.Equal(t, uint32(990), left, "%s: a first refund gives nothing back", l.Name)
			}
		}
	}
	for _, l := range limits {
		require.NoError(t, f.RefundsKnown(l.Name))
	}
	require.Greater(t, time.Since(began), 4*time.Second)

	for _, l := range limits {
		for run := range depth.Of(2, 4, 20) {
			value := fmt.Sprint("run", run)
			kept, denied, gave := uint64(0), 0, uint64(0)
			var open []*Stream
			settle := func() {
				i := r.IntN(len(open))
				s := open[i]
				open[i] = open[len(open)-1]
				open = open[:len(open)-1]
				require.NoError(t, s.Settle(f.Services[r.IntN(3)], l.Name, value))
				if s.Admitted {
					gave += s.Estimate - s.Kept()
				}
			}
			for range 300 {
				s := &Stream{Estimate: 1 + r.Uint64N(30)}
				s.Used = r.Uint64N(s.Estimate + 1)
				require.NoError(t, s.Begin(f.Services[r.IntN(3)], l.Name, value))
				kept += s.Kept()
				if !s.Admitted {
					denied++
				}
				open = append(open, s)
				for len(open) > 20 {
					settle()
				}
			}
			for len(open) > 0 {
				settle()
			}
			require.LessOrEqual(t, kept, uint64(1000), "%s: what was admitted and kept", l.Name)
			require.Positive(t, denied)
			require.Positive(t, gave)
			require.Greater(t, kept, uint64(600), "%s: refunds give back", l.Name)
			t.Logf("%s: kept %d of 1000, %d denied, %d given back", l.Name, kept, denied, gave)
		}
	}
}
