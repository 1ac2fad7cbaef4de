package sluice

import (
	"math"
	"time"

	"github.com/sluice-go/sluice/internal/ledger"
)

// AllDecision is the outcome of TakeAll.
type AllDecision struct {
	// Allowed reports whether all charges were admitted, and made. If it is false,
	// none was made.
	Allowed bool

	// Denied is the index of the first charge that was denied, or -1. Charges for one key are
	// judged together; Denied is then the first of them. TakeAllReservations describes every charge.
	Denied int

	// Remaining is the least of the Remaining of all charges, each in units of its
	// own limiter.
	Remaining int

	// WouldDeny and OverSoft report that the Decision on one of the charges has the
	// field set. A charge that only Config.Shadow lets pass is not made, and does
	// not keep the others from being made.
	WouldDeny, OverSoft bool

	// RetryAfter is 0 if the charges were admitted; else the longest RetryAfter of
	// the denied charges. If nothing else happens to the keys, the same charges
	// are admitted then.
	RetryAfter time.Duration
}

// TakeAll makes all of the charges or none. They are judged together at one instant,
// and no other call sees only a part of them: if one charge is denied, the others are
// never made, so that none has to be taken back. Charges for the same key add up. The
// keys may be of different limiters and algorithms; each is judged by the clock of
// its own limiter. A call without charges is admitted.
//
// A charge treats its cost as Take does: with 0 it is admitted if one unit would be,
// and charges nothing; a negative cost, or one above the burst, is denied for
// ever. Concurrent calls are safe, in any order of the keys. Other calls for
// the keys wait while TakeAll judges them, some 100 ns a key. Up to 8 charges
// take no allocation.
//
// If charges for one key have Keys that bring different limits, or bring none, all of them
// go by the limit of the first: see Key.WithLimit.
//
// A key for which there is no room at MaxKeys is decided as Take decides it, also if there
// is no room for all of the keys at once; OverflowEvictSoonest then admits without
// state, like OverflowAdmitNew. New keys are added, as fresh, before all charges are judged
// again, so a call that is denied then can leave some of the new keys tracked.
func TakeAll(charges ...Charge) AllDecision { return takeAll(nil, charges) }

// TakeAllReservations is TakeAll with reservations and decisions, for as many charges as all and each have
// room for. Either slice can be nil; elements beyond the charges are left alone.
//
// It writes to each[i] the decision on charge i, seen at the same instant. Allowed there reports
// whether the charge would have been admitted without the charges for other keys, so each shows every
// charge that was denied itself. If Allowed is true for a charge that was not made, the other fields
// describe the key as it is. Charges for the same key have the same Decision, on their sum.
//
// It puts into all[i] the reservation for charge i, by which the charge is settled, or taken back, once
// its actual cost is known. The reservation is nil for a charge that has not been made: if any charge is
// denied, and for a charge that only Config.Shadow lets pass, although all are Allowed then. The
// methods of a nil reservation do nothing.
//
// However many reservations of a key are open at once, and in whatever order they are settled, Settle
// and Cancel give back as much as the key would have left without the unused units, and never
// more:
//
//   - With the buckets, the unused units that have not come back already, less the amount
//     that Reservation.Settle describes if the key would have been fresh for a while without them.
//   - With FixedWindow, all while the window lasts, and then none. Under FixedWindowFirstCharge the
//     window began with its first charge even if that charge is given back.
//   - With SlidingWindow, as much as the units count: in the next window, less and less.
//   - With SlidingLog, all for a period.
//
// No units come back after a Reset, a Block or an eviction of the key. Except with SlidingLog and the
// buckets that refill continuously, none come back after a change of the limit's Period either, nor,
// under TokenBucketInterval, of its Rate. Debts that are not counted, as Key.Debit says, do not
// reduce the units that come back.
//
// A reservation takes some 200 bytes until it is settled, or until its units have come back and the
// key is used again. A key has no more open reservations of TakeAllReservations than its burst; Reserve counts them
// among the reservations of the key. A call that is admitted allocates for its reservations. A call with up
// to 8 charges does not allocate if it is denied or asks for no reservations.
func TakeAllReservations(all []*Reservation, each []Decision, charges ...Charge) AllDecision {
	all, each = all[:min(len(all), len(charges))], each[:min(len(each), len(charges))]
	if len(all) == 0 {
		return takeAll(each, charges)
	}
	clear(all)
	var few [8]claim
	var fewSame [8]int
	var fewRecords [8]*ledger.Record
	t := transaction{charges: charges, each: each, space: few[:], same: fewSame[:], records: fewRecords[:]}
	if n := len(charges); n > len(few) {
		t.space, t.same, t.records = make([]claim, n), make(chain, n), make([]*ledger.Record, n)
	}
	t.space = t.space[:len(charges)]
	rs := reservations{all: all, charges: charges, same: t.same}
	var d AllDecision
	t.run(func() step {
		// A denial needs no records.
		return t.takeAll(&d, t.locked, func(i int, before uint64) { rs.write(&t.space[i], t.records[i], before) })
	})
	t.releaseRecords()
	return d
}

// PeekAll returns the decision that TakeAll would return, but charges nothing and tracks nothing. Like Peek it considers
// neither MaxKeys, for keys that are not tracked, nor the effects of a denial.
func PeekAll(charges ...Charge) (d AllDecision) {
	t := transaction{charges: charges, space: make([]claim, len(charges)), looks: true}
	held := make([]hold, len(charges))
	t.run(func() step {
		claims := t.claims()
		for i := range claims {
			held[i] = claims[i].hold
			claims[i].lookUnder()
		}
		next := t.takeAll(&d, true, nil)
		for i := range claims {
			claims[i].hold = held[i] // the word that is released is the key's own
		}
		return next
	})
	return d
}

// lookUnder has a claim that changes nothing judge the key as it would be under the limit that its Key goes by.
func (c *claim) lookUnder() {
	if c.slot == nil {
		return
	}
	_, tm := Key{c.lim, c.id, c.terms}.lookUp()
	from, e := c.policy, c.state
	if from.of == tm {
		return
	}
	if from.idleBy(e, c.now) {
		e.word = 0
	}
	c.policy = tm.variantFor(from, e, c.now)
	c.state = c.policy.adopted(from, e, c.now)
}

// takeAll is TakeAllReservations without reservations. Room for 4 claims is zeroed in half the time of room for 8.
func takeAll(each []Decision, charges []Charge) AllDecision {
	switch n := len(charges); {
	case n <= 4:
		var space [4]claim
		return takeAllIn(space[:n], each, charges)
	case n <= 8:
		var space [8]claim
		return takeAllIn(space[:n], each, charges)
	}
	return takeAllIn(make([]claim, len(charges)), each, charges)
}

func takeAllIn(space []claim, each []Decision, charges []Charge) (d AllDecision) {
	t := transaction{charges: charges, space: space, each: each}
	t.run(func() step { return t.takeAll(&d, true, nil) })
	return d
}

// takeAll is the judge of TakeAll, and writes its decision to d. Unless made is nil, it calls made for each claim that
// is charged, with the word that the key had before. That takes the records: unless recorded is true, nothing is charged.
func (t *transaction) takeAll(d *AllDecision, recorded bool, made func(i int, before uint64)) step {
	*d = AllDecision{Allowed: true, Denied: -1, Remaining: math.MaxInt}
	ready, claims := true, t.claims()
	for i := range claims {
		c := &claims[i]
		if c.judge(d.Allowed); !c.Allowed && !c.lim.shadow {
			d.Allowed = false
			if d.Denied < 0 || c.index < d.Denied {
				d.Denied = c.index
			}
		}
		ready = ready && c.ready()
	}
	switch {
	case d.Allowed && !recorded:
		return lockThem
	case d.Allowed && !ready && !t.looks:
		return trackNew
	}
	for i := range claims {
		c := &claims[i]
		before := c.word
		switch {
		case !t.looks:
			c.settle(d.Allowed)
		case !d.Allowed && c.made && c.decides():
			c.describe()
		}
		if made != nil && d.Allowed && c.Allowed {
			made(i, before)
		}
		c.amend(c.lim.soft, c.lim.shadow, int(min(c.cost, 1)))
		c.OverSoft = c.OverSoft && d.Allowed
		d.Remaining = min(d.Remaining, c.Remaining)
		d.WouldDeny = d.WouldDeny || c.WouldDeny
		d.OverSoft = d.OverSoft || c.OverSoft
		if !c.Allowed {
			d.RetryAfter = max(d.RetryAfter, c.RetryAfter)
		}
	}
	if len(t.each) > 0 {
		t.describeAll()
	}
	return done
}

// settle counts the claim and charges it, if all are admitted.
func (c *claim) settle(all bool) {
	if !c.Allowed {
		c.lim.deny(c.id, "", int(min(c.cost, 1)))
	}
	if t := c.lim.tally; t != nil && c.cost != 0 && (all || !c.Allowed) {
		t.count(c.id>>c.lim.shift, c.outcome())
	}
	c.charge(all)
}

// eachAhead is how many keys before its decision the slot of a key is fetched. With 8, and with
// 32, a batch of a million keys takes as long, give or take 7% (BenchmarkAllowEach).
const eachAhead = 16
