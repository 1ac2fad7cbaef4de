package rules

import (
	"container/heap"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// holds are the holds in memory, open ones and those whose end is remembered.
//
// Nothing runs beside the calls. A hold lapses at a call of the engine from the end of its TTL on: next says when. A call ends
// at most lapseBatch of the holds that are due, so that no call waits for all of them; a call about a hold that is due ends it first.
type holds struct {
	next atomic.Int64 // when the first hold ends, or is forgotten

	mutex   sync.Mutex // guards the rest; it is taken before the locks of keys
	domains map[string]*domainHolds
	ends    holdHeap
	open    int // of ends
	pooled  int // limits that domains hold beyond reserve
	reserve int // limits that each domain can hold whatever other domains hold
	pool    int // limits that all can hold beyond that
	most    int // ends that a domain remembers

	lapsed atomic.Uint64
}

// lapseBatch is how many limits and reservations of holds one call ends. It takes some 0.2 ms.
const lapseBatch = 1024

// domainHolds are the holds of a domain.
type domainHolds struct {
	byID   map[string]*hold
	limits int     // held, Extends counted again
	ended  []*hold // in the order of their ends; some are gone
}

// hold is a hold in memory.
type hold struct {
	of       *domainHolds
	id       string // "" for units of a settled hold in limits that the rules have lost
	request  uint64 // hash of the request that it was made for
	names    uint64 // hash of its descriptors
	actual   uint64 // hash of the hits used, once it is ended
	end      int64  // when it lapses, or is forgotten
	index    int    // in the heap
	taken    int    // limits of domainHolds.limits
	giveBack bool
	ended    bool
	gone     bool
	limits   []heldLimit
	steps    map[uint64]bool // hashes of Steps
}

// heldLimit are the units held in one limit.
type heldLimit struct {
	at           int // index of the descriptor
	id           uint64
	limiter      *sluice.Limiter
	inFlight     bool        // its units go back whole at the end
	reservations []heldUnits // the oldest first
}

type heldUnits struct {
	reservation *sluice.Reservation
	units       uint64
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

// share divides most limits among the domains of a set of rules: half of them evenly, the rest to whoever comes first.
func (s *holds) share(most, domains int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	domains = max(domains, 1)
	s.reserve, s.most = most/(2*domains), max(most/domains, 1)
	s.pool, s.pooled = most-domains*s.reserve, 0
	for name, of := range s.domains {
		if s.pooled += max(of.limits-s.reserve, 0); len(of.byID) == 0 && of.limits == 0 {
			delete(s.domains, name)
		}
	}
}

// domain returns the holds of a domain.
func (s *holds) domain(name string) *domainHolds {
	of := s.domains[name]
	if of == nil {
		of = &domainHolds{byID: map[string]*hold{}}
		if s.domains == nil {
			s.domains = map[string]*domainHolds{}
		}
		s.domains[strings.Clone(name)] = of
	}
	return of
}

// room reports whether a domain can hold so many limits more.
func (s *holds) room(of *domainHolds, limits int) bool {
	over := max(of.limits+limits-s.reserve, 0) - max(of.limits-s.reserve, 0)
	return s.pooled+over <= s.pool
}

// take counts the limits that a hold has more, or fewer.
func (s *holds) take(h *hold, limits int) {
	s.pooled -= max(h.of.limits-s.reserve, 0)
	h.taken += limits
	h.of.limits += limits
	s.pooled += max(h.of.limits-s.reserve, 0)
}

// find returns the hold of an id, or nil. One whose time has come ends now.
func (s *holds) find(t *holdTerms, now int64) *hold {
	of := s.domains[t.domain]
	if of == nil {
		return nil
	}
	known := of.byID[t.id]
	if known != nil && known.end <= now {
		s.pass(known, math.MaxInt)
		return nil
	}
	return known
}

// remember keeps the end of a hold, and the data that a repeated call is compared with.
func (s *holds) remember(h *hold, now int64) {
	s.take(h, -h.taken)
	s.open--
	h.ended, h.limits, h.steps = true, nil, nil
	h.end = max(h.end, addTime(now, int64(rememberHolds)))
	heap.Fix(&s.ends, h.index)
	h.of.ended = append(h.of.ended, h)
	for len(h.of.ended) > s.most {
		s.drop(h.of.ended[0])
	}
}

// lapseSome ends holds that are due, but not all at once. It does nothing while another call works on holds, which does so itself.
func (m *memory) lapseSome(now int64) {
	if s := &m.holds; s.mutex.TryLock() {
		s.lapse(now)
		s.mutex.Unlock()
	}
}

// lapse ends the holds whose time has come, and forgets ended ones, until that was work enough.
func (s *holds) lapse(now int64) {
	for work := 0; work < lapseBatch && len(s.ends) > 0 && s.ends[0].end <= now; {
		work += s.pass(s.ends[0], lapseBatch-work)
	}
	s.wake()
}

// pass ends a hold whose time has come, or forgets one that has ended. It stops when it has given back the units of most
// reservations. It returns how much it has done.
func (s *holds) pass(h *hold, most int) (work int) {
	for i := range h.limits {
		l := &h.limits[i]
		if !h.giveBack && !l.inFlight {
			l.reservations = nil
		}
		for ; len(l.reservations) > 0; work++ {
			if work >= most {
				return work
			}
			last := len(l.reservations) - 1
			l.reservations[last].reservation.Cancel()
			l.reservations = l.reservations[:last]
		}
	}
	work += 1 + len(h.limits)
	if !h.ended && h.id != "" {
		s.lapsed.Add(1)
	}
	s.drop(h)
	return work
}

// drop takes a hold out.
func (s *holds) drop(h *hold) {
	h.gone = true
	s.take(h, -h.taken)
	if !h.ended {
		s.open--
	}
	for of := h.of; len(of.ended) > 0 && of.ended[0].gone; of.ended = of.ended[1:] {
		of.ended[0] = nil
	}
	heap.Remove(&s.ends, h.index)
	if h.id != "" {
		delete(h.of.byID, h.id)
	}
}

// wake sets when lapse has something to do again.
func (s *holds) wake() {
	next := int64(math.MaxInt64)
	if len(s.ends) > 0 {
		next = s.ends[0].end
	}
	s.next.Store(next)
}

// detach takes a key out of all holds of a domain: their units of it are gone.
func (s *holds) detach(domain string, c *call) {
	of := s.domains[domain]
	if of == nil {
		return
	}
	for _, h := range of.byID {
		kept := h.limits[:0]
		for _, l := range h.limits {
			if l.id != c.id || l.limiter != c.here().limiter {
				kept = append(kept, l)
			}
		}
		clear(h.limits[len(kept):])
		h.limits = kept
	}
}

func (m *memory) held(now int64, out *Holds) {
	s := &m.holds
	for now >= s.next.Load() {
		s.mutex.Lock()
		s.lapse(now)
		s.mutex.Unlock()
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	out.Open, out.Lapsed = s.open, s.lapsed.Load()
}

func (m *memory) textHash(text []byte) uint64 {
	s := newSip(m.key)
	s.text(string(text))
	return s.sum()
}
