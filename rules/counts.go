package rules

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/calendar"
)

// counts are the counters of an Engine: its memory, or a Store. The engine finds limits, and makes answers and statistics. Counts keep
// the counts of keys, their denied hits, the units that second budgets have charged, and the holds.
type counts interface {
	// open finds the counters of a set of rules; after an error nothing has changed. The engine calls commit, which puts the counters into
	// the next generation, and after when that is in force, which closes the counters that no rule needs any more. known reports
	// whether a domain has been in force lately.
	open(set *Set, known func(domain string) bool) (commit func(*generation) (after func()), err error)
	// forget drops the state of domains that are not known any longer.
	forget(known func(domain string) bool)

	// do makes the calls of b, and fills in their answers. After an error some of the calls may have counted.
	do(b *batch) error
	// deny notes that the hits of the calls were denied, and not counted.
	deny(b *batch)
	// hold, extend and settle are the methods of a HoldStore. They fill in batch.denied, again and capped.
	hold(t *holdTerms, b *batch) error
	extend(t *holdTerms, b *batch) error
	settle(t *holdTerms, b *batch) error
	// reset takes all hits off the keys of the calls.
	reset(domain string, b *batch) error

	// stats fills in Keys, Evicted, Untracked, Denied and Unrecorded; held fills in Open and Lapsed.
	stats(*Stats)
	held(now int64, of *Holds)
}

// A batch is calls that are made together: one for each descriptor of a request, without a counter if the descriptor has no limit.
type batch struct {
	now   int64
	mode  batchMode
	calls []call

	denied bool // a call of a hold was denied
	again  bool // a call about a hold was made before, and has changed nothing
	capped bool // a settlement has charged less than was used

	charges []sluice.Charge // of memory
	asked   []StoreCall     // of a Store
	noted   []StoreCall     // of a Store: the denials of asked
}

// batchMode says how the calls of a batch depend on each other.
type batchMode uint8

const (
	eachAlone    batchMode = iota // each call is judged by itself
	allOrNone                     // one call that does not fit stops all, unless it is in shadow mode
	onlyWhatOver                  // if some calls are over their limits, only these count
)

// A call is one count of one key, and its answer.
type call struct {
	counter  StoreCounter // nil for a descriptor without a limit
	id       uint64       // hash of the key with a secret of the process, which the hash never leaves
	key      string       // the key for a Store; memory has none
	op       StoreOp      // CountFitting, CountAll or GiveBack
	hits     uint64
	limit    uint64 // the threshold
	period   time.Duration
	offset   int64             // of the windows
	dates    *calendar.Windows // nil but for windows of a calendar, which have no offset
	override Unit              // of a limit that came in the request, or UnknownUnit
	counts   bool              // denied hits count: counter is a window without a limit of its own
	shadow   bool              // it stands in nobody's way
	inFlight bool              // its units are in flight
	final    bool              // nobody gives its hits back, so that its denial needs no note
	idle     bool              // a call about a hold that asks for nothing here, or has been made before
	debt     uint64            // the most that a settlement charges beyond the hold
	second   *secondBudget     // nil for none

	// The answer.
	count    uint64          // hits in the window after the call, if counts
	decision sluice.Decision // how the key stands; of windows ResetAfter only, the time to their end
	over     bool            // the hits exceed the limit
	full     bool            // the window had no room for the hits
	stopped  bool            // not made, since another call is over
	none     bool            // not made, since all are or none
	absorbed uint64          // hits of GiveBack that have given nothing back
	unmade   uint64          // of a hold that was denied: hits that decision has as taken, although they are not

	made bool // of a Store: charged together with the other calls

	// Of memory, while calls are made together.
	from, to int    // its charges in batch.charges
	later    bool   // made by itself, after another charge of its key
	lacking  bool   // it keeps other calls from being charged
	asked    uint64 // its hits, and the hits of its key before it that fit
	after    uint64 // units of its key that were charged behind it
}

// A secondBudget is charged the hits that the first budget of a call has no room for.
type secondBudget struct {
	counter  StoreCounter
	id       uint64
	key      string
	period   time.Duration
	hits     uint64 // that were counted in it, or given back to it
	decision sluice.Decision
	after    uint64 // as call.after
}

// name is the budget and its period.
func (s *secondBudget) name() uint64 { return s.id + uint64(s.period)*0x9E3779B97F4A7C15 }

// left is the time to the end of the window.
func (c *call) left(now int64) time.Duration {
	if c.dates != nil {
		return time.Duration(min(c.dates.Start(c.dates.At(now)+1), math.MaxInt64) - uint64(now))
	}
	return c.period - time.Duration(floorMod(now-c.offset, int64(c.period)))
}

// counted fills in the answer of a window that holds count hits now.
func (c *call) counted(count uint64, left time.Duration) {
	c.count, c.over = count, c.over || count > c.limit
	c.decision.ResetAfter = left
}

// limits counts the calls that have a limit.
func (b *batch) limits() (n int) {
	for i := range b.calls {
		if b.calls[i].counter != nil {
			n++
		}
	}
	return n
}

// asks counts the calls that ask a limit for hits.
func (b *batch) asks() (n int) {
	for i := range b.calls {
		if c := &b.calls[i]; c.counter != nil && c.hits != 0 {
			n++
		}
	}
	return n
}

// holdTerms name a hold. Of names and told each implementation keeps a digest, and compares it with the digests of later calls.
type holdTerms struct {
	domain, id string
	names      []byte // the descriptors
	told       []byte // the request; for settle the hits that were used
	ttl        time.Duration
	giveBack   bool
	step       string
}
