package fleet

import (
	"fmt"
	"slices"
	"time"
)

// possible returns the units that a stream may count in the end, by the answers to its client: one number, unless the answer to its
// last calls is missing. It is an error if the client was told the impossible: that a hold
// is not there before it lapses is possible if Redis forgets.
func (s *stream) possible(forgets bool) ([]uint64, error) {
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
			if c.verb == hold || !forgets && c.back.Before(reached.Add(streamTTL)) {
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
		case c.outcome == done && !forgets && len(ended) == 0 && c.sent.After(lapses):
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

// An account is of all streams, by the counts in the end.
type account struct {
	streams []*stream
	counts  map[[2]string]uint64
	losses  []loss
	forgets bool

	sums map[string]uint64 // of what counts for the streams of each user; of the least that may, if Redis forgets
	most map[string]uint64
	err  error // the first of it that is wrong
}

func (a *account) wrong(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

// judge returns the sums of all streams, and an error if the counts are anything else than the units that they have used, settled or
// lapsed; if a limit has admitted too much; or if a place is still taken.
func (a *account) judge() (string, error) {
	a.sums, a.most = map[string]uint64{}, map[string]uint64{}
	settled, lapsed := uint64(0), uint64(0)
	var died, ends, without int
	for _, s := range a.streams {
		n, known := a.of(s)
		if a.sums[s.user] += n; s.settled() {
			settled += n
			ends++
		} else {
			lapsed += n
		}
		if s.dies >= 0 {
			died++
		}
		if !known {
			without++
		}
		a.most[s.user] += s.most(a.losses)
	}
	text := fmt.Sprintf("%d clients were to die, %d streams were settled; %d tokens settled, %d lapsed; %d clients do not know what counts", died, ends, settled, lapsed, without)
	for u := range streamUsers {
		text += a.user(fmt.Sprint("u", u))
	}
	return text, a.err
}

// of returns the units that count for a stream, and whether that was known before.
func (a *account) of(s *stream) (n uint64, known bool) {
	may, fault := s.possible(a.forgets)
	n = a.counts[[2]string{"own", s.id}]
	switch {
	case fault != nil:
		a.wrong("%w", fault)
		return n, false
	case a.forgets:
		return slices.Min(may), len(may) == 1
	case !slices.Contains(may, n):
		a.wrong("%s counts %d, and not %v: %s", s.id, n, may, s.history())
	}
	return n, len(may) == 1
}

// user judges the limits of a user.
func (a *account) user(user string) (text string) {
	risk, holds := uint64(0), 0
	n, least := a.counts[[2]string{"tokens", user}], a.sums[user]
	if a.forgets {
		risk, holds = a.risk(user)
		text = fmt.Sprintf("; of %s %d tokens count, at least %d less %d and at most %d", user, n, least, risk, a.most[user])
	}
	switch {
	case !a.forgets && n != least:
		a.wrong("the tokens of %s are %d, and its streams count %d", user, n, least)
	case n+risk < least || a.forgets && n > a.most[user]:
		a.wrong("the tokens of %s are %d, and its streams have used at least %d, of which %d may be lost, and at most %d", user, n, least, risk, a.most[user])
	case user == tightUser && least > streamTight+risk:
		a.wrong("%s has used %d tokens, the limit is %d, and %d may be lost", user, least, streamTight, risk)
	}
	if n := a.counts[[2]string{"streams", user}]; n != 0 {
		a.wrong("%d streams of %s are still in flight", n, user)
	}
	if n := atOnce(a.streams, user); n > streamPlaces+holds {
		a.wrong("%d streams of %s ran at once, and at most %d may", n, user, streamPlaces+holds)
	}
	worst, err := worstRequests()
	if err == nil {
		err = Spans(requestsOf(a.streams, user), holds, worst)
	}
	if err != nil {
		a.wrong("the requests of %s: %w", user, err)
	}
	return text
}

// most returns the most that a stream may count if Redis forgets: a call that is tried again after a loss is made once more, and
// nothing is given back of a hold that is lost.
func (s *stream) most(losses []loss) (n uint64) {
	tries := map[int]int{} // by step, -1 for the hold
	for _, c := range s.calls {
		step := c.step
		if c.verb == hold {
			step = -1
		}
		switch {
		case c.outcome == gone, c.verb == release:
		case c.verb >= settle:
			n += max(s.used, s.estimate) - s.estimate
		case c.outcome != denied && tries[step] <= len(losses):
			tries[step]++
			n += c.tokens
		}
	}
	return n
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

// A loss is a time in which Redis was dead. If it forgets, services remember the units that they have seen.
type loss struct{ killed, back time.Time }

// risk returns the tokens, and the holds, that may be lost, since no service that knew of them told a Redis that had forgotten.
//
// A service knows of a call that it has answered, and of all that were answered before one of the same key that it
// has made. It tells so with its next call of the key, unless it dies before. Units that other services admit meanwhile are not added to it.
func (a *account) risk(user string) (tokens uint64, holds int) {
	var calls []*holdCall
	for _, s := range a.streams {
		for i := range s.calls {
			if s.user == user {
				calls = append(calls, &s.calls[i])
			}
		}
	}
	for _, l := range a.losses {
		tells := map[*instance]time.Time{} // since when
		for _, c := range calls {
			if c.outcome != unknown && c.sent.After(l.back) && (c.by.died.IsZero() || c.back.Before(c.by.died)) && c.by.began.Before(l.killed) {
				if at, ok := tells[c.by]; !ok || c.back.Before(at) {
					tells[c.by] = c.back
				}
			}
		}
		var last *instance
		for by, at := range tells {
			if at.After(tells[last]) {
				last = by
			}
		}
		known := time.Time{}
		for _, c := range calls {
			if c.outcome != unknown && !tells[c.by].IsZero() && c.back.Before(l.killed) && c.sent.After(known) {
				known = c.sent
			}
		}
		for _, c := range calls {
			lost := !c.sent.After(l.killed) && tells[c.by].IsZero() && c.back.After(known)
			meanwhile := c.sent.After(l.killed) && c.by != last && c.sent.Before(tells[last])
			if c.outcome != done || c.verb == release || !lost && !meanwhile {
				continue
			}
			if tokens += c.tokens; c.verb == hold {
				holds++
			}
		}
	}
	return tokens, holds
}
