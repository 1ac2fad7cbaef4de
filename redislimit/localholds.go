package redislimit

import (
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// A localHold is a hold that this process has admitted in the place of Redis. Redis is told of it by its id: the same OpHold is
// made again, and then its OpSettle. So it makes no difference whether Redis has made the first one, nor when. A hold that
// Redis cannot have heard of, and that has ended with at most its units, is a plain charge; see owed.go.
//
//	open -> gone                      Redis has it: it is a hold of Redis from then on
//	open -> a charge                  it has ended, and Redis has not heard of it
//	open -> ended -> told -> gone     otherwise
//	open -> told -> ended -> gone     Redis has it, but the first call may be on its way yet, and Redis would not know its id any more
//	told, ended -> gone               Redis has made it, but has not answered its settlement
//
// The lock of its lane guards it.
type localHold struct {
	request                     // the OpHold, with the units held
	asked   int64               // units: more than are held, if none are held since the share had no room
	share   *sluice.Reservation // or nil under FailOpen, and for charges above the share's limit
	made    time.Time
	lapses  time.Time
	timer   *time.Timer

	heard   bool          // Redis may have made it
	sent    bool          // a call that makes it may be on its way
	telling bool          // a call that tells of it is under way
	told    bool          // Redis has it: n may be unknown then
	from    time.Time     // it is not told before, since Redis has refused it
	pause   time.Duration // from the last refusal to from

	ended bool
	end   time.Time // when it has ended, and
	used  int64     // how many units it has used
}

const (
	// knownFor is how long Redis knows that a hold has ended that it was told of late: so long the first call may be on its way.
	knownFor = time.Minute
	// maxTold is the size from which on a batch is not filled up with holds.
	maxTold = 16 * maxBatch
	// maxEnded is how many holds that have ended are kept by their ids: so many calls more a lane makes when Redis comes back.
	maxEnded = 1 << 12
)

// holdOf returns the hold of a request if it is one of the share, or nil. The caller holds mu.
func (l *lane) holdOf(r *request) *localHold { return l.held[r.key][r.id] }

// owesHold reports whether the hold of a request is one of the share that Redis may not have been told of.
func (c *core) owesHold(r *request) bool {
	l := c.laneOf(r)
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.holdOf(r)
	return of != nil && !of.told
}

// stays reports whether the hold of a request is one of the share that Redis is not told of: its window is over, or Redis has refused it. The
// error is its settlement's.
func (c *core) stays(r *request, remember bool) (stays bool, err error) {
	l := c.laneOf(r)
	if l == nil {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.holdOf(r)
	if of == nil || of.told || of.telling || of.from.IsZero() && of.left(c, c.micros(time.Now())) > 0 {
		return false, nil
	}
	_, err = of.settled(r, remember)
	return true, err
}

// left returns how many of the units held Redis has yet to be told of: as many as still count in its windows. A hold of no units counts as
// one of a unit. now is in us.
func (of *localHold) left(c *core, now int64) int64 {
	o := newOwed(of.plan, max(of.n, 1), c.micros(of.made))
	return o.left(now)
}

// laneOf returns the lane that has the hold of a request, if it is one of the share, or nil.
func (c *core) laneOf(r *request) *lane {
	if c.heldHere.Load() == 0 {
		return nil
	}
	for _, l := range append([]*lane{c.router.lane(r.key, time.Now())}, c.router.all()...) {
		l.mu.Lock()
		of := l.holdOf(r)
		l.mu.Unlock()
		if of != nil {
			return l
		}
	}
	return nil
}

// repeats reports whether a request makes a hold again that is one of the share. The error is ErrOtherHold, or ErrEndedHold: also for a hold
// of which only the settlement is known here, since it may have been any other one.
func (l *lane) repeats(r *request) (again bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.repeatsLocked(r)
}

func (l *lane) repeatsLocked(r *request) (again bool, err error) {
	of := l.holdOf(r)
	switch {
	case of == nil:
		return false, nil
	case of.made.IsZero():
		return false, ErrEndedHold
	case of.asked != r.n || of.flags&flagGiveBack != r.flags&flagGiveBack:
		return false, ErrOtherHold
	case of.ended && r.flags&flagOnce != 0:
		return false, ErrEndedHold
	}
	return true, nil
}

// hold notes a hold that the share has admitted in the place of the call of a group, or of none. It holds its units, or with none no unit.
// again is true if it was there already. After an error, nothing is noted.
func (l *lane) hold(g *group, r *request, none bool, share *sluice.Reservation) (again bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if again, err = l.repeatsLocked(r); again || err != nil {
		return again, err
	}
	now := time.Now()
	if !l.hasRoom(now) {
		return false, ErrManyHolds
	}
	of := &localHold{
		request: request{plan: r.plan, key: r.key, op: opHold, n: r.n, receipt: r.receipt},
		asked:   r.n, share: share, made: now, lapses: now.Add(time.Duration(r.ttl * micro)),
	}
	if none {
		of.n = 0
	}
	if g != nil && g.state != groupDropped && g.state != groupUndone {
		if g.known && g.covered > 0 {
			return false, nil // Redis has it
		}
		g.holds = append(g.holds, of)
		of.heard, of.sent = !g.known, !g.known
	} else {
		of.heard = of.chosen()
	}
	l.keep(of)
	l.send()
	return false, nil
}

// settlesLater notes a settlement that Redis has not answered, and is to be told of for as long as life. If one of the same hold waits
// already, that one counts.
func (l *lane) settlesLater(r *request, life time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.holdOf(r) != nil {
		return nil
	}
	if !l.hasRoom(now) {
		return errManySettlements
	}
	of := &localHold{
		request: request{plan: r.plan, key: r.key, op: opHold, receipt: r.receipt},
		lapses:  now.Add(life), heard: true, told: true, ended: true, end: now, used: r.n,
	}
	l.keep(of)
	l.send()
	return nil
}

// hasRoom reports whether there is room for one more hold. If there is none it looks at a few keys, and makes a plain charge of a hold that has
// ended, or leaves to Redis an open one that Redis has. The caller holds mu.
func (l *lane) hasRoom(now time.Time) bool {
	if l.core.heldHere.Load() < int64(l.core.maxKeys) {
		return true
	}
	left := tableSample
	for _, holds := range l.held { // begins at a random key
		for _, of := range holds {
			if of.ended != of.told && !of.telling {
				l.drop(of)
				if of.ended {
					l.oweHold(of, now)
				}
				return true
			}
			if left--; left == 0 {
				return false
			}
		}
	}
	return false
}

// chosen reports whether Redis may have had a hold of that id before, which this call has made again.
func (of *localHold) chosen() bool { return of.flags&flagChosen != 0 }

// keep and drop add and remove a hold. The caller holds mu.
func (l *lane) keep(of *localHold) {
	of.timer = time.AfterFunc(time.Until(of.lapses), func() { l.core.lapse(of.key, of.id) })
	if l.held[of.key] == nil {
		l.held[of.key] = map[string]*localHold{}
	}
	l.held[of.key][of.id] = of
	if of.ended {
		l.ended++
	}
	l.core.heldHere.Add(1)
	l.queue(of)
}

// queue and unqueue add a hold to those that Redis may have to be told of, and take it out. The caller holds mu.
func (l *lane) queue(of *localHold) {
	if l.untold[of.key] == nil {
		l.untold[of.key] = map[string]*localHold{}
	}
	l.untold[of.key][of.id] = of
}

func (l *lane) unqueue(of *localHold) {
	delete(l.untold[of.key], of.id)
	if len(l.untold[of.key]) == 0 {
		delete(l.untold, of.key)
	}
}

func (l *lane) drop(of *localHold) {
	l.unqueue(of)
	of.timer.Stop()
	if of.ended {
		l.ended--
	}
	delete(l.held[of.key], of.id)
	if len(l.held[of.key]) == 0 {
		delete(l.held, of.key)
	}
	l.core.heldHere.Add(-1)
}

// endHold ends a hold of which so many units have been used. The caller holds mu.
func (l *lane) endHold(of *localHold, used int64, now time.Time) {
	of.timer.Stop()
	of.ended, of.end, of.used = true, now, used
	l.ended++
	l.queue(of)
	l.plain(of, now)
	l.send()
}

// plain makes a plain charge of a hold that has ended, if Redis cannot have heard of it, or too many have ended. What has been used beyond
// the hold is not bounded by a key's largest debt, and so Redis is told of that hold by its id. The caller holds mu.
func (l *lane) plain(of *localHold, now time.Time) {
	if of.ended && !of.telling && !of.told && (!of.heard && of.used <= of.n || l.ended > maxEnded) {
		l.drop(of)
		l.oweHold(of, now)
	}
}

// oweHold owes the units that a hold has used, each in its own window. The caller holds mu.
func (l *lane) oweHold(of *localHold, now time.Time) {
	if n := min(of.used, of.n); n > 0 {
		l.oweAlso(of.key, newOwed(of.plan, n, l.core.micros(of.made)), now)
	}
	if more := of.used - of.n; more > 0 {
		l.oweAlso(of.key, newOwed(of.plan, more, l.core.micros(of.end)), now)
	}
}

// lapse ends a hold of the share that nobody has settled in time, and gives up a settlement that Redis has not answered in time. A hold that comes
// back, and of which Redis has heard, comes back there by itself.
func (c *core) lapse(key, id string) {
	r := request{key: key, receipt: receipt{id: id}}
	l := c.laneOf(&r)
	if l == nil {
		return
	}
	l.mu.Lock()
	of, now := l.holdOf(&r), time.Now()
	if of == nil || of.ended && !of.told || now.Before(of.lapses) {
		l.mu.Unlock()
		return
	}
	back := !of.ended && of.flags&flagGiveBack != 0
	if back || of.told {
		l.drop(of)
	} else {
		of.ttl = 0
		l.endHold(of, of.n, now)
	}
	l.mu.Unlock()
	if back {
		of.share.Cancel()
	}
}

// tell adds to a batch the debts that Redis has to be told of before it is asked about the keys of a group. The caller holds mu.
func (l *lane) tell(b *batch, g *group) {
	if len(l.owed)+len(l.untold) == 0 {
		return
	}
	if g.op != opAll {
		l.tellHolds(b, g.key)
		return
	}
	for i := range g.all.calls {
		key := g.all.calls[i].key
		l.tellOwed(b, key)
		l.tellHolds(b, key)
	}
}

// tellHolds adds to a batch the calls that tell of the holds of a key. The caller holds mu.
func (l *lane) tellHolds(b *batch, key string) {
	for _, of := range l.untold[key] {
		if len(b.groups) >= maxTold {
			return
		}
		l.unqueue(of)
		if r, ok := l.holdCall(of, b.sent); ok {
			of.telling = true
			l.unasked(b, r).tells = of
		}
	}
}

// holdCall returns the call that tells of a hold, if there is one to make now. The caller holds mu.
func (l *lane) holdCall(of *localHold, now time.Time) (r request, ok bool) {
	if of.telling || now.Before(of.from) || of.told && !of.ended {
		return r, false
	}
	r = of.request
	if of.told {
		r.what, r.n, r.ttl, r.flags = whatSettle, of.used, max(of.ttl, int64(knownFor)/micro), flagChosen
		return r, true
	}
	if of.left(l.core, l.core.micros(now)) == 0 {
		if of.ended { // with its window
			l.drop(of)
			of.used = max(of.used-of.n, 0)
			of.n = 0
			l.oweHold(of, now)
		}
		return r, false
	}
	life := of.lapses.Sub(now)
	if of.ended {
		life = max(life, knownFor)
	}
	r.ttl, r.flags = ceilDiv(int64(max(life, 0)), micro), r.flags&^flagOnce
	if r.n = of.asked; of.asked == of.n {
		r.flags = r.flags&^flagOrNone | flagOver
	}
	return r, life > 0
}

// heardOf takes in the answer to a call that tells of a hold. The caller holds mu.
func (l *lane) heardOf(g *group, s *scheduled, now time.Time) {
	of := g.tells
	of.telling = false
	switch {
	case l.holdOf(&of.request) != of: // it has lapsed meanwhile, or another lane has it
	case s.err != nil && !errors.Is(s.err, ErrForeignValue):
		if !notDone(s.err) {
			of.heard, of.sent = true, true
		}
		l.queue(of)
		l.letGo(of)
		l.postpone(now)
	case s.err == nil && g.what == whatSettle:
		l.drop(of)
	case s.err == nil && s.reply.admitted == 1:
		l.taken(of)
	case of.ended: // there is no room for a hold, or another one of that id
		l.drop(of)
		l.oweHold(of, now)
	default:
		of.pause = min(max(2*of.pause, owedPause), time.Minute)
		of.heard, of.from = false, now.Add(of.pause)
		time.AfterFunc(of.pause, func() { l.tryAgain(of) })
	}
}

// tryAgain has Redis told of a hold that it has refused.
func (l *lane) tryAgain(of *localHold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holdOf(&of.request) == of {
		l.queue(of)
		l.send()
	}
}

// taken is called for a hold that Redis has. The caller holds mu.
func (l *lane) taken(of *localHold) {
	of.told = true
	l.queue(of) // Redis is to be told of its end, if it has ended
	l.letGo(of)
	l.send()
}

// letGo forgets a hold that Redis has, unless Redis is to be told that it has ended, or a call that makes it may be on its way yet. Redis would
// make it once more after its end, if that end did not leave its id there, as it does of an id that a caller has chosen. The caller holds mu.
func (l *lane) letGo(of *localHold) {
	if of.told && !of.ended && (of.chosen() || !of.sent && !of.telling) {
		l.drop(of)
	}
}

// learnHolds takes in whether Redis has made the holds whose late call has been answered. The caller holds mu.
func (l *lane) learnHolds(g *group, made bool, now time.Time) {
	for _, of := range g.holds {
		if l.holdOf(&of.request) != of {
			continue
		}
		of.sent = false
		if made {
			l.taken(of)
		} else if !of.telling {
			of.heard = !g.known && of.chosen()
			l.plain(of, now)
		}
	}
	g.holds = nil
}

// stopHolds keeps holds of the share from lapsing here, when the process no longer makes calls.
func (l *lane) stopHolds() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, holds := range l.held {
		for _, of := range holds {
			of.timer.Stop()
		}
	}
}

// inheritHold takes over a hold of another lane, where a call that tells of it may be under way. It has lapsed if that was due meanwhile.
func (l *lane) inheritHold(of localHold) {
	of.timer.Stop()
	l.mu.Lock()
	of.telling, of.heard, of.from = false, true, time.Time{}
	l.keep(&of)
	l.send()
	l.mu.Unlock()
	l.core.lapse(of.key, of.id)
}

// owed returns the units of a hold that Redis has to be told of. now is in us.
func (of *localHold) owed(c *core, now int64) int64 {
	switch {
	case of.told && of.ended:
		return of.used
	case of.told:
		return 0
	case of.ended:
		return min(of.used, of.n, of.left(c, now)) + max(of.used-of.n, 0)
	}
	return min(of.n, of.left(c, now))
}
