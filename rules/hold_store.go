package rules

import (
	"errors"
	"time"
)

// A HoldStore is a Store that keeps holds: units that a call is charged before it knows its need. A hold is
// of several keys. Each key knows it by its id, so that any engine can settle it, by the id and the same calls.
//
// The methods make all calls or none. All calls of one method are of different keys, or of different counters. The
// result of each call is filled in as DecideAll fills it in. A call of a limit without StoreLimit.Atomic may have a
// key that cannot be reached together with the other keys: the error then says so, and nothing has been done.
//
// After another error the outcome is unknown. The engine's caller repeats the method then, with the same id: the
// methods must do nothing twice.
type HoldStore interface {
	Store

	// Hold charges the Hits of each call, of CountFitting, or denies all: HoldResult.Denied is the first call that stood in
	// the way. Calls of CountAll never stand in the way: a window holds their hits all the same, another limit if they
	// fit, and else none of them.
	//
	// If the domain has a hold of this id, nothing is charged. It is Again if it is open, and of the same Names, Digest and
	// Hits. If it has been settled within HoldTerms.Remember, the error is ErrEndedHold, and otherwise ErrOtherHold. A denial is not
	// remembered. The error is ErrManyHolds if a key has no room for more holds.
	Hold(terms HoldTerms, calls []StoreCall) (HoldResult, error)

	// Settle ends the hold. Hits are the hits used of each key. Hits held beyond that are given back
	// as far as they would still be there without the hold; hits used beyond the hold are charged, above
	// the limit if it must be, up to StoreCall.Debt. A key of a limit of units in flight gets all of its units back, whatever
	// Hits says.
	//
	// If any of the keys does not have the hold of these Names, the error is ErrNotHeld and nothing changes. But a hold that has
	// been settled with the same Digest within HoldTerms.Remember is answered again as the first time.
	Settle(terms HoldTerms, calls []StoreCall) (HoldResult, error)

	// Extend charges Hits more to each key of the hold, or denies all as Hold does. Calls with 0 hits never stand in the way. If
	// nothing was denied, the hold lapses terms.TTL from now. The error is ErrNotHeld if any of the keys does not have
	// the hold of these Names.
	//
	// If terms.Step is not "", an Extend of a step that the hold has made already is Again, and charges nothing.
	Extend(terms HoldTerms, calls []StoreCall) (HoldResult, error)
}

// HoldTerms say which hold a call of a HoldStore is about.
type HoldTerms struct {
	// Domain and ID name the hold. ID is 1 to 128 bytes of ASCII, visible and without spaces. Names is a digest of the descriptors
	// that the hold is of: 32 characters of hexadecimal.
	Domain, ID, Names string
	// Digest is a digest of the hits of all descriptors, descriptors without a limit too: of the request in Hold, and of the hits used
	// in Settle.
	Digest uint64
	// TTL is how long after Hold, or after the last Extend, a hold lapses that is not settled. Its units are then
	// spent, or if GiveBack is true are given back as Settle does with 0. GiveBack is the Hold's: Settle and
	// Extend ignore it.
	TTL      time.Duration
	GiveBack bool
	// Remember is how long a settled hold is known by its id, at least as far as there is room.
	Remember time.Duration
	// Step names an Extend, so that it can be repeated: up to 128 bytes, or "".
	Step string
}

// HoldResult is the outcome of a call of a HoldStore that had no error.
type HoldResult struct {
	Denied int  // the first call that stood in the way, or -1
	Again  bool // the call was made before, and this one has changed nothing
	Capped bool // a Settle has charged less than was used, by StoreCall.Debt
}

// The errors of holds.
var (
	// ErrNotHeld: there is no such hold. It has been settled, it has lapsed, or it has never been.
	ErrNotHeld = errors.New("rules: there is no such hold: it has been settled, has lapsed, or has never been")
	// ErrEndedHold: the id is of a hold that was settled or released.
	ErrEndedHold = errors.New("rules: the hold of this id has ended; want an id of its own for each call")
	// ErrOtherHold: the id is of a hold of another request.
	ErrOtherHold = errors.New("rules: the id of the hold is that of another request; want an id of its own for each")
	// ErrManyHolds: there is no room for another hold.
	ErrManyHolds = errors.New("rules: there is no room for another hold until one is settled or lapses")
	// ErrNoHolds: the engine's Store keeps no holds, or none of these limits. Counts in memory have holds of each.
	ErrNoHolds = errors.New("rules: the store keeps no holds")
)
