package rules

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// holdModel is a modelStore that keeps holds, on a clock that stands.
type holdModel struct {
	*modelStore
	holds  map[string]*modelStoreHold // by id
	broken error
}

type modelStoreHold struct {
	terms HoldTerms
	hits  map[string]uint64 // by counter and key
	ended bool
	used  uint64 // the digest of what was used
	steps map[string]bool
}

func newHoldModel(clock sluice.Clock) *holdModel {
	return &holdModel{modelStore: newModelStore(clock), holds: map[string]*modelStoreHold{}}
}

func callName(c *StoreCall) string { return c.Counter.(*modelCounter).name + " " + c.Key }

func hitsOfCalls(calls []StoreCall) map[string]uint64 {
	out := map[string]uint64{}
	for i := range calls {
		out[callName(&calls[i])] = calls[i].Hits
	}
	if len(out) != len(calls) {
		panic("two calls of one key")
	}
	return out
}

// again answers with the numbers of now.
func (s *holdModel) again(calls []StoreCall) (HoldResult, error) {
	for i := range calls {
		calls[i].Op, calls[i].Hits = Look, 0
	}
	_, err := s.DecideAll(calls)
	return HoldResult{Denied: -1, Again: true}, err
}

// charge makes the calls that ask for something, all or none.
func (s *holdModel) charge(calls []StoreCall) (HoldResult, error) {
	for i := range calls {
		if calls[i].Hits == 0 {
			calls[i].Op = Look
		}
	}
	denied, err := s.DecideAll(calls)
	return HoldResult{Denied: denied}, err
}

func (s *holdModel) Hold(terms HoldTerms, calls []StoreCall) (HoldResult, error) {
	hits := hitsOfCalls(calls)
	switch known := s.holds[terms.ID]; {
	case known == nil:
	case known.terms.Names != terms.Names || known.terms.Digest != terms.Digest:
		return HoldResult{}, ErrOtherHold
	case known.ended:
		return HoldResult{}, ErrEndedHold
	default:
		return s.again(calls)
	}
	r, err := s.charge(calls)
	if err == nil && r.Denied < 0 {
		s.holds[terms.ID] = &modelStoreHold{terms: terms, hits: hits, steps: map[string]bool{}}
	}
	return r, errors.Join(err, s.broken)
}

func (s *holdModel) Extend(terms HoldTerms, calls []StoreCall) (HoldResult, error) {
	known := s.holds[terms.ID]
	if known == nil || known.ended || known.terms.Names != terms.Names {
		return HoldResult{}, ErrNotHeld
	}
	if known.steps[terms.Step] {
		return s.again(calls)
	}
	hits := hitsOfCalls(calls)
	r, err := s.charge(calls)
	if err == nil && r.Denied < 0 {
		known.steps[terms.Step] = terms.Step != ""
		for name, n := range hits {
			known.hits[name] += n
		}
	}
	return r, err
}

func (s *holdModel) Settle(terms HoldTerms, calls []StoreCall) (r HoldResult, err error) {
	r.Denied = -1
	known := s.holds[terms.ID]
	if known == nil || known.terms.Names != terms.Names || known.ended && known.used != terms.Digest {
		return r, fmt.Errorf("the store: %w", ErrNotHeld)
	}
	if r.Again = known.ended; r.Again {
		return r, nil
	}
	for i := range calls {
		c := &calls[i]
		l := c.Counter.(*modelCounter).limiter(c.Key)
		if n := known.hits[callName(c)]; c.Hits < n {
			l.Key("").Refund(int(n - c.Hits))
		} else {
			l.Key("").Debit(int(min(c.Hits-n, c.Debt)))
			r.Capped = r.Capped || c.Hits-n > c.Debt
		}
	}
	known.ended, known.used = true, terms.Digest
	return r, nil
}

// TestHold_Shared: a hold of one engine is extended and settled by another one with the same Store.
func TestHold_Shared(t *testing.T) {
	clock := sluice.NewManualClock(start)
	store := newHoldModel(clock)
	var ws [2]*world
	for i := range ws {
		e, err := New(mustLoad(t, tokenRules), Config{Clock: clock, Store: store})
		require.NoError(t, err)
		ws[i] = &world{tb: t, clock: clock, Engine: e}
	}
	a, b := ws[0], ws[1]
	request := func(id string, n uint64) *Hold { return holdOf(id, withHits("tokens=u", n), withHits("user=u", 1)) }
	require.True(t, a.hold(request("x", 600)))
	require.True(t, b.hold(request("x", 600)), "the same again")
	require.Equal(t, 400, b.left("tokens=u"))
	require.ErrorIs(t, b.Hold(request("x", 1), &b.resp), ErrOtherHold)
	require.False(t, b.hold(request("y", 401)))
	require.Equal(t, []Code{OverLimit, OK}, []Code{b.resp.Statuses[0].Code, b.resp.Statuses[1].Code})
	require.Equal(t, []int{400, 2}, []int{b.left("tokens=u"), b.left("user=u")}, "nothing of it is held")
	require.True(t, b.extend(holdOf("x", withHits("tokens=u", 400), withHits("user=u", 0))))
	require.False(t, a.extend(holdOf("x", withHits("tokens=u", 1), withHits("user=u", 0))))
	require.NoError(t, b.Settle(request("x", 10)))
	require.NoError(t, a.Settle(request("x", 10)), "the same again")
	require.ErrorIs(t, a.Settle(request("x", 11)), ErrNotHeld)
	require.ErrorIs(t, a.Release(request("z", 1)), ErrNotHeld)
	require.Equal(t, []int{990, 2}, []int{a.left("tokens=u"), a.left("user=u")})
	require.True(t, a.hold(holdOf("twice", withHits("tokens=u", 5), withHits("tokens=u", 6))), "one count has one number")
	require.Equal(t, 979, b.left("tokens=u"))
	require.NoError(t, b.Release(holdOf("twice", withHits("tokens=u", 5), withHits("tokens=u", 6))))
	require.Equal(t, 990, a.left("tokens=u"))
	require.Equal(t, Holds{Held: 2, Cut: 1}, a.Holds(), "what comes again counts once")
	require.Equal(t, Holds{Settled: 1, Released: 1, Denied: 1}, b.Holds())

	store.broken = errors.New("no answer")
	require.ErrorIs(t, a.Hold(request("lost", 1), &a.resp), ErrStore)
	store.broken = nil
	require.True(t, a.hold(request("lost", 1)), "it was held, and the answer was lost")
	require.Equal(t, 989, a.left("tokens=u"))
}

// TestHold_NoHoldStore: with a Store that keeps no holds, a hold is an error that says so.
func TestHold_NoHoldStore(t *testing.T) {
	clock := sluice.NewManualClock(start)
	e, err := New(mustLoad(t, tokenRules), Config{Clock: clock, Store: newModelStore(clock)})
	require.NoError(t, err)
	h := holdOf("a", withHits("tokens=u", 1))
	require.ErrorIs(t, e.Hold(h, new(Response)), ErrNoHolds)
	require.ErrorIs(t, e.Extend(h, new(Response)), ErrNoHolds)
	require.ErrorIs(t, e.Settle(h), ErrNoHolds)
}

// TestHold_SharedAsInMemory: random holds get the same answers from an engine with a Store and from one in memory.
func TestHold_SharedAsInMemory(t *testing.T) {
	random := seeded.Rand(t)
	for range 100 {
		clock := sluice.NewManualClock(start)
		memory := &world{tb: t, clock: clock}
		shared := &world{tb: t, clock: clock}
		var err error
		memory.Engine, err = New(mustLoad(t, tokenRules), Config{Clock: clock})
		require.NoError(t, err)
		shared.Engine, err = New(mustLoad(t, tokenRules), Config{Clock: clock, Store: newHoldModel(clock)})
		require.NoError(t, err)
		for range 40 {
			h := holdOf(fmt.Sprint(random.IntN(6)), withHits("tokens=u", random.Uint64N(400)), withHits("bucket=u", random.Uint64N(40)), withHits("watched=u", random.Uint64N(4)))
			op := random.IntN(4)
			do := func(w *world) string {
				own := *h
				switch op {
				case 0:
					err = w.Hold(&own, &w.resp)
				case 1:
					err = w.Extend(&own, &w.resp)
				case 2:
					return fmt.Sprint(w.Settle(&own))
				default:
					return fmt.Sprint(w.Release(&own))
				}
				if err != nil {
					return err.Error()
				}
				return w.resp.Code.String()
			}
			a, b := do(memory), do(shared)
			require.Equal(t, a, b, "%d %v", op, h)
			for _, key := range []string{"tokens=u", "bucket=u"} {
				require.Equal(t, memory.left(key), shared.left(key))
			}
		}
	}
}
