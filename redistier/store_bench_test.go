package redistier

import (
	"testing"

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
