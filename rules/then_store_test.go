package rules

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// look is how a key of a modelStore stands, and when it has room for n hits.
func (s *modelStore) look(counter StoreCounter, key string, n uint64) sluice.Decision {
	m := counter.(*modelCounter)
	l := m.limiter(key)
	d := l.Key("").Peek(0)
	if !m.windows() {
		d.RetryAfter = l.Key("").Peek(int(n)).RetryAfter
		return d
	}
	limit := m.limit.Limit.Rate
	held := l.Config().Limit.Rate - d.Remaining
	d.Limit, d.Remaining = limit, max(0, limit-held)
	d.Allowed, d.RetryAfter = d.Remaining > 0, d.ResetAfter
	switch {
	case n > uint64(limit) || limit == 0:
		d.RetryAfter = sluice.Never
	case held+int(n) <= limit && d.Allowed:
		d.RetryAfter = 0
	}
	return d
}

// both makes a call of two budgets, if it counts.
func (s *modelStore) both(c *StoreCall, counts bool) {
	first, second := c.Counter.(*modelCounter), c.Second.Counter.(*modelCounter)
	now := s.clock.Now()
	a, b := s.look(first, c.Key, c.Hits), s.look(second, c.Second.Key, 0)
	own := min(c.Hits, uint64(a.Remaining))
	rest := c.Hits - own
	b = s.look(second, c.Second.Key, rest)
	fits := rest <= uint64(b.Remaining)
	if c.Hits == 0 {
		fits = a.Allowed || b.Allowed
	}
	note := c.Key + " " + c.Second.Key
	known := s.spilled[note]
	if known.until <= now {
		known = spill{}
	}
	c.Second.Hits = 0
	switch {
	case !counts || c.Op == Look:
	case c.Op == GiveBack:
		c.Absorbed = s.denials.absorb(first.id(c.Key), now, c.Hits, first.window())
		c.Second.Hits = min(c.Hits-c.Absorbed, known.units)
		known.units -= c.Second.Hits
		second.limiter(c.Second.Key).Key("").Refund(int(c.Second.Hits))
		first.limiter(c.Key).Key("").Refund(int(c.Hits - c.Absorbed - c.Second.Hits))
	case fits:
		first.limiter(c.Key).Take("", int(own))
		second.limiter(c.Second.Key).Take("", int(rest))
		c.Second.Hits = rest
		known.units += rest
	}
	if counts && c.Op != Look {
		a, b = s.look(first, c.Key, c.Hits), s.look(second, c.Second.Key, rest)
		if known.units > 0 && c.Op == CountFitting && fits && rest > 0 {
			known.until = max(known.until, now+int64(b.ResetAfter))
		}
		if known.units == 0 {
			known = spill{}
		}
		s.spilled[note] = known
	}
	c.Decision, c.Second.Decision = a, b
	if c.Decision.Allowed = fits; c.Hits == 0 {
		c.Second.Decision.RetryAfter = 0 // it is not known how many would be for it
	}
}

// thenKinds are the algorithms of both budgets; the empty one counts in windows.
var thenKinds = []string{"", "", ", algorithm: gcra", ", algorithm: token-bucket", ", algorithm: sliding-window", ", algorithm: sliding-log", ", algorithm: leaky-bucket"}

// thenRequest is a call of the plan, now and then of the credits by themselves, with others beside it.
func thenRequest(r *rand.Rand, most int) *Request {
	req := &Request{Domain: "d"}
	client := pick(r, "ann", "bob")
	d := withHits("client="+client+",budget="+pick(r, "plan", "plan", "plan", "credits"), uint64(r.IntN(most)))
	d.Refund = r.IntN(3) == 0
	req.Descriptors = append(req.Descriptors, d)
	if r.IntN(4) == 0 {
		req.Descriptors = append(req.Descriptors, withHits("other=x", uint64(r.IntN(3))))
	}
	return req
}

// TestThen_StoreAsMemory: with a Store of the same clock, an engine answers and counts as one in memory.
func TestThen_StoreAsMemory(t *testing.T) {
	for _, mode := range []string{"each", "atomic", "stop"} {
		t.Run(mode, func(t *testing.T) {
			r := seeded.Rand(t)
			codes := map[Code]int{}
			var spilled, back uint64
			for range 40 {
				text := fmt.Sprintf(planAndCredits, mode == "atomic", r.IntN(60), pick(r, thenKinds...), r.IntN(120), pick(r, thenKinds...))
				clock := sluice.NewManualClock(start)
				c := Config{Clock: clock, StopWhenOver: mode == "stop"}
				memory, err := New(mustLoad(t, text), c)
				require.NoError(t, err)
				c.Store = newModelStore(clock)
				shared, err := New(mustLoad(t, text), c)
				require.NoError(t, err)
				var a, b Response
				for range 300 {
					clock.Advance(time.Duration(r.Int64N(int64(20 * time.Minute))))
					req := thenRequest(r, 50)
					require.NoError(t, memory.Decide(req, &a))
					require.NoError(t, shared.Decide(req, &b))
					require.Equal(t, a.Statuses, b.Statuses, "%+v of %s", req, text)
					require.Equal(t, a.Code, b.Code, "%+v", req)
					codes[a.Code]++
				}
				want, got := memory.Series(), shared.Series()
				require.Equal(t, want, got)
				for _, s := range want {
					if s.Path == "d.client.budget_credits" {
						spilled, back = spilled+s.Within, back+s.Refunded
					}
				}
			}
			require.Greater(t, codes[OK], 1000)
			require.Greater(t, codes[OverLimit], 1000)
			require.Greater(t, spilled, uint64(1000))
			require.Greater(t, back, uint64(1000))
		})
	}
}

// TestThen_StoreCalls: what a Store is told: both limits can be reached together, and no other limit has the counts of the
// second; a hold of both says that a store has none.
func TestThen_StoreCalls(t *testing.T) {
	store := &recorder{modelStore: newModelStore(sluice.NewManualClock(start))}
	text := fmt.Sprintf(planAndCredits, false, 10, "", 20, "")
	e, err := New(mustLoad(t, text), Config{Store: store, Leases: true})
	require.NoError(t, err)
	seconds := 0
	for _, l := range store.opened {
		then := l.Limit == sluice.Per(10, time.Hour) || l.Limit == sluice.Per(20, 24*time.Hour)
		require.Equal(t, then, l.Atomic, "%+v", l)
		require.Equal(t, !then && !l.Override, l.Leases, "%+v", l)
		if l.Second {
			seconds++
			require.Equal(t, 20, l.Limit.Rate)
		}
	}
	require.Equal(t, 1, seconds)
	var resp Response
	ask := func(d ...Descriptor) []StoreCall {
		store.calls = nil
		require.NoError(t, e.Decide(&Request{Domain: "d", Descriptors: d}, &resp))
		return store.calls
	}
	calls := ask(withHits(annsPlan, 13))
	require.Len(t, calls, 1)
	require.Equal(t, CountFitting, calls[0].Op)
	require.Equal(t, ".1:d.6:client=3:ann.6:budget=4:plan", calls[0].Key)
	require.Equal(t, ".1:d.6:client=3:ann.6:budget=7:credits", calls[0].Second.Key)
	calls = ask(withHits(annsPlan, 18))
	require.Len(t, calls, 2)
	require.Equal(t, Deny, calls[1].Op)
	require.NotNil(t, calls[1].Second.Counter)
	d := withHits(annsPlan, 20)
	d.Refund = true
	require.Equal(t, GiveBack, ask(d)[0].Op)
	require.EqualValues(t, 18, resp.Statuses[0].Remaining+0-1, "18 were denied, and 2 are the credits'")

	h := &Hold{ID: "x", Request: Request{Domain: "d", Descriptors: []Descriptor{withHits(annsPlan, 1)}}}
	for _, err := range []error{e.Hold(h, &resp), e.Extend(h, &resp), e.Settle(h), e.Release(h)} {
		require.ErrorIs(t, err, ErrNoHolds)
	}
}

// TestThen_StoreHold: a HoldStore is not asked to hold of two budgets.
func TestThen_StoreHold(t *testing.T) {
	e, err := New(mustLoad(t, fmt.Sprintf(planAndCredits, false, 10, "", 20, "")), Config{Store: noHold{newModelStore(sluice.NewManualClock(start))}})
	require.NoError(t, err)
	h := &Hold{ID: "x", Request: Request{Domain: "d", Descriptors: []Descriptor{withHits(annsPlan, 1)}}}
	for _, err := range []error{e.Hold(h, new(Response)), e.Extend(h, new(Response)), e.Settle(h), e.Release(h)} {
		require.ErrorIs(t, err, ErrNoHolds)
		require.EqualError(t, err, "rules: the store keeps no holds of two budgets, and d.client.budget_plan has then; want Decide and a refund, or a rule without then for what is held")
	}
}

// noHold fails a test that holds.
type noHold struct{ *modelStore }

func (noHold) Hold(HoldTerms, []StoreCall) (HoldResult, error)   { panic("held") }
func (noHold) Extend(HoldTerms, []StoreCall) (HoldResult, error) { panic("extended") }
func (noHold) Settle(HoldTerms, []StoreCall) (HoldResult, error) { panic("settled") }

// recorder notes what a Store is asked.
type recorder struct {
	*modelStore
	opened []StoreLimit
	calls  []StoreCall
}

func (r *recorder) Open(l StoreLimit) (StoreCounter, error) {
	r.opened = append(r.opened, l)
	return r.modelStore.Open(l)
}

func (r *recorder) Decide(calls []StoreCall) error {
	err := r.modelStore.Decide(calls)
	r.calls = append(r.calls, calls...)
	return err
}

// TestThen_StoreConcurrent: engines with one Store take from both budgets exactly what they are admitted for, and all that there is.
func TestThen_StoreConcurrent(t *testing.T) {
	r := seeded.Rand(t)
	for range 10 {
		clock := sluice.NewManualClock(start)
		store := newModelStore(clock)
		limits := [2]int{1 + r.IntN(400), 1 + r.IntN(400)}
		text := fmt.Sprintf(planAndCredits, r.IntN(2) == 0, limits[0], pick(r, thenKinds...), limits[1], pick(r, thenKinds...))
		var admitted atomic.Int64
		var all sync.WaitGroup
		var engines []*Engine
		for range 3 {
			e, err := New(mustLoad(t, text), Config{Clock: clock, Store: store})
			require.NoError(t, err)
			engines = append(engines, e)
			for g := range 3 {
				all.Go(func() {
					var resp Response
					for i := 0; ; i++ {
						n := uint64(1 + (i+g)%7)
						if err := e.Decide(&Request{Domain: "d", Descriptors: []Descriptor{withHits(annsPlan, n)}}, &resp); err != nil {
							panic(err)
						}
						if resp.Code == OK {
							admitted.Add(int64(n))
						} else if n == 1 {
							return
						}
					}
				})
			}
		}
		all.Wait()
		require.EqualValues(t, limits[0]+limits[1], admitted.Load(), text)
		within := uint64(0)
		for _, e := range engines {
			for _, s := range e.Series() {
				within += s.Within
			}
		}
		require.EqualValues(t, admitted.Load(), within)
	}
}
