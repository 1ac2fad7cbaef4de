package sluice

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/limittext"
	"github.com/sluice-go/sluice/internal/snapfile"
)

// Restore takes over the keys of a Snapshot, under the same limit or another one, as SetLimit
// would: their spent units count, and so does the time that has passed since. It takes over the limits of
// keys, except where this limiter has one for the key. The algorithm must be the same, and Hash HashStable.
//
// The times in a snapshot come from the clock that it was made by. Under a clock that is
// behind that one, no unit comes back before the clock has caught up, and under the buckets a key
// with spent units is denied until then.
//
// It is for a limiter that has not decided yet: once a call has charged or blocked a new key, Restore
// is an error, since the key would have its burst twice. Limits can be set before, and further
// snapshots restored. A key that is decided on while Restore runs, or is in several snapshots, keeps
// the stricter of its states, and reservations for a state that was replaced give nothing back.
//
// It reads to the end of r, with no lock held, and changes nothing before it has read and
// checked all. Errors about the input match ErrBadSnapshot. Without room for all keys it returns
// an error under OverflowDenyNew and OverflowAdmitNew; OverflowEvictSoonest drops keys as always.
func (l *Limiter) Restore(r io.Reader) error {
	if err := l.made().requireStable("Restore"); err != nil {
		return err
	}
	if l.decided.Load() {
		return errors.New("sluice: Restore of a limiter that has decided before, whose keys would have had their burst twice; want a limiter that New has just made")
	}
	in := snapshotReader{snapfile.NewReader(r), l, l.Config()}
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
	// Keys come in the order of tables. So do sections, if each key has another limit. In that order
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

// forgetUntil lets each new key count as one that has been dropped, idle at now.
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
	terms   *terms // the keys are under these; nil for the limiter's own
	kept    bool   // the keys are kept on terms
	entries []restored
}

type restored struct {
	id uint64
	state
}

// A snapshotReader reads a snapshot of a limiter like lim, which has the config.
type snapshotReader struct {
	*snapfile.Reader
	lim    *Limiter
	config Config
}

func (in *snapshotReader) read() ([]section, error) {
	var sections []section
	for {
		h, ok, err := in.Section()
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return sections, requireDistinct(sections)
		}
		s, err := in.section(h)
		if err != nil {
			return nil, err
		}
		sections = append(sections, s)
	}
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
		return snapfile.Bad("it has a key twice")
	}
	return nil
}

func (in *snapshotReader) section(h snapfile.Header) (s section, err error) {
	if s.policy, err = in.policy(h); err != nil {
		return s, err
	}
	if s.terms, err = in.terms(h.Source); err != nil {
		return s, err
	}
	s.kept = h.Kind == ofKey
	for {
		id, word, ok, err := in.Entry()
		if err != nil || !ok {
			return s, err
		}
		e := restored{in.lim.hash.ID(id), state{word: word}}
		if id != 0 && word == elsewhere && s.kept {
			e.word = 0 // no state, and so no tail
			s.entries = append(s.entries, e)
			continue
		}
		if e.tail, err = in.Tail(uint32(s.policy.tailLen())); err != nil {
			return s, err
		}
		if id == 0 || !s.policy.sound(e.state) {
			return s, snapfile.Bad("it has a key that no limiter has written")
		}
		s.entries = append(s.entries, e)
	}
}

// policy returns the policy that wrote a section.
func (in *snapshotReader) policy(h snapfile.Header) (*policy, error) {
	c := in.config
	switch {
	case Algorithm(h.Algorithm) != c.Algorithm:
		return nil, snapfile.Bad("it is of algorithm %v; want %v, as this limiter", Algorithm(h.Algorithm), c.Algorithm)
	case h.Rate == 0 && h.Period == 0: // the keys have only been under Unlimited or DenyAll
		return &policy{alg: stateless{}, arith: stateless{}}, nil
	}
	for _, n := range []int64{h.Rate, anyBurst(h.Burst), h.Soft, h.Room} {
		if n < 0 || n > math.MaxInt {
			return nil, snapfile.Bad("%d is out of range", n)
		}
	}
	c.Soft, c.Offset = int(h.Soft), time.Duration(h.Offset)
	limit := restoredLimit(h.Rate, h.Period, h.Burst, h.Calendar)
	p, err := newPolicy(&c, limit, &policy{reach: int(h.Room)})
	if err != nil || limit.constant() || p.reach != int(h.Room) || p.tailLen() != int(h.TailLen) {
		return nil, snapfile.Bad("its numbers are of no limit")
	}
	return p, nil
}

// terms returns the terms of a section, and an error if this limiter cannot keep their limit. They are nil
// for the limiter's own, which can change until all has been read.
func (in *snapshotReader) terms(h snapfile.Source) (*terms, error) {
	switch {
	case h.Kind == ofLimiter:
		return nil, nil
	case h.Kind > ofCall:
		return nil, snapfile.Bad("its kind of limit is %d", h.Kind)
	}
	for _, n := range []int64{h.LimitRate, anyBurst(h.LimitBurst)} {
		if n < 0 || n > math.MaxInt {
			return nil, snapfile.Bad("%d is out of range", n)
		}
	}
	tm, err := in.lim.broughtTerms(restoredLimit(h.LimitRate, h.LimitPeriod, h.LimitBurst, h.LimitCalendar))
	if err != nil {
		return nil, snapfile.Bad("a key's limit cannot be kept: %v", err)
	}
	return tm, nil
}

// restoredLimit is the limit of these fields, which need not be of any.
func restoredLimit(rate, period, burst int64, c snapfile.Calendar) Limit {
	l := Per(int(rate), time.Duration(period)).WithBurst(int(burst))
	if c.Unit != 0 {
		l.calendar = PerCalendar(0, fieldsCalendar(c)).calendar
	}
	return l
}

// anyBurst makes the mark of AtOnce a burst that is in range: the algorithm decides whether it takes that.
func anyBurst(n int64) int64 {
	if n == limittext.AtOnce {
		return 0
	}
	return n
}

// sound reports whether e can be taken over: no arithmetic on it leaves its range.
func (p *policy) sound(e state) bool {
	switch {
	case p.wide == nil:
		return e.word < elsewhere && e.word != blockedWord(0)
	case e.word >= locked:
		return false
	case e.word&blockedTail != 0:
		until, ok := blockEnd(e.tail)
		return ok && until > 0 && p.wide.blank(e.word)
	}
	if log, ok := p.wide.(*slidingLog); ok {
		return log.sound(e)
	}
	return e.tail[0].Load() <= math.MaxInt64
}

// restore adds an entry of a key that is under the terms; with keeps, it is kept on them.
func (l *Limiter) restore(id uint64, keeps bool, tm *terms, from *policy, e state) {
	s, rec := l.lockKey(id)
	defer l.unlockKey(s, rec, id)
	at := l.locate(id)
	kept := at.cell.keptOn()
	to := placement{kept: kept, terms: tm}
	switch {
	case kept != nil:
		to.terms = kept
	case keeps:
		to.kept = tm
	}
	now := max(l.clock.Now(), 0)
	if from.idleBy(e, now) {
		e.word = 0
	}
	if at.nowhere() && to.kept == nil {
		if e.word != 0 {
			l.restoreNewLocked(s, id, to.terms, from, e, now)
			rec.Forget()
		}
		return
	}
	if at.slot != nil && kept == to.kept {
		if other, _ := at.read(); e.word == 0 || !at.policy.stricter(from, e, other, now) {
			return // the key stays where it is
		}
	}
	l.putUnderLocked(s, rec, id, to, func(p *policy, other state, tracked bool, now int64) (*policy, state, bool) {
		if e.word == 0 || tracked && !p.stricter(from, e, other, now) {
			return p, other, false
		}
		return from, e, true
	})
}

// restoreNewLocked adds an entry of a key that is not tracked.
func (l *Limiter) restoreNewLocked(s *shard, id uint64, tm *terms, from *policy, e state, now int64) {
	if !l.roomLocked(s, id, now, false) {
		return
	}
	p, t := tm.variantFor(from, e, now), l.tableOf(id)
	if mark, _ := t.lookup(id); mark == nil && p == t.policy {
		t.adopt(id, from, e, now)
		t.idleSooner()
		s.count.Add(1)
		l.arm()
		return
	}
	c := &cell{policy: p}
	c.id.Store(id)
	c.adopt(from, e, now)
	l.putCellLocked(s, c)
	l.markLocked(s, id)
}

// stricter compares two states of a key, e under the policy from and other under p. It
// reports whether more counts against e now, or as much for longer.
func (p *policy) stricter(from *policy, e, other state, now int64) bool {
	mine := p.adopted(from, e, now)
	return cmp.Or(cmp.Compare(p.rank(mine, now), p.rank(other, now)), cmp.Compare(p.idleAt(mine), p.idleAt(other))) > 0
}
