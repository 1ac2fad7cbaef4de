// Package ends keeps the open reservations of a key, in order of arrival. Of each it knows the tick
// at which the bucket would be full again if the key had been charged nothing after it, its
// end. It follows from the end of the one before:
//
//	end = max(end of the one before + ahead + span, least)
//
// where ahead are the ticks charged in between, or passed; ahead of the
// first one counts from tick 0. span is the charge of the reservation, and least the end
// of its turn, before which other calls must not be given units of the same time. One unit a
// second, three at once, all of them spent at 0; then three reservations of one unit, of
// which the first two take the turns at 1 and 2, and the third is for the turn at 5 that
// another limit has asked for:
//
//	                ahead  span  least  end
//	A, turn at 1        3     1      2    4
//	B, turn at 2        0     1      3    5
//	C, turn at 5        0     1      6    6
//
// A is cancelled: its span is 0 and it has no turn to keep, so its end is 3, and B's
// 4; C's stays, and so nothing comes back: were the bucket full again at 5, three units
// more could be had at 5 beside C's. Then C is cancelled: its end is B's, 4, and two
// units come back.
//
// So an end is found, and a reservation changed, by composing such steps. They are kept in
// a treap by position, each node with the composition of its subtree, which makes either
// O(log n).
package ends

import "math/rand/v2"

// Ends are the reservations of one key.
//
// Invariants: ends never fall from one to the next; without a change, nor does what has
// been found for one of them change when another is added or removed.
type Ends struct {
	root, last *Node
	waiting    struct{ first, last *Node } // the nodes with Wake
	n          int
	Visited    int // nodes, by all operations so far: their cost
}

// A step is one from end to end: x becomes max(x + add, least). No sum exceeds the last end.
type step struct{ add, least uint64 }

func (s step) from(x uint64) uint64 { return max(x+s.add, s.least) }

// then is the step of s and after it the step of next.
func (s step) then(next step) step {
	return step{s.add + next.add, max(s.least+next.add, next.least)}
}

// A Node is one reservation.
type Node struct {
	At    int64 // when its turn begins; not written here
	Units int   // the units of its cost that count; not written here

	// Wake is of a call that waits for its turn: whoever finds that the turn may begin sooner than At sends to it. It is nil
	// for other reservations. Set it before Append.
	Wake chan struct{}

	Ahead, Span, Least uint64
	links
}

type links struct {
	up, left, right *Node
	priority        uint64 // random, and not above up's
	all             step   // of the subtree
	listed          bool

	sooner, later *Node // of those that wait
}

func (r *Node) step() step { return step{r.Ahead + r.Span, r.Least} }

// End returns the end of r, given the end of the reservation before it.
func (r *Node) End(before uint64) uint64 { return r.step().from(before) }

// Listed reports whether r has been appended, and not been removed.
func (r *Node) Listed() bool { return r.listed }

// Len returns how many there are.
func (e *Ends) Len() int { return e.n }

// through is the step of the subtree of r, which can be nil.
func (r *Node) through() step {
	if r == nil {
		return step{}
	}
	return r.all
}

// Final is the end of the last one, 0 if there is none.
func (e *Ends) Final() uint64 { return e.root.through().from(0) }

// First is the first one, or nil.
func (e *Ends) First() *Node {
	r := e.root
	for r != nil && r.left != nil {
		r = r.left
		e.Visited++
	}
	return r
}

// Before returns the end of the one before r, or 0.
func (e *Ends) Before(r *Node) uint64 {
	before := r.left.through()
	for ; r.up != nil; r = r.up {
		if up := r.up; r == up.right {
			before = up.left.through().then(up.step()).then(before)
		}
		e.Visited++
	}
	return before.from(0)
}

// after returns the one after r, or nil.
func (e *Ends) after(r *Node) *Node {
	if r.right == nil {
		for r.up != nil && r == r.up.right {
			r = r.up
			e.Visited++
		}
		return r.up
	}
	for r = r.right; r.left != nil; r = r.left {
		e.Visited++
	}
	return r
}

// Changed brings the sums above r, which can be nil, up to date.
func (e *Ends) Changed(r *Node) {
	for ; r != nil; r = r.up {
		r.all = r.left.through().then(r.step()).then(r.right.through())
		e.Visited++
	}
}

// Append adds r as the last one.
func (e *Ends) Append(r *Node) {
	r.priority, r.listed = rand.Uint64(), true
	r.up = e.last
	for r.up != nil && r.up.priority < r.priority {
		r.left, r.up = r.up, r.up.up
		e.Visited++
	}
	if r.left != nil {
		r.left.up = r
	}
	if r.up == nil {
		e.root = r
	} else {
		r.up.right = r
	}
	e.last = r
	e.n++
	e.Changed(r)
	if r.Wake == nil {
		return
	}
	if r.sooner = e.waiting.last; r.sooner == nil {
		e.waiting.first = r
	} else {
		r.sooner.later = r
	}
	e.waiting.last = r
}

// Waiting is the first one that waits, or nil.
func (e *Ends) Waiting() *Node { return e.waiting.first }

// Leave ends the waiting of r, which is listed.
func (e *Ends) Leave(r *Node) {
	if r.Wake == nil {
		return
	}
	if r.sooner == nil {
		e.waiting.first = r.later
	} else {
		r.sooner.later = r.later
	}
	if r.later == nil {
		e.waiting.last = r.sooner
	} else {
		r.later.sooner = r.sooner
	}
	r.Wake, r.sooner, r.later = nil, nil, nil
}

// Remove takes r out, and its charge stays ahead of the next reservation.
func (e *Ends) Remove(r *Node) {
	e.Leave(r)
	if next := e.after(r); next != nil {
		before := e.Before(r)
		next.Ahead += r.step().from(before) - before
		e.Changed(next)
	}
	up := r.up
	below := e.join(r.left, r.right)
	if below != nil {
		below.up = up
	}
	switch {
	case up == nil:
		e.root = below
	case up.left == r:
		up.left = below
	default:
		up.right = below
	}
	e.Changed(up)
	if e.last == r {
		e.last = e.rightmost()
	}
	r.unlist()
	e.n--
}

func (e *Ends) rightmost() *Node {
	r := e.root
	for r != nil && r.right != nil {
		r = r.right
		e.Visited++
	}
	return r
}

// join makes one subtree of two, a before b.
func (e *Ends) join(a, b *Node) *Node {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	e.Visited++
	if a.priority > b.priority {
		a.right = e.join(a.right, b)
		a.right.up = a
		a.all = a.left.through().then(a.step()).then(a.right.through())
		return a
	}
	b.left = e.join(a, b.left)
	b.left.up = b
	b.all = b.left.through().then(b.step()).then(b.right.through())
	return b
}

// unlist lets go of the nodes around r, so that a caller that keeps r does not keep them.
func (r *Node) unlist() { r.Ahead, r.Span, r.Least, r.links = 0, 0, 0, links{} }

// Clear takes all out.
func (e *Ends) Clear() {
	e.root.unlistAll()
	e.root, e.last, e.n = nil, nil, 0
	e.waiting.first, e.waiting.last = nil, nil
}

func (r *Node) unlistAll() {
	if r == nil {
		return
	}
	r.left.unlistAll()
	r.right.unlistAll()
	r.unlist()
}

// Each calls f, which can change r's step, for all in order.
func (e *Ends) Each(f func(r *Node)) { e.root.each(f) }

func (r *Node) each(f func(r *Node)) {
	if r == nil {
		return
	}
	r.left.each(f)
	f(r)
	r.right.each(f)
	r.all = r.left.through().then(r.step()).then(r.right.through())
}
