package sluice

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// A snapshot is, in little endian:
//
//	magic, version          8 bytes
//	sections, each of the keys under one policy that are kept on one limit, or on none:
//	  1, sectionHeader
//	  several times, a number of entries above 0, and as many times
//	    id, word, and the words of the tail, unless the word is elsewhere
//	  0                     4 bytes
//	0                       1 byte
//	xxHash64 of all before  8 bytes
//
// Words are as in memory. So the version must change with any layout of any algorithm.
const (
	snapshotMagic   = "sluice\x00"
	snapshotVersion = 3
)

// sectionHeader says how the words of a section are to be read.
type sectionHeader struct {
	sectionNumbers
	sectionPlan
}

type sectionNumbers struct {
	Algorithm, Refill, Anchor uint8 // see algorithm
	Rate, Period, Burst, Soft int64
	Offset, Room, Strikes     int64 // Strikes is no longer in use, and 0
	TailLen                   uint32
}

// writtenAs says how a header tells each algorithm. Two were options of others in earlier builds.
var writtenAs = [...]sectionNumbers{
	GCRA:                   {Algorithm: 0},
	TokenBucket:            {Algorithm: 1},
	TokenBucketInterval:    {Algorithm: 1, Refill: 1},
	LeakyBucket:            {Algorithm: 2},
	SlidingWindow:          {Algorithm: 3},
	SlidingLog:             {Algorithm: 4},
	FixedWindow:            {Algorithm: 5},
	FixedWindowFirstCharge: {Algorithm: 5, Anchor: 1},
}

// algorithm returns the algorithm of the section, or one that there is not.
func (h *sectionNumbers) algorithm() Algorithm {
	for a, as := range writtenAs {
		if h.Algorithm == as.Algorithm && h.Refill == as.Refill && h.Anchor == as.Anchor {
			return Algorithm(a)
		}
	}
	return math.MaxUint8
}

// sectionPlan says by whom the keys have their limit, and what it is, unless it is the
// limiter's.
type sectionPlan struct {
	Kind                          sectionKind
	LimitRate, LimitPeriod, Limit int64  // the last one is the burst
	NameLen                       uint32 // is no longer in use, and 0
}

type sectionKind uint8

const (
	ofLimiter sectionKind = iota
	ofKey                 // SetKeyLimit
	ofPlan                // is no longer in use
	ofCall                // Key.WithLimit
)

// Snapshot writes the state of all keys that are not idle, for a Restore in another process,
// and the limits that SetKeyLimit has set. It needs
// HashStable: seeded ids mean nothing elsewhere. It can run while decisions and changes of
// limits do; each key is written as it stands at one instant, but not all at the same one.
// No call waits for w. A call may wait while its own key is copied. Where a table is being replaced, or
// keys are or have been under other limits than the limiter's, it may wait for a thousand keys or two.
//
// It does not hold the limiter's own limit, nor receipts: what has been reserved stays
// charged. The format has a version and a checksum, which finds accidents, not forgeries:
// keep it where nobody else can write.
func (l *Limiter) Snapshot(w io.Writer) error {
	if err := l.made().requireStable("Snapshot"); err != nil {
		return err
	}
	sum := xxhash.New()
	out := &snapshotWriter{w: bufio.NewWriter(io.MultiWriter(w, sum)), config: l.Config()}
	out.w.WriteString(snapshotMagic)
	out.w.WriteByte(snapshotVersion)
	var all copies
	var keys copied
	for id := uint64(0); ; id++ {
		id = l.copyKeys(id, &keys, &all)
		out.begin(nil, keys.policy)
		out.entries(keys)
		if id == math.MaxUint64 {
			break
		}
	}
	out.end()
	for _, of := range all.order {
		out.begin(of.kept, of.policy)
		for _, keys := range all.of[of] {
			out.entries(*keys)
		}
		out.end()
	}
	out.w.WriteByte(0)
	out.w.Flush()
	binary.Write(out.w, binary.LittleEndian, sum.Sum64()) // which is not of itself
	if err := out.w.Flush(); err != nil {                 // the first error of all
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

// A snapshotWriter writes sections. Errors stay in w.
type snapshotWriter struct {
	w      *bufio.Writer
	config Config
	policy *policy // of the section that has begun; nil if none has
}

// begin begins a section, unless it has begun.
func (out *snapshotWriter) begin(kept *terms, p *policy) {
	if out.policy == p {
		return
	}
	if out.policy != nil {
		out.end()
	}
	c := out.config
	h := sectionHeader{sectionNumbers: sectionNumbers{
		Rate: int64(p.base.Rate), Period: int64(p.base.Period), Burst: int64(p.base.Burst), Soft: int64(c.Soft),
		Offset: int64(c.Offset), Room: int64(p.reach), TailLen: uint32(p.tailLen()),
	}}
	as := writtenAs[c.Algorithm]
	h.Algorithm, h.Refill, h.Anchor = as.Algorithm, as.Refill, as.Anchor
	limit := p.limit
	switch {
	case kept != nil:
		h.Kind, limit = ofKey, kept.limit
	case !p.of.own:
		h.Kind = ofCall
	default:
		limit = Limit{}
	}
	h.LimitRate, h.LimitPeriod, h.Limit = int64(limit.Rate), int64(limit.Period), int64(limit.Burst)
	out.w.WriteByte(1)
	binary.Write(out.w, binary.LittleEndian, h)
	out.policy = p
}

func (out *snapshotWriter) entries(c copied) {
	if c.n > 0 {
		binary.Write(out.w, binary.LittleEndian, uint32(c.n))
		out.w.Write(c.bytes)
	}
}

func (out *snapshotWriter) end() {
	if out.policy != nil {
		binary.Write(out.w, binary.LittleEndian, uint32(0))
	}
	out.policy = nil
}

// copied are n entries as they are written.
type copied struct {
	policy *policy
	bytes  []byte
	n      int
}

// add adds an entry of a key that is at rest.
func (c *copied) add(id uint64, e state) {
	to := binary.LittleEndian.AppendUint64(c.bytes, id)
	to = binary.LittleEndian.AppendUint64(to, e.word)
	for i := range e.tail {
		to = binary.LittleEndian.AppendUint64(to, e.tail[i].Load())
	}
	c.bytes = to
	c.n++
}

// copies are the entries of cells, by what they are kept on and the policy they are under, some at a
// time: growing one of all of them would take long, with a shard locked.
type copies struct {
	of    map[copiesOf][]*copied
	order []copiesOf
}

type copiesOf struct {
	kept   *terms
	policy *policy
}

// enough is how many bytes are put together.
const enough = 1 << 15

// get returns where an entry is to be added.
func (all *copies) get(kept *terms, p *policy) *copied {
	of := copiesOf{kept, p}
	some := all.of[of]
	if n := len(some); n > 0 && len(some[n-1].bytes) < enough {
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

// copyKeys makes c the live entries of the table of first, of the ids from there on, and adds those
// of these ids that are in cells to all. It returns the last id of the table, or one before it where
// there are many cells.
//
// It takes no lock where the shard has never had a cell. Then each key that is tracked all the time is
// in the table, unless its word has moved.
func (st *store) copyKeys(first uint64, c *copied, all *copies) (last uint64) {
	s, t := st.shardOf(first), st.tableOf(first)
	_, last = covers(first, t.depth)
	if s.cells.Load() == nil && c.copyTable(t, first, last, max(st.clock.Now(), 0)) && s.cells.Load() == nil {
		return last
	}
	var part copies
	last = st.underLock(first, st.partDepth, func(from, to uint64) {
		now := max(st.clock.Now(), 0)
		c.copyTable(st.tableOf(from), from, to, now)
		s.cellsIn(from, to, func(one *cell) {
			keys, id := part.get(one.kept, one.policy), one.id.Load()
			if live, _ := keys.copy(&one.slot, id, one.tail, now); !live && one.kept != nil {
				keys.add(id, state{word: elsewhere})
			}
		})
	})
	for _, of := range part.order {
		all.put(of, part.of[of]...)
	}
	return last
}

// copyTable makes c the live entries of a table, of the ids from first to last. It fails if the table is
// being replaced.
func (c *copied) copyTable(t *table, first, last uint64, now int64) (ok bool) {
	*c = copied{policy: t.policy, bytes: c.bytes[:0]}
	for i, id := range t.occupied {
		e := &t.slots[i]
		if id < first || id > last || e.word.Load() == elsewhere {
			continue
		}
		if _, ok := c.copy(e, id, t.tail(i), now); !ok && e.word.Load() == moved {
			return false
		}
	}
	return true
}

// copy adds the key of a slot, unless it is idle. It fails if the word has gone.
func (c *copied) copy(e *slot, id uint64, tail []atomic.Uint64, now int64) (live, ok bool) {
	key := state{tail: tail}
	c.bytes = slices.Grow(c.bytes, 16+8*len(tail)) // calls for the key wait while its word is locked
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
		c.add(id, key)
	}
	return live, true
}
