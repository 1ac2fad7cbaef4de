package redislimit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A standby is what a replica has of a key with holds: its three values, as they were when it got the last write.
type standby struct {
	values  map[string]string
	charged int // that of the failover, by then
}

func standbyOf(t testing.TB, client redis.UniversalClient, key string) standby {
	r := standby{values: map[string]string{}}
	holds, times := holdNames(key)
	for _, name := range []string{key, holds, times} {
		value, err := client.Dump(ctx, name).Result()
		if err != redis.Nil {
			require.NoError(t, err)
		}
		r.values[name] = value
	}
	return r
}

// takeOver makes the server what it is when the replica has taken the place of its primary.
func (r standby) takeOver(t testing.TB, client redis.UniversalClient) {
	for name, value := range r.values {
		if value == "" {
			require.NoError(t, client.Del(ctx, name).Err())
		} else {
			require.NoError(t, client.RestoreReplace(ctx, name, time.Hour, value).Err())
		}
	}
}

// A heldNow is a hold as its caller knows it, whatever Redis has lost.
type heldNow struct {
	total int
	ends  int64
	back  bool
}

// A failover is callers of a key whose server is replaced now and then by a replica that was behind, or loses its data. It counts
// what they use and hold: a caller whose settlement is ErrNotHeld has still used what it says.
type failover struct {
	*holdTracer
	rng      *rand.Rand
	open     map[string]*heldNow
	settled  []StoreCall // to be sent again
	standbys []standby
	used     int          // units used for good
	charged  int          // units that were admitted, in all, and those that settlements have kept from coming back
	lost     int          // of them, those that a replica had not got when it took over, or that were charged while any knew more
	last     int          // the process that has made the last call, and has seen all
	knows    map[int]bool // processes that have seen all before a loss, and have not called since
}

func newFailover(t *testing.T, s *server, rng *rand.Rand, a sluice.Algorithm, processes int) *failover {
	cfg := LimitConfig{Algorithm: a, Limit: sluice.Per(100, 2400*time.Hour), MaxHolds: 1000} // nothing comes back meanwhile
	return &failover{holdTracer: newHoldTracer(t, s, cfg, processes), rng: rng, open: map[string]*heldNow{}, knows: map[int]bool{}}
}

// charge counts units that have been admitted. Those that are charged before Redis is told of others are not added to them.
func (f *failover) charge(n int) {
	f.charged += n
	if len(f.knows) > 0 {
		f.lost += n
	}
}

// live is the units that are used, or on hold.
func (f *failover) live() int {
	n := f.used
	for _, id := range slices.Collect(maps.Keys(f.open)) {
		h := f.open[id]
		if h.ends <= f.now {
			delete(f.open, id)
			if h.back {
				continue
			}
			f.used += h.total
		}
		n += h.total
	}
	return n
}

func (f *failover) replicate(s *server) {
	r := standbyOf(f, s.client, f.limits[0].keys.of("a"))
	r.charged = f.charged
	f.standbys = append(f.standbys, r)
}

func (f *failover) failOver(s *server) {
	i := max(0, len(f.standbys)-1-f.rng.IntN(3))
	r := f.standbys[i]
	f.standbys = f.standbys[:i+1]
	r.takeOver(f, s.client)
	f.lost += f.charged - r.charged
	for j := range f.standbys {
		f.standbys[j].charged += f.charged - r.charged // these are lost already
	}
	f.log = append(f.log, fmt.Sprintf("a replica takes over, %d units lost", f.charged-r.charged))
}

// lose lets Redis lose the key. If there are several processes, one that is new settles often then.
func (f *failover) lose(s *server) {
	f.forget(s, "a")
	f.now += 10_000
	f.log = append(f.log, "all is lost")
	f.standbys = nil
	f.replicate(s)
	if len(f.stores) == 1 {
		return
	}
	f.knows[f.last] = true
	if len(f.stores) < 6 {
		f.join()
	}
	for i := range f.rng.IntN(30) {
		c := StoreCall{Op: OpHold, HoldID: fmt.Sprint("new", f.now, i), Cost: f.rng.IntN(2), TTL: time.Hour}
		if r := f.askOf(len(f.stores)-1, c); r.Decision.Allowed {
			f.charge(c.Cost)
			f.askOf(len(f.stores)-1, StoreCall{Op: OpSettle, HoldID: c.HoldID})
		}
		f.now += 200
	}
}

// ask makes a call of any process.
func (f *failover) ask(c StoreCall) StoreResult { return f.askOf(f.rng.IntN(len(f.stores)), c) }

func (f *failover) askOf(at int, c StoreCall) StoreResult {
	c.Limit, c.Key = f.limits[at], "a"
	var r StoreResult
	if c.Op != OpTake && f.rng.IntN(3) == 0 {
		out := make([]StoreResult, 1)
		d, err := f.stores[at].DoAll(ctx, []StoreCall{c}, out)
		r = out[0]
		r.Decision.Allowed, r.Err = d.Allowed, err
	} else {
		r = do(f, f.stores[at], c)[0]
	}
	f.log = append(f.log, fmt.Sprintf("process %d at %d: %v %s, cost %d, TTL %v, GiveBack %v: %+v", at, f.now-startMicros, c.Op, c.HoldID, c.Cost, c.TTL, c.GiveBack, r))
	if r.Err != nil {
		require.ErrorIs(f, r.Err, ErrNotHeld)
		return r // of DoAll it tells no state
	}
	require.Equal(f, FromRedis, r.Source)
	if f.last = at; f.knows[at] {
		delete(f.knows, at)
		f.charged += f.live()
	}
	return r
}

// step makes the i-th call.
func (f *failover) step(i int) {
	cost, ttl := f.rng.IntN(50), time.Duration(1+f.rng.Int64N(2_000_000))*time.Microsecond
	ids := slices.Sorted(maps.Keys(f.open))
	inFlight := f.limits[0].config.Algorithm == sluice.InFlight
	switch f.rng.IntN(6) {
	case 0:
		if r := f.ask(StoreCall{Cost: 1 + cost}); r.Decision.Allowed {
			f.used += 1 + cost
			f.charge(1 + cost)
		}
	case 1, 2:
		c := StoreCall{Op: OpHold, HoldID: fmt.Sprint(i), Cost: cost, TTL: ttl, GiveBack: f.rng.IntN(2) == 0}
		if r := f.ask(c); r.Decision.Allowed {
			f.open[c.HoldID] = &heldNow{cost, f.now + int64(ttl/time.Microsecond), c.GiveBack || inFlight}
			f.charge(cost)
		}
	case 3:
		if len(ids) > 0 {
			id := ids[f.rng.IntN(len(ids))]
			c := StoreCall{Op: OpSettle, HoldID: id, Cost: f.rng.IntN(f.open[id].total + 1)}
			if f.rng.IntN(3) == 0 {
				c.Cost = f.open[id].total
			}
			if f.rng.IntN(2) == 0 {
				c.Remember = time.Hour
			}
			f.ask(c)
			f.used += c.Cost
			if f.open[id].back { // it would come back, where the settlement is lost
				f.charge(c.Cost)
			}
			delete(f.open, id)
			f.settled = append(f.settled, c)
		}
	case 4:
		if len(f.settled) > 0 { // the answer had been lost
			f.ask(f.settled[max(0, len(f.settled)-1-f.rng.IntN(5))])
		}
	case 5:
		if len(ids) > 0 {
			id := ids[f.rng.IntN(len(ids))]
			if r := f.ask(StoreCall{Op: OpExtend, HoldID: id, Cost: cost / 5}); r.Err == nil && r.Decision.Allowed {
				f.open[id].total += cost / 5
				f.charge(cost / 5)
			}
		}
	}
}

// TestHolds_Failover: callers hold, extend and settle, send settlements again, and let holds lapse, while replicas that are behind
// take over, and data are lost. A process that has seen all admits nothing beyond the limit. Of several, none knows what the others were
// admitted and Redis has lost: they admit at most that much more.
func TestHolds_Failover(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for _, a := range holdVariants {
			for _, processes := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v/processes=%d", a, processes), func(t *testing.T) {
					rng := seeded.Rand(t)
					fullest := 0
					for range depth.Of(20, 40, 80) {
						f := newFailover(t, s, rng, a, processes)
						f.replicate(s)
						for i := range 60 {
							f.now += rng.Int64N(1 + 1<<rng.IntN(19))
							f.live() // what has lapsed has
							f.step(i)
							bound := 100
							if processes > 1 {
								bound += f.lost
							}
							fullest = max(fullest, f.live())
							require.LessOrEqual(t, f.live(), bound, "%v", f.log)
							if rng.IntN(3) == 0 {
								f.replicate(s)
							}
							switch rng.IntN(20) {
							case 0, 1:
								f.failOver(s)
							case 2:
								f.lose(s)
							}
						}
					}
					require.GreaterOrEqual(t, fullest, 95, "the limit is reached")
				})
			}
		}
	})
}

// TestHolds_FailoverSettledAgain: a settlement is lost, and what it gave back had been taken. The healed count has those
// units, and the hold is open in the replica: to settle it again, or to let it lapse, gives nothing back a second time.
func TestHolds_FailoverSettledAgain(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, a := range holdVariants {
			for _, lapses := range []bool{false, true} {
				f := newFailover(t, s, nil, a, 1)
				one := func(c StoreCall) StoreResult {
					c.Limit, c.Key = f.limits[0], "a"
					return do(t, f.stores[0], c)[0]
				}
				require.True(t, one(StoreCall{Op: OpHold, HoldID: "1", Cost: 100, TTL: time.Minute, GiveBack: true}).Decision.Allowed)
				replica := standbyOf(t, s.client, f.limits[0].keys.of("a"))
				f.now += 1000
				settle := StoreCall{Op: OpSettle, HoldID: "1", Cost: 30, Remember: time.Hour}
				require.NoError(t, one(settle).Err)
				f.now += 1000
				require.True(t, one(StoreCall{Op: OpHold, HoldID: "2", Cost: 70, TTL: time.Hour}).Decision.Allowed)
				replica.takeOver(t, s.client)
				f.now += 1000
				if lapses {
					f.now += 60_000_000
				} else {
					require.ErrorIs(t, one(settle).Err, ErrNotHeld, "%v", a)
				}
				got := 0
				for one(StoreCall{Cost: 1}).Decision.Allowed {
					got++
				}
				require.Zero(t, got, "%v, lapses %v: 30 units used and 70 on hold of 100", a, lapses)
			}
		}
	})
}

// TestHolds_FailoverExpired: a key that has expired, since it was fresh, and is there again has lost nothing, whatever
// a process has seen before.
func TestHolds_FailoverExpired(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		for _, a := range holdVariants {
			tr := newHoldTracer(t, s, LimitConfig{Algorithm: a, Limit: sluice.PerSecond(100), MaxHolds: 10}, 2)
			one := func(at int, c StoreCall) StoreResult {
				c.Limit, c.Key = tr.limits[at], "a"
				return do(t, tr.stores[at], c)[0]
			}
			require.NoError(t, one(0, StoreCall{Op: OpHold, HoldID: "1", Cost: 10, TTL: time.Hour}).Err)
			require.NoError(t, one(0, StoreCall{Op: OpSettle, HoldID: "1", Cost: 5}).Err)
			require.True(t, one(0, StoreCall{Cost: 5}).Decision.Allowed)
			tr.now += 4_000_000 // all windows are over, and all has drained
			require.NoError(t, s.client.Del(ctx, tr.limits[0].keys.of("a")).Err())
			require.NoError(t, one(1, StoreCall{Op: OpHold, HoldID: "2", Cost: 20, TTL: time.Hour}).Err)
			require.True(t, one(0, StoreCall{Cost: 1}).Decision.Allowed)
			settled := one(0, StoreCall{Op: OpSettle, HoldID: "2", Cost: 3})
			require.NoError(t, settled.Err, "%v", a)
			require.Equal(t, 96, settled.Decision.Remaining, "%v", a)
		}
	})
}
