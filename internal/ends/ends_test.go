package ends

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// endsByHand returns the ends of the definition, one after the other.
func endsByHand(all []*Node) []uint64 {
	ends, end := []uint64{}, uint64(0)
	for _, r := range all {
		end = max(end+r.Ahead+r.Span, r.Least)
		ends = append(ends, end)
	}
	return ends
}

// checkEnds compares all that the ends know with the list, and looks at the treap.
func checkEnds(t *testing.T, e *Ends, all []*Node) {
	t.Helper()
	want := endsByHand(all)
	var got, waiting, queue []*Node
	for _, r := range all {
		if r.Wake != nil {
			waiting = append(waiting, r)
		}
	}
	for r := e.Waiting(); r != nil; r = r.later {
		queue = append(queue, r)
	}
	require.Equal(t, len(waiting), len(queue))
	for i, r := range waiting {
		require.Same(t, r, queue[i])
	}
	e.Each(func(r *Node) { got = append(got, r) })
	require.Equal(t, len(all), e.Len())
	require.Len(t, got, len(all))
	for i, r := range all {
		require.Same(t, r, got[i], "position %d", i)
		require.True(t, r.Listed())
		require.Equal(t, want[i], r.End(e.Before(r)), "end %d", i)
		if i > 0 {
			require.Same(t, r, e.after(all[i-1]))
			require.Equal(t, want[i-1], e.Before(r))
		}
		if r.up != nil {
			require.GreaterOrEqual(t, r.up.priority, r.priority)
		}
	}
	if len(all) == 0 {
		require.Nil(t, e.First())
		require.Nil(t, e.last)
		require.Zero(t, e.Final())
		return
	}
	require.Same(t, all[0], e.First())
	require.Same(t, all[len(all)-1], e.last)
	require.Nil(t, e.after(e.last))
	require.Equal(t, want[len(want)-1], e.Final())
}

// TestEnds_AreThoseOfTheDefinition, whatever is added, removed and changed.
func TestEnds_AreThoseOfTheDefinition(t *testing.T) {
	rng := seeded.Rand(t)
	for range 200 {
		e := &Ends{}
		var all []*Node
		for range 60 {
			switch i := rng.IntN(len(all) + 1); {
			case rng.IntN(2) == 0 || i == len(all):
				r := &Node{Ahead: rng.Uint64N(4), Span: rng.Uint64N(9)}
				if rng.IntN(2) == 0 {
					r.Least = e.Final() + rng.Uint64N(20)
				}
				if rng.IntN(2) == 0 {
					r.Wake = make(chan struct{})
				}
				e.Append(r)
				all = append(all, r)
			case rng.IntN(2) == 0:
				all[i].Span, all[i].Least = rng.Uint64N(all[i].Span+1), rng.Uint64N(all[i].Least+1)
				e.Changed(all[i])
			case rng.IntN(2) == 0:
				e.Leave(all[i])
				require.Nil(t, all[i].Wake)
			default:
				before := endsByHand(all)
				e.Remove(all[i])
				require.Zero(t, all[i].links, "it keeps others in memory")
				all = append(all[:i], all[i+1:]...)
				require.Equal(t, append(before[:i:i], before[i+1:]...), endsByHand(all), "the ends of the others stay")
			}
			checkEnds(t, e, all)
		}
		e.Clear()
		for _, r := range all {
			require.Zero(t, r.links)
		}
		checkEnds(t, e, nil)
	}
}

// TestEnds_WorkedExample is the one of the comment.
func TestEnds_WorkedExample(t *testing.T) {
	e := &Ends{}
	var all []*Node
	for _, r := range []*Node{{Ahead: 3, Span: 1, Least: 2}, {Span: 1, Least: 3}, {Span: 1, Least: 6}} {
		e.Append(r)
		all = append(all, r)
	}
	require.Equal(t, []uint64{4, 5, 6}, endsByHand(all))
	cancel := func(r *Node) uint64 {
		r.Span, r.Least = 0, 0
		e.Changed(r)
		return e.Final()
	}
	require.Equal(t, uint64(6), cancel(all[0]))
	require.Equal(t, []uint64{3, 4, 6}, endsByHand(all))
	require.Equal(t, uint64(4), cancel(all[2]))
}
