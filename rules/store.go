package rules

import (
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// A Store keeps the counts of an Engine outside of its process, so that the engines of many processes
// count together; package redisstore has one in Redis. The engine itself does the matching, the thresholds,
// the statistics and the answers. A Store only counts, and says how a key stands.
//
// It is safe for concurrent use. Its calls return within a time that the Store bounds itself.
type Store interface {
	// Open returns the counter of a limit. The counter is closed when no rule needs it any more. Limits that differ only
	// in Limit count the same keys together, in this process and in others. An error says why the limit cannot be kept.
	Open(StoreLimit) (StoreCounter, error)

	// Decide makes calls in their order, judges each by itself, and fills in their results. After an
	// error the outcome is unknown: some calls may have counted. Calls of Deny come in a Decide of their own.
	Decide(calls []StoreCall) error

	// DecideAll makes all calls or none of them. It returns the first call that stood in the way, or -1,
	// and fills in the results: how the keys stand, and whether there was room for each call together with
	// the calls of its key before it. Only calls of CountFitting can stand in the way.
	DecideAll(calls []StoreCall) (denied int, err error)
}

// A StoreCounter is a Store's handle for a limit. Calls that are under way when it is closed still end well.
type StoreCounter interface{ Close() }

// ErrStore is in the errors of Decide if the Store has not answered, and is not configured to decide without an answer.
var ErrStore = errors.New("rules: the store does not answer")

// A StoreLimit describes how a rule counts. Equal StoreLimits are the same limit.
type StoreLimit struct {
	// Domain is the domain of the rule. If Atomic is true, DecideAll must be able to reach all its keys together.
	Domain string
	Atomic bool
	// Override is true for limits that come with requests: see StoreCall.Limit. They count in the windows of rules of
	// the same period, and have denials of their own.
	Override bool
	// Algorithm, Limit, Offset and BlockFor are the rule's; see sluice.Config. FixedWindow without BlockFor counts in
	// windows: limits of the domain with the same Limit.Period and Offset share their counts. Otherwise
	// a key has a separate count for each algorithm.
	Algorithm sluice.Algorithm
	Limit     sluice.Limit
	Offset    time.Duration
	BlockFor  time.Duration
	// Leases allows the Store to admit hits from units that it has been lent, and to leave denied hits out of a window's
	// count. Count and Remaining are then approximate; admissions are exact.
	Leases bool
}

// Windows reports whether the limit counts in windows, which it shares with the limits of other rules.
func (l *StoreLimit) Windows() bool { return l.Algorithm == sluice.FixedWindow && l.BlockFor == 0 }

// StoreOp is the operation of a StoreCall.
type StoreOp uint8

// The operations.
const (
	// CountFitting counts the hits if the limit has room for all of them, and denies them otherwise.
	CountFitting StoreOp = iota
	// CountAll counts the hits of a window whether there is room or not. If Count is then above the limit, so are the hits.
	CountAll
	// Look counts nothing, and says whether CountFitting would admit the hits.
	Look
	// GiveBack subtracts hits from the count of a key, down to 0. It does not subtract hits that were denied and
	// not counted: see Absorbed.
	GiveBack
	// Deny notes that hits of a key were denied: see Counted. They are subtracted from the key's next GiveBacks, since
	// a proxy sends GiveBacks for denied calls, too.
	Deny
)

// A StoreCall is one count of one key.
type StoreCall struct {
	Counter StoreCounter
	Key     string // of any length; different keys never share a count
	Op      StoreOp
	Hits    uint64 // at most 2^32
	// Limit, unless it is zero, replaces the Counter's limit for this call. It is used only for windows, and has
	// the same period.
	Limit sluice.Limit

	// Count is how many hits the key's window has after the call; from a lease, as far as is known. Only for windows.
	Count uint64
	// Decision is the decision of CountFitting. For Look, and for a CountFitting that DecideAll has not made, it is the
	// decision of a Peek of the hits; after CountAll and GiveBack, of a Peek of 0. For windows ResetAfter is the time to
	// their end, or 0 if nothing is counted.
	Decision sluice.Decision
	// Counted reports whether the hits are in Count. CountAll sets it; for Deny the engine sets it.
	Counted bool
	// Absorbed is how many hits of a GiveBack have given nothing back.
	Absorbed uint64
	// Local reports that the Store has not been reached, and that this process has judged the call by its share of the
	// limit, CountAll included: Decision.Allowed then says whether the hits fit.
	Local bool

	at int // index in Response.work of the descriptor
}
