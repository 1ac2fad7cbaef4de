// Package rank picks the lowest of many ranks, some of which are equal.
package rank

import "math/rand/v2"

// A Cut takes all ranks below last, and want of the ties at last. It takes them
// evenly from all that it is shown. Taken in the order of slots they would always
// come from the front of a table, whose back would then fill up until probes
// become hundreds of slots long.
type Cut struct {
	below      uint64 // every rank below it is a tie; 0 if ties are those at last
	last       uint64
	ties, want int
	due        int
}

// Lowest returns the cut that takes the n lowest of the ranks, and reorders them.
func Lowest(ranks []uint64, n int) Cut {
	c := Cut{last: selectNth(ranks, n-1), want: n}
	for _, rank := range ranks {
		switch {
		case rank < c.last:
			c.want--
		case rank == c.last:
			c.ties++
		}
	}
	return c
}

// Some returns the cut that takes want of the ranks below a bound, of which there are n,
// whatever they are.
func Some(n, want int, below uint64) Cut { return Cut{below: below, ties: n, want: want} }

// Takes reports whether the cut takes a key of that rank. It counts the ties it is asked
// about.
func (c *Cut) Takes(rank uint64) bool {
	switch {
	case c.below > 0 && rank >= c.below:
		return false
	case c.below == 0 && rank != c.last:
		return rank < c.last
	}
	c.due += c.want
	if c.due < c.ties {
		return false
	}
	c.due -= c.ties
	return true
}

// selectNth returns the n-th lowest of the ranks, from 0, and reorders them
// (Hoare's quickselect). The pivot is random, so no order of keys makes it slow.
func selectNth(ranks []uint64, n int) uint64 {
	for len(ranks) > 1 {
		pivot := ranks[rand.IntN(len(ranks))]
		below, equal := 0, 0
		for i, rank := range ranks {
			switch {
			case rank < pivot:
				ranks[i] = ranks[below+equal]
				ranks[below+equal] = ranks[below]
				ranks[below] = rank
				below++
			case rank == pivot:
				ranks[i] = ranks[below+equal]
				ranks[below+equal] = rank
				equal++
			}
		}
		switch {
		case n < below:
			ranks = ranks[:below]
		case n < below+equal:
			return pivot
		default:
			ranks, n = ranks[below+equal:], n-below-equal
		}
	}
	return ranks[0]
}
