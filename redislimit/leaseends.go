package redislimit

import (
	"container/heap"
	"time"
)

// leaseEnds are the loans with an open lease, of which a heap has the one whose units are to be given back first in front.
type leaseEnds []*loan

func (e leaseEnds) Len() int           { return len(e) }
func (e leaseEnds) Less(i, j int) bool { return e[i].due < e[j].due }

func (e leaseEnds) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i+1, j+1
}

// Push implements heap.Interface.
func (e *leaseEnds) Push(h any) {
	*e = append(*e, h.(*loan))
	h.(*loan).place = len(*e)
}

// Pop implements heap.Interface.
func (e *leaseEnds) Pop() any {
	last := len(*e) - 1
	h := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	h.place = 0
	return h
}

// arm sets the timer for the first lease that ends, and a pause: so it finds other ends as well. The caller
// holds mu.
func (ls *leases) arm() {
	if len(ls.ends) == 0 || ls.closed.Load() {
		return
	}
	d := max(time.Duration(ls.ends[0].due)-time.Since(ls.began), 0) + ls.pause
	ls.timer = rearm(ls.timer, d, ls.expire)
}

// expire closes the leases that have ended.
func (ls *leases) expire() {
	ls.ending.Lock()
	defer ls.ending.Unlock()
	now := int64(time.Since(ls.began))
	for _, h := range ls.ended(now) {
		h.shard.mu.Lock()
		var s leasing
		p := h.plan
		switch {
		case h.granted == 0 || h.back > now: // a call has closed it meanwhile
		case now >= h.over:
			ls.lapse(h)
		default:
			s = ls.close(h)
		}
		h.shard.mu.Unlock()
		if s.unused > 0 {
			ls.settle(h.name, p, s)
		}
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.arm()
}

// ended removes the leases that have ended from the list, and returns them.
func (ls *leases) ended(now int64) (due []*loan) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for len(ls.ends) > 0 && ls.ends[0].due <= now {
		due = append(due, heap.Pop(&ls.ends).(*loan))
	}
	return due
}
