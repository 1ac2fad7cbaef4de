package sluice

import "slices"

// SetLimit changes the limit while decisions run. Every key keeps what it has spent, in
// units of cost: nobody is given a burst, and nobody is charged twice. What a key has spent
// beyond the new burst it owes, and is denied until it has paid that back; Refund and
// Reset forgive. The error is a *ConfigError, as of New, and then nothing has changed.
//
// Spent units come back as the new limit says. The buckets keep what they owe, exactly but
// for less than a tick. So do windows of the same length; if the length changes, what
// counts at that moment is put into the present window, since it is not known when in its
// old window it was spent. SlidingLog keeps the times of what counts at that moment, and
// room for the largest limit it has had. Blocks stay. Under Unlimited and DenyAll units go on coming back as they did
// before. What no word has room for is forgotten: more than some 160 years' worth of units,
// or in windows that are much shorter than before, more than can be counted beside their
// numbers.
//
// Calls that start after SetLimit has returned are decided by the new limit. Those that
// run meanwhile go by either, also two of one goroutine, in any order. It does not change
// limits that SetKeyLimit and SetPlan have set. It moves all keys, a shard at a time, some
// 0.1 us each.
func (l *Limiter) SetLimit(limit Limit) error {
	l.made().admin.Lock()
	defer l.admin.Unlock()
	c := l.configFor(limit)
	p, err := policyFor(c, l.current.Load())
	if err != nil {
		return err
	}
	p.of = &terms{plan: &l.common, limit: limit}
	p.of.common.Store(p)
	l.common.terms.Store(p.of)
	for i := range l.shards {
		l.adoptShard(i, p)
	}
	l.current.Store(p)
	l.config.Store(&c)
	return nil
}

// adoptShard moves the keys of a shard, and their reservations, to another policy.
func (l *Limiter) adoptShard(i int, p *policy) {
	s := &l.shards[i]
	lg := &l.ledgers.all[i]
	records := lg.guardAll()
	now := l.adoptKeys(s, p)
	lg.unguardAll(records, func(rec *record) {
		switch {
		case l.policyOf(rec.id).of != p.of:
		case l.isBlocked(rec.id):
			rec.forget() // a block may end before what it has taken the place of
		default:
			rec.adopt(l.policyOf(rec.id), now)
		}
	})
}

// adoptKeys moves the keys of a shard, those in cells included, to another policy.
func (l *Limiter) adoptKeys(s *shard, p *policy) (now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = l.adoptAllLocked(s, p)
	s.eachCell(func(c *cell) {
		if c.policy.of.plan == &l.common {
			l.placeLocked(s, nil, c.id.Load(), placement{c.kept, p.of}, nil)
		}
	})
	return now
}

// policyFor returns the policy of c, which is that of a limiter but for the limit.
func policyFor(c Config, from *policy) (*policy, error) {
	if c.Limit.constant() {
		c.Soft = 0 // there is nothing beyond it
	}
	if _, err := c.withDefaults(); err != nil {
		return nil, err
	}
	p, err := newPolicy(c, from)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Config returns the configuration in force: with defaults filled in, and with the limit
// that SetLimit has set. Shards stays 0 if it was.
func (l *Limiter) Config() Config { return *l.made().config.Load() }

// adoptAllLocked moves all entries of a shard into a table of p.
//
// All words are taken out of the reach of decisions before the clock is read, so that
// none has been charged at a later time than that at which it is judged. What is idle then
// is dropped, as by a sweep: under the new limit it might seem to count again.
func (st *store) adoptAllLocked(s *shard, p *policy) (now int64) {
	old := s.table.Load()
	type frozen struct {
		id uint64
		entry
	}
	entries := make([]frozen, 0, s.len())
	var marks []uint64
	for i := range old.slots {
		id := old.slots[i].id.Load()
		if id == 0 {
			continue
		}
		if old.slots[i].word.Load() == elsewhere {
			if c := s.cell(id); c != nil && c.kept == nil {
				marks = append(marks, id)
			}
			continue
		}
		entries = append(entries, frozen{id, old.entry(uint64(i), old.freeze(uint64(i)))})
	}
	now = max(st.clock.Now(), 0)
	all := len(entries)
	entries = slices.DeleteFunc(entries, func(e frozen) bool { return old.policy.idleBy(e.entry, now) })
	if dropped := all - len(entries); dropped > 0 {
		s.floor = max(s.floor, now)
		st.swept.Add(uint64(dropped))
	}
	next, n := p.empty, len(entries)+len(marks)
	if n > 0 {
		next = st.newTable(p, st.slotsFor(n, s.share))
	}
	for _, e := range entries {
		next.adopt(e.id, old.policy, e.entry, now)
	}
	for _, id := range marks {
		next.mark(id)
	}
	st.publishLocked(s, next, n)
	return now
}
