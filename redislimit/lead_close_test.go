package redislimit

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestLead_Panic: a panic beneath a caller that leads is the caller's, and nobody else's.
func TestLead_Panic(t *testing.T) {
	s := anyServer(t)
	tier, d := leading(t, s.addr, TierConfig{})
	d.conn.AddHook(processHook(func(redis.ProcessHook) redis.ProcessHook {
		return func(context.Context, redis.Cmder) error { panic("no") }
	}))
	require.PanicsWithValue(t, "no", func() { _, _ = tier.Take(ctx, "a", 1) })
	for i := range 3 {
		got, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 99-i, got.Remaining)
	}
	awaitClosed(t, d)
}

// A panicking context does so where it is asked for its end.
type panicking struct{ context.Context }

func (panicking) Done() <-chan struct{} { panic("done") }

// TestLead_ContextPanics: the panic is the caller's, and the lane goes on.
func TestLead_ContextPanics(t *testing.T) {
	tier, d := leading(t, anyServer(t).addr, TierConfig{})
	require.PanicsWithValue(t, "done", func() { _, _ = tier.Take(panicking{ctx}, "a", 1) })
	l := tier.router.first
	l.mu.Lock()
	senders, failed := l.senders, l.breaker.failed
	l.mu.Unlock()
	require.Zero(t, senders)
	require.Zero(t, failed, "it says nothing of Redis")
	awaitClosed(t, d)
	callersLead(t, tier)
	got, from := takeFrom(t, tier, "a", 1)
	require.Equal(t, FromRedis, from)
	require.Equal(t, 99, got.Remaining)
	require.Equal(t, uint64(2), tier.Stats().Led)
}

// TestLead_Close: a tier that is closed waits for the caller that leads, and leaves neither a
// connection nor a goroutine.
func TestLead_Close(t *testing.T) {
	s := anyServer(t)
	p := newProxy(t, s.addr)
	client := newLeading(t, &redis.Options{Addr: p.addr()})
	before := runtime.NumGoroutine()
	tier, err := NewTier(newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), TierConfig{Replicas: 1, Budget: patient})
	require.NoError(t, err)
	callersLead(t, tier)
	d := directOf(tier)
	p.delay.Store(int64(50 * time.Millisecond))
	done := make(chan error)
	go func() {
		d, from, err := tier.TakeSource(ctx, "a", 1)
		assert.Equal(t, 99, d.Remaining)
		assert.Equal(t, FromRedis, from)
		done <- err
	}()
	await(t, "it leads", func() bool { return tier.Stats().Led == 1 })
	require.NoError(t, tier.Close(ctx))
	require.Zero(t, tier.router.first.senders, "it has been answered")
	require.NoError(t, <-done)
	require.Nil(t, directOf(tier))
	require.Error(t, d.conn.Ping(ctx).Err())
	_, err = tier.Take(ctx, "a", 1)
	require.ErrorIs(t, err, ErrClosed)
	p.cut(false)
	await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// TestLead_CloseLease: a lease that comes after the tier has been closed, to a caller that leads, is
// given back.
func TestLead_CloseLease(t *testing.T) {
	s := anyServer(t)
	p := newProxy(t, s.addr)
	tier, _ := leading(t, p.addr(), TierConfig{Lease: Lease{Max: 10, Life: 4 * patient}})
	takeFrom(t, tier, "a", 1)
	p.delay.Store(int64(50 * time.Millisecond))
	done := make(chan error)
	go func() {
		_, err := tier.Take(ctx, "a", 1)
		done <- err
	}()
	await(t, "it leads", func() bool { return tier.Stats().Led == 2 })
	require.NoError(t, tier.Close(ctx))
	require.NoError(t, <-done)
	st := tier.Stats()
	require.Equal(t, []uint64{1, 1}, []uint64{st.Lent, st.Returned})
	d, err := replicaOf(t, s.client, tier.shared).Peek(ctx, "a", 0)
	require.NoError(t, err)
	require.Equal(t, 98, d.Remaining)
}
