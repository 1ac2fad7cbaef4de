package inflight_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/inflight"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

func TestRetryAfter_IsShort(t *testing.T) {
	for bound, want := range map[time.Duration]time.Duration{
		0: 0, 1: 1, time.Second - 1: time.Second - 1, time.Second: time.Second, time.Hour: time.Second,
		sluice.Never - 1: time.Second, sluice.Never: sluice.Never,
	} {
		require.Equal(t, want, inflight.RetryAfter(bound), "%v", bound)
	}
}

func newLimiter(t testing.TB, limit sluice.Limit) *sluice.Limiter {
	lim, err := sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: limit})
	require.NoError(t, err)
	return lim
}

// begin takes a unit of each limiter for a call that begins, if all have one.
func begin(r *inflight.Renewer, key string, lims ...*sluice.Limiter) *inflight.Lease {
	charges, reservations := make([]sluice.Charge, len(lims)), make([]*sluice.Reservation, len(lims))
	for i, lim := range lims {
		charges[i] = sluice.Charge{Key: lim.Key(key), Cost: 1}
	}
	if !sluice.TakeAllReservations(reservations, nil, charges...).Allowed {
		return nil
	}
	l := &inflight.Lease{}
	for i := range charges {
		l.Add(charges[i], reservations[i])
	}
	r.Keep(l)
	return l
}

func armed(r *inflight.Renewer) bool {
	_, ok := r.NextIn()
	return ok
}

func left(lim *sluice.Limiter) int { return lim.Key("k").Peek(0).Remaining }

// TestRenewer_CallsOutliveThePeriod: calls count until their end, whatever the Periods, and wherever in a window they began.
func TestRenewer_CallsOutliveThePeriod(t *testing.T) {
	for _, period := range []time.Duration{30 * time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			lim, slow, r := newLimiter(t, sluice.Per(3, period)), newLimiter(t, sluice.Per(5, 10*time.Hour)), inflight.NewRenewer()
			begin(r, "k", lim)
			time.Sleep(period / 7)
			both := begin(r, "k", lim, slow)
			time.Sleep(period * 5 / 7)
			begin(r, "k", lim)
			for range 300 {
				time.Sleep(period / 11)
				require.Zero(t, left(lim))
			}
			require.Equal(t, 4, left(slow))
			both.End()
			both.End()
			require.Equal(t, []int{1, 5}, []int{left(lim), left(slow)})
			time.Sleep(3 * period)
			require.Equal(t, 1, left(lim))
		})
	}
}

// TestRenewer_StopsByItself: without leases, nothing is armed a second later, and it starts again.
func TestRenewer_StopsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, r := newLimiter(t, sluice.PerHour(3)), inflight.NewRenewer()
		require.False(t, armed(r))
		for range 3 {
			l := begin(r, "k", lim)
			require.True(t, armed(r))
			time.Sleep(5 * time.Second)
			synctest.Wait()
			require.True(t, armed(r))
			l.End()
			time.Sleep(time.Second)
			synctest.Wait()
			require.False(t, armed(r))
			require.Equal(t, 3, left(lim))
		}
	})
}

// TestRenewer_TinyPeriod: it looks once in 10 ms, and a call has its units again after each look.
func TestRenewer_TinyPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, r := newLimiter(t, sluice.Per(3, time.Millisecond)), inflight.NewRenewer()
		l := begin(r, "k", lim)
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			next, _ := r.NextIn()
			require.Equal(t, 10*time.Millisecond, next)
			require.Equal(t, 2, left(lim))
		}
		l.End()
		require.Equal(t, 3, left(lim))
	})
}

// TestRenewer_PeriodChanges: a call counts under the new Period, too, and twice while the units from before are there.
func TestRenewer_PeriodChanges(t *testing.T) {
	for _, periods := range [][2]time.Duration{{time.Hour, time.Second}, {time.Second, time.Hour}, {time.Minute, 50 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			lim, r := newLimiter(t, sluice.Per(10, periods[0])), inflight.NewRenewer()
			l := begin(r, "k", lim)
			time.Sleep(3 * periods[0])
			require.NoError(t, lim.SetLimit(sluice.Per(10, periods[1])))
			time.Sleep(time.Second)
			synctest.Wait()
			time.Sleep(3 * periods[1])
			for range 100 {
				time.Sleep(periods[1] / 3)
				require.Equal(t, 9, left(lim))
			}
			l.End()
			require.Equal(t, 10, left(lim))
		})
	}
}

// TestRenewer_TakesAgain: units that are lost come back to the call, once there is room; and a block is not prolonged.
func TestRenewer_TakesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, r := newLimiter(t, sluice.PerSecond(1)), inflight.NewRenewer()
		l := begin(r, "k", lim)
		lim.Key("k").Reset()
		other := begin(r, "k", lim)
		require.NotNil(t, other)
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 0, lim.Stats().Denied)
		other.End()
		time.Sleep(time.Second)
		require.Zero(t, left(lim))
		lim.Key("k").Block(10 * time.Second)
		time.Sleep(12 * time.Second)
		require.Zero(t, left(lim))
		require.EqualValues(t, 0, lim.Stats().Denied)
		lim.Key("k").Reset()
		l.End()
		time.Sleep(5 * time.Second)
		require.Equal(t, 1, left(lim))
	})
}

// TestRenewer_NothingToRenew: what has charged nothing is left out.
func TestRenewer_NothingToRenew(t *testing.T) {
	lim, r := newLimiter(t, sluice.PerHour(3)), inflight.NewRenewer()
	l := &inflight.Lease{}
	l.Add(sluice.Charge{Key: lim.Key("k"), Cost: 1}, nil)
	l.Add(sluice.Charge{Key: lim.Key("k"), Cost: 0}, &sluice.Reservation{})
	l.End()
	r.Keep(l)
	require.False(t, armed(r))
	l.End()
}

// TestLease_NotKept: a lease that ends before it is kept gives back what it has.
func TestLease_NotKept(t *testing.T) {
	lim, l := newLimiter(t, sluice.PerHour(3)), &inflight.Lease{}
	var reservations [1]*sluice.Reservation
	c := sluice.Charge{Key: lim.Key("k"), Cost: 2}
	require.True(t, sluice.TakeAllReservations(reservations[:], nil, c).Allowed)
	l.Add(c, reservations[0])
	require.Equal(t, 1, left(lim))
	l.End()
	l.End()
	require.Equal(t, 3, left(lim))
}

// TestRenewer_Concurrent: calls that begin and end while others are renewed give back what they have taken.
func TestRenewer_Concurrent(t *testing.T) {
	seed := seeded.Rand(t).Uint64()
	lims, r := []*sluice.Limiter{newLimiter(t, sluice.Per(1000, 100*time.Millisecond)), newLimiter(t, sluice.PerHour(1000))}, inflight.NewRenewer()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			var open []*inflight.Lease
			for range 3000 {
				if len(open) < 100 && rnd.IntN(2) == 0 {
					open = append(open, begin(r, strconv.Itoa(rnd.IntN(3)), lims...))
				} else if n := len(open); n > 0 {
					open[n-1].End()
					open = open[:n-1]
				}
				if rnd.IntN(50) == 0 {
					r.Look()
				}
			}
			for _, l := range open {
				var twice sync.WaitGroup
				twice.Go(l.End)
				l.End()
				twice.Wait()
			}
		})
	}
	all.Wait()
	for _, lim := range lims {
		for k := range 3 {
			require.Equal(t, 1000, lim.Key(strconv.Itoa(k)).Peek(0).Remaining)
		}
	}
}

func TestKeep_AllocatesNothing(t *testing.T) {
	lim, r := newLimiter(t, sluice.PerHour(1000)), inflight.NewRenewer()
	held := begin(r, "k", lim) // arms the timer
	var reservations [1]*sluice.Reservation
	sluice.TakeAllReservations(reservations[:], nil, sluice.Charge{Key: lim.Key("k"), Cost: 1})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		held.End()
		*held = inflight.Lease{}
		held.Add(sluice.Charge{Key: lim.Key("k"), Cost: 1}, reservations[0])
		r.Keep(held)
	}))
}

// BenchmarkKeep measures the price of a call. Reservations take most of it: see BenchmarkReservation.
func BenchmarkKeep(b *testing.B) {
	lim, r := newLimiter(b, sluice.PerHour(1000)), inflight.NewRenewer()
	b.ReportAllocs()
	var l inflight.Lease
	reservations, charges := make([]*sluice.Reservation, 1), []sluice.Charge{{Key: lim.Key("k"), Cost: 1}}
	for b.Loop() {
		sluice.TakeAllReservations(reservations, nil, charges...)
		l = inflight.Lease{}
		l.Add(charges[0], reservations[0])
		r.Keep(&l)
		l.End()
	}
}

func BenchmarkReservation(b *testing.B) {
	lim := newLimiter(b, sluice.PerHour(1000))
	b.ReportAllocs()
	reservations, charges := make([]*sluice.Reservation, 1), []sluice.Charge{{Key: lim.Key("k"), Cost: 1}}
	for b.Loop() {
		sluice.TakeAllReservations(reservations, nil, charges...)
		reservations[0].Cancel()
	}
}

// BenchmarkLook is a look at 10,000 leases, of which none is due, or all are.
func BenchmarkLook(b *testing.B) {
	for _, due := range []string{"none", "all"} {
		b.Run(due, func(b *testing.B) {
			lim, r := newLimiter(b, sluice.PerHour(20_000)), inflight.NewRenewer()
			for i := range 10_000 {
				begin(r, strconv.Itoa(i%100), lim)
			}
			for b.Loop() {
				if due == "all" {
					r.MakeDue()
				}
				r.Look()
			}
		})
	}
}
