package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestGroup_EndedByLease: a group that has ended before anybody could send it is not served from a
// lease that comes then: nobody waits in it any more.
func TestGroup_EndedByLease(t *testing.T) {
	limit := sluice.PerMinute(6000).WithBurst(1000)
	bubble(t, TierConfig{Lease: Lease{Max: 100, Life: 10 * time.Second}}, limit, func(t *testing.T, tier *Tier, fake *fakeRedis) {
		takeFrom(t, tier, "a", 1)
		holdSenders(t, tier, fake, "a") // which asks for a lease
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, from)
		require.Zero(t, tier.Stats().Lent)
		time.Sleep(time.Second)
		require.Equal(t, uint64(1), tier.Stats().Lent)
		fake.slow(0)
		_, from = takeFrom(t, tier, "a", 1)
		require.Equal(t, FromLease, from, "the unit is for who comes now")
	})
}

// TestGroup_EndedUnsent: nobody joins a group that has ended before anybody could send it: each call
// waits for Redis as long as any, and counts for the breaker.
func TestGroup_EndedUnsent(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		holdSenders(t, tier, fake, "a")
		for i := range breakerRun {
			require.Equal(t, ModeShared, tier.Mode())
			begin := time.Now()
			_, from := takeFrom(t, tier, "a", 1)
			require.Equal(t, FromFallback, from)
			require.Equal(t, tier.wait, time.Since(begin), "call %d", i)
		}
		require.Equal(t, ModeDegraded, tier.Mode())
		require.Equal(t, uint64(maxLate+breakerRun), tier.Stats().Late)
	})
}

// TestGroup_CountedOnce: a call that is answered too late has failed, for the breaker, and that is all. One that nobody
// waits for counts as it is answered.
func TestGroup_CountedOnce(t *testing.T) {
	bubble(t, TierConfig{}, sluice.PerHour(1000), func(t *testing.T, tier *Tier, fake *fakeRedis) {
		l := tier.router.first
		counted := func() [2]int {
			l.mu.Lock()
			defer l.mu.Unlock()
			return [2]int{l.breaker.calls, l.breaker.failed}
		}
		fake.slow(250 * time.Millisecond)
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromFallback, from)
		time.Sleep(time.Second)
		require.Equal(t, 1, fake.count(), "it has been answered")
		require.Equal(t, [2]int{1, 1}, counted())

		time.Sleep(breakerWindow)
		l.mu.Lock()
		l.owe(tier.shared.plan.Load(), "told", 1, time.Now())
		l.send()
		l.mu.Unlock()
		time.Sleep(time.Second)
		require.Equal(t, 2, fake.count())
		require.Equal(t, [2]int{1, 0}, counted())
	})
}

// TestGroup_Wanted: a Refund or a Reset whose caller has left is made all the same.
func TestGroup_Wanted(t *testing.T) {
	for _, op := range []byte{opAdmit, opDebit, opRefund, opReset} {
		g := &group{request: request{op: op}}
		g.waiters = append(g.waiters, &g.first)
		require.True(t, g.wanted())
		g.first.gone = true
		require.Equal(t, op == opRefund || op == opReset, g.wanted(), "op %d", op)
	}
}

// TestGroup_LateAndBack: what is admitted in the place of a call, before the client has returned or after, is owed once it has
// with nothing done or a denial, and not if Redis may have been charged.
func TestGroup_LateAndBack(t *testing.T) {
	for _, one := range []struct {
		scheduled
		owed int64
		end  groupState
	}{
		{scheduled{reply: reply{admitted: 2}}, 0, groupBack},
		{scheduled{reply: reply{admitted: 1}}, 5, groupBack},
		{scheduled{}, 10, groupBack}, // Redis has denied both
		{scheduled{err: errLate}, 0, groupBack},
		{scheduled{err: &notDoneError{errLate}}, 10, groupUndone},
	} {
		bubble(t, TierConfig{}, sluice.PerHour(100), func(t *testing.T, tier *Tier, _ *fakeRedis) {
			l, c := tier.router.first, tier.shared.newCall("a", 5, true)
			g := l.newGroup(c.request, time.Now())
			g.state = groupLate
			l.admitted(g, &c)
			require.Empty(t, l.owed, "that is not known yet")
			l.mu.Lock()
			l.owedFrom = time.Now().Add(time.Hour)
			l.finish(g, &one.scheduled, time.Now())
			l.mu.Unlock()
			require.Equal(t, max(0, one.owed-5), l.owed[c.key].units, "%+v, before", one)
			l.admitted(g, &c)
			require.Equal(t, one.owed, l.owed[c.key].units, "%+v, after", one)
			require.Equal(t, one.end, g.state)
		})
	}
}
