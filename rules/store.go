package rules

import (
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// A Store keeps the counts of an Engine outside of its process, so that the engines of many processes
// count together; package rulestore has one in Redis. The engine itself does the matching, the thresholds,
// the statistics and the answers. A Store only counts, and says how a key stands.
//
// It is safe for concurrent use. Its calls return within a time that the Store bounds itself. Package countertest has the suite that
// a Store must pass, and MEANING.md the meaning of each call.
type Store interface {
	// Open returns the counter of a limit. The counter is closed when no rule needs it any more. Limits that differ only
	// in Limit count the same keys together, in this process and in other processes. An error says why the limit cannot be kept.
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
	// Domain is the domain of the rule. If Atomic is true, DecideAll must be able to reach all its keys together, and so must
	// Decide for a call with a StoreCall.Second.
	Domain string
	Atomic bool
	// Second is true for the limit of a StoreSecond. Its keys have counts apart from other limits'. Calls of it alone
	// have these counts, too.
	Second bool
	// Override is true for limits that come with requests: see StoreCall.Limit. They count in the windows of rules of
	// the same period, and have denials of their own.
	Override bool
	// Admitted is true for windows in which denied hits never count, as in rules with count_denied: false. They are apart from
	// windows in which denied hits count.
	Admitted bool
	// Algorithm, Limit, Offset and BlockFor are the rule's; see sluice.Config. FixedWindow without BlockFor counts in
	// windows: limits of the domain with the same Limit.Period or calendar, Offset and Admitted share their counts. Otherwise
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
	Hits    uint64 // at most 2^32; with Second at most 2^33
	// Limit, unless it is zero, replaces the Counter's limit for this call. It is used only for windows, and has
	// the same period.
	Limit sluice.Limit

	// Debt is, for HoldStore.Settle, the most hits that are charged beyond the hold.
	Debt uint64

	// Second, unless its Counter is nil, is a second budget of the call, for the hits that Counter has no room for: see there.
	Second StoreSecond

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

// A StoreSecond is the second budget of a StoreCall. Both are counted in one step:
//
//   - CountFitting counts in the first limit as many of the hits as it has room for, and the rest in the second. If that has no
//     room for them, it counts none.
//   - GiveBack, after what is Absorbed, gives back to the second limit as many hits as calls with this Counter and Key of both have
//     counted in it, less what they have been given back, as far as the second limit still knows them. The rest goes to the first.
//   - Look tells how both stand. Deny is of the first, and is always noted.
//
// Then both Decisions say how the keys stand, as after a Peek of 0, except that Decision.Allowed says whether there is room
// for the hits in both together, or for 0 hits whether one of them has room for one. If there is not, Decision.RetryAfter is when
// the first limit has room for all of the hits, and Second.Decision.RetryAfter when the second has room for the rest, or 0 if that is not known.
type StoreSecond struct {
	Counter  StoreCounter // of a StoreLimit with Second
	Key      string
	Hits     uint64 // how many were counted in it, or given back to it
	Decision sluice.Decision
}
