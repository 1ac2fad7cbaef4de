package fleet

import (
	"fmt"
	"slices"
	"time"
)

// possible returns what a stream may count in the end, by what its client has been told: one number, unless the answer to its
// last calls is missing. It is an error if the client has been told what cannot be.
func (s *stream) possible() ([]uint64, error) {
	if s.fault != nil {
		return nil, s.fault
	}
	held, before := []uint64{0}, []uint64{0} // while it is open; and before the step that is tried
	var ended []uint64
	step, first, reached := -1, time.Time{}, time.Time{} // reached: the last touch was not before this,
	lapses := time.Time{}                                // and the hold lapses not after this
	plus := func(of []uint64, n uint64) (out []uint64) {
		for _, h := range of {
			out = append(out, h+n)
		}
		return out
	}
	for i := range s.calls {
		c := &s.calls[i]
		if c.verb == extend && c.step != step {
			step, before, first = c.step, held, c.sent
		}
		if c.verb == hold && i == 0 {
			first = c.sent
		}
		switch {
		case c.outcome == gone:
			if c.verb == hold || c.back.Before(reached.Add(streamTTL)) {
				return nil, fmt.Errorf("%s is not there any more, %v after it was held or extended", s.id, c.back.Sub(reached))
			}
			ended = nil
		case c.verb == hold && c.outcome == done:
			held, reached, lapses = []uint64{s.estimate}, first, c.back.Add(streamTTL)
		case c.verb == hold && c.outcome == unknown:
			held = []uint64{0, s.estimate}
		case c.verb == extend && c.outcome == done:
			held, reached, lapses = plus(before, c.tokens), first, c.back.Add(streamTTL)
		case c.verb == extend && c.outcome == unknown:
			held, lapses = append(slices.Clone(before), plus(before, c.tokens)...), c.back.Add(streamTTL+tryFor)
		case c.outcome == done && len(ended) == 0 && c.sent.After(lapses):
			return nil, fmt.Errorf("%s is settled %v after it lapsed", s.id, c.sent.Sub(lapses))
		case c.outcome == done:
			return []uint64{c.tokens}, nil
		case c.outcome == unknown:
			ended = []uint64{c.tokens}
		}
	}
	for _, h := range held {
		if s.giveBack {
			h = 0
		}
		ended = append(ended, h)
	}
	slices.Sort(ended)
	return slices.Compact(ended), nil
}

// account returns the sums of all streams, and an error if what counts is anything else than what they have used, settled or
// lapsed; if a limit has admitted too much; or if a place is still taken.
func account(streams []*stream, counts map[[2]string]uint64) (string, error) {
	sums := map[string]uint64{}
	settled, lapsed := uint64(0), uint64(0)
	var died, ends, without int
	var err error
	wrong := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	for _, s := range streams {
		may, fault := s.possible()
		n := counts[[2]string{"own", s.id}]
		if fault != nil {
			wrong("%w", fault)
		} else if !slices.Contains(may, n) {
			wrong("%s counts %d, and not %v: %s", s.id, n, may, s.history())
		}
		if sums[s.user] += n; s.settled() {
			settled += n
			ends++
		} else {
			lapsed += n
		}
		if s.dies >= 0 {
			died++
		}
		if len(may) > 1 {
			without++
		}
	}
	for u := range streamUsers {
		user := fmt.Sprint("u", u)
		if n := counts[[2]string{"tokens", user}]; n != sums[user] {
			wrong("the tokens of %s are %d, and its streams count %d", user, n, sums[user])
		}
		if n := counts[[2]string{"streams", user}]; n != 0 {
			wrong("%d streams of %s are still in flight", n, user)
		}
		if n := atOnce(streams, user); n > streamPlaces {
			wrong("%d streams of %s ran at once, and at most %d may", n, user, streamPlaces)
		}
		worst, bad := worstRequests()
		if bad == nil {
			bad = Spans(requestsOf(streams, user), 0, worst)
		}
		if bad != nil {
			wrong("the requests of %s: %w", user, bad)
		}
	}
	if tight := fmt.Sprint("u", streamUsers-1); sums[tight] > streamTight {
		wrong("%d tokens of %s count, and the limit is %d", sums[tight], tight, streamTight)
	}
	return fmt.Sprintf("%d clients were to die, %d streams were settled; %d tokens settled, %d lapsed; %d clients do not know what counts", died, ends, settled, lapsed, without), err
}

// settled reports whether the client knows that its stream is settled.
func (s *stream) settled() bool {
	return slices.ContainsFunc(s.calls, func(c holdCall) bool { return c.verb >= settle && c.outcome == done })
}

// history tells the calls of a stream.
func (s *stream) history() (text string) {
	for _, c := range s.calls {
		text += fmt.Sprintf("%s(%d) %s after %v; ", [...]string{"hold", "extend", "settle", "release"}[c.verb], c.tokens,
			[...]string{"?", "done", "denied", "gone"}[c.outcome], c.back.Sub(s.calls[0].sent).Round(time.Millisecond))
	}
	if s.giveBack {
		text += "gives back"
	}
	return text
}

// within returns the time in which the stream has surely had its place, if it has.
func (s *stream) within() (from, till time.Time, held bool) {
	first := time.Time{}
	for i, c := range s.calls {
		if c.verb == extend && (first.IsZero() || s.calls[i-1].step != c.step || s.calls[i-1].verb != extend) || i == 0 {
			first = c.sent
		}
		switch {
		case c.verb == hold && c.outcome == done:
			from, till, held = c.back, first.Add(streamTTL), true
		case c.verb == extend && c.outcome == done:
			till = first.Add(streamTTL)
		case c.verb >= settle && held && c.sent.Before(till):
			till = c.sent
		}
	}
	return from, till, held && from.Before(till)
}

// atOnce returns how many streams of a user have surely run at once.
func atOnce(streams []*stream, user string) (most int) {
	for _, s := range streams {
		from, _, held := s.within()
		if !held || s.user != user {
			continue
		}
		n := 0
		for _, o := range streams {
			if begin, end, held := o.within(); held && o.user == user && !begin.After(from) && end.After(from) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// requestsOf returns the holds of a user whose request was surely used: neither released nor given back.
func requestsOf(streams []*stream, user string) (calls []Call) {
	for _, s := range streams {
		if _, _, held := s.within(); !held || s.user != user || s.releases || s.giveBack && !s.settled() {
			continue
		}
		for _, c := range s.calls {
			if c.verb == hold && c.outcome == done {
				calls = append(calls, Call{Sent: s.calls[0].sent.Round(0), Back: c.back.Round(0), Admitted: true})
			}
		}
	}
	return calls
}
