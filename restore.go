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
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Restore takes over the keys of a Snapshot, under the same limit or another one, as
// SetLimit would: what they have spent counts, and so does the time that has passed since.
// It takes over the limits of keys that have not been set in this limiter; what has been set stays. The algorithm must be the same, and Hash must be HashStable.
//
// The times in a snapshot are those of the clock that it was made by. Under a clock that is
// behind that one nothing comes back before it has caught up, and under the buckets a key that
// owes anything is denied until then.
//
// Restore before the first decision, where that is possible. A key that has been decided on
// before, or is meanwhile, keeps the stricter of both states: so it has had its burst once
// more than its limit, and no more than once however often a snapshot is restored. Receipts
// for a state that was replaced give nothing back.
//
// It reads to the end of r, holding nothing, and changes nothing before it has read and
// checked all. Errors that speak of the input match ErrBadSnapshot. Where there is no room
// for all keys, OverflowDenyNew and OverflowAdmitNew are an error, and OverflowEvictSoonest drops as ever.
func (l *Limiter) Restore(r io.Reader) error {
	if err := l.made().requireStable("Restore"); err != nil {
		return err
	}
	in := &snapshotReader{r: bufio.NewReader(r), sum: xxhash.New(), lim: l, config: l.Config()}
	sections, err := in.read()
	switch {
	case errors.Is(err, ErrBadSnapshot):
		return err
	case err != nil:
		return fmt.Errorf("sluice: Restore: %w", err)
	}
	l.admin.Lock()
	defer l.admin.Unlock()
	now := max(l.clock.Now(), 0)
	if l.overflow != OverflowEvictSoonest {
		if err := l.requireRoom(sections, now); err != nil {
			return err
		}
	}
	// Keys that are not in the snapshot, or idle by now, are forgotten as by a sweep.
	l.forgetUntil(now)
	// Keys come in the order of tables. So do sections, where each key has another limit. In that order
	// they would crowd the front of a table that grows with them.
	rand.Shuffle(len(sections), func(i, j int) { sections[i], sections[j] = sections[j], sections[i] })
	own := l.own.Load()
	for _, s := range sections {
		rand.Shuffle(len(s.entries), func(i, j int) { s.entries[i], s.entries[j] = s.entries[j], s.entries[i] })
		for _, e := range s.entries {
			l.restore(e.id, s.kept, cmp.Or(s.terms, own), s.policy, e.state)
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
	more := make([]int, len(l.shards))
	for _, s := range sections {
		for _, e := range s.entries {
			at := l.locate(e.id)
			if s.kept || !at.nowhere() || s.policy.idleBy(e.state, now) {
				continue
			}
			i := e.id >> l.shift
			if more[i]++; l.shards[i].len()+more[i] > l.shards[i].share {
				return fmt.Errorf("sluice: Restore: the snapshot has more keys than there is room for under %v: a shard has room for %d; want a larger MaxKeys, or %v",
					l.overflow, l.shards[i].share, OverflowEvictSoonest)
			}
		}
	}
	return nil
}

// A section holds the keys of one policy that are kept on the same terms, or on none.
type section struct {
	policy  *policy
	terms   *terms // that the keys are under; nil for the limiter's own
	kept    bool   // on these
	entries []restored
}

type restored struct {
	id uint64
	state
}

// A snapshotReader reads a snapshot of a limiter like lim, which has the config.
type snapshotReader struct {
	r      *bufio.Reader
	sum    hash.Hash64
	lim    *Limiter
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

// fields reads a number, or the fields of a struct of numbers, of a fixed size.
func (in *snapshotReader) fields(h any) error {
	b := in.buf[:binary.Size(h)]
	if err := in.fill(b); err != nil {
		return err
	}
	return binary.Read(bytes.NewReader(b), binary.LittleEndian, h)
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
		var more uint8
		if err := in.fields(&more); err != nil {
			return nil, err
		}
		if more == 0 {
			break
		}
		s, err := in.section()
		if err != nil {
			return nil, err
		}
		sections = append(sections, s)
	}
	var sum uint64
	want := in.sum.Sum64()
	if err := in.fields(&sum); err != nil {
		return nil, err
	}
	if sum != want {
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

// requireDistinct fails if a key comes twice: it would have two states.
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
	if err := in.fields(&h); err != nil {
		return s, err
	}
	if s.policy, err = in.policy(h.sectionNumbers); err != nil {
		return s, err
	}
	if s.terms, err = in.terms(h.sectionPlan); err != nil {
		return s, err
	}
	s.kept = h.Kind == ofKey
	for {
		var n uint32
		if err := in.fields(&n); err != nil || n == 0 {
			return s, err
		}
		for range n {
			e, err := in.state(&s)
			if err != nil {
				return s, err
			}
			s.entries = append(s.entries, e)
		}
	}
}

// policy returns the policy that wrote a section.
func (in *snapshotReader) policy(h sectionNumbers) (*policy, error) {
	c := in.config
	switch {
	case h.algorithm() != c.Algorithm:
		return nil, bad("it is of algorithm %v; want %v, as this limiter", h.algorithm(), c.Algorithm)
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
	c.Soft, c.Offset = int(h.Soft), time.Duration(h.Offset)
	limit := Limit{Rate: int(h.Rate), Period: time.Duration(h.Period), Burst: int(h.Burst)}
	p, err := newPolicy(&c, limit, &policy{reach: int(h.Room)})
	if err != nil || limit.constant() || p.reach != int(h.Room) || p.tailLen() != int(h.TailLen) {
		return nil, bad("its numbers are of no limit")
	}
	return p, nil
}

// terms returns the terms of a section, whose limit this limiter can keep; nil for the limiter's own,
// which can change until all has been read.
func (in *snapshotReader) terms(h sectionPlan) (*terms, error) {
	switch {
	case h.Kind == ofLimiter && h.NameLen == 0:
		return nil, nil
	case h.Kind == ofPlan || h.NameLen != 0: // of earlier builds
		return nil, bad("it has plans with names, which there no longer are; want one without them, or a start without a snapshot")
	case h.Kind > ofCall:
		return nil, bad("its kind of limit is %d", h.Kind)
	}
	for _, n := range []int64{h.LimitRate, h.Limit} {
		if n < 0 || n > math.MaxInt {
			return nil, bad("%d is out of range", n)
		}
	}
	tm, err := in.lim.broughtTerms(Limit{Rate: int(h.LimitRate), Period: time.Duration(h.LimitPeriod), Burst: int(h.Limit)})
	if err != nil {
		return nil, bad("a key's limit cannot be kept: %v", err)
	}
	return tm, nil
}

func (in *snapshotReader) state(s *section) (e restored, err error) {
	word := in.buf[:8]
	for _, n := range []*uint64{&e.id, &e.word} {
		if err := in.fill(word); err != nil {
			return e, err
		}
		*n = binary.LittleEndian.Uint64(word)
	}
	p := s.policy
	if e.id != 0 && e.word == elsewhere && s.kept {
		e.word = 0 // no state, and so no tail
		return e, nil
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
	if e.id == 0 || !p.sound(e.state) {
		return e, bad("it has a key that no limiter has written")
	}
	return e, nil
}

// sound reports whether e can be taken over: arithmetic on it does not leave its range.
func (p *policy) sound(e state) bool {
	switch {
	case p.wide == nil:
		return e.word < elsewhere
	case e.word >= locked:
		return false
	case e.word&blockedTail != 0:
		_, ok := blockEnd(e.tail)
		return ok
	}
	if log, ok := p.wide.(*slidingLog); ok {
		return log.sound(e)
	}
	return e.tail[0].Load() <= math.MaxInt64
}
