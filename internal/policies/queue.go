package policies

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/metrics"
)

// A Queue has requests that the Limiters would deny wait for their turn, those of a key in order of arrival. A request stands in
// one line at a time: of the key that it would wait for longest. So it keeps nobody from a key while it waits for another one. The
// first of a line waits until its key has room, and is then judged as any other, unless somebody who came before it stands in the
// line of another of its keys. Nothing is charged for a request that waits, so that those behind it move up when it goes. It has a
// place at each of its keys, wherever it stands. A Queue is safe for concurrent use and must be made by NewQueue.
type Queue struct {
	most, perKey int
	maxWait      time.Duration

	waiting                  atomic.Int64 // requests with a place; changes under mu
	passed, turnedAway, gone atomic.Uint64

	mu      sync.Mutex // guards the rest, and all stands
	arrived uint64
	lines   map[lineKey]*line
}

// QueueTerms describe a Queue.
type QueueTerms struct {
	MaxWaiting int           // requests with a place
	MaxPerKey  int           // of them that have one key of a policy, unless the policy says otherwise
	MaxWait    time.Duration // of one request
}

// longestQueueWait bounds MaxWait: clients and proxies in front have given up by then.
const longestQueueWait = time.Hour

// Check returns the field that is invalid, and its mistake, or two empty texts.
func (t *QueueTerms) Check() (field, reason string) {
	switch {
	case t.MaxWaiting < 1:
		return "MaxWaiting", fmt.Sprintf("%d; want how many may wait at once, at least 1", t.MaxWaiting)
	case t.MaxPerKey < 1 || t.MaxPerKey > t.MaxWaiting:
		return "MaxPerKey", fmt.Sprintf("%d; want how many of the %d that may wait can have one key, 1 to %[2]d: fewer than all, so that nobody takes the places of others", t.MaxPerKey, t.MaxWaiting)
	case t.MaxWait <= 0 || t.MaxWait > longestQueueWait:
		return "MaxWait", fmt.Sprintf("%v; want how long one may wait, more than 0 and up to %v", t.MaxWait, longestQueueWait)
	}
	return "", ""
}

// NewQueue returns the Queue of valid terms.
func NewQueue(t QueueTerms) *Queue {
	return &Queue{most: t.MaxWaiting, perKey: t.MaxPerKey, maxWait: t.MaxWait, lines: map[lineKey]*line{}}
}

// PutInto returns why requests that policies judge cannot wait in q, or two empty texts, and has the policies know how many places each
// key has. The policies are in order. A nil q has nobody wait.
func PutInto[R, P any](q *Queue, ps []Policy[R, P]) (field, reason string) {
	if q != nil && q.most == 0 {
		return "Queue", "is zero, and has no places; want one of NewQueue, or nil"
	}
	near := false
	for i := range ps {
		p := &ps[i]
		if field, reason = p.checkQueue(q); reason != "" {
			return field, reason
		}
		near = near || p.Kind == Local
		if q != nil && p.MaxPerKey == 0 {
			p.MaxPerKey = q.perKey
		}
	}
	if q != nil && !near {
		return "Queue", "is set, and no policy has a Limiter that denies: nobody waits for a Remote, or for a policy in shadow mode; want a Limiter, or no Queue"
	}
	return "", ""
}

// checkQueue returns why requests cannot wait for the policy, or two empty texts.
func (p *Policy[R, P]) checkQueue(q *Queue) (field, reason string) {
	switch {
	case q == nil && p.MaxPerKey != 0:
		return "Queue", fmt.Sprintf("is nil, and the policy %q has a MaxPerKey of %d; want a Queue, or 0", p.Name, p.MaxPerKey)
	case q == nil:
		return "", ""
	case p.MaxPerKey != 0 && p.Kind != Local:
		return "Queue", fmt.Sprintf("is not for the policy %q, which has a Remote or is in shadow mode, so that nobody waits for it; want a MaxPerKey of 0 there", p.Name)
	case p.MaxPerKey < 0 || p.MaxPerKey > q.most:
		return "Queue", fmt.Sprintf("has %d places, and the policy %q a MaxPerKey of %d; want 1 to %[1]d, or 0 for MaxPerKey of the Queue", q.most, p.Name, p.MaxPerKey)
	case p.Kind != Local || p.CountsDenialsOf != "": // who is turned away counts there, and who waits does not
		return "", ""
	}
	switch c := p.Limiter.Config(); {
	case c.BlockFor > 0:
		return "Queue", fmt.Sprintf("has requests wait that the policy %q would deny, and BlockFor of its Limiter blocks whoever is denied; want a BlockFor of 0, or no Queue", p.Name)
	case c.CountDenied:
		return "Queue", fmt.Sprintf("has requests wait that the policy %q would deny, and CountDenied of its Limiter charges whoever is denied; want no CountDenied, or no Queue", p.Name)
	}
	return "", ""
}

// A lineKey is a key of a Limiter, which policies can share.
type lineKey struct {
	limiter *sluice.Limiter
	key     string
}

// A line is the requests that wait for a key.
type line struct {
	places      int    // of requests that have the key, wherever they stand
	first, last *stand // who stands here, by number
	units       int    // their costs
}

// A claim is the charges of a request to one key.
type claim struct {
	lineKey
	key   sluice.Key
	cost  int
	most  int  // places of the key
	holds bool // it is of InFlight
}

// A stand is a request that waits, or looks whether it has to. A nil stand does neither.
type stand struct {
	queue      *Queue
	claims     []claim   // one for each key
	number     uint64    // in order of arrival; the last one for a request without a place
	since      time.Time // when it got its place; zero if it never had one
	at         *claim    // whose line it stands in; nil for none
	prev, next *stand
	first      chan struct{} // closed while it is the first of its line
}

const placeless = math.MaxUint64

func (q *Queue) newStand(claims []claim) *stand {
	return &stand{queue: q, claims: claims, number: placeless}
}

// join has s stand in the line of the key that it would wait for longest, behind those who came before it. ok is false if there is no
// place, or s would have to wait for longer than left. first is closed when s is the first.
func (s *stand) join(left time.Duration) (first <-chan struct{}, ok bool) {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	at, wait := s.longest()
	tooLong := wait > left && (!at.holds || wait == sluice.Never) // of calls in flight nobody knows when they end
	if tooLong || s.number == placeless && !s.take() {
		return nil, false
	}
	if s.at == at {
		return s.first, true
	}
	s.step()
	l := q.lines[at.lineKey]
	l.units += min(max(at.cost, 0), math.MaxInt-l.units)
	s.at, s.first, s.prev = at, make(chan struct{}), l.last
	for s.prev != nil && s.prev.number > s.number { // who has come from another line may have come before others
		s.next, s.prev = s.prev, s.prev.prev
	}
	if s.next == nil {
		l.last = s
	} else {
		s.next.prev = s
	}
	if s.prev != nil {
		s.prev.next = s
		return s.first, true
	}
	if l.first = s; s.next != nil {
		s.next.first = make(chan struct{}) // it may wait for room by now, and then has to look again
	}
	close(s.first)
	return s.first, true
}

// take takes a place at each key, if each has one.
func (s *stand) take() bool {
	q := s.queue
	if int(q.waiting.Load()) >= q.most {
		return false
	}
	for i := range s.claims {
		if l := q.lines[s.claims[i].lineKey]; l != nil && l.places >= s.claims[i].most {
			return false
		}
	}
	for i := range s.claims {
		k := s.claims[i].lineKey
		if q.lines[k] == nil {
			q.lines[k] = &line{}
		}
		q.lines[k].places++
	}
	q.arrived++
	s.number, s.since = q.arrived, time.Now()
	q.waiting.Add(1)
	return true
}

// step has s step out of its line, whose next is its first then if s was.
func (s *stand) step() {
	if s.at == nil {
		return
	}
	l := s.queue.lines[s.at.lineKey]
	l.units -= min(max(s.at.cost, 0), l.units)
	if s.next == nil {
		l.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else if l.first = s.next; s.next != nil {
		close(s.next.first)
	}
	s.at, s.prev, s.next = nil, nil, nil
}

// leave gives the places of s back, once.
func (s *stand) leave() {
	if s == nil || s.number == placeless {
		return
	}
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	s.step()
	for i := range s.claims {
		k := s.claims[i].lineKey
		if q.lines[k].places--; q.lines[k].places == 0 {
			delete(q.lines, k)
		}
	}
	s.number = placeless
	q.waiting.Add(-1)
}

var (
	queueWaitingMetric = &metrics.Desc{Name: "sluice.queue.waiting", Kind: metrics.UpDown, Unit: "call", Help: "Calls that have a place in the queue now."}
	queueCallsMetric   = &metrics.Desc{Name: "sluice.queue.calls", Unit: "call", Labels: []string{"outcome"},
		Help: "Calls over a limit by outcome: passed after a wait; turned away, and so denied; gone with their client while they waited."}
	queueMetrics = []*metrics.Desc{queueWaitingMetric, queueCallsMetric}
)

// Metrics returns what the queue counts, under a name.
func (q *Queue) Metrics(name string) metrics.Set {
	return metrics.Set{
		Labels: []metrics.Label{{Name: "queue", Value: name}},
		Descs:  queueMetrics,
		Read: func(yield metrics.Yield) {
			yield(queueWaitingMetric, uint64(q.waiting.Load()))
			yield(queueCallsMetric, q.passed.Load(), "passed")
			yield(queueCallsMetric, q.turnedAway.Load(), "turned_away")
			yield(queueCallsMetric, q.gone.Load(), "gone")
		},
	}
}

// ServerTiming tells a wait in a Queue in the words of the header Server-Timing.
func ServerTiming(waited time.Duration) string {
	return "queue;dur=" + strconv.FormatFloat(float64(waited.Microseconds())/1000, 'f', -1, 64)
}
