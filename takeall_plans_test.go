package sluice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTakeAll_OneKeyUnderTwoLimits: the limit of its first charge decides on the sum, though
// other keys stand between them, and however many charges there are.
func TestTakeAll_OneKeyUnderTwoLimits(t *testing.T) {
	forEveryLayout(t, func(t *testing.T, c Config) {
		per := func(n int) Limit { return Per(n, c.Limit.Period) }
		for _, others := range []int{0, 1, 30} {
			l, _ := newFrozen(t, c)
			k := l.Key("k")
			bring := func(n int) Key {
				with, err := k.WithLimit(per(n))
				require.NoError(t, err)
				return with
			}
			take := func(first, second Charge) (Decision, Decision, bool) {
				charges := []Charge{first}
				for i := range others {
					charges = append(charges, Charge{l.KeyUint64(uint64(i)), 1})
				}
				charges = append(charges, second)
				each := make([]Decision, len(charges))
				d := TakeAllInto(each, charges...)
				if !d.Allowed {
					require.Equal(t, 0, d.Denied)
				}
				return each[0], each[len(each)-1], d.Allowed
			}
			small, large := bring(10), bring(2000)
			for _, spent := range []int{0, 4} { // of a key that is not tracked, and of one that is
				if spent > 0 {
					require.True(t, k.AllowN(spent))
				}
				a, b, ok := take(Charge{small, 5}, Charge{large, 6})
				require.False(t, ok)
				require.Equal(t, 10, a.Limit)
				require.Equal(t, a, b)
				a, b, ok = take(Charge{large, 5}, Charge{small, 6})
				require.True(t, ok)
				require.Equal(t, Decision{Allowed: true, Limit: 2000, Remaining: 2000 - 11 - spent, ResetAfter: a.ResetAfter}, a)
				require.Equal(t, a, b)
				k.Reset()
			}
			a, b, ok := take(Charge{k, 5}, Charge{small, 6})
			require.True(t, ok)
			require.Equal(t, int(l.current.Load().burst)-11, a.Remaining)
			require.Equal(t, a, b)
			_, _, ok = take(Charge{small, 0}, Charge{k, 1})
			require.False(t, ok)
			require.NoError(t, k.SetLimit(per(12)))
			_, _, ok = take(Charge{k, 1}, Charge{large, 1})
			require.False(t, ok)
			_, _, ok = take(Charge{large, 1}, Charge{k, 1})
			require.True(t, ok)
		}
	})
}
