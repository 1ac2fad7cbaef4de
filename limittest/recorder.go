package limittest

import (
	"cmp"
	"slices"
	"sync"

	"github.com/sluice-go/sluice"
)

// A Recorder writes down concurrent calls of a limiter, so that a promise can be checked when they are done. It is
// safe for concurrent use, and must be made by NewRecorder. A record takes some 50 bytes.
type Recorder struct {
	clock sluice.Clock

	mu      sync.Mutex // guards the rest
	records []record
}

type record struct {
	from, to int64
	key      string
	cost     int
}

// NewRecorder returns a Recorder that reads the clock before and after each call. nil is a sluice.SystemClock. It
// should be the clock of the limiter, or one that goes at the same pace.
func NewRecorder(clock sluice.Clock) *Recorder {
	if clock == nil {
		clock = sluice.SystemClock()
	}
	return &Recorder{clock: clock}
}

// Call calls take, which asks a limiter for cost units of key, writes down the time and the answer, and
// returns it. Calls are not made one at a time.
func (r *Recorder) Call(key string, cost int, take func() bool) bool {
	from := r.clock.Now()
	admitted := take()
	to := max(from, r.clock.Now()) // a FastClock can go back by 1 us
	if admitted && cost > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.records = append(r.records, record{from, to, key, cost})
	}
	return admitted
}

// Check returns the violation of p with the shortest span, as an error, or nil. Where a call could have been judged
// at several instants, all of them must show it: see Checker.RecordWithin. Of calls that overlap one another,
// some excess may remain uncertain.
func (r *Recorder) Check(p Promise) error {
	r.mu.Lock()
	records := slices.Clone(r.records)
	r.mu.Unlock()
	slices.SortStableFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.from, b.from))
	})
	c := NewChecker(p)
	for _, e := range records {
		c.RecordWithin(e.from, e.to, e.key, e.cost, true)
	}
	return c.Err()
}

// Admitted returns how many units were admitted in all.
func (r *Recorder) Admitted() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := uint64(0)
	for _, e := range r.records {
		sum += uint64(e.cost)
	}
	return sum
}
