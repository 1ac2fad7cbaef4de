package sluice

import "math/rand/v2"

// ends are the open reservations of a key, in order of arrival. Of each they know the tick
// at which the bucket would be full again if the key had been charged nothing after it, its
// end. It follows from the end of the one before:
//
//	end = max(end of the one before + ahead + span, least)
//
// where ahead is what else has been charged in between, or has simply passed; that of the
// first one counts from tick 0. span is what the reservation has charged, and least the end
// of its slot, before which others must not be given units of the same time. One unit a
// second, three at once, all of them spent at 0; then three reservations of one unit, of
// which the first two take the slots at 1 and 2, and the third is for the slot at 5 that
// another limit has asked for:
//
//	                ahead  span  least  end
//	A, slot at 1        3     1      2    4
//	B, slot at 2        0     1      3    5
//	C, slot at 5        0     1      6    6
//
// A is cancelled: its span is 0 and it has no slot to keep, so its end is 3, and that of B
// 4; that of C stays, and so nothing comes back: were the bucket full again at 5, three units
// more could be had at 5 beside C's. Then C is cancelled: its end is that of B, 4, and two
// units come back.
//
// So an end is found, and a reservation changed, by composing such steps. They are kept in
// a treap by position, each node with the composition of its subtree, which makes either
// O(log n). Reservations are its nodes.
//
// Invariants: ends never fall from one to the next; without a change, nor does what has
// been found for one of them change when another is added or removed.
type ends struct {
	root, last *Reservation
	n          int
	visited    int // nodes, by all operations so far: what they cost
}

// A step is one from end to end: x becomes max(x + add, least). No sum exceeds the last end.
type step struct{ add, least uint64 }

func (s step) from(x uint64) uint64 { return max(x+s.add, s.least) }

// then is the step of s and after that of next.
func (s step) then(next step) step {
	return step{s.add + next.add, max(s.least+next.add, next.least)}
}

// A node is what a reservation is to the ends.
type node struct {
	ahead, span, least uint64

	up, left, right *Reservation
	priority        uint64 // random, and not above that of up
	all             step   // of the subtree
	listed          bool
}

func (n *node) step() step { return step{n.ahead + n.span, n.least} }

// through is the step of the subtree of r, which can be nil.
func (r *Reservation) through() step {
	if r == nil {
		return step{}
	}
	return r.all
}

// final is the end of the last one, 0 if there is none.
func (e *ends) final() uint64 { return e.root.through().from(0) }

// first is the first one, or nil.
func (e *ends) first() *Reservation {
	r := e.root
	for r != nil && r.left != nil {
		r = r.left
		e.visited++
	}
	return r
}

// before returns the end of the one before r, or 0.
func (e *ends) before(r *Reservation) uint64 {
	before := r.left.through()
	for ; r.up != nil; r = r.up {
		if up := r.up; r == up.right {
			before = up.left.through().then(up.step()).then(before)
		}
		e.visited++
	}
	return before.from(0)
}

// after returns the one after r, or nil.
func (e *ends) after(r *Reservation) *Reservation {
	if r.right == nil {
		for r.up != nil && r == r.up.right {
			r = r.up
			e.visited++
		}
		return r.up
	}
	for r = r.right; r.left != nil; r = r.left {
		e.visited++
	}
	return r
}

// changed brings up to date what the steps of r, which can be nil, are a part of.
func (e *ends) changed(r *Reservation) {
	for ; r != nil; r = r.up {
		r.all = r.left.through().then(r.step()).then(r.right.through())
		e.visited++
	}
}

// append adds r as the last one.
func (e *ends) append(r *Reservation) {
	r.priority, r.listed = rand.Uint64(), true
	r.up = e.last
	for r.up != nil && r.up.priority < r.priority {
		r.left, r.up = r.up, r.up.up
		e.visited++
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
	e.changed(r)
}

// remove takes r out, and what it has charged stays charged ahead of the next one.
func (e *ends) remove(r *Reservation) {
	if next := e.after(r); next != nil {
		before := e.before(r)
		next.ahead += r.step().from(before) - before
		e.changed(next)
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
	e.changed(up)
	if e.last == r {
		e.last = e.rightmost()
	}
	r.unlist()
	e.n--
}

func (e *ends) rightmost() *Reservation {
	r := e.root
	for r != nil && r.right != nil {
		r = r.right
		e.visited++
	}
	return r
}

// join makes one subtree of two, a before b.
func (e *ends) join(a, b *Reservation) *Reservation {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	e.visited++
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
func (r *Reservation) unlist() { r.node = node{} }

// clear takes all out.
func (e *ends) clear() {
	e.root.unlistAll()
	e.root, e.last, e.n = nil, nil, 0
}

func (r *Reservation) unlistAll() {
	if r == nil {
		return
	}
	r.left.unlistAll()
	r.right.unlistAll()
	r.unlist()
}

// each calls f, which can change what r's step is, for all in order.
func (e *ends) each(f func(r *Reservation)) { e.root.each(f) }

func (r *Reservation) each(f func(r *Reservation)) {
	if r == nil {
		return
	}
	r.left.each(f)
	f(r)
	r.right.each(f)
	r.all = r.left.through().then(r.step()).then(r.right.through())
}
