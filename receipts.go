package sluice

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
