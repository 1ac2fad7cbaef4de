package redislimit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/depth"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A truth is what has become of a key, whoever has admitted it: units spent, and units that a call has spent of which nobody knows
// whether Redis has heard of it. Its connection has been lost, and the share has admitted it.
type truth struct {
	spent   int64
	unknown []int64
}

// A trueHold is an open hold.
type trueHold struct {
	StoreCall        // the OpHold
	units     int64  // with extensions
	extends   string // the Step of one that may have been made
	cost      int    // of that one
}

// An owedHistory is three processes that share keys of a limit, whose ways to Redis are cut, slowed and restored, and the truth. An observer has a way of its
// own. The clock of Redis stands still, so that no unit comes back.
type owedHistory struct {
	*testing.T
	rng     *rand.Rand
	server  *server
	dir     string
	proxies [3]*proxy
	stores  [3]*Store
	limits  [3]*StoreLimit
	seen    *Store
	limit   *StoreLimit

	mu    sync.Mutex // guards the rest
	truth map[string]*truth
	holds [3][]*trueHold // whose process acts on them
	log   [3][]string
	ids   int
	calls atomic.Int64
	lossy atomic.Bool // a call whose answer is lost may not have come to Redis, either
}

func newOwedHistory(t *testing.T) *owedHistory {
	h := &owedHistory{T: t, rng: seeded.Rand(t), dir: t.TempDir()}
	h.server = start(t, anyServer(t).binary, "--dir", h.dir, "--appendonly", "yes", "--appendfsync", "always")
	t.Cleanup(func() { h.server.kill() })
	for i := range h.proxies {
		h.proxies[i] = newProxy(t, h.server.addr)
	}
	return h
}

// begin begins a history of a limit that denies nothing.
func (h *owedHistory) begin(a sluice.Algorithm) {
	prefix := newPrefix()
	open := func(addr string, budget time.Duration) (*Store, *StoreLimit) {
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		h.Cleanup(func() { client.Close() })
		s, err := NewStore(client, StoreConfig{Prefix: prefix, TimeSource: CallerClock, Replicas: 3, Budget: budget})
		require.NoError(h, err)
		s.link.clock, s.link.spare = func() int64 { return startMicros }, 3_600_000
		l, err := s.Limit(LimitConfig{Name: "a", Algorithm: a, Limit: sluice.Per(10_000_000, 200*time.Hour), MaxHolds: 100_000, Exact: true})
		require.NoError(h, err)
		return s, l
	}
	for i := range h.stores {
		h.stores[i], h.limits[i] = open(h.proxies[i].addr(), 60*time.Millisecond)
	}
	h.seen, h.limit = open(h.server.addr, patient)
	h.truth, h.holds = map[string]*truth{}, [3][]*trueHold{}
}

func (h *owedHistory) close() {
	for _, s := range append(h.stores[:], h.seen) {
		require.NoError(h, s.Close(ctx))
	}
}

// note writes a call and its outcome into the log of a process.
func (h *owedHistory) note(p int, c *StoreCall, r *StoreResult) {
	h.calls.Add(1)
	text := fmt.Sprintf("%d %v %q of %q, %d: %v %v, count %d, held %d, %v", p, c.Op, c.HoldID, c.Key, c.Cost, r.Source, r.Decision.Allowed, r.Count, r.Held, r.Err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log[p] = append(h.log[p][max(0, len(h.log[p])-20_000):], text)
}

// spend notes units that a process was admitted. sure is false if Redis may never hear of them.
func (h *owedHistory) spend(key string, n int64, sure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.truth[key] == nil {
		h.truth[key] = &truth{}
	}
	if sure {
		h.truth[key].spent += n
	} else {
		h.truth[key].unknown = append(h.truth[key].unknown, n)
	}
}

// call makes a call of a process. sure is false if its answer has been lost, and it may not have come to Redis.
func (h *owedHistory) call(p int, c StoreCall) (r StoreResult, sure bool) {
	c.Limit = h.limits[p]
	lossy, before := h.lossy.Load(), h.stores[p].Stats()
	out := make([]StoreResult, 1)
	require.NoError(h, h.stores[p].Do(ctx, []StoreCall{c}, out))
	after := h.stores[p].Stats()
	h.note(p, &c, &out[0])
	return out[0], !(lossy || h.lossy.Load()) || before.Late+before.Failed == after.Late+after.Failed
}

// step makes a random call of a process.
func (h *owedHistory) step(p int, rng *rand.Rand) {
	key := []string{"a", "b", "c"}[rng.IntN(3)]
	open := &h.holds[p]
	switch what := rng.IntN(20); {
	case what < 3 || what < 14 && len(*open) == 0 && rng.IntN(2) == 0:
		c := StoreCall{Op: []Op{OpTake, OpDebit}[rng.IntN(2)], Key: key, Cost: 1 + rng.IntN(100)}
		r, sure := h.call(p, c)
		require.NoError(h, r.Err)
		require.True(h, r.Decision.Allowed)
		h.spend(key, int64(c.Cost), sure)
	case what < 9 || len(*open) == 0:
		h.hold(p, rng, key)
	case what < 14:
		h.settle(p, rng)
	case what < 16:
		h.again(p, rng)
	case what < 18:
		h.extend(p, rng)
	default:
		h.together(p, rng, key)
	}
}

func (h *owedHistory) newHold(rng *rand.Rand, key string) StoreCall {
	c := StoreCall{Op: OpHold, Key: key, Cost: rng.IntN(200), TTL: time.Hour, GiveBack: rng.IntN(2) == 0}
	if rng.IntN(3) > 0 {
		h.mu.Lock()
		h.ids++
		c.HoldID = fmt.Sprint("id", h.ids)
		h.mu.Unlock()
	}
	return c
}

func (h *owedHistory) hold(p int, rng *rand.Rand, key string) {
	c := h.newHold(rng, key)
	r, _ := h.call(p, c)
	require.NoError(h, r.Err)
	require.True(h, r.Decision.Allowed)
	require.Equal(h, c.Cost, r.Held)
	c.HoldID = r.HoldID
	h.holds[p] = append(h.holds[p], &trueHold{StoreCall: c, units: int64(c.Cost)})
}

// settle settles a hold of a process with less or more than it has, once, or twice with different numbers: the first counts.
func (h *owedHistory) settle(p int, rng *rand.Rand) {
	i := rng.IntN(len(h.holds[p]))
	of := h.holds[p][i]
	h.holds[p] = append(h.holds[p][:i], h.holds[p][i+1:]...)
	c := StoreCall{Op: OpSettle, Limit: h.limits[p], Key: of.Key, HoldID: of.HoldID, Cost: rng.IntN(of.Cost + 1)}
	if rng.IntN(4) == 0 {
		c.Cost = of.Cost + rng.IntN(500)
	}
	if rng.IntN(2) == 0 {
		c.Remember = time.Hour
	}
	h.spend(of.Key, int64(c.Cost), true)
	r, _ := h.call(p, c)
	require.NoError(h, r.Err)
	if r.Source == FromRedis && of.extends == "" {
		require.EqualValues(h, of.units, r.Held)
	}
	if rng.IntN(4) == 0 {
		c.Cost += 1 + rng.IntN(100)
		if r, _ = h.call(p, c); r.Err != nil {
			require.ErrorIs(h, r.Err, ErrNotHeld)
		} else {
			require.Equal(h, FromFallback, r.Source)
		}
	}
}

// again makes a hold of a process once more.
func (h *owedHistory) again(p int, rng *rand.Rand) {
	of := h.holds[p][rng.IntN(len(h.holds[p]))]
	if of.HoldID[0] != 'i' {
		return // its id was made
	}
	r, _ := h.call(p, of.StoreCall)
	require.NoError(h, r.Err)
	require.True(h, r.Decision.Allowed)
}

func (h *owedHistory) extend(p int, rng *rand.Rand) {
	of := h.holds[p][rng.IntN(len(h.holds[p]))]
	if of.extends != "" {
		return
	}
	c := StoreCall{Op: OpExtend, Key: of.Key, HoldID: of.HoldID, Cost: rng.IntN(50), Step: fmt.Sprint(rng.Uint64())}
	switch r, _ := h.call(p, c); {
	case r.Err == nil:
		require.True(h, r.Decision.Allowed)
		of.units += int64(c.Cost)
		require.EqualValues(h, of.units, r.Held)
	default:
		require.ErrorIs(h, r.Err, ErrUnavailable)
		of.extends, of.cost = c.Step, c.Cost
	}
}

// together makes a take and a hold together.
func (h *owedHistory) together(p int, rng *rand.Rand, key string) {
	take := StoreCall{Limit: h.limits[p], Key: "d", Cost: 1 + rng.IntN(100)}
	hold := h.newHold(rng, key)
	hold.Limit = h.limits[p]
	lossy, before := h.lossy.Load(), h.stores[p].Stats()
	calls, out := []StoreCall{take, hold}, make([]StoreResult, 2)
	d, err := h.stores[p].DoAll(ctx, calls, out)
	require.NoError(h, err)
	require.True(h, d.Allowed)
	after := h.stores[p].Stats()
	for i := range calls {
		h.note(p, &calls[i], &out[i])
	}
	h.spend("d", int64(take.Cost), !(lossy || h.lossy.Load()) || before.Late+before.Failed == after.Late+after.Failed)
	hold.HoldID = out[1].HoldID
	h.holds[p] = append(h.holds[p], &trueHold{StoreCall: hold, units: int64(hold.Cost)})
}

// fault breaks something, for a while, and returns what mends it, and whether a call whose answer is lost may not have come to Redis.
func (h *owedHistory) fault() (what string, lossy bool, begin, end func()) {
	some := []*proxy{}
	for _, p := range h.proxies {
		if h.rng.IntN(3) > 0 {
			some = append(some, p)
		}
	}
	each := func(f func(p *proxy)) func() {
		return func() {
			for _, p := range some {
				f(p)
			}
		}
	}
	switch h.rng.IntN(6) {
	case 0:
		return "bytes vanish", true, each(func(p *proxy) { p.hole.Store(true) }), each((*proxy).mend)
	case 1:
		d := 40 + h.rng.Int64N(300)
		return "a slow link", false, each(func(p *proxy) { p.delay.Store(d * int64(time.Millisecond)) }), each(func(p *proxy) { p.delay.Store(0) })
	case 2:
		return "answers are lost", true, each(func(p *proxy) { p.loses.Store(true) }), each(func(p *proxy) { p.loses.Store(false) })
	case 3:
		return "connections end", true, each(func(p *proxy) { p.cut(false) }), each(func(p *proxy) { p.cut(false) })
	case 4:
		return "the server is stopped", false, func() { h.signal("STOP") }, func() { h.signal("CONT") }
	}
	return "the server is killed", true, h.server.kill, func() {
		await(h.T, "the server is there again", func() bool {
			return h.server.launch(h, "--dir", h.dir, "--appendonly", "yes", "--appendfsync", "always")
		})
	}
}

func (h *owedHistory) signal(what string) {
	require.NoError(h, h.server.cmd.Process.Signal(signals[what]))
}

// outage lets the processes make calls at the same time, before a fault, while it lasts, and until all is well again, and compares.
func (h *owedHistory) outage() {
	what, lossy, begin, end := h.fault()
	h.lossy.Store(lossy)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for p := range h.stores {
		rng := rand.New(rand.NewPCG(h.rng.Uint64(), 0))
		wg.Go(func() {
			for {
				h.step(p, rng)
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rng.Int64N(int64(2 * time.Millisecond)))):
				}
			}
		})
	}
	pause := func(most time.Duration) { time.Sleep(time.Duration(h.rng.Int64N(int64(most)))) }
	pause(30 * time.Millisecond)
	begin()
	pause(600 * time.Millisecond)
	end()
	pause(300 * time.Millisecond)
	for range 20 { // on a busy machine answers stay late for as long as there are calls
		if h.stores[0].Mode()+h.stores[1].Mode()+h.stores[2].Mode() != 3*ModeShared {
			pause(200 * time.Millisecond)
		}
	}
	close(stop)
	wg.Wait()
	if h.Failed() {
		h.FailNow()
	}
	h.settled(what)
	h.lossy.Store(false)
}

// settled waits until Redis has been told all, and compares it with the truth.
func (h *owedHistory) settled(what string) {
	for p, s := range h.stores {
		await(h.T, "Redis has been told", func() bool {
			return h.Failed() || s.Stats().Owed == 0 && idle(s) && s.Mode() == ModeShared
		})
		for _, of := range h.holds[p] {
			if of.extends != "" {
				h.extendsAgain(of)
			}
			r := do(h.T, h.seen, StoreCall{Limit: h.limit, Key: of.Key, Op: OpExtend, HoldID: of.HoldID})[0]
			require.NoError(h, r.Err, "after %s: hold %q of %q is not in Redis\n%v", what, of.HoldID, of.Key, h.logOf(of.HoldID))
			require.EqualValues(h, of.units, r.Held, "after %s: hold %q of %q\n%v", what, of.HoldID, of.Key, h.logOf(of.HoldID))
			h.calls.Add(1)
		}
	}
	for key, of := range h.truth {
		want := of.spent
		for _, holds := range h.holds {
			for _, hold := range holds {
				if hold.Key == key {
					want += hold.units
				}
			}
		}
		got := do(h.T, h.seen, StoreCall{Limit: h.limit, Key: key, Op: OpPeek})[0].Count
		require.True(h, sumOf(got-want, of.unknown), "after %s: %d units of %q count, and want %d, and some of %v\n%v", what, got, key, want, of.unknown, strings.Join(h.logOf(key), "\n"))
		of.spent, of.unknown = of.spent+got-want, nil
		h.calls.Add(1)
	}
	var all []*trueHold
	for _, holds := range h.holds {
		all = append(all, holds...)
	}
	h.holds, h.log = [3][]*trueHold{}, [3][]string{}
	for _, of := range all { // from now on another process acts on it
		p := h.rng.IntN(3)
		h.holds[p] = append(h.holds[p], of)
	}
}

// logOf is what processes have done with a hold.
func (h *owedHistory) logOf(id string) (lines []string) {
	for _, log := range h.log {
		for _, line := range log {
			if len(id) > 0 && strings.Contains(line, fmt.Sprintf("%q", id)) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// extendsAgain finds out whether an extension has been made, by making it again.
func (h *owedHistory) extendsAgain(of *trueHold) {
	r := do(h.T, h.seen, StoreCall{Limit: h.limit, Key: of.Key, Op: OpExtend, HoldID: of.HoldID, Cost: of.cost, Step: of.extends})[0]
	require.NoError(h, r.Err)
	of.units += int64(of.cost)
	of.extends = ""
	h.calls.Add(1)
}

// sumOf reports whether n is the sum of some of the numbers.
func sumOf(n int64, numbers []int64) bool {
	sums := map[int64]bool{0: true}
	for _, x := range numbers {
		for s := range maps.Clone(sums) {
			sums[s+x] = true
		}
	}
	return sums[n]
}

// TestHoldsOwed_Histories: three processes make holds, repeat, extend and settle them with less and more than they have, and take units, while
// connections break, links get slow, and Redis is stopped and killed. Afterwards Redis counts exactly what was used: each hold
// once, by whomever it was admitted. SLUICE_REDIS_CALLS=200000 makes so many calls of each algorithm.
func TestHoldsOwed_Histories(t *testing.T) {
	t.Parallel() // it mostly waits
	anyServer(t)
	most := int64(depth.Of(1000, 4000, 50_000))
	if s := os.Getenv("SLUICE_REDIS_CALLS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		most = int64(n)
	}
	for _, a := range holdVariants {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			h := newOwedHistory(t)
			outages := 0
			for h.calls.Load() < most {
				h.begin(a)
				for range 4 {
					h.outage()
					outages++
				}
				h.close()
			}
			t.Logf("%d calls in %d outages", h.calls.Load(), outages)
		})
	}
}
