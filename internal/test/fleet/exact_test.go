package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limitsOf are the limits of each algorithm, for a second and for a minute.
func limitsOf(requests int) (out []Limit) {
	for _, a := range Algorithms {
		for _, unit := range []string{"second", "minute"} {
			out = append(out, Limit{Name: fmt.Sprintf("%v-%s", a, unit), Algorithm: a, Requests: requests, Unit: unit})
		}
	}
	return out
}

// leaseLife is that of a lease with a budget of 200 ms.
const leaseLife = 400 * time.Millisecond

// TestExact: whatever the number of processes, together they admit the limit: without leases exactly, with them at least 99 % of
// it. The demand is twice the limit.
func TestExact(t *testing.T) {
	server := anyServer(t)
	limits := limitsOf(100)
	for _, n := range []int{1, 3, 8} {
		for _, leases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d leases=%t", n, leases), func(t *testing.T) {
				prefix := fmt.Sprintf("exact%d%t", n, leases)
				f := start(t, Rules(limits...), n, server.Addr, fmt.Sprintf("--leases=%t", leases), "--replicas", fmt.Sprint(n), "--store-budget", "200ms", "--store-prefix", prefix)
				run := 0
				twice(t, func() error { run++; return exact(t, f, limits, fmt.Sprint(run), leases) })
			})
		}
	}
}

// exact loads each limit with twice what it admits a second, for windows that the load fills, and judges.
func exact(t *testing.T, f *Fleet, limits []Limit, value string, leases bool) error {
	t.Helper()
	period := time.Second
	f.Warm()
	now := time.Now()
	if now.Second() > 50 { // no boundary of a minute comes in between
		now = now.Truncate(time.Minute).Add(time.Minute)
	}
	begin := now.Truncate(period).Add(period + period/20)
	end := begin.Add(3*period - period/10)
	load := Load{Rate: 200 * len(limits), Next: func(i int) (string, string) { return limits[i/len(f.Services)%len(limits)].Name, value }}
	calls := load.While(f.Services, func(at time.Time) bool { return at.Before(end) }, begin)
	longest, p99 := Longest(calls)
	t.Logf("%d calls, %d admitted, longest %v, p99 %v", len(calls), Admitted(calls), longest, p99)
	for _, l := range limits {
		of := Of(calls, l.Name, value)
		t.Logf("%s: %d calls, %d admitted", l.Name, len(of), Admitted(of))
	}
	for _, l := range limits {
		of := Of(calls, l.Name, value)
		err := l.Judge(of, 1, 0)
		if leases {
			err = l.Judge(of, 0.99, leaseLife)
		} else if err == nil {
			err = l.Full(of)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	return nil
}

// TestTally: the judge knows what may be, and what cannot.
func TestTally(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	calls := []Call{
		{Sent: at(100), Back: at(110), Admitted: true}, {Sent: at(990), Back: at(1010), Admitted: true},
		{Sent: at(1200), Back: at(1210), Admitted: true}, {Sent: at(1300), Back: at(1310)},
	}
	tally := Count(calls, time.Second, 0)
	require.Equal(t, []int{1, 1}, tally.Sure)
	require.Equal(t, []int{2, 2}, tally.Possible)
	require.ErrorContains(t, tally.Within(1), "windows 0 to 1 admitted 3")
	require.NoError(t, tally.Within(2))
	require.Equal(t, []int{1, 2}, tally.Offered)
	require.NoError(t, tally.AtLeast(1, 1))
	require.NoError(t, tally.AtLeast(2, 1), "of 3 calls no more can be admitted")
	denied := append(calls, Call{Sent: at(200), Back: at(210)})
	tally = Count(denied, time.Second, 0)
	require.ErrorContains(t, tally.AtLeast(2, 1), "windows 0 to 1 admitted 3, which is less than 4")
	require.NoError(t, tally.AtLeast(2, 0.6))
	worst := func(time.Duration) int { return 2 }
	require.ErrorContains(t, Spans(calls, 0, worst), "3 were admitted in 1.11s")
	require.NoError(t, Spans(calls, 1, worst))
	ahead := Count(calls, time.Second, 500*time.Millisecond)
	require.Equal(t, []int{1, 2}, ahead.Sure)
}
