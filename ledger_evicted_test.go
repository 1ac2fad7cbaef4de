package sluice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCancel_AfterAnEvictionMintsNothing: what a reservation has charged has gone with the
// key, whatever the key that comes back is charged with.
func TestCancel_AfterAnEvictionMintsNothing(t *testing.T) {
	recharges := map[string]func(k Key, cost int) bool{
		"Allow":   Key.AllowN,
		"Take":    func(k Key, cost int) bool { return k.Take(cost).Allowed },
		"TakeAll": func(k Key, cost int) bool { return TakeAll(Charge{k, cost}).Allowed },
		"Wait":    func(k Key, cost int) bool { return k.Wait(t.Context(), cost) == nil },
		"Reserve": func(k Key, cost int) bool { r, err := k.Reserve(cost, 0); return err == nil && r.Delay() == 0 },
	}
	for _, a := range bucketAlgorithms {
		for name, recharge := range recharges {
			l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), MaxKeys: 1, Shards: 1})
			k := l.Key("k")
			r := mustReserve(t, k, 6)
			require.True(t, l.Allow("other"))
			require.Equal(t, uint64(1), l.Stats().Evicted)
			require.True(t, recharge(k, 10), "%v: a fresh key", a)
			r.Cancel()
			require.False(t, k.Allow(), "%v, recharged by %s: units that nobody has been charged", a, name)
		}
	}
}

// TestCancel_AfterAnEvictionOfAnother: the receipts of the key that has come back are good.
func TestCancel_AfterAnEvictionOfAnother(t *testing.T) {
	for _, a := range bucketAlgorithms {
		l, _ := newFrozen(t, Config{Algorithm: a, Limit: PerSecond(1).WithBurst(10), MaxKeys: 1, Shards: 1})
		k := l.Key("k")
		old := mustReserve(t, k, 2)
		require.True(t, l.Allow("other"))
		require.True(t, k.AllowN(5))
		r := mustReserve(t, k, 3)
		old.Cancel()
		require.Equal(t, 8*sec, k.Peek(0).ResetAfter, "%v", a)
		r.Settle(1)
		require.Equal(t, 6*sec, k.Peek(0).ResetAfter, "%v", a)
	}
}
