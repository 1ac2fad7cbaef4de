package redislimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// BenchmarkStore_Limits compares a call that three limits judge: one after another, by a Tier each; by Do, in one pipeline; by
// DoAll, in one script; and one limit alone. The ratios count.
func BenchmarkStore_Limits(b *testing.B) {
	server := anyServer(b)
	s := newStore(b, server.client, StoreConfig{})
	var tiers []*Tier
	var calls []StoreCall
	for _, name := range []string{"a", "b", "c"} {
		limit := sluice.PerHour(1_000_000_000)
		calls = append(calls, StoreCall{Limit: limitOf(b, s, LimitConfig{Name: name, Limit: limit}), Key: "k", Cost: 1})
		l, err := New(server.client, Config{Limit: limit, Prefix: newPrefix()})
		require.NoError(b, err)
		t, err := NewTier(l, TierConfig{Replicas: 1, Budget: patient})
		require.NoError(b, err)
		b.Cleanup(func() { t.Close(ctx) })
		tiers = append(tiers, t)
	}
	out := make([]StoreResult, 3)
	for _, c := range []struct {
		name string
		f    func() error
	}{
		{"limits=1", func() error { return s.Do(ctx, calls[:1], out[:1]) }},
		{"limits=3/Do", func() error { return s.Do(ctx, calls, out) }},
		{"limits=3/DoAll", func() error { _, err := s.DoAll(ctx, calls, out); return err }},
		{"limits=3/tiers", func() error {
			for _, t := range tiers {
				if _, err := t.Take(ctx, "k", 1); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, c.f())
			}
		})
	}
}

// BenchmarkStore_Holds compares a hold with a take of the same limit, on one server, and a hold and its settlement. The ratios
// count; the calls take turns.
func BenchmarkStore_Holds(b *testing.B) {
	server := anyServer(b)
	s := newStore(b, server.client, StoreConfig{})
	limit := sluice.PerHour(1_000_000_000)
	plain := limitOf(b, s, LimitConfig{Name: "plain", Limit: limit, Exact: true})
	holds := limitOf(b, s, LimitConfig{Name: "holds", Limit: limit, Exact: true, MaxHolds: maxHolds})
	out := make([]StoreResult, 1)
	call := func(c StoreCall) StoreResult {
		require.NoError(b, s.Do(ctx, []StoreCall{c}, out))
		require.NoError(b, out[0].Err)
		return out[0]
	}
	var took [4]time.Duration
	turn := func(i int, f func()) {
		began := time.Now()
		f()
		took[i] += time.Since(began)
	}
	for b.Loop() {
		turn(0, func() { call(StoreCall{Limit: plain, Key: "k", Cost: 1}) })
		turn(1, func() { call(StoreCall{Limit: holds, Key: "k", Cost: 1}) })
		var r StoreResult
		turn(2, func() { r = call(StoreCall{Limit: holds, Key: "k", Cost: 1, Op: OpHold, TTL: time.Minute}) })
		turn(3, func() { call(StoreCall{Limit: holds, Key: "k", Op: OpSettle, HoldID: r.HoldID, Cost: 1}) })
	}
	for i, name := range []string{"take", "take-with-holds", "hold", "settle"} {
		b.ReportMetric(float64(took[i])/float64(took[0]), name+"/take")
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N), "ns/take")
}
