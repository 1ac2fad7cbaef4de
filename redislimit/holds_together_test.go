package redislimit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestHolds_Together: a hold of several keys is made, extended and settled for all of them or for none, and repeated with the
// same outcome.
func TestHolds_Together(t *testing.T) {
	eachServer(t, func(t *testing.T, server *server) {
		for _, a := range holdVariants {
			s := newStore(t, server.client, StoreConfig{})
			l := limitOf(t, s, LimitConfig{Name: "l", Algorithm: a, Limit: sluice.Per(100, 1000*24*time.Hour), Exact: true, MaxHolds: 10})
			each := func(op Op, a, b int, change func(*StoreCall)) (sluice.AllDecision, error) {
				calls := []StoreCall{{Limit: l, Key: "a", Op: op, HoldID: "x", Cost: a}, {Limit: l, Key: "b", Op: op, HoldID: "x", Cost: b}}
				for i := range calls {
					if op == OpHold {
						calls[i].TTL = time.Hour
					}
					if change != nil {
						change(&calls[i])
					}
				}
				return s.DoAll(ctx, calls, make([]StoreResult, 2))
			}
			wants := func(x, y int, why string) {
				r := do(t, s, StoreCall{Limit: l, Key: "a", Op: OpPeek}, StoreCall{Limit: l, Key: "b", Op: OpPeek})
				require.Equal(t, []int{x, y}, []int{r[0].Decision.Remaining, r[1].Decision.Remaining}, "%v: %s", a, why)
			}
			made := func(d sluice.AllDecision, err error) {
				t.Helper()
				require.NoError(t, err)
				require.True(t, d.Allowed, "%v", a)
			}
			remember := func(c *StoreCall) { c.Remember = time.Hour }
			made(each(OpHold, 50, 60, nil))
			made(each(OpHold, 50, 60, nil))
			wants(50, 40, "held")
			_, err := each(OpHold, 50, 61, nil)
			require.ErrorIs(t, err, ErrOtherHold)
			if a != sluice.InFlight { // whose holds always come back
				_, err = each(OpHold, 50, 60, func(c *StoreCall) { c.GiveBack = true })
				require.ErrorIs(t, err, ErrOtherHold)
			}
			d, err := each(OpExtend, 10, 41, nil)
			require.NoError(t, err)
			require.Equal(t, 1, d.Denied)
			wants(50, 40, "cut")
			made(each(OpExtend, 10, 40, func(c *StoreCall) { c.TTL = time.Hour }))
			wants(40, 0, "extended")
			_, err = each(OpSettle, 0, 0, func(c *StoreCall) {
				if c.Key == "b" {
					c.HoldID = "unknown"
				}
			})
			require.ErrorIs(t, err, ErrNotHeld)
			wants(40, 0, "one is not held")
			made(each(OpSettle, 5, 110, remember))
			wants(95, 0, "settled")
			made(each(OpSettle, 5, 110, remember))
			wants(95, 0, "settled again")
			_, err = each(OpSettle, 6, 110, remember)
			require.ErrorIs(t, err, ErrNotHeld)
			_, err = each(OpSettle, 5, 110, nil)
			require.ErrorIs(t, err, ErrNotHeld)
			_, err = each(OpExtend, 1, 0, nil)
			require.ErrorIs(t, err, ErrNotHeld)
			made(each(OpHold, 50, 60, nil))
			wants(95, 0, "held again after it was settled")
			_, err = each(OpHold, 51, 60, nil)
			require.ErrorIs(t, err, ErrOtherHold)
			require.ErrorContains(t, func() error {
				out := make([]StoreResult, 1)
				return errors.Join(s.Do(ctx, []StoreCall{{Limit: l, Key: "a", Op: OpExtend, HoldID: "x", Remember: 1}}, out), out[0].Err)
			}(), "Remember of extend")
		}
	})
}

// TestHolds_Over: what is held whether there is room or not is held, and settled as any other hold.
func TestHolds_Over(t *testing.T) {
	for _, a := range holdVariants {
		s := newStore(t, anyServer(t).client, StoreConfig{})
		l := limitOf(t, s, LimitConfig{Name: "l", Algorithm: a, Limit: sluice.Per(100, 1000*24*time.Hour), Exact: true, MaxHolds: 10})
		call := func(op Op, id string, cost int) {
			c := StoreCall{Limit: l, Key: "a", Op: op, HoldID: id, Cost: cost, Over: true}
			if op == OpHold {
				c.TTL = time.Hour
			}
			require.NoError(t, do(t, s, c)[0].Err, "%v", a)
		}
		count := func() int64 { return do(t, s, StoreCall{Limit: l, Key: "a", Op: OpPeek})[0].Count }
		for i, n := range []int{60, 41, 150} {
			call(OpHold, fmt.Sprint(i), n)
		}
		call(OpExtend, "0", 1)
		require.EqualValues(t, 252, count(), "%v", a)
		d, err := s.DoAll(ctx, []StoreCall{{Limit: l, Key: "a", Op: OpHold, HoldID: "3", Cost: 200, TTL: time.Hour, Over: true}}, make([]StoreResult, 1))
		require.NoError(t, err)
		require.True(t, d.Allowed)
		for i := range 4 {
			require.NoError(t, do(t, s, StoreCall{Limit: l, Key: "a", Op: OpSettle, HoldID: fmt.Sprint(i), Cost: 20})[0].Err)
		}
		require.EqualValues(t, 80, count(), "%v", a)
	}
}
