package rules

import (
	"fmt"

	"github.com/sluice-go/sluice"
)

func (s *stored) do(b *batch) error {
	if b.list(); len(b.asked) == 0 {
		return nil
	}
	defer b.clear()
	if err := s.ask(b); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	b.noted = b.noted[:0]
	for i := range b.asked {
		told, c := b.asked[i], b.of(i)
		c.answered(&told, b.now)
		if c.hits != 0 && c.op != GiveBack && !c.final && (c.over || c.stopped) {
			b.noted = append(b.noted, told.denial(c.hits, told.Counted && !c.stopped))
		}
	}
	s.note(b.noted)
	return nil
}

// ask makes the calls, in the way that the batch requires.
func (s *stored) ask(b *batch) error {
	switch b.mode {
	case allOrNone:
		return s.all(b)
	case onlyWhatOver:
		return s.stopping(b)
	}
	return s.config.Store.Decide(b.asked)
}

func (s *stored) deny(b *batch) {
	b.list()
	defer b.clear()
	for i := range b.asked {
		b.asked[i] = b.asked[i].denial(b.asked[i].Hits, false)
	}
	s.note(b.asked)
}

// denial is the call that notes that hits of a call were denied.
func (told *StoreCall) denial(hits uint64, counted bool) StoreCall {
	return StoreCall{Counter: told.Counter, Key: told.Key, Op: Deny, Hits: hits, Counted: counted, Second: told.Second, at: told.at}
}

// note notes denied hits. If the Store does not, the denials still stand.
func (s *stored) note(denied []StoreCall) {
	if len(denied) > 0 && s.config.Store.Decide(denied) != nil {
		s.unrecorded.Add(uint64(len(denied)))
	}
}

// list makes the calls of b calls of a Store. The limit of an override comes with its call.
func (b *batch) list() {
	b.asked = b.asked[:0]
	for i := range b.calls {
		c := &b.calls[i]
		if c.counter == nil {
			continue
		}
		told := StoreCall{Counter: c.counter, Key: c.key, Op: c.op, Hits: c.hits, Debt: c.debt, at: i}
		if c.override != UnknownUnit {
			told.Limit = sluice.Per(int(c.limit), c.period)
		}
		if c.second != nil {
			told.Second = StoreSecond{Counter: c.second.counter, Key: c.second.key}
		}
		b.asked = append(b.asked, told)
	}
}

// clear lets go of the keys, which a Response that is kept for the next call would keep.
func (b *batch) clear() {
	for i := range b.calls {
		c := &b.calls[i]
		if c.key = ""; c.second != nil {
			c.second.key = ""
		}
	}
	clear(b.asked)
	clear(b.noted)
}

// of is the call that a call of the Store is for.
func (b *batch) of(i int) *call { return &b.calls[b.asked[i].at] }

// all makes all calls or none. A rule in shadow mode never stands in the way: its window counts all hits, and its
// limiter counts the hits that fit, after all other calls.
func (s *stored) all(b *batch) error {
	var later []int
	for i := range b.asked {
		if c := b.of(i); c.shadow && !c.counts && c.op != GiveBack {
			b.asked[i].Op, b.asked[i].Hits = Look, 0
			later = append(later, i)
		}
	}
	denied, err := s.config.Store.DecideAll(b.asked)
	if err != nil {
		return err
	}
	if denied >= 0 {
		b.judgeTwins()
	}
	for i := range b.asked {
		c := b.of(i)
		c.stopped, c.none, c.over, c.made = denied >= 0, denied >= 0, i == denied, denied < 0 && (c.counts || !c.shadow)
		if c.stopped && b.asked[i].Op == CountAll {
			own := b.asked[i]
			own.Count += b.hitsBefore(i)
			c.over = c.exceeds(&own)
		}
	}
	if denied >= 0 || len(later) == 0 {
		return nil
	}
	again := make([]StoreCall, len(later))
	for j, i := range later {
		again[j] = b.asked[i]
		again[j].Op, again[j].Hits = CountFitting, b.of(i).hits
	}
	err = s.config.Store.Decide(again)
	for j, i := range later {
		b.asked[i] = again[j]
	}
	return err
}

// judgeTwins judges calls of one key that have not been made in their order: each of them beside the calls before it that fit. A Store
// may have judged each by itself.
func (b *batch) judgeTwins() {
	for i := range b.asked {
		c := &b.asked[i]
		if c.Op != CountFitting || c.Hits == 0 {
			continue
		}
		before := b.hitsBefore(i)
		if before == 0 {
			continue
		}
		own, d := b.of(i), &c.Decision
		room := own.roomOf(c)
		fits := before+c.Hits <= room
		switch {
		case fits == d.Allowed:
		case c.Second.Counter != nil:
			d.Allowed = fits
		case fits:
			d.Allowed, d.RetryAfter, d.Remaining = true, 0, clampInt(room-c.Hits)
		default:
			d.Allowed, d.RetryAfter, d.Remaining = false, d.ResetAfter, clampInt(room)
		}
		if !fits && c.Second.Counter == nil && before+c.Hits > own.limit {
			d.RetryAfter = sluice.Never
		}
	}
}

// hitsBefore is the hits of the calls before one that are of its key and operation: of CountFitting the hits that fit.
func (b *batch) hitsBefore(i int) (sum uint64) {
	c := &b.asked[i]
	for j := range i {
		o := &b.asked[j]
		if o.Counter == c.Counter && o.Key == c.Key && o.Op == c.Op && (o.Op == CountAll || o.Decision.Allowed) {
			sum += o.Hits
		}
	}
	return sum
}

// stopping first looks. If some calls are over their limit it counts only these. Other calls can come between
// these two steps, as in upstream.
func (s *stored) stopping(b *batch) error {
	for i := range b.asked {
		b.asked[i].Op = Look
	}
	if err := s.config.Store.Decide(b.asked); err != nil {
		return err
	}
	stop := false
	for i := range b.asked {
		c := b.of(i)
		c.over = c.op != GiveBack && c.exceeds(&b.asked[i])
		stop = stop || c.over
	}
	for i := range b.asked {
		c := b.of(i)
		switch c.stopped = stop && !c.over; {
		case !c.stopped:
			b.asked[i].Op = c.op
		case c.op == GiveBack:
			b.asked[i].Hits = 0
		}
	}
	return s.config.Store.Decide(b.asked)
}

// exceeds reports whether the hits of a call exceed the room of its key.
func (c *call) exceeds(told *StoreCall) bool {
	if c.counts && (!told.Local || c.hits == 0) {
		return told.Count+c.hits > c.limit
	}
	return !c.fits(told)
}

// fits reports whether a limit that counts no denied hits has room for a call, or for a hit if the call has none. A Store
// lets a look at a full window pass, as is right where denied hits count.
func (c *call) fits(told *StoreCall) bool {
	return told.Decision.Allowed && (c.hits > 0 || c.counts || c.second != nil || told.Decision.Remaining > 0)
}

// roomOf is the room for a call, from the answer of a Store that has not made it.
func (c *call) roomOf(told *StoreCall) uint64 {
	d := &told.Decision
	switch {
	case c.counts:
		return c.limit - min(told.Count, c.limit)
	case c.second != nil:
		return uint64(d.Remaining) + uint64(told.Second.Decision.Remaining)
	case d.Allowed: // it tells the rest that the hits would leave
		return uint64(d.Remaining) + told.Hits
	}
	return uint64(d.Remaining)
}

// answered fills in the answer of a call that the Store has made.
func (c *call) answered(told *StoreCall, now int64) {
	d := &told.Decision
	left := d.ResetAfter
	if left == 0 {
		left = c.left(now)
	}
	c.absorbed = told.Absorbed
	switch {
	case c.second != nil:
		c.second.hits, c.second.decision = told.Second.Hits, told.Second.Decision
		c.over = c.over || c.op != GiveBack && !d.Allowed && !c.made
	case c.op == GiveBack && c.counts:
		c.count, d.ResetAfter = told.Count, left
	case c.op == GiveBack:
	case !c.counts:
		if c.made { // with charges of its key, after which nothing may be left for a look
			d.Allowed = true
		} else if !c.fits(told) && d.Allowed {
			d.Allowed, d.RetryAfter = false, left
			if c.limit == 0 {
				d.RetryAfter = sluice.Never
			}
		}
		c.over = c.over || !d.Allowed
	default:
		c.over = c.over || !d.Allowed && (told.Op == CountFitting || told.Local && c.hits > 0)
		c.counted(told.Count, left)
		return
	}
	c.decision = *d
}
