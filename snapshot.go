package sluice

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/snapfile"
)

// The sources of the limit of a section's keys.
const (
	ofLimiter uint8 = iota
	ofKey           // Key.SetLimit
	ofCall          // Key.WithLimit
)

// Snapshot writes the state of all keys that are not idle, for a Restore in another process,
// and the limits that Key.SetLimit has set. It needs
// HashStable: seeded ids mean nothing elsewhere. It can run at the same time as decisions and changes
// of limits. It writes each key as of one instant, but not all keys as of the same instant. No call
// waits for w. A call may wait while its own key is copied. If a table is being replaced, or keys are
// or have been under other limits than the limiter's, a call may wait for a thousand keys or two.
//
// A snapshot does not hold the limiter's own limit, nor reservations: reserved units stay
// charged. The format has a version and a checksum, which finds accidents, not forgeries:
// keep a snapshot where no other user can write.
func (l *Limiter) Snapshot(w io.Writer) error {
	if err := l.made().requireStable("Snapshot"); err != nil {
		return err
	}
	out := snapshotWriter{Writer: snapfile.NewWriter(w), config: l.Config()}
	var all copies
	var keys copied
	for id := uint64(0); ; id++ {
		id = l.copyKeys(id, &keys, &all)
		out.begin(nil, keys.policy)
		out.Entries(keys.Entries)
		if id == math.MaxUint64 {
			break
		}
	}
	for _, of := range all.order {
		out.policy = nil // the terms can differ under one policy
		out.begin(of.kept, of.policy)
		for _, keys := range all.of[of] {
			out.Entries(keys.Entries)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("sluice: Snapshot: %w", err)
	}
	return nil
}

func (l *Limiter) requireStable(what string) error {
	if h := l.Config().Hash; h != HashStable {
		return fmt.Errorf("sluice: %s with hash %v, whose ids mean nothing in another process; want Config.Hash %v", what, h, HashStable)
	}
	return nil
}

type snapshotWriter struct {
	*snapfile.Writer
	config Config
	policy *policy // of the section that has begun; nil if none has
}

// begin begins a section, unless it has begun.
func (out *snapshotWriter) begin(kept *terms, p *policy) {
	if out.policy == p {
		return
	}
	out.policy = p
	c := &out.config
	h := snapfile.Header{
		Algorithm: uint8(c.Algorithm),
		Rate:      int64(p.base.Rate), Period: int64(p.base.Period), Burst: int64(p.base.Burst), Soft: int64(c.Soft),
		Offset: int64(c.Offset), Room: int64(p.reach), TailLen: uint32(p.tailLen()),
		Calendar: calendarFields(p.base),
	}
	limit := p.limit
	switch {
	case kept != nil:
		h.Kind, limit = ofKey, kept.limit
	case !p.of.own:
		h.Kind = ofCall
	default:
		limit = Limit{}
	}
	h.LimitRate, h.LimitPeriod, h.LimitBurst = int64(limit.Rate), int64(limit.Period), int64(limit.Burst)
	h.LimitCalendar = calendarFields(limit)
	out.Section(h)
}

// calendarFields are the calendar of a limit.
func calendarFields(l Limit) (f snapfile.Calendar) {
	c := l.dates()
	f.Unit, f.Month, f.Day = uint8(c.Unit), uint8(c.Month), uint8(c.Day)
	copy(f.Zone[:], c.Zone) // of a limit that New has accepted, it is no longer
	return f
}

// fieldsCalendar is the inverse of calendarFields, for fields that need not be of a calendar.
func fieldsCalendar(f snapfile.Calendar) Calendar {
	return Calendar{CalendarUnit(f.Unit), string(bytes.TrimRight(f.Zone[:], "\x00")), time.Month(f.Month), int(f.Day)}
}

// copied are entries of keys under a policy.
type copied struct {
	policy *policy
	snapfile.Entries
}

// copies are the entries of cells, by the terms that they are kept on and the policy that they are under.
// They are in several pieces: it would take long to grow one large piece, with a shard locked.
type copies struct {
	of    map[copiesOf][]*copied
	order []copiesOf
}

type copiesOf struct {
	kept   *terms
	policy *policy
}

// enough is how many bytes a piece has before the next one is begun.
const enough = 1 << 15

// get returns the piece to which an entry is to be added.
func (all *copies) get(kept *terms, p *policy) *copied {
	of := copiesOf{kept, p}
	some := all.of[of]
	if n := len(some); n > 0 && len(some[n-1].Bytes) < enough {
		return some[n-1]
	}
	c := &copied{policy: p}
	all.put(of, c)
	return c
}

func (all *copies) put(of copiesOf, more ...*copied) {
	if all.of == nil {
		all.of = map[copiesOf][]*copied{}
	}
	if all.of[of] == nil {
		all.order = append(all.order, of)
	}
	all.of[of] = append(all.of[of], more...)
}

// copyKeys makes c the live entries of the table of first, for the ids from first on, and adds the
// entries of these ids that are in cells to all. It returns the last id that it has copied: the last id
// of the table, or an earlier one if there are many cells.
//
// It takes no lock if the shard has never had a cell. Then each key that is tracked all the time is
// in the table, unless its word has moved.
func (l *Limiter) copyKeys(first uint64, c *copied, all *copies) (last uint64) {
	st, hash := &l.store, l.hash.Hash
	s, t := st.shardOf(first), st.tableOf(first)
	_, last = covers(first, t.depth)
	if s.cells.Load() == nil && c.copyTable(t, first, last, hash, max(st.clock.Now(), 0)) && s.cells.Load() == nil {
		return last
	}
	var part copies
	last = st.underLock(first, st.partDepth, func(from, to uint64) {
		now := max(st.clock.Now(), 0)
		c.copyTable(st.tableOf(from), from, to, hash, now)
		s.cellsIn(from, to, func(one *cell) {
			keys, id := part.get(one.kept, one.policy), hash(one.id.Load())
			if live, _ := keys.copy(&one.slot, id, one.tail, now); !live && one.kept != nil {
				keys.Add(id, elsewhere, nil)
			}
		})
	})
	for _, of := range part.order {
		all.put(of, part.of[of]...)
	}
	return last
}

// copyTable makes c the live entries of a table, for the ids from first to last. It fails if the table is
// being replaced.
func (c *copied) copyTable(t *table, first, last uint64, hash func(id uint64) uint64, now int64) (ok bool) {
	*c = copied{t.policy, snapfile.Entries{Bytes: c.Bytes[:0]}}
	for i, id := range t.occupied {
		e := &t.slots[i]
		if id < first || id > last || e.word.Load() == elsewhere {
			continue
		}
		if _, ok := c.copy(e, hash(id), t.tail(i), now); !ok && e.word.Load() == moved {
			return false
		}
	}
	return true
}

// copy adds the key of a slot, with the hash of its id, unless it is idle. It fails if the word is moved or elsewhere.
func (c *copied) copy(e *slot, hash uint64, tail []atomic.Uint64, now int64) (live, ok bool) {
	key := state{tail: tail}
	c.Bytes = slices.Grow(c.Bytes, snapfile.Size(len(tail))) // calls for the key wait while its word is locked
	if c.policy.wide == nil {
		if key.word = e.released(); key.word >= elsewhere {
			return false, false
		}
	} else {
		if key.word, ok = e.lock(); !ok {
			return false, false
		}
		defer e.word.Store(key.word)
	}
	if live = !c.policy.idleBy(key, now); live {
		c.Add(hash, key.word, key.tail)
	}
	return live, true
}
