package redislimit

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
