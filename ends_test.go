package sluice

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// ends of the definition, one after the other.
func endsByHand(all []*Reservation) []uint64 {
	ends, end := []uint64{}, uint64(0)
	for _, r := range all {
		end = max(end+r.ahead+r.span, r.least)
		ends = append(ends, end)
	}
	return ends
}

// checkEnds compares all that the ends know with the list, and looks at the treap.
func checkEnds(t *testing.T, e *ends, all []*Reservation) {
	t.Helper()
	want := endsByHand(all)
	var got []*Reservation
	e.each(func(r *Reservation) { got = append(got, r) })
	require.Equal(t, len(all), e.n)
	require.Len(t, got, len(all))
	for i, r := range all {
		require.Same(t, r, got[i], "position %d", i)
		require.True(t, r.listed)
		require.Equal(t, want[i], r.step().from(e.before(r)), "end %d", i)
		if i > 0 {
			require.Same(t, r, e.after(all[i-1]))
			require.Equal(t, want[i-1], e.before(r))
		}
		if r.up != nil {
			require.GreaterOrEqual(t, r.up.priority, r.priority)
		}
	}
	if len(all) == 0 {
		require.Nil(t, e.first())
		require.Nil(t, e.last)
		require.Zero(t, e.final())
		return
	}
	require.Same(t, all[0], e.first())
	require.Same(t, all[len(all)-1], e.last)
	require.Nil(t, e.after(e.last))
	require.Equal(t, want[len(want)-1], e.final())
}

// TestEnds_AreThoseOfTheDefinition, whatever is added, removed and changed.
func TestEnds_AreThoseOfTheDefinition(t *testing.T) {
	rng := newRand(t)
	for range 200 {
		e := &ends{}
		var all []*Reservation
		for range 60 {
			switch i := rng.IntN(len(all) + 1); {
			case rng.IntN(2) == 0 || i == len(all):
				r := &Reservation{node: node{ahead: rng.Uint64N(4), span: rng.Uint64N(9)}}
				if rng.IntN(2) == 0 {
					r.least = e.final() + rng.Uint64N(20)
				}
				e.append(r)
				all = append(all, r)
			case rng.IntN(2) == 0:
				all[i].span, all[i].least = rng.Uint64N(all[i].span+1), rng.Uint64N(all[i].least+1)
				e.changed(all[i])
			default:
				before := endsByHand(all)
				e.remove(all[i])
				require.Zero(t, all[i].node, "it keeps others in memory")
				all = append(all[:i], all[i+1:]...)
				require.Equal(t, append(before[:i:i], before[i+1:]...), endsByHand(all), "the ends of the others stay")
			}
			checkEnds(t, e, all)
		}
		e.clear()
		for _, r := range all {
			require.Zero(t, r.node)
		}
		checkEnds(t, e, nil)
	}
}

// TestEnds_WorkedExample is the one of the comment.
func TestEnds_WorkedExample(t *testing.T) {
	e := &ends{}
	var all []*Reservation
	for _, n := range []node{{ahead: 3, span: 1, least: 2}, {span: 1, least: 3}, {span: 1, least: 6}} {
		r := &Reservation{node: n}
		e.append(r)
		all = append(all, r)
	}
	require.Equal(t, []uint64{4, 5, 6}, endsByHand(all))
	cancel := func(r *Reservation) uint64 {
		r.span, r.least = 0, 0
		e.changed(r)
		return e.final()
	}
	require.Equal(t, uint64(6), cancel(all[0]))
	require.Equal(t, []uint64{3, 4, 6}, endsByHand(all))
	require.Equal(t, uint64(4), cancel(all[2]))
}

// TestEnds_StepsAreLogarithmic in the number of reservations, each of them, in every order
// of settling.
func TestEnds_StepsAreLogarithmic(t *testing.T) {
	rng := newRand(t)
	orders := map[string]func(i, n int) int{
		"first": func(int, int) int { return 0 },
		"last":  func(_, n int) int { return n - 1 },
		"any":   func(_, n int) int { return rng.IntN(n) },
	}
	for name, pick := range orders {
		for _, n := range []int{1, 100, 40_000} {
			l, _ := newFrozen(t, Config{Limit: PerSecond(1).WithBurst(10)})
			k := l.Key("k")
			all := make([]*Reservation, n)
			steps := func(what string, f func()) int {
				rec := l.ledgers.of(k.id).find(k.id)
				if rec == nil {
					f()
					return 0
				}
				before := rec.visited
				f()
				spent := rec.visited - before
				require.LessOrEqual(t, spent, 40*(bits.Len(uint(n))+1), "%s of %d, %s first", what, n, name)
				return spent
			}
			sum := 0
			for i := range all {
				sum += steps("Reserve", func() { all[i] = mustReserve(t, k, 1) })
			}
			for i := range n {
				j := pick(i, n-i)
				r := all[j]
				if j == 0 {
					all = all[1:]
				} else {
					all[j] = all[n-i-1]
					all = all[:n-i-1]
				}
				if i%10 == 0 {
					sum += steps("Refund", func() { k.Refund(1) })
				}
				sum += steps("Settle", r.Cancel)
			}
			require.Less(t, sum, 12*n*(bits.Len(uint(n))+2), "of %d, %s first", n, name)
			require.Zero(t, openReservations(l))
		}
	}
}
