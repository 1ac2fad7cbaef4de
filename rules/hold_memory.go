package rules

import (
	"container/heap"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// holds are the holds in the memory of an engine, open ones and those whose end is remembered.
//
// Nothing runs beside the calls. A hold lapses at the first call of the engine from the end of its TTL on, before
// that is judged: next says when. So no call finds units taken that a hold has to give back.
type holds struct {
	next    atomic.Int64 // when the first hold ends, or is forgotten
	scratch sync.Pool    // of *Response

	mutex sync.Mutex // guards the rest; it is taken before the locks of keys
	byID  map[holdID]*hold
	ends  holdHeap
	parts int     // of open holds: one for each hold, and for each Extend
	order []*hold // those, in the order of their ends; may contain some that are forgotten

	held, denied, settled, released, lapsed, cut atomic.Uint64
}

type holdID struct{ domain, id string }

// hold is a hold in memory.
type hold struct {
	holdID
	request  uint64 // hash of the request that it was made for
	end      int64  // when it lapses, or is forgotten
	index    int    // in the heap
	giveBack bool
	ended    bool
	actual   uint64 // hash of what was used, once it is ended
	parts    int
	limits   []heldLimit
	steps    map[uint64]bool // hashes of Steps

	statuses []Status // the first answer
	tightest int
	would    bool
}

// heldLimit is what is held for one descriptor.
type heldLimit struct {
	id       uint64 // 0 if there was no limit
	series   *series
	inFlight bool        // its units go back whole at the end
	receipts []heldUnits // the oldest first
}

type heldUnits struct {
	receipt *sluice.Reservation
	units   uint64
}

// holdHeap is a heap of holds by their ends.
type holdHeap []*hold

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].end < h[j].end }
func (h holdHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *holdHeap) Push(x any)        { x.(*hold).index = len(*h); *h = append(*h, x.(*hold)) }
func (h *holdHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

// holdHere is Hold in memory.
func (e *Engine) holdHere(d *domainState, h *Hold, resp *Response, now int64) error {
	s := &e.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(now)
	id, request := holdID{h.Request.Domain, h.ID}, e.requestHash(h)
	if known := s.byID[id]; known != nil {
		if known.request != request {
			return ErrOtherHold
		}
		resp.again(known)
		return nil
	}
	if s.parts >= e.config.MaxHolds {
		return ErrManyHolds
	}
	new := &hold{holdID: holdID{strings.Clone(id.domain), strings.Clone(id.id)}, request: request, giveBack: h.GiveBack}
	new.limits = make([]heldLimit, len(resp.work))
	stop := false
	if d != nil {
		var made [][]*sluice.Reservation
		if made, stop = e.chargeHold(resp, now); !stop {
			new.add(resp, made)
		}
	}
	if resp.Code == OverLimit {
		s.denied.Add(1)
		return nil
	}
	new.statuses = append([]Status(nil), resp.Statuses...)
	new.tightest, new.would = resp.Tightest, resp.WouldDeny
	if s.byID == nil {
		s.byID = map[holdID]*hold{}
	}
	s.byID[new.holdID] = new
	new.end, new.parts = addTime(now, int64(h.TTL)), 1
	s.parts++
	s.held.Add(1)
	heap.Push(&s.ends, new)
	s.wake()
	return nil
}

// again answers as the first time.
func (resp *Response) again(h *hold) {
	copy(resp.Statuses, h.statuses)
	resp.Tightest, resp.WouldDeny, resp.Code = h.tightest, h.would, OK
}

// add keeps what has been charged for the hold.
func (h *hold) add(resp *Response, made [][]*sluice.Reservation) {
	for i := range resp.work {
		w, limit := &resp.work[i], &h.limits[i]
		if !w.limited {
			continue
		}
		limit.id, limit.series, limit.inFlight = w.id, w.series, w.inFlight()
		w.series.estimate(w.hits)
		for k, r := range made[i] {
			units := w.hits
			if w.second != nil && w.hits != 0 {
				units = uint64(resp.charges[w.from+k].Cost)
			}
			if r != nil {
				limit.receipts = append(limit.receipts, heldUnits{r, units})
			}
		}
	}
}

// open returns an open hold for a call about it.
func (s *holds) open(h *Hold, resp *Response) *hold {
	known := s.byID[holdID{h.Request.Domain, h.ID}]
	if known == nil || len(known.limits) != len(resp.work) {
		return nil
	}
	for i := range known.limits {
		if w := &resp.work[i]; w.limited && known.limits[i].id != 0 && known.limits[i].id != w.id {
			return nil // another request; a limit that the rules have lost since is settled all the same
		}
	}
	return known
}

// extendHere is Extend in memory.
func (e *Engine) extendHere(d *domainState, h *Hold, resp *Response, now int64) error {
	s := &e.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(now)
	known := s.open(h, resp)
	step := e.textHash(h.Step)
	switch {
	case known == nil || known.ended:
		return ErrNotHeld
	case h.Step != "" && known.steps[step]:
		resp.again(known)
		return nil
	case s.parts >= e.config.MaxHolds:
		return ErrManyHolds
	}
	if d != nil {
		made, stop := e.chargeHold(resp, now)
		if !stop {
			known.add(resp, made)
		}
		if resp.Code == OverLimit {
			s.cut.Add(1)
			return nil
		}
	}
	if h.Step != "" || resp.holdsMore() {
		known.parts++
		s.parts++
	}
	if h.Step != "" {
		if known.steps == nil {
			known.steps = map[uint64]bool{}
		}
		known.steps[step] = true
	}
	known.renew()
	known.end = addTime(now, int64(h.TTL))
	heap.Fix(&s.ends, known.index)
	s.wake()
	return nil
}

// holdsMore reports whether a call has charged anything.
func (resp *Response) holdsMore() bool {
	for i := range resp.work {
		if w := &resp.work[i]; w.limited && w.hits != 0 {
			return true
		}
	}
	return false
}

// settleHere is Settle in memory.
func (e *Engine) settleHere(h *Hold, resp *Response, released bool, now int64) error {
	s := &e.holds
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lapse(now)
	known, actual := s.open(h, resp), e.actualHash(resp)
	switch {
	case known == nil || known.ended && known.actual != actual:
		return ErrNotHeld
	case known.ended:
		return nil
	}
	for i := range known.limits {
		known.limits[i].settle(resp.work[i].hits)
	}
	if released {
		s.released.Add(1)
	} else {
		s.settled.Add(1)
	}
	heap.Remove(&s.ends, known.index)
	s.remember(known, actual, e.config.MaxHolds, now)
	s.wake()
	return nil
}

// settle replaces what is held by what was used. What was used counts against the oldest charges, so the units of
// the latest are given back, which are most likely to be there still.
func (l *heldLimit) settle(used uint64) {
	if l.series != nil {
		l.series.settle(used)
	}
	for i, r := range l.receipts {
		own := used
		if i < len(l.receipts)-1 {
			own = min(own, r.units)
		}
		used -= own
		if l.inFlight {
			own = 0
		}
		r.receipt.Settle(clampInt(own))
	}
}

// inFlight reports whether the limit is of units in flight.
func (w *work) inFlight() bool { return !w.counts && w.limiter.Config().Algorithm == sluice.InFlight }

// renew keeps the units in flight, which lapse a Period of their limit after their charge at the earliest, for another
// one. Those that have lapsed are not taken again: others may have them.
func (h *hold) renew() {
	for i := range h.limits {
		if l := &h.limits[i]; l.inFlight {
			for _, r := range l.receipts {
				_ = r.receipt.Renew()
			}
		}
	}
}

// remember keeps the end of a hold, and forgets the oldest if there are more than most.
func (s *holds) remember(h *hold, actual uint64, most int, now int64) {
	s.parts -= h.parts
	h.ended, h.actual, h.steps = true, actual, nil
	for i := range h.limits {
		h.limits[i].receipts = nil
	}
	h.end = addTime(now, int64(rememberHolds))
	s.order = append(s.order, h)
	for len(s.order) > most {
		s.forget()
	}
}

// forget drops the oldest end.
func (s *holds) forget() {
	delete(s.byID, s.order[0].holdID)
	s.order[0] = nil
	s.order = s.order[1:]
}

// lapse ends the holds whose time has come.
func (e *Engine) lapse(now int64) {
	e.holds.mutex.Lock()
	defer e.holds.mutex.Unlock()
	e.holds.lapse(now)
}

func (s *holds) lapse(now int64) {
	for len(s.order) > 0 && s.order[0].end <= now {
		s.forget()
	}
	for len(s.ends) > 0 && s.ends[0].end <= now {
		h := heap.Pop(&s.ends).(*hold)
		for i := range h.limits {
			l := &h.limits[i]
			for _, r := range l.receipts {
				if h.giveBack || l.inFlight {
					r.receipt.Cancel()
				}
			}
		}
		s.parts -= h.parts
		s.lapsed.Add(1)
		delete(s.byID, h.holdID)
	}
	s.wake()
}

// wake sets when lapse has something to do again.
func (s *holds) wake() {
	next := int64(math.MaxInt64)
	if len(s.ends) > 0 {
		next = s.ends[0].end
	}
	if len(s.order) > 0 {
		next = min(next, s.order[0].end)
	}
	s.next.Store(next)
}

// requestHash is the hash of a request to hold.
func (e *Engine) requestHash(h *Hold) uint64 {
	s := newSip(&e.key)
	s.word(uint64(h.Request.Hits))
	for i := range h.Request.Descriptors {
		d := &h.Request.Descriptors[i]
		s.word(uint64(len(d.Entries)))
		for j := range d.Entries {
			s.entry(d.Entries[j].Key, d.Entries[j].Value, 0)
		}
		if s.word(0); d.Hits != nil {
			s.word(1 + *d.Hits)
		}
		if o := d.Override; o != nil {
			s.word(uint64(o.Requests)<<8 | uint64(o.Unit))
		}
	}
	if h.GiveBack {
		s.word(1)
	}
	return s.sum()
}

// actualHash is the hash of the hits that were used.
func (e *Engine) actualHash(resp *Response) uint64 {
	s := newSip(&e.key)
	for i := range resp.work {
		s.word(resp.work[i].hits)
	}
	return s.sum()
}

func (e *Engine) textHash(text string) uint64 {
	s := newSip(&e.key)
	s.text(text)
	return s.sum()
}

// Holds is the holds of an engine. With a Store it has the calls that this engine has made, and nothing of
// Open and Lapsed, of which only the Store knows.
type Holds struct {
	Open int
	// Held is the holds that were made. Each of these is then Settled, Released or Lapsed.
	Held, Settled, Released, Lapsed uint64
	// Denied is the Holds that were denied, and Cut the Extends.
	Denied, Cut uint64
}

// Holds returns the counters of holds. Series has the units.
func (e *Engine) Holds() Holds {
	s := &e.holds
	e.lapse(e.clock.Now())
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return Holds{
		Open: len(s.ends), Held: s.held.Load(), Settled: s.settled.Load(), Released: s.released.Load(),
		Lapsed: s.lapsed.Load(), Denied: s.denied.Load(), Cut: s.cut.Load(),
	}
}
