package redislimit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A livesStep is a call of a process of a history in which Redis loses its data, or that loss; or a replica falls behind, or takes over.
type livesStep struct {
	after   time.Duration
	lost    bool
	behind  bool
	replica bool
	reset   bool
	process int
	times   int // how often the call is made, or 0 for once
	call    StoreCall
	want    int // remaining units, or -1 if they do not matter
	err     error
}

// livesCount returns an error unless the steps have their outcomes, of a limit of 100 whose units do not come back meanwhile.
func livesCount(t *testing.T, s *server, a sluice.Algorithm, steps []livesStep) error {
	tr := newHoldTracer(t, s, LimitConfig{Algorithm: a, Limit: sluice.Per(100, 2400*time.Hour), MaxHolds: 100}, 4)
	var replica standby
	for i, step := range steps {
		tr.now += max(step.after, time.Millisecond).Microseconds()
		switch {
		case step.lost:
			tr.forget(s, "a")
			continue
		case step.behind:
			replica = standbyOf(t, s.client, tr.limits[0].keys.of("a"))
			continue
		case step.replica:
			replica.takeOver(t, s.client)
			continue
		}
		if step.reset {
			p := tr.limits[step.process].plan.Load()
			_, err := tr.stores[step.process].link.run(ctx, request{plan: p, key: tr.limits[0].keys.of("a"), op: opReset, n: p.kept})
			require.NoError(t, err)
		}
		for j := range max(step.times, 1) {
			store, c := tr.stores[step.process], step.call
			c.Limit, c.Key = tr.limits[step.process], "a"
			if step.times > 0 {
				c.HoldID = fmt.Sprint("new", i, " ", j)
			}
			r := do(t, store, c)[0]
			if step.times > 0 {
				r = do(t, store, StoreCall{Limit: c.Limit, Key: "a", Op: OpSettle, HoldID: c.HoldID})[0]
			}
			if r.Err != step.err || r.Err == nil && step.want >= 0 && r.Decision.Remaining != step.want {
				return fmt.Errorf("%v, step %d, process %d, %v: %+v; want %d, %v", a, i, step.process, c.Op, r, step.want, step.err)
			}
		}
	}
	return nil
}

// forget lets Redis lose a key.
func (tr *holdTracer) forget(s *server, key string) {
	name := tr.limits[0].keys.of(key)
	holds, times := holdNames(name)
	require.NoError(tr, s.client.Del(ctx, name, holds, times).Err())
}

var (
	loses   = livesStep{lost: true, after: time.Second}
	settles = StoreCall{Op: OpHold, HoldID: "new", Cost: 1, TTL: time.Hour, GiveBack: true}
	peeks   = StoreCall{Op: OpPeek}
)

func holds(id string, n int) StoreCall {
	return StoreCall{Op: OpHold, HoldID: id, Cost: n, TTL: time.Minute, GiveBack: true}
}

// livesHistories are histories in which process 1 sees nothing before Redis loses its data. It is the first to call then,
// and settles more than all others had.
var livesHistories = map[string][]livesStep{
	"what others have seen counts, and their open holds": {
		{call: StoreCall{Cost: 30}, want: 70},
		{call: holds("1", 20), want: 50},
		{process: 2, call: holds("2", 10), want: 40},
		{process: 3, call: peeks, want: 40},
		loses,
		{process: 1, times: 50, call: settles, want: 100},
		{process: 0, call: peeks, want: 50},
		{process: 1, times: 50, call: settles, want: 50},
		{process: 2, call: peeks, want: 40},
		{process: 2, call: StoreCall{Op: OpSettle, HoldID: "2"}, err: ErrNotHeld},
		{process: 1, call: StoreCall{Cost: 5}, want: 35},
		{process: 1, reset: true, call: peeks, want: 100},
		{process: 1, call: StoreCall{Cost: 1}, want: 99},
		{process: 3, call: peeks, want: 99}, // has seen it before the loss
		{process: 0, call: peeks, want: 99},
	},
	"holds of the new data stay open": {
		{call: StoreCall{Cost: 20}, want: 80},
		{times: 50, call: settles, want: 80},
		loses,
		{process: 1, times: 1, call: settles, want: 100},
		{process: 1, call: holds("2", 30), want: 70},
		{process: 0, call: StoreCall{Cost: 10}, want: -1},
		{process: 1, call: StoreCall{Op: OpSettle, HoldID: "2"}, want: -1},
	},
	"what was given back before stays given back": {
		{call: holds("1", 60), want: 40},
		{process: 2, call: StoreCall{Op: OpSettle, HoldID: "1"}, want: 100},
		{process: 2, call: StoreCall{Cost: 10}, want: 90},
		loses,
		{process: 1, times: 50, call: settles, want: 100},
		{process: 2, call: peeks, want: 90},
		{process: 0, call: peeks, want: 90}, // has seen 60 on hold
	},
	"a call that is refused tells, too": {
		{call: StoreCall{Cost: 60}, want: 40},
		loses,
		{process: 1, times: 50, call: settles, want: 100},
		{call: StoreCall{Op: OpSettle, HoldID: "none"}, err: ErrNotHeld},
		{process: 1, times: 1, call: settles, want: 40},
		{call: peeks, want: 40},
	},
	"a reset before stays": {
		{call: StoreCall{Cost: 60}, want: 40},
		{process: 2, reset: true, call: peeks, want: 100},
		{process: 2, call: StoreCall{Cost: 10}, want: 90},
		loses,
		{process: 2, call: peeks, want: 90},
		{process: 0, call: peeks, want: 90},
	},
	"what has been seen counts after another loss": {
		{call: StoreCall{Cost: 10}, want: 90},
		{call: holds("1", 1), want: 89},
		{call: StoreCall{Op: OpSettle, HoldID: "1"}, want: 90},
		{process: 2, call: StoreCall{Cost: 40}, want: 50},
		loses,
		{process: 0, times: 50, call: settles, want: 90},
		loses,
		{process: 0, call: peeks, want: 90},
		{process: 0, times: 50, call: settles, want: 90},
		{process: 2, call: peeks, want: 50},
	},
	"what was seen at a replica that lacked a settlement counts": {
		{call: holds("1", 20), want: 80},
		{process: 3, call: peeks, want: 80},
		{behind: true},
		{call: StoreCall{Op: OpSettle, HoldID: "1", Cost: 4}, want: 96},
		{replica: true},
		{process: 2, call: StoreCall{Cost: 40}, want: 40},
		loses,
		{process: 1, times: 1, call: settles, want: 100},
		{process: 0, call: peeks, want: 96},
		{process: 3, call: peeks, want: 96}, // has seen 20 on hold, before they were given back
		{process: 2, call: peeks, want: 40},
	},
}

// TestHolds_Lives: when Redis has lost its data, what each process has seen before counts from its next call on, however much
// others have settled meanwhile.
func TestHolds_Lives(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for name, steps := range livesHistories {
			for _, a := range holdVariants {
				require.NoError(t, livesCount(t, s, a, steps), name)
			}
		}
	})
}

// An expiry is when a key expires, by the time of the tracer, if it is not written again. Redis's spare is taken off.
type expiry struct {
	state string
	until int64
}

// note makes a call and notes when the key expires from then on. Redis expires keys by its own clock, which may go faster than
// the tracer's: a key whose expiry Redis has kept expires no earlier than before.
func (e *expiry) note(tr *holdTracer, s *server, name string, call func()) {
	began := time.Now()
	before, err := s.client.PTTL(ctx, name).Result()
	require.NoError(tr, err)
	call()
	state, err := s.client.Get(ctx, name).Result()
	if err == redis.Nil || state == e.state {
		return
	}
	left, err := s.client.PTTL(ctx, name).Result()
	require.NoError(tr, err)
	took := time.Since(began) + time.Millisecond
	until := tr.now + (left + took).Microseconds() - tr.stores[0].link.spare*1000 // at least as long as it had
	if before-left <= took {
		until = max(until, e.until)
	}
	*e = expiry{state, until}
}

// TestHolds_Expired: a key that expires was fresh, apart from holds that last longer: no process can tell that it has expired, whatever
// it has seen before. A process that has seen units of a bucket on hold knows only when the last of them lapse, so here they all do then.
func TestHolds_Expired(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s *server) {
		for _, a := range holdVariants {
			rng := seeded.Rand(t)
			expired := 0
			for range depth.Of(5, 10, 100) {
				limit := holdLimit(rng, a)
				tr := newHoldTracer(t, s, LimitConfig{Algorithm: a, Limit: limit, MaxHolds: 1000}, 3)
				name, e := tr.limits[0].keys.of("a"), expiry{}
				for i := range 120 {
					tr.now += rng.Int64N(1 + 1<<rng.IntN(20))
					if e.until > 0 && (e.until <= tr.now || rng.IntN(20) == 0) {
						tr.now = max(tr.now, e.until)
						tr.log = append(tr.log, fmt.Sprintf("the key expires at %d", e.until-startMicros))
						require.NoError(t, s.client.Del(ctx, name).Err())
						e = expiry{}
						expired++
					}
					c := holdCall(rng, i, limit, false, tr.model)
					if c.Key = "a"; tr.limits[0].plan.Load().letter() == 'B' && c.TTL > 0 {
						c.TTL = time.Duration(2_000_000-tr.now%2_000_000) * time.Microsecond
					}
					e.note(tr, s, name, func() { tr.call(rng.IntN(3), c) })
				}
			}
			require.Greater(t, expired, 10)
		}
	})
}

// TestHolds_LivesPlanted: faults that are planted in the scripts are found.
func TestHolds_LivesPlanted(t *testing.T) {
	s := anyServer(t)
	for _, f := range []struct{ name, old, new string }{
		{"no life has a beginning", "birth = gen\n", ""},
		{"a new life begins like the first", "gen = max(gen + 1, floor(max(now, T) / 100))", "gen = 0"},
		{"earlier lives do not count", "elseif g < birth and (", "elseif false and ("},
		{"of an earlier life an older state counts", "(g < first or g >= past or at2 > latest)", "true"},
		{"of all earlier lives older states do not count", "g < first or g >= past", "g >= past"},
		{"of an earlier life two pasts are one", " or at2 > latest", ""},
		{"each time is after those of an earlier life", "birth2, g, at2", "birth2, g, 0"},
		{"earlier lives end open holds", "earlier = true", "earlier, newer = true, true"},
		{"what a refused call tells is forgotten", "or stale or healed)", "or stale)"},
		{"earlier lives count after a reset", "0, true\nbirth, first, past, latest = 0, 0, 0, 0", "0, true"},
	} {
		t.Run(f.name, func(t *testing.T) {
			for _, a := range []sluice.Algorithm{sluice.GCRA, sluice.SlidingWindow, sluice.InFlight} {
				found := 0
				for _, steps := range livesHistories {
					if plantedLives(t, s, a, steps, f.old, f.new) != nil {
						found++
					}
				}
				require.Positive(t, found, "%v", a)
			}
		})
	}
}

// plantedLives is livesCount with a fault in the script.
func plantedLives(t *testing.T, s *server, a sluice.Algorithm, steps []livesStep, old, fault string) error {
	p, err := newPlan(Config{Algorithm: a, Limit: sluice.PerHour(100)}, nil)
	require.NoError(t, err)
	p.holds = true
	script := p.script()
	good := *script
	require.Contains(t, good.text, old)
	*script = *newScript(strings.ReplaceAll(good.text, old, fault))
	defer func() { *script = good }()
	return livesCount(t, s, a, steps)
}

// TestHolds_LeftOver: a hold that outlives its key in Redis, since nobody has called after it lapsed, takes nothing of those that are made later.
func TestHolds_LeftOver(t *testing.T) {
	eachServer(t, func(t *testing.T, s *server) {
		tr := newHoldTracer(t, s, LimitConfig{Limit: sluice.PerSecond(10).WithBurst(100), MaxHolds: 10}, 2)
		hold := func(id string) StoreCall {
			return StoreCall{Op: OpHold, Key: "a", HoldID: id, Cost: 50, TTL: time.Second}
		}
		tr.call(0, hold("1"))
		tr.now += 6_100_000 // the key has expired, and what is known of its holds has not
		require.NoError(t, s.client.Del(ctx, tr.limits[0].keys.of("a")).Err())
		tr.call(1, StoreCall{Key: "a", Cost: 1})
		tr.call(1, hold("2"))
		tr.now += 2_000_000
		tr.call(1, StoreCall{Key: "a", Op: OpPeek})
	})
}
