package sluice

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A snapshot is, in little endian:
//
//	magic, version          8 bytes
//	a section for each limit in force, first the limiter's:
//	  1, sectionHeader
//	  for each shard, a number of entries above 0, and as many times
//	    id, word, and the words of the tail
//	  0                     4 bytes
//	0                       1 byte
//	xxHash64 of all before  8 bytes
//
// Words are as in memory. So the version must change with any layout of any algorithm.
const (
	snapshotMagic   = "sluice\x00"
	snapshotVersion = 2
)

// sectionHeader says how the words of a section are to be read.
type sectionHeader struct {
	Algorithm, Refill, Anchor uint8
	Rate, Period, Burst, Soft int64
	Offset, Room, Strikes     int64 // Strikes is no longer in use, and 0
	TailLen                   uint32
}

// ErrBadSnapshot is matched by the errors of Restore for input that is not a snapshot, is
// of a version that is not known or of another kind of limiter, or has been cut short or
// changed.
var ErrBadSnapshot = errors.New("not a snapshot that can be read")

// Snapshot writes the state of all keys that are not idle, for a Restore in another process.
// It needs Hash Stable: seeded ids mean nothing elsewhere. It can run while decisions do;
// each key is written as it stands at one instant, but not all at the same one. A shard is
// held only while it is copied, not while it is written.
//
// It holds no limits but those that its numbers are of, and no receipts: what has been
// reserved stays charged. The format has a version and a checksum, which finds accidents,
// not forgeries: keep it where nobody else can write.
func (l *Limiter) Snapshot(w io.Writer) error {
	l.made().admin.Lock()
	defer l.admin.Unlock()
	if err := l.requireStable("Snapshot"); err != nil {
		return err
	}
	sum := xxhash.New()
	out := bufio.NewWriter(io.MultiWriter(w, sum))
	out.WriteString(snapshotMagic)
	out.WriteByte(snapshotVersion)
	l.writeSection(out, l.Config())
	if ps := l.plans.Load(); ps != nil {
		ps.each(func(plan *Limiter) { plan.writeSection(out, l.Config()) })
	}
	out.WriteByte(0)
	if err := out.Flush(); err != nil { // the first error of all
		return fmt.Errorf("sluice: Snapshot: %w", err)
	}
	out.Write(binary.LittleEndian.AppendUint64(nil, sum.Sum64())) // which is not of itself
	if err := out.Flush(); err != nil {
		return fmt.Errorf("sluice: Snapshot: %w", err)
	}
	return nil
}

func (l *Limiter) requireStable(what string) error {
	if h := l.Config().Hash; h != Stable {
		return fmt.Errorf("sluice: %s with hash %v, whose ids mean nothing in another process; want Config.Hash %v", what, h, Stable)
	}
	return nil
}

// writeSection writes the keys of one limiter. Errors stay in out.
func (l *Limiter) writeSection(out *bufio.Writer, c Config) {
	p := l.current.Load()
	h := sectionHeader{
		Algorithm: uint8(c.Algorithm), Refill: uint8(c.Refill), Anchor: uint8(c.Anchor),
		Rate: int64(p.base.Rate), Period: int64(p.base.Period), Burst: int64(p.base.Burst), Soft: int64(c.Soft),
		Offset: int64(c.Offset), Room: int64(p.room), TailLen: uint32(p.tailLen()),
	}
	out.WriteByte(1)
	binary.Write(out, binary.LittleEndian, h)
	for i := range l.shards {
		if entries, n := l.copyShard(&l.shards[i]); n > 0 {
			binary.Write(out, binary.LittleEndian, uint32(n))
			out.Write(entries)
		}
	}
	binary.Write(out, binary.LittleEndian, uint32(0))
}

// copyShard returns the n live entries of a shard as they are written.
func (st *store) copyShard(s *shard) (entries []byte, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, now := s.table.Load(), max(st.clock.Now(), 0)
	p := t.policy
	entries = make([]byte, 0, s.len()*(16+8*p.tailLen()))
	for i := range t.slots {
		id := t.slots[i].id.Load()
		if id == 0 {
			continue
		}
		start := len(entries)
		entries = binary.LittleEndian.AppendUint64(entries, id)
		live := false
		if p.wide == nil {
			word := t.slots[i].released() // not moved: the shard is locked
			live = !p.idleBy(entry{word: word}, now)
			entries = binary.LittleEndian.AppendUint64(entries, word)
		} else {
			word, _ := lockWord(&t.slots[i])
			e := t.entry(uint64(i), word)
			live = !p.idleBy(e, now)
			entries = binary.LittleEndian.AppendUint64(entries, word)
			for j := range e.tail {
				entries = binary.LittleEndian.AppendUint64(entries, e.tail[j].Load())
			}
			t.slots[i].word.Store(word)
		}
		if !live {
			entries = entries[:start]
			continue
		}
		n++
	}
	return entries, n
}

func (p *policy) tailLen() int {
	if p.wide == nil {
		return 0
	}
	return p.wide.tailLen()
}

// Restore takes over the keys of a Snapshot, under the same limit or another one, as
// SetLimit would: what they have spent counts, and so does the time that has passed since.
// Keys with a limit of their own keep it if it has been set before. The algorithm must be
// the same, with its Refill and Anchor, and Hash must be Stable. Restore before the first decision: it fails if there are keys. A
// key that is decided on while Restore runs keeps the stricter of both states.
//
// It reads to the end of r, and changes nothing before it has read and checked all. Errors
// that speak of the input match ErrBadSnapshot. Where there is no room for all keys,
// DenyNew and AdmitNew are an error, and EvictSoonest drops as ever.
func (l *Limiter) Restore(r io.Reader) error {
	l.made().admin.Lock()
	defer l.admin.Unlock()
	if err := l.requireStable("Restore"); err != nil {
		return err
	}
	in := &snapshotReader{r: bufio.NewReader(r), sum: xxhash.New(), config: l.Config()}
	sections, err := in.read()
	if err != nil {
		return fmt.Errorf("sluice: Restore: %w", err)
	}
	if n := l.Len(); n > 0 {
		return fmt.Errorf("sluice: Restore into a limiter with %d keys; want one that has decided nothing yet", n)
	}
	now := max(l.clock.Now(), 0)
	if l.overflow != EvictSoonest {
		if err := l.requireRoom(sections, now); err != nil {
			return err
		}
	}
	// Keys that are not in the snapshot, or idle by now, are forgotten as by a sweep.
	l.forgetUntil(now)
	if ps := l.plans.Load(); ps != nil {
		ps.each(func(plan *Limiter) { plan.forgetUntil(now) })
	}
	for i, s := range sections {
		for _, e := range s.entries {
			o := l.owner(e.id)
			o.accommodate(s.policy, e.entry, o != l || i == 0)
			l.restore(e.id, s.policy, e.entry)
		}
	}
	return nil
}

// forgetUntil makes new keys as if they had been dropped when idle at now.
func (st *store) forgetUntil(now int64) {
	for i := range st.shards {
		s := &st.shards[i]
		s.mu.Lock()
		s.floor = max(s.floor, now)
		s.mu.Unlock()
	}
}

// requireRoom fails if a shard cannot hold its keys that are not idle by now.
func (l *Limiter) requireRoom(sections []section, now int64) error {
	counts := make([]int, len(l.shards))
	for _, s := range sections {
		for _, e := range s.entries {
			if i := e.id >> l.shift; l.owner(e.id) == l && !s.policy.idleBy(e.entry, now) {
				if counts[i]++; counts[i] > l.shards[i].share {
					return fmt.Errorf("sluice: Restore: the snapshot has more keys than there is room for under %v: a shard has room for %d; want a larger MaxKeys, or %v",
						l.overflow, l.shards[i].share, EvictSoonest)
				}
			}
		}
	}
	return nil
}

// restore adds an entry to the limiter that the key is tracked by. A key that has been
// charged since Restore began keeps the stricter state.
func (l *Limiter) restore(id uint64, from *policy, e entry) {
	lg := l.ledgers.of(id)
	rec := lg.guard(id)
	defer lg.unguard(rec)
	o := l.owner(id)
	s := o.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	other, p, tracked := o.takeOutLocked(s, id)
	now := max(o.clock.Now(), 0)
	if tracked && !p.stricter(from, e, other, now) {
		from, e = p, other
	} else {
		rec.forget() // what it has receipts for has not been charged in e
	}
	if !from.idleBy(e, now) {
		o.putInLocked(s, id, from, e, now)
	}
}

// stricter reports whether of two states of a key, e under the policy from and other
// under p, e is the one with more against it now, or with as much for longer.
func (p *policy) stricter(from *policy, e, other entry, now int64) bool {
	tail := make([]atomic.Uint64, p.tailLen())
	mine := entry{p.adopt(from, e, tail, now), tail}
	return cmp.Or(cmp.Compare(p.rank(mine, now), p.rank(other, now)), cmp.Compare(p.idleAt(mine), p.idleAt(other))) > 0
}

type section struct {
	policy  *policy
	entries []restored
}

type restored struct {
	id uint64
	entry
}

// A snapshotReader reads a snapshot of a limiter like the one with the config.
type snapshotReader struct {
	r      *bufio.Reader
	sum    hash.Hash64
	config Config
	buf    [512]byte
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadSnapshot, fmt.Sprintf(format, args...))
}

// fill reads b whole.
func (in *snapshotReader) fill(b []byte) error {
	_, err := io.ReadFull(in.r, b)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return bad("it has been cut short")
	case err != nil:
		return err
	}
	in.sum.Write(b)
	return nil
}

func (in *snapshotReader) read() ([]section, error) {
	var head [len(snapshotMagic) + 1]byte
	if err := in.fill(head[:]); err != nil {
		return nil, err
	}
	switch version := head[len(snapshotMagic)]; {
	case string(head[:len(snapshotMagic)]) != snapshotMagic:
		return nil, bad("it does not begin as one")
	case version != snapshotVersion:
		return nil, bad("its version is %d; want %d", version, snapshotVersion)
	}
	var sections []section
	for {
		var more [1]byte
		if err := in.fill(more[:]); err != nil {
			return nil, err
		}
		if more[0] == 0 {
			break
		}
		s, err := in.section()
		if err != nil {
			return nil, err
		}
		sections = append(sections, s)
	}
	want := in.sum.Sum64()
	var sum [8]byte
	if err := in.fill(sum[:]); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(sum[:]) != want {
		return nil, bad("its checksum is wrong")
	}
	switch _, err := in.r.ReadByte(); {
	case err == nil:
		return nil, bad("something follows it")
	case err != io.EOF:
		return nil, err
	}
	return sections, requireDistinct(sections)
}

// requireDistinct fails if a key comes twice. It would be taken out and put in again, at
// the price of its shard each time.
func requireDistinct(sections []section) error {
	var ids []uint64
	for _, s := range sections {
		for _, e := range s.entries {
			ids = append(ids, e.id)
		}
	}
	slices.Sort(ids)
	if n := len(ids); len(slices.Compact(ids)) != n {
		return bad("it has a key twice")
	}
	return nil
}

func (in *snapshotReader) section() (s section, err error) {
	var h sectionHeader
	b := make([]byte, binary.Size(h))
	if err := in.fill(b); err != nil {
		return s, err
	}
	binary.Read(bytes.NewReader(b), binary.LittleEndian, &h) // b has its size
	if s.policy, err = in.policy(h); err != nil {
		return s, err
	}
	for {
		var count [4]byte
		if err := in.fill(count[:]); err != nil {
			return s, err
		}
		n := binary.LittleEndian.Uint32(count[:])
		if n == 0 {
			return s, nil
		}
		for range n {
			e, err := in.entry(s.policy)
			if err != nil {
				return s, err
			}
			s.entries = append(s.entries, e)
		}
	}
}

// policy returns the policy that wrote a section.
func (in *snapshotReader) policy(h sectionHeader) (*policy, error) {
	c := in.config
	switch {
	case Algorithm(h.Algorithm) != c.Algorithm:
		return nil, bad("it is of algorithm %v; want %v, as this limiter", Algorithm(h.Algorithm), c.Algorithm)
	case Refill(h.Refill) != c.Refill || Anchor(h.Anchor) != c.Anchor:
		return nil, bad("it is of refill %v and anchor %v; want %v and %v, as this limiter", Refill(h.Refill), Anchor(h.Anchor), c.Refill, c.Anchor)
	case h.Strikes < 0 || h.Strikes > 1: // words of earlier builds with a count of denials in a row
		return nil, bad("it is of BlockAfter %d, which there no longer is; want one without BlockAfter, or a start without a snapshot", h.Strikes)
	case h.Rate == 0 && h.Period == 0: // never had a limit to keep
		return &policy{alg: stateless{}}, nil
	}
	for _, n := range []int64{h.Rate, h.Burst, h.Soft, h.Room} {
		if n < 0 || n > math.MaxInt {
			return nil, bad("%d is out of range", n)
		}
	}
	c.Limit = Limit{Rate: int(h.Rate), Period: time.Duration(h.Period), Burst: int(h.Burst)}
	c.Soft, c.Offset = int(h.Soft), time.Duration(h.Offset)
	c, cerr := c.withDefaults()
	if cerr == nil {
		var p *policy
		if p, cerr = newPolicy(c, &policy{room: int(h.Room)}); cerr == nil && p.room == int(h.Room) && p.tailLen() == int(h.TailLen) {
			return p, nil
		}
	}
	return nil, bad("its numbers are of no limit")
}

func (in *snapshotReader) entry(p *policy) (e restored, err error) {
	word := in.buf[:8]
	for _, n := range []*uint64{&e.id, &e.word} {
		if err := in.fill(word); err != nil {
			return e, err
		}
		*n = binary.LittleEndian.Uint64(word)
	}
	// Not all at once: a header can claim a longer tail than there is.
	if n := p.tailLen(); n > 0 {
		e.tail = make([]atomic.Uint64, 0, min(n, len(in.buf)/8))
	}
	for left := 8 * p.tailLen(); left > 0; {
		b := in.buf[:min(left, len(in.buf))]
		if err := in.fill(b); err != nil {
			return e, err
		}
		for left -= len(b); len(b) > 0; b = b[8:] {
			e.tail = append(e.tail, atomic.Uint64{})
			e.tail[len(e.tail)-1].Store(binary.LittleEndian.Uint64(b))
		}
	}
	if e.id == 0 || !p.sound(e.entry) {
		return e, bad("it has a key that no limiter has written")
	}
	return e, nil
}

// sound reports whether e can be taken over: arithmetic on it does not leave its range.
func (p *policy) sound(e entry) bool {
	switch {
	case p.wide == nil:
		return p.alg != nil && e.word < held
	case e.word >= locked:
		return false
	case e.word&blockedTail != 0:
		_, ok := blockEnd(e.tail)
		return ok
	}
	if log, ok := p.wide.(*slidingLog); ok {
		return log.sound(e.word, e.tail)
	}
	return e.tail[0].Load() <= math.MaxInt64
}
