package redislimit

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestPatience: a deadline moves by as much as its timer is late, by a budget in all, and not at all if the timer is as late as timers are.
func TestPatience(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	const wait, budget = 4375 * time.Microsecond, 5 * time.Millisecond
	timers := &lateness{began: begin}
	p := patience{deadline: begin.Add(wait), most: budget, timers: timers}
	require.False(t, p.extend(begin.Add(wait)))
	require.False(t, p.extend(begin.Add(wait+usualDelay)))
	require.True(t, p.extend(begin.Add(wait+2*time.Millisecond)))
	require.Equal(t, begin.Add(wait+4*time.Millisecond), p.deadline)
	require.False(t, p.extend(p.deadline.Add(usualDelay)), "this time it was not late")
	at := p.deadline.Add(time.Minute)
	require.True(t, p.extend(at))
	require.Equal(t, at.Add(3*time.Millisecond), p.deadline, "a budget in all")
	require.False(t, p.extend(p.deadline.Add(time.Hour)))

	*timers = lateness{began: begin}
	require.Equal(t, 3*time.Millisecond, timers.late(begin, begin.Add(3*time.Millisecond)))
	require.Equal(t, 3*time.Millisecond, timers.late(begin, begin.Add(2*time.Millisecond)), "the latest one counts")
	for _, c := range []struct{ at, more time.Duration }{{lateFor + 3*time.Millisecond - 1, 3 * time.Millisecond}, {lateFor + 3*time.Millisecond, 0}} {
		p = patience{deadline: begin.Add(c.at), most: budget, timers: timers}
		require.Equal(t, c.more > 0, p.extend(p.deadline), "a timer was late within a second")
		require.Equal(t, begin.Add(c.at+c.more), p.deadline)
	}
}

// fireLate has the timer of a lane fire after a time, at which it does nothing else.
func fireLate(l *lane, after time.Duration) {
	l.mu.Lock()
	l.timer.Stop()
	l.mu.Unlock()
	time.Sleep(after)
	l.expire()
}

// TestPatience_Lane: an answer that comes after the deadline is taken if the process was late itself, and no later than the time by
// which it was. The caller's context ends the wait all the same.
func TestPatience_Lane(t *testing.T) {
	const wait = 4375 * time.Microsecond
	for _, c := range []struct {
		name             string
		trip, late, ends time.Duration // of one way; of the timer; of the context
		from             Source
		took             time.Duration
		err              error
	}{
		{name: "in the socket", trip: (wait + 2*time.Millisecond) / 2, late: 3 * time.Millisecond, from: FromRedis, took: wait + 2*time.Millisecond},
		{name: "soon", trip: (wait + 5*time.Millisecond) / 2, late: 3 * time.Millisecond, from: FromRedis, took: wait + 5*time.Millisecond},
		{name: "not soon", trip: (wait + 7*time.Millisecond) / 2, late: 3 * time.Millisecond, from: FromFallback, took: wait + 6*time.Millisecond},
		{name: "in time", trip: (wait + 2*time.Millisecond) / 2, late: usualDelay, from: FromFallback, took: wait + usualDelay},
		{name: "a budget at most", trip: time.Hour, late: time.Second, from: FromFallback, took: wait + time.Second + 5*time.Millisecond},
		{name: "the context", trip: time.Hour, late: time.Second, ends: wait + time.Second + time.Millisecond, took: wait + time.Second + time.Millisecond, err: context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, TierConfig{}, sluice.PerHour(1_000_000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
				fake.slow(c.trip)
				ctx := t.Context()
				if c.ends > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.ends)
					defer cancel()
				}
				begin := time.Now()
				var all sync.WaitGroup
				all.Go(func() {
					time.Sleep(time.Nanosecond) // the timer has been set
					fireLate(tier.router.first, wait+c.late-1)
				})
				d, from, err := tier.TakeSource(ctx, "a", 1)
				require.Equal(t, c.took, time.Since(begin))
				require.ErrorIs(t, err, c.err)
				if err == nil {
					require.True(t, d.Allowed)
					require.Equal(t, c.from, from)
				}
				all.Wait()
			})
		})
	}
}

// TestPatience_LaneOrder: a deadline that has been put off comes after those that are sooner.
func TestPatience_LaneOrder(t *testing.T) {
	const wait = 4375 * time.Microsecond
	bubble(t, TierConfig{}, sluice.PerHour(1_000_000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		fake.slow(time.Hour)
		took := make([]time.Duration, 2)
		var all sync.WaitGroup
		for i := range took {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 3 * time.Millisecond)
				begin := time.Now()
				_, from, _ := tier.TakeSource(t.Context(), []string{"a", "b"}[i], 1)
				took[i] = time.Since(begin)
				require.Equal(t, FromFallback, from)
			})
		}
		time.Sleep(time.Nanosecond)
		fireLate(tier.router.first, wait+2*time.Millisecond-1)
		all.Wait()
		// The deadline of the first is put off by 2 ms when its timer is 2 ms late, and that of the second, which comes sooner, as well.
		require.Equal(t, []time.Duration{wait + 4*time.Millisecond, wait + 2*time.Millisecond}, took)
	})
}

// A lateConn is a connection whose deadline comes, as often as it has, before its answer does.
type lateConn struct {
	net.Conn
	times int
	set   []time.Time
}

func (c *lateConn) Read(b []byte) (int, error) {
	if c.times--; c.times >= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return copy(b, "+OK\r\n"), nil
}

func (c *lateConn) SetReadDeadline(t time.Time) error {
	c.set = append(c.set, t)
	return nil
}

func (c *lateConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// TestPatience_Lead: a caller that leads reads on after a deadline that has come late, or if the answer is there, and not after its context
// has ended.
func TestPatience_Lead(t *testing.T) {
	for _, c := range []struct {
		name     string
		late     time.Duration
		times    int
		ready    bool
		canceled bool
		read     bool
		set      int
	}{
		{name: "late", late: time.Second, times: 1, read: true, set: 1},
		{name: "late, and nothing comes", late: time.Second, times: 2, set: 1},
		{name: "in time", late: -time.Minute, times: 1},
		{name: "in time, and the answer is there", late: -time.Minute, times: 1, ready: true, read: true, set: 1},
		{name: "in time, and the answer is not whole", late: -time.Minute, times: 2, ready: true, set: 1},
		{name: "canceled", late: time.Second, times: 1, canceled: true, read: true, set: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := &lateConn{times: c.times}
			p := &patience{deadline: time.Now().Add(-c.late), most: 5 * time.Millisecond, timers: &lateness{began: time.Now()}}
			h := &heard{Conn: conn, socket: conn, patience: p, ready: func() bool { return c.ready }}
			h.canceled.Store(c.canceled)
			n, err := h.Read(make([]byte, 16))
			if c.read {
				require.NoError(t, err)
				require.Equal(t, 5, n)
			} else {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
			require.Len(t, conn.set, c.set)
			if c.canceled { // a socket ends the read by itself
				require.Equal(t, past, conn.set[len(conn.set)-1])
			}
			require.LessOrEqual(t, p.extended, p.most)
		})
	}
}

// TestPatience_Probe: the answer to a probe is not late while only the process was.
func TestPatience_Probe(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		l := tier.router.first
		isLate := func(late *bool) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return *late
		}
		late, timer := l.lateAfter(time.Now())
		timer.Stop()
		time.Sleep(tier.wait + 3*time.Millisecond)
		timer.Reset(0)
		time.Sleep(3*time.Millisecond - 1)
		require.False(t, isLate(late))
		time.Sleep(2 * time.Nanosecond)
		require.True(t, isLate(late))
		time.Sleep(lateFor)
		late, timer = l.lateAfter(time.Now())
		time.Sleep(tier.wait + 1)
		require.True(t, isLate(late))
		timer.Stop()
	})
}

// TestPatience_Breaker: where timers are late, calls without an answer open the breaker only if no other call has had one meanwhile.
func TestPatience_Breaker(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, _ *fakeRedis) {
		l := tier.router.first
		fail := func() (open bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.breaker = breaker{}
			began := time.Now()
			time.Sleep(time.Nanosecond)
			for range breakerCalls {
				l.outcome(&group{request: tier.shared.request(tier.shared.plan.Load(), "a"), patience: patience{began: began}, waiters: make([]*waiter, 1)}, errLate, time.Now())
			}
			return l.breaker.state == breakerOpen
		}
		heard := func() {
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromRedis, from)
		}
		time.Sleep(time.Nanosecond)
		heard()
		require.True(t, fail(), "nothing has been heard since")
		time.Sleep(time.Second)
		l.mu.Lock()
		l.heard = time.Now().Add(time.Hour)
		l.mu.Unlock()
		require.True(t, fail(), "timers are in time")
		time.Sleep(time.Second)
		tier.timers.late(time.Now().Add(-usualDelay-1), time.Now())
		require.False(t, fail())
		l.mu.Lock()
		l.heard = time.Time{}
		l.mu.Unlock()
		require.True(t, fail())
		time.Sleep(2 * time.Second)
	})
}
