package policies

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/lag"
	"github.com/sluice-go/sluice/internal/room"
)

// JudgeInTurn is Judge with a Queue. A request that finds room, and nobody in front, does not wait.
func (j *Judgement[R, P]) JudgeInTurn(ctx context.Context, lacks Lacking, q *Queue) Decision {
	j.inTurn = true
	d := j.judgeInTurn(ctx, lacks, q)
	j.inTurn = false
	if j.counts && d.Outcome == Denied && !j.askedFar() {
		d = j.countDenials(ctx, d)
	}
	return d
}

// judgeInTurn is JudgeInTurn without what counts denials by the Limiters.
func (j *Judgement[R, P]) judgeInTurn(ctx context.Context, lacks Lacking, q *Queue) Decision {
	if j.keyless || j.hasRoom(q) {
		d := j.Judge(ctx, lacks)
		if d.Outcome != Denied || j.askedFar() || j.mayLackTable() && j.hasRoom(q) { // else another request was sooner
			return d
		}
	}
	s := q.newStand(j.claims())
	j.stand = s
	defer func() {
		s.leave()
		j.stand = nil
	}()
	d := j.awaitTurn(ctx, lacks, s)
	if !s.since.IsZero() {
		d.Waited = time.Since(s.since)
	}
	return d
}

// hasRoom reports whether the Limiters have room for the request, and nobody stands in its lines.
func (j *Judgement[R, P]) hasRoom(q *Queue) bool {
	entries, charges := j.Of(Local)
	if q.waiting.Load() > 0 {
		q.mu.Lock()
		defer q.mu.Unlock()
		for i := range entries {
			if l := q.lines[entries[i].line()]; l != nil && l.first != nil {
				return false
			}
		}
	}
	for i := range charges {
		if cost, first := j.total(i); first && !charges[i].Key.Peek(cost).Allowed {
			return false
		}
	}
	return true
}

// total returns the cost of the charges to Limiters that have the key of the i-th, which is below 0 if one of them is, and whether the i-th is the
// first of them.
func (j *Judgement[R, P]) total(i int) (cost int, first bool) {
	entries, charges := j.Of(Local)
	for n := range entries {
		switch {
		case n != i && entries[n].line() != entries[i].line():
		case n < i:
			return 0, false
		case charges[n].Cost < 0 || cost < 0:
			cost = -1
		default:
			cost += min(charges[n].Cost, math.MaxInt-cost)
		}
	}
	return cost, true
}

// askedFar reports whether a Remote has been asked, so that the Limiters had admitted the request.
func (j *Judgement[R, P]) askedFar() bool {
	entries, _ := j.Of(Far)
	return len(entries) > 0 && entries[0].Asked != nil
}

// mayLackTable reports whether a Limiter may have denied the request for want of room in its table, of which a look knows nothing. Those of
// InFlight may, too, but there it is rare, and common that another request is sooner: mostLost is for these.
func (j *Judgement[R, P]) mayLackTable() bool {
	entries, _ := j.Of(Local)
	return slices.ContainsFunc(entries, func(e Entry[R, P]) bool {
		return !e.Policy.Holds && e.Policy.Limiter.Config().Overflow == sluice.OverflowDenyNew
	})
}

// claims returns the charges to the Limiters, one claim for each key. Charges to one key go by the limit of the first.
func (j *Judgement[R, P]) claims() (all []claim) {
	entries, charges := j.Of(Local)
	all = make([]claim, 0, len(entries))
	for i := range entries {
		p := entries[i].Policy
		if cost, first := j.total(i); first {
			all = append(all, claim{entries[i].line(), charges[i].Key, cost, p.MaxPerKey, p.Holds})
			continue
		}
		for n := range all {
			if c := &all[n]; c.lineKey == entries[i].line() {
				c.most = min(c.most, p.MaxPerKey)
			}
		}
	}
	return all
}

// mostLost bounds how often a request whose turn it is comes too late for room that it has seen. Not tuned.
const mostLost = 10

// awaitTurn waits until it is the turn of s, and judges the request. If it has no place, or would wait for too long, or has waited
// for as long, it is turned away.
func (j *Judgement[R, P]) awaitTurn(ctx context.Context, lacks Lacking, s *stand) Decision {
	end := time.Now().Add(s.queue.maxWait)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	first, ok := s.join(time.Until(end))
	if !ok { // as in a flood, where it is to cost little
		return j.turnAway(ctx, lacks, s)
	}
	bounded, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for lost := 0; ok && s.awaitRoom(bounded, first); {
		if s.isNext() {
			d := j.Judge(ctx, lacks)
			if d.Outcome != Denied || j.askedFar() || s.isNext() && (j.mayLackTable() || lost == mostLost) {
				s.queue.passed.Add(1)
				return d
			}
			lost++ // somebody who does not queue was sooner
		}
		first, ok = s.join(time.Until(end))
	}
	return j.turnAway(ctx, lacks, s)
}

// turnAway is the decision on a request that does not wait, or not any longer.
func (j *Judgement[R, P]) turnAway(ctx context.Context, lacks Lacking, s *stand) Decision {
	gone := errors.Is(ctx.Err(), context.Canceled) // a deadline is one of the times that a request can wait for
	d := Decision{Outcome: Denied, KeyError: lacks.err}
	wait := j.against(s, &d, !gone)
	j.States = nil
	d.Remaining = j.remaining()
	if gone {
		d.Outcome = Gone
		s.queue.gone.Add(1)
		return d
	}
	d.RetryAfter = lag.Later(wait, j.lag())
	s.queue.turnedAway.Add(1)
	return d
}

// against names the policies that the request waits for, and returns for how long it would. The Limiters count it as denied if they
// are to.
func (j *Judgement[R, P]) against(s *stand, d *Decision, counts bool) time.Duration {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	at, longest := s.longest()
	entries, charges := j.Of(Local)
	for i := range entries {
		for n := range s.claims {
			c := &s.claims[n]
			if c.lineKey != entries[i].line() || c != at && s.wait(c) == 0 {
				continue
			}
			if d.Violated = append(d.Violated, entries[i].Policy.Name); counts {
				room.Deny(charges[i].Key, charges[i].Cost)
			}
		}
	}
	return max(longest, 1)
}

// line returns the key of the line that the charge of an entry to a Limiter has.
func (e *Entry[R, P]) line() lineKey { return lineKey{e.Policy.Limiter, e.Key} }

// awaitRoom returns true when s is the first of its line and the key has room, or false when the context has ended.
func (s *stand) awaitRoom(ctx context.Context, first <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-first:
		return room.Await(ctx, s.at.key, s.at.cost) == nil
	}
}

// isNext reports whether there is room for s and nobody in front at any key.
func (s *stand) isNext() bool {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	_, wait := s.longest()
	return wait == 0
}
