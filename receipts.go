package sluice

import (
	"cmp"
	"slices"
)

// TakeAllReceipts is TakeAllInto, and puts into all[i] the receipt for charge i, by
// which it is settled, or taken back, once it is known what was used. It is nil for a charge
// that has not been made: if any is denied, and for one that would be under Config.Shadow. Of
// an all that is shorter than the charges only so much is filled in.
//
// However many receipts of a key are open at once, and in whatever order they are settled,
// Settle and Cancel give back what the key would have left without the units that were not
// used, and never more:
//
//   - Of the buckets, those that have not come back by themselves. Reservation.Settle says
//     what is missing where the key would have been fresh for a while without them.
//   - Of FixedWindow, all while the window lasts, and then none. With AnchorFirstCharge the
//     window began with its first charge even if that is given back.
//   - Of SlidingWindow, what they count for: in the next window, less and less.
//   - Of SlidingLog, all for a period.
//
// None come back after a Reset, a Block or an eviction of the key, nor, except with the buckets
// that refill continuously and SlidingLog, after a change of its limit's Period; at
// RefillInterval of its Rate, too. Debts that are not counted, as Limiter.Charge says, do not
// make it less.
//
// A receipt takes some 200 bytes until it is settled, or until its units have come back and the
// key is used again. Open receipts of a key are no more than its burst, so that
// Config.MaxReservations does not bound them, though Reserve counts them. A call that is
// admitted allocates; of up to 8 charges, one that is denied does not.
func TakeAllReceipts(all []*Reservation, each []Decision, charges ...Charge) AllDecision {
	all, each = all[:min(len(all), len(charges))], each[:min(len(each), len(charges))]
	clear(all)
	var few [8]claim
	var fewRecords [8]*record
	space := few[:]
	if len(charges) > len(few) {
		space = make([]claim, len(charges))
	}
	// Records are locked before words are held. As a denial needs none, the charges are judged
	// without them first, which also puts the keys under the policies that they go by.
	rs := receipts{all: all, charges: charges}
	d, done := takeAll(space, each, charges, (*Limiter).policyFor, &rs)
	if !done {
		rs.records, rs.locked = lockRecords(fewRecords[:0], charges), true
		clear(space)
		d, _ = takeAll(space, each, charges, (*Limiter).policyNow, &rs)
		releaseRecords(rs.records)
	}
	return d
}

// receipts are those of a TakeAllReceipts.
type receipts struct {
	all     []*Reservation
	charges []Charge
	records []*record // of the charges' keys
	locked  bool      // the records are
}

// write makes the receipts for the charges of a claim, which has been charged while its key had
// the word before.
func (rs *receipts) write(c *claim, before uint64) {
	p := c.policy
	a, s := p.line(), p.stamper()
	kept := c.slot != nil && c.cost > 0 && p.keeps() && (a != nil || s != nil)
	var rec *record
	var drops, from, stamp, end uint64
	if kept {
		rec = recordFor(rs.records, c)
		rec.dropPassed(c.now, passedAtOnce)
		drops = rec.drops.Load() // with the word held: see there
		if a != nil {
			if c.until > 0 {
				before = 0 // the block is over
			}
			from = max(a.full(before), a.tick(c.now))
		} else {
			stamp, end = s.stamp(state{c.word, c.tail})
		}
	}
	for i := c.index; i < len(rs.all); i++ {
		charge := &rs.charges[i]
		if charge.Key.id != c.id || charge.Key.lim.core != c.lim {
			continue
		}
		r := &Reservation{lim: c.lim, id: c.id, cost: charge.Cost, begins: c.now}
		r.node.At = c.now
		rs.all[i] = r
		if !kept || r.cost == 0 {
			continue
		}
		if r.node.Units = r.cost; a != nil {
			r.enter(rec, p, drops, from)
			from += r.node.Span
		} else {
			r.rec, r.stamp = rec, stamp
			rec.enterStamped(&r.node, p, drops, end)
		}
	}
}

// lockRecords locks the records of all keys, in the order of all callers that lock several, and
// returns them in space, if they fit. None is made with others locked, since that takes the lock of a
// ledger.
func lockRecords(space []*record, charges []Charge) []*record {
	var few [8]Key
	keys := few[:0]
	for _, c := range charges {
		keys = append(keys, Key{c.Key.lim.core, c.Key.id})
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.lim.serial, b.lim.serial), cmp.Compare(a.id, b.id))
	})
	keys = slices.Compact(keys)
	for {
		records := space
		for _, k := range keys {
			rec, made := k.lim.ledgers.of(k.id).record(k.id)
			if made {
				rec.in.tidy(max(k.lim.now(), 0))
			}
			records = append(records, rec)
		}
		n := 0
		for n < len(records) && records[n].lock() {
			n++
		}
		if n == len(records) {
			return records
		}
		releaseRecords(records[:n])
	}
}

func releaseRecords(records []*record) {
	for _, rec := range records {
		rec.release()
	}
}

// recordFor returns the record of a claim's key.
func recordFor(records []*record, c *claim) *record {
	lg := c.lim.ledgers.of(c.id)
	for _, rec := range records {
		if rec.id == c.id && rec.in == lg {
			return rec
		}
	}
	return nil
}

func (p *policy) line() line {
	a, _ := p.alg.(line)
	return a
}

// forward returns the word of a line whose full tick is sooner by so many ticks, which
// count at now.
func (p *policy) forward(word uint64, now int64, ticks uint64) uint64 {
	if b := p.bucket(); b != nil {
		s, _ := b.turns()
		return b.pack(b.full(word)-ticks, s.tick(now))
	}
	return p.alg.refund(word, now, int(ticks)) // whose ticks are units
}

func (p *policy) stamper() stamper {
	s, _ := p.adopter().(stamper)
	return s
}

// keepsReceipts reports whether the ends and stamps of receipts under from, which has no
// turns, mean the same under p.
func (p *policy) keepsReceipts(from *policy) bool {
	switch a := p.adopter().(type) {
	case *fixedWindow:
		old, ok := from.alg.(*fixedWindow)
		return ok && a.same(&old.window)
	case *tokenInterval:
		old, ok := from.alg.(*tokenInterval)
		return ok && a.same(&old.window) && a.gain() == old.gain()
	case *anchoredWindow:
		old, ok := from.wide.(*anchoredWindow)
		return ok && a.period == old.period
	case *slidingLog:
		return true
	}
	a, old := p.sliding(), from.sliding()
	return a != nil && old != nil && a.same(&old.window)
}
