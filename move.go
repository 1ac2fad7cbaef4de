package sluice

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/sluice-go/sluice/internal/ledger"
)

// A word changes its policy in one of three ways: SetLimit moves all words of a shard into a
// table of the new policy; putUnder moves one key, into a cell or out of one; and Restore adds a
// word of another process. In each, the word is frozen first, so that no other call can
// charge it any more; then the clock is read, and the new policy adopts the word as of that time.

// SetLimit changes the limit while decisions run. Every key keeps the units that it has
// spent: no key gets a fresh burst, and no key is charged twice. A key that has spent
// more than the new burst owes the rest, and is denied until it has paid that back; Refund and
// Reset forgive debts. The error is a *ConfigError, as of New, and then nothing has changed.
//
// Spent units come back as the new limit says. The buckets keep their debts, to less
// than a tick. Windows of the same length keep the spent units exactly; if the length changes,
// the units that count at that moment go into the present window, since it is not known when in
// the old window they were spent. SlidingLog keeps the times of the units that count at that moment,
// and room for the largest limit it has had. Blocks stay. Under Unlimited and DenyAll units go on
// coming back as before. Units that no word has room for are forgotten: more than some 160 years'
// worth of units, or in windows that are much shorter than before, more than can be counted beside
// the window numbers.
//
// Calls that start after SetLimit has returned are decided by the new limit. A call that
// runs meanwhile goes by either limit, also two calls of one goroutine, in any order. SetLimit does
// not change limits that Key.SetLimit has set, and does not move calls that wait already: see Wait.
// It moves all keys, some thousand at a time, some 0.1 us each.
func (l *Limiter) SetLimit(limit Limit) error {
	l.made().admin.Lock()
	defer l.admin.Unlock()
	c := l.Config()
	c.Limit = limit
	tm, err := newTerms(&c, limit, l.current.Load())
	if err != nil {
		return err
	}
	tm.own = true
	l.own.Store(tm)
	empty := emptyTable(tm.common, l.depth())
	for i := range l.shards {
		l.adoptShard(i, empty)
	}
	l.current.Store(tm.common)
	l.config.Store(&c)
	return nil
}

// adoptShard moves the keys of a shard, and their reservations, to the policy of empty, a
// table for shards without keys.
func (l *Limiter) adoptShard(i int, empty *table) {
	lg := l.ledgers.At(i)
	records := lg.GuardAll()
	times := l.adoptKeys(i, empty, records)
	lg.UnguardAll(records, func(rec *ledger.Record) {
		switch p := l.locate(rec.ID()).policy; {
		case p.of != empty.policy.of:
		case l.blockNow(rec.ID()) > 0:
			rec.Forget() // a block may end before the reserved units would have come back
		default:
			rec.Adopt(p, adoptedAt(times, rec.ID()))
		}
	})
}

// An adoption is when the table of the ids up to last was moved.
type adoption struct {
	last uint64
	at   int64
}

func adoptedAt(times []adoption, id uint64) int64 {
	i, _ := slices.BinarySearchFunc(times, id, func(a adoption, id uint64) int { return cmp.Compare(a.last, id) })
	return times[i].at
}

// adoptKeys moves the keys of a shard, also the ones in cells, to another policy. Each table and
// each cell is moved at a time of its own, and so are the reservations of its keys.
func (l *Limiter) adoptKeys(i int, empty *table, records []*ledger.Record) (times []adoption) {
	s := &l.shards[i]
	l.eachPart(i, l.tableDepth, func(first, last uint64) {
		times = append(times, adoption{last, l.adoptAllLocked(s, first, empty)})
	})
	l.eachPart(i, l.cellDepth, func(first, last uint64) {
		s.cellsIn(first, last, func(c *cell) {
			if c.policy.of.own {
				id := c.id.Load()
				l.putUnderLocked(s, ledger.RecordOf(records, id), id, placement{c.kept, empty.policy.of}, nil)
			}
		})
	})
	return times
}

// adoptAllLocked moves all entries of the table of id into a table of another policy.
//
// All words are taken away from decisions before the clock is read, so that no word has
// been charged at a later time than the time at which it is judged. Keys that are idle then
// are dropped, as by a sweep: under the new limit they might seem to count again.
func (st *store) adoptAllLocked(s *shard, id uint64, empty *table) (now int64) {
	old := st.tableOf(id)
	type frozen struct {
		id uint64
		state
	}
	entries := make([]frozen, 0, old.used)
	var marks []uint64
	for i, id := range old.occupied {
		if old.slots[i].word.Load() == elsewhere {
			if s.counted(id) != nil {
				marks = append(marks, id)
			}
			continue
		}
		entries = append(entries, frozen{id, old.freeze(i)})
	}
	now = max(st.clock.Now(), 0)
	all := len(entries)
	entries = slices.DeleteFunc(entries, func(e frozen) bool { return old.policy.idleBy(e.state, now) })
	dropped := all - len(entries)
	s.count.Add(-int64(dropped))
	st.forgotLocked(s, dropped, now)
	next := empty
	if n := len(entries) + len(marks); n > 0 {
		next = st.tableFor(empty.policy, old.depth, n, s.share)
	} else if old.depth > empty.depth {
		next = emptyTable(empty.policy, old.depth)
	}
	for _, e := range entries {
		next.adopt(e.id, old.policy, e.state, now)
	}
	for _, id := range marks {
		next.mark(id)
	}
	st.publishLocked(id, old, next)
	return now
}

// adopt adds an entry of another policy.
func (t *table) adopt(id uint64, from *policy, e state, now int64) {
	_, i := t.lookup(id)
	var tail []atomic.Uint64
	if t.policy.wide != nil {
		tail = t.tails.Add(i)
	}
	preset(&t.slots[i].word, t.policy.adopt(from, e, tail, now))
	t.slots[i].id.Store(id) // others may see the table
	t.used++
}

// A placement says under which terms a key is from now on. kept is the override of the key, or nil if it
// has none.
type placement struct {
	kept  *terms
	terms *terms
}

// putUnder puts id under the placement that f returns, if it returns one. f gets the terms that id is
// kept on, or nil. The spent units of the key stay spent.
func (l *Limiter) putUnder(id uint64, f func(kept *terms) (p placement, ok bool)) {
	s, rec := l.lockKey(id)
	defer l.unlockKey(s, rec, id)
	if to, ok := f(s.cell(id).keptOn()); ok {
		l.putUnderLocked(s, rec, id, to, nil)
	}
}

// lockKey guards the record of id and then, always in this order, locks its shard.
func (l *Limiter) lockKey(id uint64) (*shard, *ledger.Record) {
	rec := l.ledgers.Of(id).Guard(id)
	s := l.shardOf(id)
	s.mu.Lock()
	return s, rec
}

func (l *Limiter) unlockKey(s *shard, rec *ledger.Record, id uint64) {
	l.unlock(s)
	l.ledgers.Of(id).Unguard(rec)
}

// An amendment may replace the state of a key by another one, and reports whether it has
// done so.
type amendment func(p *policy, e state, tracked bool, now int64) (from *policy, next state, amended bool)

// putUnderLocked is putUnder with the key guarded and the shard locked. A key that is to have no
// override is forgotten if it has no state, or if there is no room for it among the keys without
// an override.
func (l *Limiter) putUnderLocked(s *shard, rec *ledger.Record, id uint64, to placement, amend amendment) {
	c := s.cell(id)
	e, i := l.tableOf(id).lookup(id)
	live := e != nil && e.word.Load() != elsewhere
	counts, counted := to.kept == nil, live || c != nil && c.kept == nil
	room := true
	if counts && !counted { // its cell is one that stays
		room = c.word.Load() != elsewhere && l.roomLocked(s, id, max(l.clock.Now(), 0), false)
	}
	from, key, tracked, now := l.freezeLocked(s, id, c, i, live)
	amended := false
	if amend != nil {
		if from, key, amended = amend(from, key, tracked, now); amended {
			tracked = true
		}
	}
	if counts && !(tracked && room) {
		l.forgetLocked(s, rec, c, id, live, counted)
		return
	}
	p := to.terms.variantFor(from, key, now)
	next := &cell{policy: p, kept: to.kept}
	next.id.Store(id)
	next.word.Store(elsewhere)
	if tracked {
		next.adopt(from, key, now)
		if !counts {
			l.keptLive.Add(1)
			l.arm()
		}
	}
	l.putCellLocked(s, next)
	l.tableOf(id).idleSooner()
	if live {
		e.word.Store(elsewhere)
	}
	switch {
	case counts && !counted:
		l.markLocked(s, id)
	case counted && !counts:
		s.count.Add(-1)
	}
	if tracked && !amended && from.blockedUntil(key) == 0 {
		rec.Adopt(p, now)
	} else {
		rec.Forget()
	}
}

// freezeLocked takes the state of id away from all other calls, and then reads the time now. tracked
// says whether id was tracked and is not idle by then. c is the cell of id, or nil; without a
// cell, its state is in slot i of its table if it is live.
func (l *Limiter) freezeLocked(s *shard, id uint64, c *cell, i uint64, live bool) (from *policy, e state, tracked bool, now int64) {
	t := l.tableOf(id)
	from = t.policy
	if c != nil {
		from = c.policy
		e, tracked = c.freeze()
	} else if live {
		e, tracked = t.freeze(i), true
	}
	now = max(l.clock.Now(), 0)
	if tracked && c.keptOn() != nil {
		l.keptLive.Add(-1)
	}
	if tracked && from.idleBy(e, now) {
		l.forgotLocked(s, 1, now)
		tracked = false
	}
	return from, e, tracked, now
}

// adopt fills a cell, which no other call sees yet, with the state of a key under another policy.
func (c *cell) adopt(from *policy, e state, now int64) {
	key := c.policy.adopted(from, e, now)
	c.tail = key.tail
	c.word.Store(key.word)
}

// forgetLocked drops a key whose word has been frozen.
func (l *Limiter) forgetLocked(s *shard, rec *ledger.Record, c *cell, id uint64, live, counted bool) {
	if c != nil {
		l.removeCellLocked(s, c)
	}
	if live {
		e, _ := l.tableOf(id).lookup(id)
		e.word.Store(elsewhere)
	}
	if counted {
		s.count.Add(-1)
	}
	rec.Forget()
}
