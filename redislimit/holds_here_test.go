package redislimit

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// An away is a process that does not ask Redis, in a bubble of testing/synctest.
type away struct {
	*testing.T
	*Store
	limit *StoreLimit
	lane  *lane
}

// whileAway runs a test of a process that does not ask Redis, with a limit of 1,000 an hour, all of which is its share.
func whileAway(t *testing.T, algorithm sluice.Algorithm, test func(a *away)) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeRedis{keys: map[string]*lentState{}, trip: func() time.Duration { return time.Minute }}
		client := fake.client()
		defer client.Close()
		store, err := NewStore(client, StoreConfig{Prefix: "p", Replicas: 1})
		require.NoError(t, err)
		limit, err := store.Limit(LimitConfig{Name: "a", Algorithm: algorithm, Limit: sluice.Per(1000, time.Hour), MaxHolds: 10_000, Exact: true})
		require.NoError(t, err)
		a := &away{t, store, limit, store.router.first}
		a.lane.mu.Lock()
		a.lane.breaker.open(time.Now())
		a.lane.mu.Unlock()
		test(a)
		a.lane.retire()
		require.NoError(t, store.Close(ctx))
	})
}

// call returns a call of the key a.
func (a *away) call(op Op, id string, cost int) StoreCall {
	c := StoreCall{Limit: a.limit, Key: "a", Op: op, HoldID: id, Cost: cost}
	if op == OpHold {
		c.TTL = 24 * time.Hour
	}
	return c
}

func (a *away) made(op Op, id string, cost int) StoreResult {
	a.Helper()
	return a.do(a.call(op, id, cost))
}

func (a *away) do(c StoreCall) StoreResult {
	a.Helper()
	r := do(a.T, a.Store, c)[0]
	require.NoError(a, r.Err)
	return r
}

// held is the hold of an id.
func (a *away) held(id string) *localHold {
	return a.lane.held[a.limit.keys.of("a")][id]
}

// TestHoldsHere_None: a limit of 0 denies a hold of any id, also beside limits that have room.
func TestHoldsHere_None(t *testing.T) {
	whileAway(t, sluice.FixedWindow, func(a *away) {
		none, err := a.Limit(LimitConfig{Name: "none", Limit: sluice.DenyAll, MaxHolds: 10})
		require.NoError(t, err)
		never, over := a.call(OpHold, "x", 1), a.call(OpHold, "x", 1)
		never.Limit, over.Override = none, sluice.Per(0, time.Hour)
		for _, c := range []StoreCall{never, over} {
			first := a.call(OpHold, "first", 1)
			first.Key = "b"
			out := make([]StoreResult, 2)
			d, err := a.DoAll(ctx, []StoreCall{first, c}, out)
			require.NoError(t, err)
			require.Equal(t, 1, d.Denied)
			require.Equal(t, sluice.Never, out[1].Decision.RetryAfter)
			for _, holds := range a.lane.held {
				require.NotContains(t, holds, "x")
				require.NotContains(t, holds, "first")
			}
			for _, over := range []bool{true, false} {
				c.HoldID, c.Over, c.OrNone = fmt.Sprint(over), over, !over
				d, err = a.DoAll(ctx, []StoreCall{c}, out[:1])
				require.NoError(t, err)
				require.Equal(t, []bool{true, over}, []bool{d.Allowed, out[0].Decision.Allowed})
				c := c
				c.Op, c.Over, c.OrNone, c.TTL = OpSettle, false, false, 0
				require.NoError(t, do(t, a.Store, c)[0].Err)
			}
		}
	})
}

// TestHoldsHere_Over: an open hold of a window that is over is neither looked at by each call, nor owed, nor told later on.
func TestHoldsHere_Over(t *testing.T) {
	whileAway(t, sluice.FixedWindow, func(a *away) {
		for i := range 100 {
			a.made(OpHold, fmt.Sprint(i), 5)
		}
		require.EqualValues(t, 500, a.Stats().Owed)
		time.Sleep(2 * time.Hour)
		require.Zero(t, a.Stats().Owed)
		l := a.lane
		l.mu.Lock()
		l.breaker = breaker{}
		require.Nil(t, l.take())
		require.Empty(t, l.untold)
		l.breaker.open(time.Now())
		l.mu.Unlock()
		require.Len(t, l.held[a.limit.keys.of("a")], 100)
		a.made(OpSettle, "7", 8)
		require.EqualValues(t, 3, a.Stats().Owed, "what was used beyond the hold is of this window")
		l.mu.Lock()
		l.tellHolds(newBatch(time.Now(), 1), a.limit.keys.of("a"))
		l.mu.Unlock()
		require.Nil(t, a.held("7"))
		require.EqualValues(t, 3, l.owedOf(a.limit.keys.of("a")))
	})
}

// TestHoldsHere_Refused: Redis is told again of a hold that it has refused, less and less often; another lane tells of it at once.
func TestHoldsHere_Refused(t *testing.T) {
	whileAway(t, sluice.TokenBucket, func(a *away) {
		a.made(OpHold, "x", 5)
		l, of := a.lane, a.held("x")
		tell := func() (told bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			b := newBatch(time.Now(), 1)
			l.tellHolds(b, of.key)
			for _, g := range b.groups {
				l.heardOf(g, &scheduled{reply: reply{admitted: saysManyHolds}}, time.Now())
			}
			clear(l.open)
			l.open = l.open[:0]
			return len(b.groups) > 0
		}
		for _, pause := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			require.True(t, tell())
			time.Sleep(time.Duration(pause)*time.Second - time.Millisecond)
			require.False(t, tell(), pause)
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		require.True(t, tell())
		_, held := l.retire()
		l.inheritHold(held[0])
		require.True(t, tell())
	})
}

// TestHoldsHere_Ended: the id of a hold that has ended admits nothing: with Once it is refused, and so is another hold, and one of which this
// process knows only the settlement.
func TestHoldsHere_Ended(t *testing.T) {
	whileAway(t, sluice.TokenBucket, func(a *away) {
		a.made(OpHold, "x", 100)
		a.made(OpSettle, "x", 100)
		a.made(OpSettle, "unknown", 100)
		once := a.call(OpHold, "x", 100)
		once.Once = true
		other, unknown := a.call(OpHold, "x", 101), a.call(OpHold, "unknown", 5000)
		other.Once = true
		for _, c := range []struct {
			call StoreCall
			want error
		}{{once, ErrEndedHold}, {other, ErrOtherHold}, {unknown, ErrEndedHold}} {
			require.ErrorIs(t, do(t, a.Store, c.call)[0].Err, c.want)
			_, err := a.DoAll(ctx, []StoreCall{c.call}, make([]StoreResult, 1))
			require.ErrorIs(t, err, c.want)
		}
		require.True(t, a.made(OpHold, "x", 100).Again, "as in Redis")
	})
}

// TestHoldsHere_Pass: what needs no room is not denied by a full share: a hold of no units, one with Over, and one with OrNone.
func TestHoldsHere_Pass(t *testing.T) {
	for _, together := range []bool{false, true} {
		whileAway(t, sluice.TokenBucket, func(a *away) {
			hold := func(c StoreCall) StoreResult {
				a.Helper()
				if !together {
					return a.do(c)
				}
				take, out := a.call(OpTake, "", 1), make([]StoreResult, 2)
				take.Key = "other"
				d, err := a.DoAll(ctx, []StoreCall{take, c}, out)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return out[1]
			}
			a.made(OpTake, "", 1000)
			require.True(t, hold(a.call(OpHold, "nothing", 0)).Decision.Allowed)
			over, none := a.call(OpHold, "over", 50), a.call(OpHold, "none", 50)
			over.Over, none.OrNone = true, true
			r := hold(over)
			require.True(t, r.Decision.Allowed)
			require.Equal(t, []int{50, 50}, []int{r.Held, int(a.held("over").n)})
			r = hold(none)
			require.False(t, r.Decision.Allowed)
			require.Equal(t, []int{0, 0}, []int{r.Held, int(a.held("none").n)})
			require.True(t, hold(none).Again)
			told, ok := a.lane.holdCall(a.held("none"), time.Now())
			require.True(t, ok)
			require.Equal(t, []int64{50, flagOrNone}, []int64{told.n, int64(told.flags & (flagOrNone | flagOver))}, "Redis may have room, and is to know the call")
			require.Equal(t, 51*3600*time.Millisecond, a.made(OpPeek, "", 1).Decision.RetryAfter)
			require.Zero(t, a.made(OpSettle, "none", 7).Held)
			require.Equal(t, 50, a.made(OpSettle, "over", 7).Held)
		})
	}
}

// TestHoldsHere_Returning: while Redis has only just come back, what needs no room is not denied by a full share either, which gives nothing
// back that it has not been charged.
func TestHoldsHere_Returning(t *testing.T) {
	f := newOwedHolds(t, sluice.TokenBucket)
	holdNear(t, f, StoreCall{Key: "a", Op: OpHold, HoldID: "first", Cost: 900})
	left := func() int { return f.nearLimit.named.subject("a").share(f.nearLimit.plan.Load()).Peek(0).Remaining }
	f.nearLimit.named.subject("a").share(f.nearLimit.plan.Load()).TakeUpTo(1000)
	f.near.router.first.setReturning(true)
	for i, c := range []StoreCall{{Op: OpHold}, {Op: OpHold, Cost: 50, OrNone: true}, {Op: OpHold, Cost: 200, Over: true}, {Op: OpExtend}, {Op: OpHold, Cost: 900}} {
		c.Key, c.HoldID = "a", fmt.Sprint(i)
		if c.Cost == 900 || c.Op == OpExtend {
			c.HoldID = "first"
		}
		if c.Op == OpHold {
			c.TTL = time.Hour
		}
		c.Limit = f.nearLimit
		if c.Cost != 900 { // which the share does deny
			require.Equal(t, FromRedis, holdNear(t, f, c).Source, "%+v", c)
		}
		c.Over = c.Over || c.Cost == 900
		out := make([]StoreResult, 1)
		d, err := f.near.DoAll(ctx, []StoreCall{c}, out)
		require.NoError(t, err)
		require.True(t, d.Allowed, "%+v", c)
		require.Equal(t, FromRedis, out[0].Source, "%+v", c)
		if c.OrNone {
			require.Zero(t, left())
		}
	}
	none, unknown := StoreCall{Limit: f.nearLimit, Key: "b", Op: OpHold, HoldID: "x", Cost: 50, TTL: time.Hour, OrNone: true}, StoreCall{Limit: f.nearLimit, Key: "a", Op: OpExtend, HoldID: "unknown"}
	share := f.nearLimit.named.subject("b").share(f.nearLimit.plan.Load())
	share.TakeUpTo(1000)
	_, err := f.near.DoAll(ctx, []StoreCall{none, unknown}, make([]StoreResult, 2))
	require.ErrorIs(t, err, ErrNotHeld)
	require.Zero(t, share.Peek(0).Remaining)
	f.near.router.first.setReturning(false)
}

// TestHoldsHere_Sample: where there is no room, a hold looks at a few holds, whatever their keys are.
func TestHoldsHere_Sample(t *testing.T) {
	whileAway(t, sluice.TokenBucket, func(a *away) {
		a.Store.core.maxKeys = 1000
		for i := range 999 {
			a.made(OpHold, fmt.Sprint(i), 1)
		}
		a.made(OpHold, "ended", 1)
		of, looked := a.held("ended"), 0
		for range 1000 { // each look finds the one that has ended with odds of 8 in 1,000
			a.lane.mu.Lock()
			of.ended = true
			a.lane.ended++
			if a.lane.hasRoom(time.Now()) {
				looked++
				of.ended = false
				a.lane.keep(of)
			} else {
				of.ended = false
				a.lane.ended--
			}
			a.lane.mu.Unlock()
		}
		require.Less(t, looked, 500)
	})
}

// TestHoldsHere_All: settlements of holds of the share are made together or not at all, and say why not.
func TestHoldsHere_All(t *testing.T) {
	whileAway(t, sluice.TokenBucket, func(a *away) {
		a.made(OpHold, "x", 100)
		a.made(OpHold, "y", 100)
		a.made(OpSettle, "y", 5)
		both := func(y int) ([]StoreResult, error) {
			calls, out := []StoreCall{a.call(OpSettle, "x", 1), a.call(OpSettle, "y", y)}, make([]StoreResult, 2)
			calls[0].Remember, calls[1].Remember = time.Hour, time.Hour
			d, err := a.DoAll(ctx, calls, out)
			require.Equal(t, err == nil, d.Allowed)
			return out, err
		}
		_, err := both(6)
		require.ErrorIs(t, err, ErrNotHeld)
		require.False(t, a.held("x").ended)
		out, err := both(5)
		require.NoError(t, err)
		require.Equal(t, []bool{false, true}, []bool{out[0].Again, out[1].Again})
		require.True(t, a.held("x").ended)
	})
}

// TestHoldsHere_Raced: a settlement says how much was held though the hold is dropped at that instant, which -race would tell.
func TestHoldsHere_Raced(t *testing.T) {
	whileAway(t, sluice.FixedWindow, func(a *away) {
		for i := range 100 {
			a.made(OpHold, fmt.Sprint(i), 5)
		}
		time.Sleep(2 * time.Hour)
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() { require.Equal(t, 5, a.made(OpSettle, fmt.Sprint(i), 8).Held) })
			group.Go(func() {
				a.lane.mu.Lock()
				defer a.lane.mu.Unlock()
				a.lane.tellHolds(newBatch(time.Now(), 1), a.limit.keys.of("a"))
			})
		}
		group.Wait()
	})
}

// TestHoldsHere_Twice: of a hold that two calls make at once, the share is charged once.
func TestHoldsHere_Twice(t *testing.T) {
	whileAway(t, sluice.TokenBucket, func(a *away) {
		call := a.call(OpHold, "x", 100)
		for i := range 2 {
			all := together{store: a.Store, calls: []StoreCall{call}, out: make([]StoreResult, 1), denied: -1}
			require.NoError(t, all.begin())
			require.True(t, all.withoutRedis())
			require.NoError(t, all.holdHere(0, asked{lane: a.lane}))
			require.Equal(t, i == 1, all.out[0].Again)
		}
		require.EqualValues(t, 100, a.made(OpPeek, "", 0).Count)
	})
}

// TestHoldsHere_Kept: a hold of two limits, of which one is over with its window and the other one has been told to Redis, is settled, and
// not in part.
func TestHoldsHere_Kept(t *testing.T) {
	f := newOwedHolds(t, sluice.TokenBucket)
	window := limitOf(t, f.near, LimitConfig{Name: "w", Algorithm: sluice.FixedWindow, Limit: sluice.Per(1000, 24_000*time.Hour), MaxHolds: 10, Exact: true})
	calls := func(op Op, cost int) []StoreCall {
		c := []StoreCall{{Limit: f.nearLimit, Key: "a", Op: op, HoldID: "x", Cost: cost}, {Limit: window, Key: "a", Op: op, HoldID: "x", Cost: cost}}
		if op == OpHold {
			c[0].TTL, c[1].TTL = time.Hour, time.Hour
		}
		return c
	}
	all := func(c ...StoreCall) error {
		d, err := f.near.DoAll(ctx, c, make([]StoreResult, len(c)))
		require.Equal(t, err == nil, d.Allowed)
		return err
	}
	f.gone(t)
	require.NoError(t, all(calls(OpHold, 100)...))
	l := f.near.router.first
	of := l.held[window.keys.of("a")]["x"]
	l.mu.Lock()
	of.made = of.made.Add(-3 * 24_000 * time.Hour)
	l.mu.Unlock()
	f.back(t)
	require.Nil(t, l.held[f.nearLimit.keys.of("a")])
	require.Equal(t, 100, f.counts(t, "a"))
	settle := calls(OpSettle, 30)
	unknown := settle[0]
	unknown.HoldID = "unknown"
	require.ErrorIs(t, all(unknown, settle[1]), ErrNotHeld)
	require.False(t, of.ended)
	require.NoError(t, all(settle...))
	require.True(t, of.ended)
	require.Equal(t, 30, f.counts(t, "a"))
	f.told(t)

	holdNear(t, f, StoreCall{Key: "b", Op: OpHold, HoldID: "told", Cost: 100}) // in Redis: it was told just now
	told := StoreCall{Limit: f.nearLimit, Key: "b", Op: OpSettle, HoldID: "told", Cost: 20}
	late := together{store: f.near, calls: []StoreCall{told}, out: make([]StoreResult, 1), denied: -1}
	require.NoError(t, late.begin())
	require.NoError(t, late.settleKept(ctx, late.work))
	require.Equal(t, 20, f.counts(t, "b"))
}

// TestHoldsHere_Undecided: calls that nobody decides are an error, also if they could be decided an instant later.
func TestHoldsHere_Undecided(t *testing.T) {
	whileAway(t, sluice.TokenBucket, func(a *away) {
		call := a.call(OpTake, "", 100)
		all := together{store: a.Store, calls: []StoreCall{call}, out: make([]StoreResult, 1), denied: -1}
		require.NoError(t, all.begin())
		require.ErrorIs(t, a.unanswered(errLate, &all.work[0]), ErrUnavailable)
		require.Zero(t, a.made(OpPeek, "", 0).Count)
	})
}
