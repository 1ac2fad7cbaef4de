package fleet

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
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

// TestRefund_Leases: streams of a bucket that is lent take and settle at services at once, denied ones, too. All that was
// admitted and kept is at most WorstCase of the time that it took.
func TestRefund_Leases(t *testing.T) {
	server := anyServer(t)
	bucket := Limit{Name: "bucket", Algorithm: sluice.GCRA, Requests: 200, Unit: "second"}
	worst, err := bucket.worst()
	require.NoError(t, err)
	r := seeded.Rand(t)
	twice(t, func() error { // a busy machine answers late, and then services go by their shares
		f := start(t, Rules(bucket, Limit{Name: "known", Algorithm: sluice.FixedWindow, Requests: 100_000, Unit: "day"}), 3, server.Addr, "--replicas", "3", "--store-budget", "400ms")
		defer f.Close()
		f.Warm()
		require.NoError(t, f.RefundsKnown("known"))
		b := &borrowers{fleet: f, limit: bucket, value: fmt.Sprint(r.Uint64())}
		began := time.Now()
		var wg sync.WaitGroup
		for range 6 {
			random := rand.New(rand.NewPCG(r.Uint64(), 0))
			wg.Go(func() { b.run(random, depth.Of(200, 400, 4000)) })
		}
		wg.Wait()
		took := time.Since(began)
		lent := 0.0
		for _, s := range f.Services {
			n, err := s.Metric(`sluice_tier_lent_units_total{limiter="redis"}`)
			require.NoError(t, err)
			lent += n
		}
		kept, denied, gave := b.kept.Load(), b.denied.Load(), b.gave.Load()
		t.Logf("kept %d of %d in %v, %d streams denied, %d units given back, %v lent", kept, worst(took), took, denied, gave, lent)
		switch {
		case b.err.Load() != nil:
			return *b.err.Load()
		case kept > int64(worst(took)):
			return fmt.Errorf("%d were admitted and kept in %v, and WorstCase is %d", kept, took, worst(took))
		case kept < int64(bucket.Requests) || denied == 0 || gave == 0 || lent == 0:
			return fmt.Errorf("kept %d, %d streams denied, %d units given back, %v lent: want more", kept, denied, gave, lent)
		}
		return nil
	})
}

// borrowers are callers of one key.
type borrowers struct {
	fleet              *Fleet
	limit              Limit
	value              string
	kept, denied, gave atomic.Int64
	err                atomic.Pointer[error]
}

// run makes streams, each at random services, with up to three open at once.
func (b *borrowers) run(r *rand.Rand, streams int) {
	any := func() *Service { return b.fleet.Services[r.IntN(len(b.fleet.Services))] }
	var open []*Stream
	for i := range streams {
		s := &Stream{Estimate: 1 + r.Uint64N(5)}
		s.Used = r.Uint64N(s.Estimate + 1)
		if err := s.Begin(any(), b.limit.Name, b.value); err != nil {
			b.err.Store(&err)
			return
		}
		open = append(open, s)
		b.kept.Add(int64(s.Kept()))
		if !s.Admitted {
			b.denied.Add(1)
		}
		for len(open) > 3 || i == streams-1 && len(open) > 0 {
			s, open = open[0], open[1:]
			if err := s.Settle(any(), b.limit.Name, b.value); err != nil {
				b.err.Store(&err)
				return
			}
			if s.Admitted {
				b.gave.Add(int64(s.Estimate - s.Kept()))
			}
		}
	}
}
