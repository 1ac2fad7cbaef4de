package rules

import (
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// A Store keeps the counts of an Engine outside of its process, so that the engines of many processes
// count together; package redisstore has one in Redis. Matching, thresholds, statistics and answers
// stay the engine's: a Store counts, and says how a key stands.
//
// It is safe for concurrent use. Its calls return within a time that it bounds itself.
type Store interface {
	// Open returns the counter of a limit, to be closed when no rule needs it any more. Limits that differ in Limit alone
	// count the same keys together, in this process and in others. The error says why the limit cannot be kept.
	Open(StoreLimit) (StoreCounter, error)

	// Decide makes calls, each judged by itself and in their order, and fills in their results. After an
	// error nothing is known of any of them: some may have counted. Calls of Deny come in a Decide of their own.
	Decide(calls []StoreCall) error

	// DecideAll makes all calls or none of them. It returns the first that stood in the way, or -1,
	// and fills in the results: how the keys stand, and whether there was room for each call beside
	// those of its key before it. Only calls of CountFitting can stand in the way.
	DecideAll(calls []StoreCall) (denied int, err error)
}

// A StoreCounter is what a Store knows a limit by. Calls that are under way when it is closed end well.
type StoreCounter interface{ Close() }

// ErrStore is in the errors of Decide if the Store has not answered, and has not been told to go on without.
var ErrStore = errors.New("rules: the store does not answer")

// A StoreLimit describes what a rule counts by. Equal ones are the same limit.
type StoreLimit struct {
	// Domain is that of the rule. If it is Atomic its keys have to be where DecideAll can reach them together.
	Domain string
	Atomic bool
	// Override is set for the limits that come with requests: see StoreCall.Limit. They count in the windows of rules of their
	// period, and what they deny is theirs.
	Override bool
	// Algorithm, Limit, Offset and BlockFor are those of the rule; see sluice.Config. Under FixedWindow
	// without BlockFor counts are those of all limits of the domain with the same Limit.Period and Offset: these
	// are windows. Under others a key has a count for each algorithm.
	Algorithm sluice.Algorithm
	Limit     sluice.Limit
	Offset    time.Duration
	BlockFor  time.Duration
	// Leases allows the Store to admit hits from units that it has been lent, and to leave out of a window's count what
	// is denied: Count and Remaining are then approximate, and admissions are not.
	Leases bool
}

// Windows reports whether the limit counts in windows, which the limits of other rules share.
func (l *StoreLimit) Windows() bool { return l.Algorithm == sluice.FixedWindow && l.BlockFor == 0 }

// StoreOp says what a StoreCall does.
type StoreOp uint8

// The operations.
const (
	// CountFitting counts the hits if the limit has room for all of them, and denies them otherwise.
	CountFitting StoreOp = iota
	// CountAll counts the hits of a window whether there is room or not: they are over the limit if Count then is.
	CountAll
	// Look counts nothing, and says whether CountFitting would admit the hits.
	Look
	// GiveBack takes hits off what a key has counted, down to 0, unless they were denied and nothing has
	// counted them: see Absorbed.
	GiveBack
	// Deny notes that the hits of a key were denied: see Counted. They are taken off its next GiveBacks, which a proxy
	// sends for denied calls, too.
	Deny
)

// A StoreCall is one count of one key.
type StoreCall struct {
	Counter StoreCounter
	Key     string // of any length; different keys never share a count
	Op      StoreOp
	Hits    uint64 // at most 2^32
	// Limit takes the place of the Counter's for this call, under windows and with their period; zero for
	// the Counter's.
	Limit sluice.Limit

	// Count is how many hits the key's window holds after the call, under windows; from a lease, as far as is known.
	Count uint64
	// Decision describes CountFitting; of Look, and of CountFitting that DecideAll has not made, it is what Peek of the hits
	// says, and after CountAll and GiveBack what Peek of 0 says. Its ResetAfter under windows is the time to their end, or 0
	// where nothing is counted.
	Decision sluice.Decision
	// Counted reports whether the hits are in Count. CountAll sets it, and Deny is told it.
	Counted bool
	// Absorbed is how many hits of GiveBack have given nothing back.
	Absorbed uint64
	// Local reports that the Store has not been reached, and that this process has judged CountAll, too, by its share
	// of the limit: Decision.Allowed then says whether the hits fit.
	Local bool

	at int // whose it is, in Response.work
}
