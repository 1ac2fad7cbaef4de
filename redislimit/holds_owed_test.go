package redislimit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// newOwedHolds is newHoldOutage for an algorithm, with a limit of 1,000 and one replica, so that the share is all of it.
func newOwedHolds(t *testing.T, a sluice.Algorithm) *holdOutage {
	s := anyServer(t)
	f := &holdOutage{proxy: newProxy(t, s.addr)}
	client := redis.NewClient(&redis.Options{Addr: f.proxy.addr(), MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	prefix := newPrefix()
	f.near = newStore(t, client, StoreConfig{Prefix: prefix, Budget: patient, Replicas: 1})
	f.far = newStore(t, s.client, StoreConfig{Prefix: prefix, Budget: patient, Replicas: 1})
	cfg := LimitConfig{Name: "a", Algorithm: a, Limit: sluice.Per(1000, 24_000*time.Hour), MaxHolds: 100, Exact: true}
	f.nearLimit, f.farLimit = limitOf(t, f.near, cfg), limitOf(t, f.far, cfg)
	holdNear(t, f, StoreCall{Key: "warm"}) // a connection, and the script
	return f
}

// holdNear makes a call of the near process.
func holdNear(t *testing.T, f *holdOutage, c StoreCall) StoreResult {
	c.Limit = f.nearLimit
	if c.Op == OpHold && c.TTL == 0 {
		c.TTL = time.Hour
	}
	return do(t, f.near, c)[0]
}

// gone makes the near process lose Redis, and find out.
func (f *holdOutage) gone(t *testing.T) {
	f.near.waits(quick)
	f.proxy.hole.Store(true)
	f.finds(t)
}

// late lets the answers come when the near process no longer waits for them.
func (f *holdOutage) late() {
	f.near.waits(quick)
	f.proxy.delay.Store(int64(400 * time.Millisecond))
}

func (f *holdOutage) finds(t *testing.T) {
	await(t, "Redis is not asked", func() bool {
		holdNear(t, f, StoreCall{Key: "other", Op: OpPeek})
		return f.near.Mode() == ModeDegraded
	})
}

// back lets the near process find Redis again, and waits until Redis has been told. The connections end first: a process that waits for
// late answers could find Redis again by one of these, and lose with it what it tells.
func (f *holdOutage) back(t *testing.T) {
	f.proxy.mend()
	f.near.waits(patient)
	await(t, "Redis is asked again", func() bool { return f.near.Mode() == ModeShared })
	f.told(t)
}

func (f *holdOutage) told(t *testing.T) {
	await(t, "Redis has been told", func() bool { return f.near.Stats().Owed == 0 && idle(f.near) })
}

// idle reports whether nothing is under way, nor waits to be told: a hold that has used nothing is owed no units.
func idle(s *Store) bool {
	l := s.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, holds := range l.untold {
		for _, of := range holds {
			if of.ended {
				return false
			}
		}
	}
	return l.senders+l.late+len(l.waiting)+len(l.open) == 0
}

// counts is how many units of a key count in Redis.
func (f *holdOutage) counts(t *testing.T, key string) int {
	return int(do(t, f.far, StoreCall{Limit: f.farLimit, Key: key, Op: OpPeek})[0].Count)
}

// eachHoldVariant runs a test of a process that loses Redis for each algorithm that has holds.
func eachHoldVariant(t *testing.T, test func(t *testing.T, f *holdOutage)) {
	t.Parallel() // it mostly waits
	anyServer(t)
	for _, a := range holdVariants {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newOwedHolds(t, a))
		})
	}
}

// TestHoldsOwed_Used: of a hold that is made and settled without Redis, Redis is told all that was used, also what was used beyond
// the hold.
func TestHoldsOwed_Used(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		f.gone(t)
		used := map[string]int{"above": 700, "below": 30, "all": 100, "nothing": 0, "beyond the limit": 1700}
		for key, n := range used {
			held := holdNear(t, f, StoreCall{Key: key, Op: OpHold, Cost: 100})
			require.NoError(t, held.Err)
			require.Equal(t, FromFallback, held.Source)
			require.NoError(t, holdNear(t, f, StoreCall{Key: key, Op: OpSettle, HoldID: held.HoldID, Cost: n}).Err)
		}
		f.back(t)
		for key, n := range used {
			require.Equal(t, n, f.counts(t, key), key)
		}
	})
}

// TestHoldsOwed_Open: a hold that is open when Redis comes back is one of Redis from then on: it can be extended, and settled by
// another process.
func TestHoldsOwed_Open(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		f.gone(t)
		for _, id := range []string{"far", "near", ""} {
			held := holdNear(t, f, StoreCall{Key: "a" + id, Op: OpHold, HoldID: id, Cost: 100})
			require.NoError(t, held.Err)
			again := holdNear(t, f, StoreCall{Key: "a" + id, Op: OpHold, HoldID: held.HoldID, Cost: 100})
			require.NoError(t, again.Err)
			require.True(t, again.Decision.Allowed)
			require.ErrorIs(t, holdNear(t, f, StoreCall{Key: "a" + id, Op: OpHold, HoldID: held.HoldID, Cost: 101}).Err, ErrOtherHold)
		}
		f.back(t)
		require.Equal(t, 100, f.counts(t, "anear"))
		require.Equal(t, 100, f.counts(t, "a"))
		r := holdNear(t, f, StoreCall{Key: "anear", Op: OpExtend, HoldID: "near", Cost: 20})
		require.NoError(t, r.Err)
		require.True(t, r.Decision.Allowed)
		require.NoError(t, holdNear(t, f, StoreCall{Key: "anear", Op: OpSettle, HoldID: "near", Cost: 50}).Err)
		require.ErrorIs(t, holdNear(t, f, StoreCall{Key: "anear", Op: OpSettle, HoldID: "near", Cost: 50}).Err, ErrNotHeld)
		require.Equal(t, 50, f.counts(t, "anear"))
		require.NoError(t, do(t, f.far, StoreCall{Limit: f.farLimit, Key: "afar", Op: OpSettle, HoldID: "far", Cost: 7})[0].Err)
		require.Equal(t, 7, f.counts(t, "afar"))
	})
}

// TestHoldsOwed_Late: a hold that Redis has made, but whose answer comes late, is settled once, and takes nothing of what others
// owe. It makes no difference whether the late answer comes before or after the settlement.
func TestHoldsOwed_Late(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		for _, c := range []struct {
			first bool // the late answer comes first
			id    string
			used  int
			want  int
		}{{false, "", 0, 300}, {false, "x", 0, 300}, {true, "x", 0, 300}, {true, "", 10, 310}, {false, "x", 650, 950}, {true, "", 650, 950}} {
			key := fmt.Sprint(c)
			f.late()
			held := holdNear(t, f, StoreCall{Key: key, Op: OpHold, HoldID: c.id, Cost: 600})
			require.NoError(t, held.Err)
			require.Equal(t, FromFallback, held.Source)
			f.finds(t)
			require.True(t, holdNear(t, f, StoreCall{Key: key, Cost: 300}).Decision.Allowed)
			if c.first {
				await(t, "the answer has come", func() bool {
					l := f.near.router.first
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.late == 0
				})
			}
			settled := holdNear(t, f, StoreCall{Key: key, Op: OpSettle, HoldID: held.HoldID, Cost: c.used})
			require.NoError(t, settled.Err)
			f.back(t)
			require.Equal(t, c.want, f.counts(t, key), "%+v", c)
			require.ErrorIs(t, do(t, f.far, StoreCall{Limit: f.farLimit, Key: key, Op: OpSettle, HoldID: held.HoldID, Cost: 1})[0].Err, ErrNotHeld)
		}
	})
}

// TestHoldsOwed_Lapse: a hold of the share that lapses has been spent, or comes back, and takes nothing of what others owe.
func TestHoldsOwed_Lapse(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		const soon = 100 * time.Millisecond
		inFlight := f.nearLimit.config.Algorithm == sluice.InFlight // its holds come back in any case
		spent := map[bool]int{true: 0, false: 100}[inFlight]
		f.late()
		holdNear(t, f, StoreCall{Key: "late and back", Op: OpHold, Cost: 100, TTL: soon, GiveBack: true})
		f.gone(t)
		holdNear(t, f, StoreCall{Key: "back", Op: OpHold, Cost: 100, TTL: soon, GiveBack: true})
		holdNear(t, f, StoreCall{Key: "spent", Op: OpHold, Cost: 100, TTL: soon})
		for _, key := range []string{"back", "spent", "late and back"} {
			require.True(t, holdNear(t, f, StoreCall{Key: key, Cost: 300}).Decision.Allowed)
		}
		time.Sleep(2 * soon)
		f.back(t)
		require.Equal(t, 300, f.counts(t, "back"))
		require.Equal(t, 300, f.counts(t, "late and back"))
		require.Equal(t, 300+spent, f.counts(t, "spent"))
	})
}

// TestHoldsOwed_Denied: what the share has admitted in the place of a late call is told to Redis if Redis has denied that call.
func TestHoldsOwed_Denied(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		far := func(c StoreCall) {
			c.Limit, c.HoldID, c.TTL = f.farLimit, "x", time.Hour
			require.NoError(t, do(t, f.far, c)[0].Err)
		}
		calls := map[string]StoreCall{"take": {Cost: 50}, "hold": {Op: OpHold, Cost: 50}, "together": {Cost: 50}}
		for key, c := range calls {
			far(StoreCall{Key: key, Op: OpHold, Cost: 990})
			f.late()
			c.Key, c.Limit = key, f.nearLimit
			if key == "together" {
				d, err := f.near.DoAll(ctx, []StoreCall{c}, make([]StoreResult, 1))
				require.NoError(t, err)
				require.True(t, d.Allowed)
			} else {
				r := holdNear(t, f, c)
				require.Equal(t, FromFallback, r.Source)
				require.True(t, r.Decision.Allowed)
			}
			c = StoreCall{Limit: f.farLimit, Key: key, Op: OpSettle, HoldID: "x"}
			require.NoError(t, do(t, f.far, c)[0].Err)
			f.near.waits(patient)
			f.proxy.delay.Store(0)
			f.told(t)
			require.Equal(t, 50, f.counts(t, key), key)
		}
	})
}

// owedOf is how many units of a key Redis has to be told of as a plain charge.
func (l *lane) owedOf(key string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.owed[key]
	if !ok {
		return 0
	}
	return o.left(l.core.micros(time.Now()))
}

// TestHoldsOwed_Windows: a hold that ends in a later window than it was made in takes nothing of what others owe in that window, whether it is
// settled or lapses; and what was used beyond the hold counts in the later one.
func TestHoldsOwed_Windows(t *testing.T) {
	for _, c := range []struct {
		why                 string
		held, used          int // used is -1 for a hold that lapses
		back                bool
		algorithm           sluice.Algorithm
		wantPlain, wantLate int64
	}{
		{"settled with nothing", 600, 0, false, sluice.FixedWindow, 500, 0},
		{"settled with less", 600, 100, false, sluice.FixedWindow, 500, 0},
		{"settled with more", 100, 400, false, sluice.FixedWindow, 800, 0},
		{"lapses and comes back", 600, -1, true, sluice.FixedWindow, 500, 0},
		{"lapses and has been spent", 600, -1, false, sluice.FixedWindow, 500, 0},
		{"settled with nothing", 400, 0, false, sluice.SlidingWindow, 500, 0},
		{"lapses and comes back", 400, -1, true, sluice.SlidingWindow, 500, 0},
		{"lapses and has been spent", 400, -1, false, sluice.SlidingWindow, 500 + 241, 0},
		{"comes back, of a bucket", 600, -1, true, sluice.TokenBucket, 500, 500},
	} {
		synctest.Test(t, func(t *testing.T) {
			fake := &fakeRedis{keys: map[string]*lentState{}, trip: func() time.Duration { return time.Minute }}
			client := fake.client()
			defer client.Close()
			store, err := NewStore(client, StoreConfig{Prefix: "p", Replicas: 1})
			require.NoError(t, err)
			limit, err := store.Limit(LimitConfig{Name: "a", Algorithm: c.algorithm, Limit: sluice.Per(1000, time.Hour), MaxHolds: 10})
			require.NoError(t, err)
			l, key := store.router.first, limit.keys.of("a")
			l.mu.Lock()
			l.breaker.open(time.Now())
			l.mu.Unlock()
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(59 * time.Minute))) // the end of a window
			held := do(t, store, StoreCall{Limit: limit, Key: "a", Op: OpHold, Cost: c.held, TTL: 20 * time.Minute, GiveBack: c.back})[0]
			require.NoError(t, held.Err)
			time.Sleep(10 * time.Minute)
			require.True(t, do(t, store, StoreCall{Limit: limit, Key: "a", Cost: 500})[0].Decision.Allowed)
			if c.used >= 0 {
				require.NoError(t, do(t, store, StoreCall{Limit: limit, Key: "a", Op: OpSettle, HoldID: held.HoldID, Cost: c.used})[0].Err)
			}
			time.Sleep(15 * time.Minute)
			l.mu.Lock()
			l.tellHolds(newBatch(time.Now(), 1), key)
			l.mu.Unlock()
			require.Empty(t, l.held, c.why)
			require.Equal(t, c.wantPlain, l.owedOf(key), "%s, %v", c.why, c.algorithm)
			time.Sleep(time.Hour)
			time.Sleep(time.Hour)
			require.Equal(t, c.wantLate, l.owedOf(key), "%s, %v", c.why, c.algorithm)
			l.mu.Lock()
			clear(l.owed)
			l.mu.Unlock()
			require.NoError(t, store.Close(ctx))
		})
	}
}

// TestHoldsOwed_Told: whatever becomes of the call that tells Redis of an owed charge, the charge counts.
func TestHoldsOwed_Told(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		l, key := f.near.router.first, f.nearLimit.keys.of("a")
		for _, c := range []StoreCall{
			{Op: OpHold, HoldID: "open", Cost: 600}, {Op: OpHold, HoldID: "open", Cost: 600}, {Op: OpHold, HoldID: "open", Cost: 601},
			{Op: OpHold, Cost: 1000}, {Op: OpSettle, HoldID: "none", Cost: 1}, {Op: OpExtend, HoldID: "open", Cost: 1000}, {Op: OpExtend, HoldID: "none", Cost: 1},
			{Cost: 1000}, {Op: OpPeek}, {Op: OpRefund, Cost: 0}, {Op: OpExtend, HoldID: "open"}, {Op: OpSettle, HoldID: "open", Cost: 600},
		} {
			before := f.counts(t, "a")
			l.mu.Lock()
			l.owedFrom = time.Now().Add(time.Hour)
			l.owe(f.nearLimit.plan.Load(), key, 7, time.Now())
			l.mu.Unlock()
			c.Key = "a"
			held := map[bool]int{true: 600}[c.HoldID == "open" && before == 0]
			require.Equal(t, FromRedis, max(FromRedis, holdNear(t, f, c).Source))
			require.Equal(t, before+held+7, f.counts(t, "a"), "%v %q", c.Op, c.HoldID)
			require.Empty(t, l.owed)
		}
	})
}

// TestHoldsOwed_Again: a hold of Redis that is made again without Redis, and settled, is settled in Redis. One that waits to be told is neither
// another one nor settled twice.
func TestHoldsOwed_Again(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		c := StoreCall{Key: "a", Op: OpHold, HoldID: "x", Cost: 100}
		require.Equal(t, FromRedis, holdNear(t, f, c).Source)
		f.gone(t)
		require.NoError(t, holdNear(t, f, c).Err)
		again := holdNear(t, f, c)
		require.NoError(t, again.Err)
		require.True(t, again.Again)
		require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpSettle, HoldID: "x", Cost: 30}).Err)
		require.ErrorIs(t, holdNear(t, f, StoreCall{Key: "a", Op: OpSettle, HoldID: "x", Cost: 40, Remember: time.Hour}).Err, ErrNotHeld)
		require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpSettle, HoldID: "x", Cost: 30, Remember: time.Hour}).Err)
		f.back(t)
		require.Equal(t, 30, f.counts(t, "a"))
	})
}

// TestHoldsOwed_Copies: a copy of the call that makes a hold, of an id that was made, holds nothing once the hold has ended: its process keeps
// a hold that may be on its way, and Redis the id of one that is settled with a Remember.
func TestHoldsOwed_Copies(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		l := f.near.router.first
		r := f.nearLimit.newHold(f.nearLimit.plan.Load(), &StoreCall{Limit: f.nearLimit, Key: "a", Op: OpHold, Cost: 100, TTL: time.Hour}).request
		g := &group{request: r, state: groupLate}
		_, err := l.hold(g, &r, false, nil)
		require.NoError(t, err)
		f.told(t)
		require.Equal(t, 100, f.counts(t, "a"))
		require.NotNil(t, f.near.laneOf(&r), "the first call may be on its way")
		require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpSettle, HoldID: r.id, Cost: 150}).Err)
		f.told(t)
		require.Nil(t, f.near.laneOf(&r))
		require.Equal(t, 150, f.counts(t, "a"))
		reply, err := f.near.link.run(ctx, r)
		require.NoError(t, err)
		require.EqualValues(t, 1, reply.admitted)
		require.Equal(t, 150, f.counts(t, "a"))
	})
}

// TestHoldsOwed_Room: of what has ended, or what Redis has, one makes room for another hold of the share; what was used stays owed.
func TestHoldsOwed_Room(t *testing.T) {
	f := newOwedHolds(t, sluice.FixedWindow)
	f.gone(t)
	f.near.core.maxKeys = 3
	for _, id := range []string{"1", "2", "3"} {
		require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpHold, HoldID: id, Cost: 10}).Err)
	}
	require.ErrorIs(t, holdNear(t, f, StoreCall{Key: "a", Op: OpHold, HoldID: "4", Cost: 10}).Err, ErrManyHolds)
	_, err := f.near.DoAll(ctx, []StoreCall{{Limit: f.nearLimit, Key: "a", Op: OpHold, HoldID: "4", Cost: 10, TTL: time.Hour}}, make([]StoreResult, 1))
	require.ErrorIs(t, err, ErrManyHolds)
	require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpSettle, HoldID: "2", Cost: 15}).Err)
	require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpHold, HoldID: "4", Cost: 10}).Err)
	f.back(t)
	require.Equal(t, 45, f.counts(t, "a"))
}

// TestHoldsOwed_Full: a hold of the share counts in Redis though others have taken the room for it meanwhile.
func TestHoldsOwed_Full(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		f.gone(t)
		held := holdNear(t, f, StoreCall{Key: "a", Op: OpHold, Cost: 100})
		require.NoError(t, held.Err)
		require.True(t, do(t, f.far, StoreCall{Limit: f.farLimit, Key: "a", Cost: 950})[0].Decision.Allowed)
		f.back(t)
		require.Equal(t, 1050, f.counts(t, "a"))
		require.NoError(t, holdNear(t, f, StoreCall{Key: "a", Op: OpSettle, HoldID: held.HoldID, Cost: 20}).Err)
		require.Equal(t, 970, f.counts(t, "a"))
	})
}

// TestHoldsOwed_Before: Redis is told of the holds and charges of a key before it is asked about it, one by one and together.
func TestHoldsOwed_Before(t *testing.T) {
	eachHoldVariant(t, func(t *testing.T, f *holdOutage) {
		l := f.near.router.first
		for _, key := range []string{"alone", "together"} {
			l.mu.Lock()
			l.owedFrom = time.Now().Add(time.Hour)
			l.owe(f.nearLimit.plan.Load(), f.nearLimit.keys.of(key), 300, time.Now())
			l.mu.Unlock()
			r := f.nearLimit.newHold(f.nearLimit.plan.Load(), &StoreCall{Limit: f.nearLimit, Key: key, Op: OpHold, HoldID: "x", Cost: 600, TTL: time.Hour}).request
			_, err := l.hold(nil, &r, false, nil)
			require.NoError(t, err)
			take := StoreCall{Limit: f.nearLimit, Key: key, Cost: 101}
			if key == "alone" {
				require.False(t, holdNear(t, f, take).Decision.Allowed)
			} else {
				d, err := f.near.DoAll(ctx, []StoreCall{take}, make([]StoreResult, 1))
				require.NoError(t, err)
				require.False(t, d.Allowed)
			}
			require.Equal(t, 900, f.counts(t, key))
		}
	})
}
