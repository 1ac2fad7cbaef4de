package rules

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

func holdOf(id string, ds ...Descriptor) *Hold {
	return &Hold{ID: id, Request: Request{Domain: "d", Descriptors: ds}}
}

// hold makes a hold, and says whether it was admitted.
func (w *world) hold(h *Hold) bool {
	w.tb.Helper()
	require.NoError(w.tb, w.Hold(h, &w.resp))
	return w.resp.Code == OK
}

func (w *world) extend(h *Hold) bool {
	w.tb.Helper()
	require.NoError(w.tb, w.Extend(h, &w.resp))
	return w.resp.Code == OK
}

const tokenRules = `
domain: d
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: tokens, rate_limit: {unit: hour, requests_per_unit: 1000}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 3600, burst: 100, algorithm: token-bucket}}
- {key: watched, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: free, rate_limit: {unlimited: true}}
`

// TestHold_AllOrNone: windows and a bucket are held together, or not at all; denied holds count nothing.
func TestHold_AllOrNone(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	request := func(tokens, bucket uint64) []Descriptor {
		return []Descriptor{withHits("user=u", 1), withHits("tokens=u", tokens), withHits("bucket=u", bucket), withHits("watched=u", 8), withHits("free=u", 1), withHits("nothing=u", 1)}
	}
	require.True(t, w.hold(holdOf("a", request(600, 60)...)))
	require.Equal(t, []int{2, 400, 40, 2}, []int{w.left("user=u"), w.left("tokens=u"), w.left("bucket=u"), w.left("watched=u")})
	for i, ds := range [][]Descriptor{request(401, 1), request(1, 41)} {
		require.False(t, w.hold(holdOf("b", ds...)))
		require.Equal(t, OverLimit, w.resp.Statuses[1+i].Code)
		require.NotZero(t, w.resp.Statuses[1+i].RetryAfter)
		require.Equal(t, OK, w.resp.Statuses[0].Code)
		require.Equal(t, []int{2, 400, 40}, []int{w.left("user=u"), w.left("tokens=u"), w.left("bucket=u")})
	}
	require.True(t, w.hold(holdOf("b", request(1, 1)...)), "a rule in shadow mode does not stand in the way")
	require.NoError(t, w.Settle(holdOf("a", request(10, 70)...)))
	require.Equal(t, []int{1, 989, 29}, []int{w.left("user=u"), w.left("tokens=u"), w.left("bucket=u")}, "590 back, and a debt of 10")
	require.NoError(t, w.Release(holdOf("b", request(5, 5)...)))
	require.Equal(t, []int{2, 990, 30}, []int{w.left("user=u"), w.left("tokens=u"), w.left("bucket=u")})
	require.Equal(t, Holds{Held: 2, Settled: 1, Released: 1, Denied: 2}, w.Holds())
	s := w.series("d.tokens")
	require.Equal(t, []uint64{601, 10}, []uint64{s.Estimated, s.Settled})
	s = w.series("d.free")
	require.Equal(t, []uint64{0, 4, 2, 1}, []uint64{s.Total, s.Unlimited, s.Estimated, s.Settled}, "of four, two are denied by others")
}

// TestHold_Again: an id is a hold of one request, once.
func TestHold_Again(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	five := func() *Hold { return holdOf("a", withHits("tokens=u", 5)) }
	require.True(t, w.hold(five()))
	require.True(t, w.hold(five()))
	require.EqualValues(t, 995, w.resp.Statuses[0].Remaining)
	require.Equal(t, 995, w.left("tokens=u"))
	require.ErrorIs(t, w.Hold(holdOf("a", withHits("tokens=u", 6)), &w.resp), ErrOtherHold)
	require.ErrorIs(t, w.Hold(holdOf("a", withHits("tokens=v", 5)), &w.resp), ErrOtherHold)
	require.ErrorIs(t, w.Settle(holdOf("a", withHits("tokens=v", 5))), ErrNotHeld)
	require.ErrorIs(t, w.Settle(holdOf("a", withHits("tokens=u", 5), withHits("user=u", 1))), ErrNotHeld)
	require.ErrorContains(t, w.Settle(holdOf("a", describe("tokens=u"))), "descriptor 0 has no hits; want")
	require.ErrorIs(t, w.Settle(holdOf("b", withHits("tokens=u", 5))), ErrNotHeld)

	more := holdOf("a", withHits("tokens=u", 10))
	more.Step = "1"
	require.True(t, w.extend(more))
	require.True(t, w.extend(more))
	require.Equal(t, 985, w.left("tokens=u"))
	require.False(t, w.extend(holdOf("a", withHits("tokens=u", 986))))
	require.Equal(t, 985, w.left("tokens=u"))

	twelve := holdOf("a", withHits("tokens=u", 12))
	require.NoError(t, w.Settle(twelve))
	require.NoError(t, w.Settle(twelve))
	require.Equal(t, 988, w.left("tokens=u"))
	require.ErrorIs(t, w.Settle(holdOf("a", withHits("tokens=u", 3))), ErrNotHeld)
	require.ErrorIs(t, w.Release(twelve), ErrNotHeld)
	require.ErrorIs(t, w.Extend(more, &w.resp), ErrNotHeld)
	require.ErrorIs(t, w.Hold(five(), &w.resp), ErrEndedHold)
	require.Equal(t, 988, w.left("tokens=u"))

	w.clock.Advance(rememberHolds)
	require.ErrorIs(t, w.Settle(twelve), ErrNotHeld)
	require.True(t, w.hold(five()))
	require.Equal(t, 983, w.left("tokens=u"))
	require.Equal(t, Holds{Open: 1, Held: 2, Settled: 1, Cut: 1}, w.Holds())
}

// TestHold_ExtendByNothing: a limit that an extension asks for nothing does not stand in its way, even if it is full.
func TestHold_ExtendByNothing(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	require.True(t, w.hold(holdOf("a", withHits("bucket=u", 100), withHits("tokens=u", 1))))
	require.True(t, w.extend(holdOf("a", withHits("bucket=u", 0), withHits("tokens=u", 5))))
	require.Equal(t, 994, w.left("tokens=u"))
}

// TestHold_Lapse: a hold that nobody settles is spent, or given back, at the end of its TTL.
func TestHold_Lapse(t *testing.T) {
	w := newWorld(t, Config{MaxHoldTTL: 20 * time.Minute}, tokenRules)
	spent, back := holdOf("spent", withHits("tokens=u", 100)), holdOf("back", withHits("tokens=u", 10))
	spent.TTL, back.TTL, back.GiveBack = time.Minute, 2*time.Minute, true
	require.True(t, w.hold(spent) && w.hold(back))
	w.clock.Advance(time.Minute)
	require.Equal(t, 890, w.left("tokens=u"))
	require.ErrorIs(t, w.Settle(spent), ErrNotHeld)
	more := holdOf("back", withHits("tokens=u", 1))
	more.TTL = 2 * time.Minute
	require.True(t, w.extend(more))
	w.clock.Advance(2*time.Minute - 1)
	require.Equal(t, 889, w.left("tokens=u"))
	w.clock.Advance(1)
	require.Equal(t, 900, w.left("tokens=u"), "any call finds what has lapsed")
	require.ErrorIs(t, w.Release(back), ErrNotHeld)
	require.Equal(t, Holds{Held: 2, Lapsed: 2}, w.Holds())

	long := holdOf("long", withHits("tokens=u", 1))
	long.TTL = 50 * time.Hour
	require.True(t, w.hold(long))
	require.Equal(t, 20*time.Minute, long.TTL)
	w.clock.Advance(20 * time.Minute)
	require.Equal(t, Holds{Held: 3, Lapsed: 3}, w.Holds())
}

// TestHold_LaterWindow: what is settled in a later window takes nothing from that window.
func TestHold_LaterWindow(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	require.True(t, w.hold(holdOf("a", withHits("user=u", 3))))
	w.clock.Advance(time.Minute)
	require.True(t, w.hold(holdOf("b", withHits("user=u", 2))))
	require.NoError(t, w.Release(holdOf("a", withHits("user=u", 3))))
	require.Equal(t, 1, w.left("user=u"))
}

// TestHold_Swap: a hold of rules that are gone is not settled, and is when they are back.
func TestHold_Swap(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	ds := []Descriptor{withHits("tokens=u", 100), withHits("bucket=u", 50)}
	require.True(t, w.hold(holdOf("a", ds...)))
	require.NoError(t, w.Swap(mustLoad(t, "domain: other\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]")))
	used := holdOf("a", withHits("tokens=u", 30), withHits("bucket=u", 40))
	require.ErrorIs(t, w.Settle(used), ErrNotHeld)
	require.NoError(t, w.Swap(mustLoad(t, tokenRules)))
	require.NoError(t, w.Settle(used))
	require.Equal(t, []int{970, 60}, []int{w.left("tokens=u"), w.left("bucket=u")}, "counters outlive their rules")
}

// TestHold_Bounds: more holds than Config.MaxHolds are an error that says so, and hold nothing.
func TestHold_Bounds(t *testing.T) {
	w := newWorld(t, Config{MaxHolds: 3}, tokenRules)
	one := func(id string) *Hold { return holdOf(id, withHits("tokens=u", 1)) }
	require.True(t, w.hold(one("a")) && w.hold(one("b")) && w.extend(one("a")))
	require.ErrorIs(t, w.Hold(one("c"), &w.resp), ErrManyHolds)
	require.ErrorIs(t, w.Extend(one("b"), &w.resp), ErrManyHolds)
	require.Equal(t, 997, w.left("tokens=u"))
	require.NoError(t, w.Settle(one("a")))
	for i := range 10 {
		require.True(t, w.hold(one(fmt.Sprint(i))))
		require.NoError(t, w.Settle(one(fmt.Sprint(i))))
	}
	require.Len(t, w.memory.holds.domains["d"].byID, 1+3, "the ends that are remembered are bounded, too")
	require.ErrorIs(t, w.Settle(one("0")), ErrNotHeld)
	require.NoError(t, w.Settle(one("9")))
}

// TestHold_Invalid: bad input is an error that names it, and holds nothing.
func TestHold_Invalid(t *testing.T) {
	w := newWorld(t, Config{}, tokenRules)
	for want, h := range map[string]*Hold{
		ErrNoDomain.Error():      {ID: "a", Request: Request{Descriptors: []Descriptor{describe("user=u")}}},
		ErrNoDescriptors.Error(): holdOf("a"),
		"the id of the hold is no text of 1 to 128 visible characters of ASCII":                    holdOf("a b", describe("user=u")),
		"the hold's TTL is -1ns; want more than 0, or 0 for 10m0s":                                 {ID: "a", TTL: -1, Request: holdOf("", describe("user=u")).Request},
		"descriptor 0 gives hits back; want a hold to be settled instead":                          holdOf("a", Descriptor{Entries: entries("user=u"), Refund: true}),
		"descriptor 1: limit.unit is Unit(9); want SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR": holdOf("a", describe("user=u"), override("user=u", 1, 9)),
	} {
		require.EqualError(t, w.Hold(h, &w.resp), want)
	}
	h := holdOf("", describe("user=u"))
	require.True(t, w.hold(h))
	require.Len(t, h.ID, 26)
	require.NoError(t, w.Release(h))
}

func TestHold_Shadow(t *testing.T) {
	w := newWorld(t, Config{Shadow: true}, tokenRules)
	require.True(t, w.hold(holdOf("a", withHits("user=u", 4))))
	require.True(t, w.resp.WouldDeny)
	require.Equal(t, 3, w.left("user=u"), "nothing is held")
	require.NoError(t, w.Settle(holdOf("a", withHits("user=u", 4))))
}

// modelHold is a hold as the test knows it.
type modelHold struct {
	id       string
	charges  []charged // of the hold, then of its extensions
	end      int64
	giveBack bool
}

// charged is a charge of a hold, and a reservation for the same units of the limiter beside the engine.
type charged struct {
	at          int64
	units       uint64
	reservation *sluice.Reservation
}

// TestHold_Histories: in random histories of holds that use at most what they hold, what was used never exceeds the worst
// case of the limit, in any interval; and calls that fail, or come twice, change nothing. Each answer is that of
// an exact count in windows, and else that of a limiter whose reservations are settled one by one, which has an exact model.
func TestHold_Histories(t *testing.T) {
	random := seeded.Rand(t)
	for _, algorithm := range []string{"", "fixed-window", "sliding-window", "sliding-log", "gcra", "token-bucket", "leaky-bucket"} {
		t.Run("algorithm="+algorithm, func(t *testing.T) {
			for range 40 {
				holdHistory(t, algorithm, random)
			}
		})
	}
}

const holdLimit, holdPeriod = 20, time.Minute

func holdHistory(t *testing.T, algorithm string, random *rand.Rand) {
	extension := ""
	if algorithm != "" {
		extension = ", algorithm: " + algorithm
	}
	w := newWorld(t, Config{}, fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: %d%s}}]", holdLimit, extension))
	worst := func(d time.Duration) uint64 { return 2 * holdLimit * uint64(1+d/holdPeriod) }
	var beside *sluice.Limiter
	if algorithm != "" {
		var a sluice.Algorithm
		require.NoError(t, a.UnmarshalText([]byte(algorithm)))
		var err error
		beside, err = sluice.New(sluice.Config{Limit: sluice.Per(holdLimit, holdPeriod), Algorithm: a, Clock: w.clock})
		require.NoError(t, err)
		worst = func(d time.Duration) uint64 { return uint64(beside.WorstCase(d)) }
	}
	var open []*modelHold
	var used []charged
	use := func(h *modelHold, n uint64) {
		for _, c := range h.charges {
			own := min(n, c.units)
			n -= own
			used = append(used, charged{at: c.at, units: own})
			c.reservation.Settle(int(own))
		}
	}
	window := func(at int64) int64 { return at / int64(holdPeriod) }
	left := func() (n uint64) {
		if beside != nil {
			return uint64(beside.Key("k").Peek(0).Remaining)
		}
		n = holdLimit
		count := func(c charged) {
			if window(c.at) == window(w.clock.Now()) {
				n -= c.units
			}
		}
		for _, c := range used {
			count(c)
		}
		for _, h := range open {
			for _, c := range h.charges {
				count(c)
			}
		}
		return n
	}
	take := func(n uint64) (c charged, ok bool) {
		if beside == nil {
			return charged{at: w.clock.Now(), units: n}, n <= left()
		}
		var reservations [1]*sluice.Reservation
		ok = sluice.TakeAllReservations(reservations[:], nil, sluice.Charge{Key: beside.Key("k"), Cost: int(n)}).Allowed
		return charged{w.clock.Now(), n, reservations[0]}, ok
	}
	unchanged := func(f func() error, want error) {
		before := w.left("k=v")
		require.ErrorIs(t, f(), want)
		require.Equal(t, before, w.left("k=v"))
	}
	lapse := func() {
		slices.SortFunc(open, func(a, b *modelHold) int { return cmp.Compare(a.end, b.end) })
		kept := open[:0]
		for _, h := range open {
			switch {
			case h.end > w.clock.Now():
				kept = append(kept, h)
			case h.giveBack:
				use(h, 0)
			default:
				use(h, 1<<40)
			}
		}
		open = kept
	}
	for step := range 120 {
		w.clock.Advance(time.Duration(random.Int64N(int64(8 * time.Second))))
		lapse()
		require.EqualValues(t, left(), w.left("k=v"))
		n := 1 + random.Uint64N(8)
		id := fmt.Sprint(step)
		if len(open) > 0 && random.IntN(3) > 0 {
			i := random.IntN(len(open))
			h := open[i]
			request := func(n uint64) *Hold { return holdOf(h.id, withHits("k=v", n)) }
			if random.IntN(3) == 0 {
				more := request(n)
				more.TTL = time.Duration(1 + random.Int64N(int64(time.Minute)))
				c, ok := take(n)
				require.Equal(t, ok, w.extend(more))
				if ok {
					h.charges, h.end = append(h.charges, c), w.clock.Now()+int64(more.TTL)
				}
				continue
			}
			held := uint64(0)
			for _, c := range h.charges {
				held += c.units
			}
			actual := random.Uint64N(held + 1)
			require.NoError(t, w.Settle(request(actual)))
			use(h, actual)
			open = append(open[:i], open[i+1:]...)
			unchanged(func() error { return w.Settle(request(actual)) }, nil)
			unchanged(func() error { return w.Settle(request(actual + 1)) }, ErrNotHeld)
			unchanged(func() error { return w.Extend(request(1), &w.resp) }, ErrNotHeld)
			continue
		}
		h := holdOf(id, withHits("k=v", n))
		h.TTL, h.GiveBack = time.Duration(1+random.Int64N(int64(2*time.Minute))), random.IntN(2) == 0
		c, ok := take(n)
		require.Equal(t, ok, w.hold(h), "%d asked", n)
		if ok {
			open = append(open, &modelHold{id, []charged{c}, w.clock.Now() + int64(h.TTL), h.GiveBack})
			unchanged(func() error { return w.Hold(h, &w.resp) }, nil)
		}
	}
	for i, from := range used {
		sum := uint64(0)
		for _, c := range used {
			if c.at >= from.at && c.at-from.at <= int64(3*holdPeriod) {
				sum += c.units
			}
		}
		require.LessOrEqual(t, sum, worst(3*holdPeriod), "from charge %d on", i)
	}
}

// TestHold_Concurrent: 200 goroutines hold, extend, settle, release and die; in the end each unit is accounted for.
func TestHold_Concurrent(t *testing.T) {
	const limit = 1 << 20
	w := newWorld(t, Config{}, fmt.Sprintf(`
domain: d
descriptors:
- {key: window, rate_limit: {unit: year, requests_per_unit: %d}}
- {key: log, rate_limit: {unit: year, requests_per_unit: %d, algorithm: fixed-window, count_denied: false}}
`, limit, limit))
	random := seeded.Rand(t)
	seeds := make([]uint64, 200)
	for i := range seeds {
		seeds[i] = random.Uint64()
	}
	var all sync.WaitGroup
	var mutex sync.Mutex
	used := uint64(0)
	for i, seed := range seeds {
		all.Go(func() {
			own, random := uint64(0), rand.New(rand.NewPCG(seed, 2))
			for k := range 20 {
				own += holdLife(t, w.Engine, fmt.Sprint(i, ".", k), random)
			}
			mutex.Lock()
			defer mutex.Unlock()
			used += own
		})
	}
	all.Wait()
	w.clock.Advance(defaultHoldTTL)
	n := w.Holds()
	require.Equal(t, limit-int(used), w.left("window=w"))
	require.Equal(t, limit-int(used), w.left("log=w"))
	require.Equal(t, Holds{Held: 4000, Settled: n.Settled, Released: n.Released, Lapsed: 4000 - n.Settled - n.Released}, n)
}

// hookClock calls a function at the second time that it is read.
type hookClock struct {
	*sluice.ManualClock
	reads int
	hook  func()
}

func (c *hookClock) Now() int64 {
	if c.reads++; c.reads == 2 && c.hook != nil {
		c.hook()
	}
	return c.ManualClock.Now()
}

// TestHold_CallBetween: a call that comes between the look at a window and the charge takes its units, and the hold is denied.
func TestHold_CallBetween(t *testing.T) {
	clock := &hookClock{ManualClock: sluice.NewManualClock(start)}
	e, err := New(mustLoad(t, tokenRules), Config{Clock: clock})
	require.NoError(t, err)
	resp := new(Response)
	clock.reads, clock.hook = 0, func() {
		between := new(Response)
		require.NoError(t, e.Decide(&holdOf("", withHits("tokens=u", 600)).Request, between))
		require.Equal(t, OK, between.Code)
	}
	require.NoError(t, e.Hold(holdOf("a", withHits("tokens=u", 401)), resp))
	require.Equal(t, OverLimit, resp.Code)
	w := &world{tb: t, clock: clock.ManualClock, Engine: e}
	require.Equal(t, 400, w.left("tokens=u"))
}

// holdLife is the life of a hold. It returns what the hold has used in the end.
func holdLife(t *testing.T, e *Engine, id string, random *rand.Rand) uint64 {
	held := 1 + random.Uint64N(9)
	request := func(n uint64) *Hold { return holdOf(id, withHits("window=w", n), withHits("log=w", n)) }
	h, resp := request(held), new(Response)
	h.GiveBack = random.IntN(2) == 0
	err := e.Hold(h, resp)
	if random.IntN(3) == 0 && err == nil {
		more := 1 + random.Uint64N(9)
		err = e.Extend(request(more), resp)
		held += more
	}
	actual := random.Uint64N(2 * held)
	switch random.IntN(4) {
	case 0: // dies
		if actual = held; h.GiveBack {
			actual = 0
		}
	case 1:
		actual = 0
		err = firstError(err, e.Release(request(3)))
	default:
		err = firstError(err, e.Settle(request(actual)), e.Settle(request(actual)))
	}
	if err != nil {
		t.Error(err)
	}
	return actual
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestHold_InFlight: tokens and calls in flight are held together. A full limit of calls in flight does not deny extensions,
// and a call that ends, or lapses, leaves its place whatever was used.
func TestHold_InFlight(t *testing.T) {
	w := newWorld(t, Config{}, `
domain: d
descriptors:
- {key: calls, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: in-flight}}
- {key: tokens, rate_limit: {unit: minute, requests_per_unit: 100}}
`)
	request := func(id string, calls, tokens uint64) *Hold {
		return holdOf(id, withHits("calls=u", calls), withHits("tokens=u", tokens))
	}
	require.True(t, w.hold(request("a", 1, 10)))
	require.False(t, w.hold(request("b", 1, 10)))
	require.True(t, w.extend(request("a", 0, 90)))
	require.Equal(t, 0, w.left("tokens=u"))
	require.False(t, w.extend(request("a", 0, 1)), "the stream is cut at its limit")
	w.ask(withHits("tokens=u", 50)) // is denied, and counts
	require.True(t, w.extend(request("a", 0, 0)), "hits of others deny nothing to who asks nothing")
	require.NoError(t, w.Settle(request("a", 1, 40)))
	require.Equal(t, 1, w.left("calls=u"))
	w.clock.Advance(time.Minute)
	require.True(t, w.hold(request("b", 1, 10)))
	w.clock.Advance(defaultHoldTTL)
	require.Equal(t, 1, w.left("calls=u"), "a call that lapses has ended")
}

// TestHold_LongStream: a stream that extends its hold in time keeps its place, however long it takes.
func TestHold_LongStream(t *testing.T) {
	w := newWorld(t, Config{}, "domain: d\ndescriptors: [{key: calls, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: in-flight}}]")
	require.True(t, w.hold(holdOf("a", withHits("calls=u", 1))))
	for range 6 {
		w.clock.Advance(50 * time.Second)
		require.True(t, w.extend(holdOf("a", withHits("calls=u", 0))))
		require.Equal(t, 0, w.left("calls=u"))
	}
	require.NoError(t, w.Settle(holdOf("a", withHits("calls=u", 1))))
	require.Equal(t, 1, w.left("calls=u"))
}

// TestHold_BesideDecide: holds and plain calls of one window together never get more than its limit, and a hold that
// is denied holds nothing.
func TestHold_BesideDecide(t *testing.T) {
	for range 20 {
		w := newWorld(t, Config{}, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 200}}]")
		var all sync.WaitGroup
		var held, passed, denied atomic.Int64
		for g := range 8 {
			all.Go(func() {
				var resp Response
				for i := range 100 {
					var err error
					if hold := g%2 == 0; hold {
						if err = w.Hold(holdOf(fmt.Sprint(g, ".", i), withHits("k=v", 1)), &resp); resp.Code == OK {
							held.Add(1)
						}
					} else if err = w.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("k=v")}}, &resp); resp.Code == OK {
						passed.Add(1)
					} else {
						denied.Add(1)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, held.Load()+passed.Load(), int64(200))
		require.EqualValues(t, held.Load(), w.Holds().Held)
		w.clock.Advance(defaultHoldTTL)
		w.Holds()
		count := w.now.Load().domains["d"].counters[Year].(*counter)
		id := w.now.Load().domains["d"].id(w.now.Load().set.Match("d", entries("k=v")), entries("k=v"))
		counted := int64(count.most - count.limiter.KeyHash(id).Peek(0).Remaining)
		require.Equal(t, held.Load()+passed.Load()+denied.Load(), counted, "what was held, and all plain calls")
	}
}
