package sluice

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// listeners is how many calls wait for units.
func listeners(l *Limiter) int64 { return l.awaiting.n.Load() }

// TestWait_ForUnitsThatAreGivenBack: by a release, a refund, a reservation, or at last by themselves.
func TestWait_ForUnitsThatAreGivenBack(t *testing.T) {
	for _, c := range everyInFlight {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, c)
			k := l.Key("k")
			unit := c.Limit.Rate / 10
			wait := func(left int, giveBack func()) {
				t.Helper()
				done := make(chan error)
				go func() { done <- k.Wait(t.Context(), unit) }()
				synctest.Wait()
				require.Equal(t, int64(1), listeners(l))
				giveBack()
				require.NoError(t, <-done)
				require.Zero(t, listeners(l))
				require.Equal(t, left, k.Peek(0).Remaining)
			}
			p, err := k.Acquire(unit)
			require.NoError(t, err)
			r := mustTake(t, k, c.Limit.Rate-unit)
			begin := time.Now()
			wait(0, func() { require.NoError(t, p.Release()) })
			wait(0, func() { k.Refund(unit) })
			wait(0, func() { r.Settle(c.Limit.Rate - 2*unit) })
			wait(c.Limit.Rate-unit, k.Reset)
			require.True(t, k.AllowN(c.Limit.Rate-unit))
			require.Zero(t, time.Since(begin))
			wait(c.Limit.Rate-unit, func() {}) // they lapse
			require.Greater(t, time.Since(begin), c.Limit.Period)
			require.LessOrEqual(t, time.Since(begin), 2*c.Limit.Period)
		})
	}
}

// TestWait_ForUnitsUntilTheDeadline: a wait is not given up because the units might not come.
func TestWait_ForUnitsUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, Config{Algorithm: InFlight, Limit: AtOnce(1, time.Hour)})
		require.True(t, l.Allow("k"))
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(begin))
		_, err := WaitAll(ctx, Charge{l.Key("k"), 1})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, listeners(l))

		l.Key("k").Block(3 * time.Hour)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, l.Wait(ctx, "k", 1), ErrWouldExceedDeadline, "no release ends a block")
	})
}

// TestWaitAll_RequestsTokensAndStreams at once: nothing is charged before all of it can be.
func TestWaitAll_RequestsTokensAndStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := mustNew(t, Config{Limit: PerSecond(1)})
		tokens := mustNew(t, Config{Limit: PerMinute(60).WithBurst(100)})
		streams := mustNew(t, Config{Algorithm: InFlight, Limit: AtOnce(2, time.Hour)})
		charges := []Charge{{requests.Key("k"), 1}, {tokens.Key("k"), 40}, {streams.Key("k"), 1}}
		begin := time.Now()
		first, err := WaitAll(t.Context(), charges...)
		require.NoError(t, err)
		_, err = WaitAll(t.Context(), charges...)
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(begin), "for the second request")

		done := make(chan []*Reservation)
		go func() {
			all, err := WaitAll(t.Context(), charges...)
			require.NoError(t, err)
			done <- all
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, requests.Key("k").Peek(0).Remaining, "not charged while it waits for a stream")
		first[1].Settle(10)
		first[2].Cancel()
		all := <-done
		require.Equal(t, time.Second+time.Minute, time.Since(begin))
		require.Zero(t, streams.Key("k").Peek(0).Remaining)
		require.Zero(t, listeners(streams))
		all[2].Cancel()
		require.Equal(t, 1, streams.Key("k").Peek(0).Remaining)

		streams.Allow("k")
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		_, err = WaitAll(ctx, charges...)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, requests.Key("k").Peek(0).Remaining)
	})
}

// TestConcurrent_WaitersAreWoken: no release between a denial and the sleep after it is missed.
func TestConcurrent_WaitersAreWoken(t *testing.T) {
	l, _ := newFrozen(t, Config{Algorithm: InFlight, Limit: AtOnce(2, time.Hour)})
	k := l.Key("k")
	goDo(8, func(g int) {
		for range 200 {
			if g%2 == 0 {
				if k.Wait(t.Context(), 1) != nil {
					t.Error("not admitted")
				}
				k.Refund(1)
				continue
			}
			all, err := WaitAll(t.Context(), Charge{k, 1})
			if err != nil {
				t.Error("not admitted")
			}
			all[0].Cancel()
		}
	})()
	require.Equal(t, 2, k.Peek(0).Remaining)
	require.Zero(t, listeners(l))
	require.Zero(t, openReservations(l))
}
