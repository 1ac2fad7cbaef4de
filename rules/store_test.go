package rules

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// modelStore is a Store in memory: what it is asked of a key it asks a limiter of that key's StoreLimit, one call
// at a time.
type modelStore struct {
	clock sluice.Clock

	mu       sync.Mutex
	limiters map[string]*sluice.Limiter
	denials  denials
	spilled  map[string]spill // by both keys
	open     int
	refuse   error // of Open
	fail     error // of Decide and DecideAll
}

type modelCounter struct {
	store *modelStore
	limit StoreLimit
	name  string
}

const modelMost = min(1<<33, math.MaxInt-1)

func (s *modelStore) Open(l StoreLimit) (StoreCounter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	s.open++
	c := &modelCounter{store: s, limit: l, name: fmt.Sprint(l.Algorithm, l.Offset, l.BlockFor, l.Second)}
	if c.windows() {
		c.name += l.Limit.Period.String()
	}
	return c, nil
}

func (c *modelCounter) windows() bool { return c.limit.Windows() }

func (c *modelCounter) Close() {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.open--
}

// limiter is that of a key.
func (c *modelCounter) limiter(key string) *sluice.Limiter {
	s, name := c.store, c.name+" "+key
	l := s.limiters[name]
	cfg := sluice.Config{Algorithm: c.limit.Algorithm, Limit: c.limit.Limit, Offset: c.limit.Offset, BlockFor: c.limit.BlockFor, Clock: s.clock, MaxKeys: 1}
	if c.windows() {
		cfg.CountDenied, cfg.Limit = true, sluice.Per(modelMost, c.limit.Limit.Period)
		if cfg.Limit.Period == time.Second {
			cfg.Limit.Rate = min(1<<32-1, math.MaxInt-1)
		}
	}
	if l == nil {
		l = sluice.Must(sluice.New(cfg))
		s.limiters[name] = l
	}
	if l.Config().Limit != cfg.Limit {
		if err := l.SetLimit(cfg.Limit); err != nil {
			panic(err)
		}
	}
	return l
}

// deny notes denied hits as an engine in memory does.
func (c *modelCounter) deny(call *StoreCall) {
	d := denial{missing: call.Hits, window: c.window()}
	if call.Counted {
		d.missing, d.counted = 0, call.Hits
	}
	now := c.store.clock.Now()
	d.until = now + int64(min(max(c.limit.Limit.Period, leastWait), mostWait))
	c.store.denials.add(c.id(call.Key), now, d)
}

func (c *modelCounter) id(key string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	if c.limit.Override {
		h.Write([]byte(c.limit.Limit.Period.String()))
	}
	return h.Sum64()
}

func (c *modelCounter) window() uint64 {
	if !c.windows() {
		return 0
	}
	p := int64(c.limit.Limit.Period)
	return uint64(c.store.clock.Now()/p) + uint64(p)
}

// one makes a call of s, if it counts.
func (s *modelStore) one(c *StoreCall, counts bool) {
	m := c.Counter.(*modelCounter)
	l, n := m.limiter(c.Key), int(c.Hits)
	switch {
	case c.Op == Deny:
		m.deny(c)
		return
	case c.Second.Counter != nil:
		s.both(c, counts)
		return
	case c.Op == GiveBack && counts:
		c.Absorbed = s.denials.absorb(m.id(c.Key), s.clock.Now(), c.Hits, m.window())
		l.Key("").Refund(n - int(c.Absorbed))
	case c.Op == CountAll && counts:
		c.Counted = true
		if m.windows() {
			l.Take("", n)
		} else {
			l.Key("").Debit(n)
		}
	}
	if !m.windows() {
		switch {
		case c.Op == CountFitting && counts:
			c.Decision = l.Take("", n)
		case c.Op == GiveBack:
			c.Decision = l.Key("").Peek(0)
		default:
			c.Decision = l.Key("").Peek(n)
		}
		return
	}
	limit := c.Limit
	if limit == (sluice.Limit{}) {
		limit = m.limit.Limit
	}
	held := l.Config().Limit.Rate - l.Key("").Peek(0).Remaining
	allowed := held+n <= limit.Rate && (!m.limit.Second || held < limit.Rate)
	if c.Op == CountFitting && counts && allowed {
		l.Take("", n)
		held += n
	}
	c.Count = uint64(held)
	c.Decision = sluice.Decision{Allowed: allowed, Limit: limit.Rate, Remaining: max(0, limit.Rate-held), ResetAfter: l.Key("").Peek(0).ResetAfter}
	if (m.limit.Second || m.limit.Admitted) && !allowed { // else the engine knows
		c.Decision.RetryAfter = s.look(c.Counter, c.Key, c.Hits).RetryAfter
	}
}

func (s *modelStore) Decide(calls []StoreCall) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	for i := range calls {
		s.one(&calls[i], true)
	}
	return nil
}

func (s *modelStore) DecideAll(calls []StoreCall) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return -1, s.fail
	}
	denied, before := -1, map[string]uint64{}
	for i := range calls {
		c := &calls[i]
		n := c.Hits
		if c.Op == CountFitting || c.Op == CountAll {
			key := c.Counter.(*modelCounter).name + " " + c.Key
			c.Hits += before[key]
			before[key] = c.Hits
		}
		s.one(c, false)
		c.Hits = n
		if c.Op == CountFitting && !c.Decision.Allowed && denied < 0 {
			denied = i
		}
	}
	if denied >= 0 {
		return denied, nil
	}
	for i := range calls {
		s.one(&calls[i], true)
	}
	return -1, nil
}

func newModelStore(clock sluice.Clock) *modelStore {
	s := &modelStore{clock: clock, limiters: map[string]*sluice.Limiter{}, spilled: map[string]spill{}}
	s.denials.bound(1 << 20)
	return s
}

// algorithms of random rules; the empty one is the counter that upstream has.
var storeAlgorithms = []string{"", "", "gcra", "token-bucket", "leaky-bucket", "sliding-window", "sliding-log", "in-flight"}

// storeRules makes a domain of rules of all kinds, in one level.
func storeRules(r *rand.Rand, atomic bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: d\nsluice: {atomic: %t}\ndescriptors:\n", atomic)
	for _, key := range []string{"a", "b", "c"} {
		for _, value := range []string{"", "x", "y*"} {
			fmt.Fprintf(&b, "- key: %s\n  value: %q\n  shadow_mode: %t\n", key, value, r.IntN(5) == 0)
			fmt.Fprintf(&b, "  share_threshold: %t\n", value == "y*" && r.IntN(2) == 0)
			fmt.Fprintf(&b, "  rate_limit: {unit: %s, requests_per_unit: %d", pick(r, "second", "minute", "hour"), 1+r.IntN(9))
			if a := pick(r, storeAlgorithms...); a != "" {
				fmt.Fprintf(&b, ", algorithm: %s", a)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// storeRequest makes a call of different keys: of one that is there twice a status tells how it stands after both,
// or between them, and the refund of what the same call is denied comes before that is noted.
func storeRequest(r *rand.Rand) *Request {
	req := &Request{Domain: "d", Hits: uint32(r.IntN(3))}
	keys := []string{"a", "b", "c"}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+r.IntN(3)] {
		d := Descriptor{Entries: []Entry{{key, pick(r, "x", "y1", "y2", "z")}}}
		if r.IntN(4) == 0 {
			n := uint64(r.IntN(4))
			d.Hits = &n
		}
		d.Refund = r.IntN(8) == 0
		if r.IntN(6) == 0 {
			d.Override = &Override{uint32(1 + r.IntN(8)), modelUnits[r.IntN(len(modelUnits))]}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// TestStore_DecidesAsMemory: with a Store of the same clock, an engine answers as one that counts in
// memory, and its statistics are the same.
func TestStore_DecidesAsMemory(t *testing.T) {
	for _, mode := range []string{"each", "atomic", "stop"} {
		t.Run(mode, func(t *testing.T) {
			r := seeded.Rand(t)
			codes := map[Code]int{}
			for range 30 {
				clock := sluice.NewManualClock(start)
				store := newModelStore(clock)
				c := Config{Clock: clock, StopWhenOver: mode == "stop"}
				memory, err := New(mustLoad(t, storeRules(r, mode == "atomic")), c)
				require.NoError(t, err)
				c.Store = store
				set, _ := memory.Set()
				shared, err := New(set, c)
				require.NoError(t, err)
				var a, b Response
				for range 300 {
					clock.Advance(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
					req := storeRequest(r)
					require.NoError(t, memory.Decide(req, &a))
					require.NoError(t, shared.Decide(req, &b))
					require.Equal(t, a.Code, b.Code, "%+v", req)
					require.Equal(t, a.Statuses, b.Statuses, "%+v", req)
					require.Equal(t, a.Tightest, b.Tightest, "%+v", req)
					codes[a.Code]++
				}
				require.Equal(t, memory.Series(), shared.Series())
			}
			require.Greater(t, codes[OK], 1000)
			require.Greater(t, codes[OverLimit], 1000)
		})
	}
}

// TestStore_Swap: counts outlive a reload, under the new thresholds; counters that no rule needs are closed, and those of
// a set that is refused, too.
func TestStore_Swap(t *testing.T) {
	clock := sluice.NewManualClock(start)
	store := newModelStore(clock)
	rule := "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: hour, requests_per_unit: %d}\n"
	e, err := New(mustLoad(t, fmt.Sprintf(rule, 3)), Config{Clock: clock, Store: store})
	require.NoError(t, err)
	var resp Response
	ask := func() Status {
		require.NoError(t, e.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("a=1")}}, &resp))
		return resp.Statuses[0]
	}
	open := store.open
	for range 4 {
		ask()
	}
	require.Equal(t, OverLimit, resp.Code)
	require.NoError(t, e.Swap(mustLoad(t, fmt.Sprintf(rule, 6))))
	require.EqualValues(t, 1, ask().Remaining)
	require.Equal(t, open, store.open)
	store.refuse = errors.New("no such limit here")
	err = e.Swap(mustLoad(t, fmt.Sprintf(rule, 100)))
	require.EqualError(t, err, "test.yaml:4:15: d.a: no such limit here")
	require.Equal(t, open, store.open)
	require.EqualValues(t, 6, ask().Requests)
	store.refuse = nil
	require.NoError(t, e.Swap(mustLoad(t, "domain: other\n")))
	none, err := Load(nil, Options{})
	require.NoError(t, err)
	require.NoError(t, e.Swap(none))
	require.Zero(t, store.open)
}

// TestStore_Fails: a Store that does not answer is an error, and nothing is answered for it.
func TestStore_Fails(t *testing.T) {
	store := newModelStore(sluice.NewManualClock(start))
	for _, domain := range []string{"", "sluice: {atomic: true}\n"} {
		store.limiters = map[string]*sluice.Limiter{}
		e, err := New(mustLoad(t, "domain: d\n"+domain+"descriptors:\n- key: a\n  rate_limit: {unit: hour, requests_per_unit: 1}\n"), Config{Store: store})
		require.NoError(t, err)
		store.fail = errors.New("gone")
		var resp Response
		err = e.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("a=1")}}, &resp)
		require.ErrorIs(t, err, ErrStore)
		require.ErrorContains(t, err, "gone")
		require.NoError(t, e.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("b=1")}}, &resp), "nothing to count")
		store.fail = nil
		require.NoError(t, e.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("a=1")}}, &resp))
		require.Equal(t, OK, resp.Code)
	}
}

// TestStore_Keys: no two lists of entries have the same key, and values that share a pattern's count have one.
func TestStore_Keys(t *testing.T) {
	set := mustLoad(t, "domain: d\ndescriptors:\n- key: a\n  value: x*\n  share_threshold: true\n  rate_limit: {unit: hour, requests_per_unit: 1}\n")
	d := &domainState{domain: set.domains["d"], storeName: string(appendPart(nil, '.', "d"))}
	r := set.Match("d", entries("a=x1"))
	seen := map[string]string{}
	for _, list := range []string{"a=b", "a=b,c=d", "a=b.1:c=1:d", "a=", "=a", "a=b,c=", "a=b,=c", "a=x*"} {
		key := d.key(nil, entries(list))
		require.Empty(t, seen[key], list)
		seen[key] = list
		domain, back, err := ParseStoreKey(key)
		require.NoError(t, err)
		require.Equal(t, "d", domain)
		require.Equal(t, entries(list), back)
	}
	for _, bad := range []string{"x", ".9:d", ".1", ".-1:d", "=1:x", ".1:d=1:x", ".x:d"} {
		_, _, err := ParseStoreKey(bad)
		require.ErrorContains(t, err, "is no Key of a StoreCall", bad)
	}
	require.Equal(t, d.key(r, entries("a=x1")), d.key(r, entries("a=x2")))
	require.NotContains(t, seen, d.key(r, entries("a=x1")))
}

// TestStore_NoSnapshot: the counts are in the Store, and an engine has none to write or to read.
func TestStore_NoSnapshot(t *testing.T) {
	c := Config{Store: newModelStore(sluice.NewManualClock(start))}
	set := mustLoad(t, "domain: d\n")
	e, err := New(set, c)
	require.NoError(t, err)
	require.ErrorContains(t, e.Snapshot(io.Discard), "a Store has the counts")
	_, err = Restore(set, c, strings.NewReader(""))
	require.ErrorContains(t, err, "a Store has the counts")
}

// TestStore_Unshared: what no Store keeps is refused, all of it and with its place, and not left out.
func TestStore_Unshared(t *testing.T) {
	set := mustLoad(t, `domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 5, soft: 1}}
- {key: b, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: c, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding-window, count_denied: true}}
- {key: e, rate_limit: {unit: day, requests_per_unit: 7}}
`)
	store := &refusing{modelStore: newModelStore(sluice.NewManualClock(start)), rate: 7}
	_, err := New(set, Config{Store: store})
	var all *LoadError
	require.ErrorAs(t, err, &all)
	require.Equal(t, `test.yaml:3:24: d.a: soft: 1 is not supported with a store; want it deleted, or counts in memory
test.yaml:5:24: d.c: count_denied: true with sliding-window, of which a store counts what is admitted; want it deleted, or counts in memory
test.yaml:6:24: d.e: not 7`, err.Error())
	require.Positive(t, store.opened)
	require.Equal(t, store.opened, store.closed, "what had been opened is closed")
}

// refusing refuses limits of a rate.
type refusing struct {
	*modelStore
	rate           int
	opened, closed int
}

func (s *refusing) Open(l StoreLimit) (StoreCounter, error) {
	if l.Limit.Rate == s.rate {
		return nil, fmt.Errorf("not %d", s.rate)
	}
	s.opened++
	return closer{s}, nil
}

type closer struct{ *refusing }

func (c closer) Close() { c.closed++ }
