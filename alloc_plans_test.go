package sluice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAllocs_NoneWithLimitsOfKeys: neither for the keys that have one nor for others.
func TestAllocs_NoneWithLimitsOfKeys(t *testing.T) {
	skipUnderRace(t)
	for name, c := range everyFew {
		t.Run("layout="+name, func(t *testing.T) {
			l := mustNew(t, c)
			own, other, denied, free := l.Key("own"), l.Key("other"), l.Key("denied"), l.Key("free")
			for k, limit := range map[Key]Limit{own: Per(3, c.Limit.Period), denied: DenyAll, free: Unlimited} {
				require.NoError(t, k.SetLimit(limit))
			}
			own.Allow()
			other.Allow()
			requireNoAllocs(t, "string forms", func() { l.Allow("own"); l.AllowN("free", 5); l.Take("own", 2); l.Peek("other", 2) })
			for _, k := range []Key{own, other, denied, free} {
				for _, cost := range []int{1, 4, 0, -1, 1 << 30} {
					requireNoAllocs(t, "a call", func() { k.AllowN(cost); k.Take(cost); k.Peek(cost); k.AllowAt(c.Limit.Period.Nanoseconds(), cost) })
				}
				requireNoAllocs(t, "Refund and Reset", func() { k.Refund(1); k.Reset(); k.Allow() })
				requireNoAllocs(t, "Limit", func() { k.Limit() })
			}
			requireNoAllocs(t, "TakeAll", func() {
				TakeAll(Charge{own, 1}, Charge{other, 1})
				TakeAll(Charge{free, 1}, Charge{other, 1}, Charge{own, 1}, Charge{denied, 1})
				own.Reset()
				other.Reset()
			})
		})
	}
}

// TestPlans_OthersDoNotLookForAnOwner: a call for a tracked key that has no limit of its
// own asks nobody whose key it is.
func TestPlans_OthersDoNotLookForAnOwner(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		l, _ := newFrozen(t, c)
		burst := int(l.policyOf(0).burst)
		require.True(t, l.Allow("k"))
		require.Nil(t, l.plans.Load(), "without limits of keys there is no map to look into")
		require.NoError(t, l.SetKeyLimit("own", Per(3, c.Limit.Period)))
		l.shardOf(l.Key("k").id).cells.Store(&cellTable{}) // which a look would panic on
		l.shardOf(l.Key("own").id).cells.Store(&cellTable{})
		require.True(t, l.AllowN("k", burst-2))
		require.True(t, l.Take("k", 1).Allowed)
		require.False(t, l.Allow("k"))
		require.False(t, l.Take("k", 1).Allowed)
		l.Key("k").AllowAt(start.UnixNano(), burst)
		require.Panics(t, func() { l.Allow("own") })
	})
}
