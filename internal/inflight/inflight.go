// Package inflight has the parts that the surfaces of InFlight limits share: the wait that a denial tells, and how a call
// that runs for longer than the limit's Period keeps its units.
package inflight

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// hint is when it is worth asking again for a unit that somebody holds: nobody knows when a call ends.
const hint = time.Second

// RetryAfter returns the wait that a denial by an InFlight limit tells of. bound is the time after which the units come back
// if nobody gives them back before: the RetryAfter of the limiter's Decision, or less where the ends of the calls are known.
// It returns bound, but at most a second, and sluice.Never for sluice.Never, which says that no wait helps.
func RetryAfter(bound time.Duration) time.Duration {
	if bound == sluice.Never {
		return sluice.Never
	}
	return min(bound, hint)
}

const (
	// parts is how often units are renewed in a Period, so that they outlive a renewal that comes late.
	parts = 3
	// soonest is the least time between two looks of a Renewer, so that a tiny Period does not take a processor.
	soonest = 10 * time.Millisecond
	// latest is the most, so that a Period that becomes shorter is seen.
	latest = time.Second
	// shards keep calls that begin and end at the same time out of each other's way.
	shards = 16
	// atOnce is how many leases are looked at before calls that wait for the lock go ahead.
	atOnce = 32
)

// A Renewer keeps the units of calls that run, however long they run, by renewing each Lease three times in its limits'
// shortest Period. It has one timer for all of them, which is armed while there are leases and stops itself at the first look
// that finds none, within a second: there is nothing to close. It is safe for concurrent use and must be made by
// NewRenewer. In a testing/synctest bubble, make it there.
//
// A look comes 10 ms after the last one at the soonest. So units of a Period below 30 ms can lapse while their call runs, and
// be given to other calls. They are taken again at the next look at which there is room. So are units that a call has lost
// in another way: by Reset, Block or Refund of its key, by a machine that was suspended, or since SetLimit has changed the Period, which lets
// the units from before come back by themselves. Until they have, the call can count twice. A Period is a time of the limiter's clock,
// and looks are in real time: on a clock that runs faster units lapse.
type Renewer struct {
	next    atomic.Int64 // the instant of the next look, or never
	mu      sync.Mutex   // guards the timer, and changes of next
	timer   *time.Timer
	looking sync.Mutex
	shards  [shards]shard
}

// A shard has some of the leases, in a ring.
type shard struct {
	mu   sync.Mutex
	ring Lease // the one before the first lease
	n    int
	_    [64]byte // leave a cache line between two of them
}

const never = math.MaxInt64

// NewRenewer returns a Renewer without leases.
func NewRenewer() *Renewer {
	r := &Renewer{}
	r.next.Store(never)
	for i := range r.shards {
		ring := &r.shards[i].ring
		ring.prev, ring.following = ring, ring
	}
	return r
}

// A Lease is the units that one call holds. The zero Lease holds none. It must not be copied.
type Lease struct {
	shard           *shard // nil until it is kept
	prev, following *Lease
	due             int64         // when it is to be renewed
	period          time.Duration // the shortest of its limits, as far as is known
	units           []unit
	space           [2]unit
}

// A unit is the charge of one key.
type unit struct {
	charge      sluice.Charge
	reservation *sluice.Reservation
}

// Add adds a charge to a lease that is not kept yet, with its reservation, which is the lease's from then on. It leaves out what
// has charged nothing.
func (l *Lease) Add(c sluice.Charge, reservation *sluice.Reservation) {
	if reservation.WouldDeny() || c.Cost <= 0 {
		return
	}
	if l.units == nil {
		l.units = l.space[:0]
	}
	l.units = append(l.units, unit{c, reservation})
}

// Keep has the units of l renewed until its End. Call it once. It allocates only when it arms the timer.
func (r *Renewer) Keep(l *Lease) {
	if len(l.units) == 0 {
		return
	}
	s, now := &r.shards[rand.Uint32()%shards], instant()
	l.shard, l.period = s, l.shortest()
	l.due = now + int64(l.period/parts)
	look := l.look(now)
	s.mu.Lock()
	s.push(l)
	s.n++
	s.mu.Unlock()
	r.arm(look)
}

// End gives all units back. Only the first call does. Calls can be concurrent with each other and with looks once the lease is
// kept; a lease that is not kept gives its units back, too.
func (l *Lease) End() {
	units := l.take()
	for i := range units {
		units[i].reservation.Cancel()
	}
}

// take returns the units, the first time.
func (l *Lease) take() (units []unit) {
	if s := l.shard; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.units != nil {
			l.unlink()
			s.n--
		}
	}
	units, l.units = l.units, nil
	return units
}

// zero is the instant 0.
var zero = time.Now()

func instant() int64 { return int64(time.Since(zero)) }

// arm has the timer fire at an instant, if it would not fire before.
func (r *Renewer) arm(at int64) {
	if at >= r.next.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at >= r.next.Load() {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.next.Store(at)
	r.timer = time.AfterFunc(time.Duration(at-instant()), r.look)
}

// look renews the leases that are due, and arms the timer if there are leases. A lease that is kept meanwhile arms it by itself.
func (r *Renewer) look() {
	r.looking.Lock()
	defer r.looking.Unlock()
	r.mu.Lock()
	r.next.Store(never)
	r.mu.Unlock()
	next := int64(never)
	for i := range r.shards {
		next = min(next, r.shards[i].look())
	}
	r.arm(next)
}

// look looks at each lease once, and returns when to look again. It moves them to the end of the ring, so that it can let
// other leases go ahead anywhere. A lease that ends meanwhile only makes it look at another one twice.
func (s *shard) look() (next int64) {
	next = never
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := 0, s.n; i < n && s.n > 0; i++ {
		if i%atOnce == atOnce-1 {
			s.mu.Unlock()
			s.mu.Lock()
			if s.n == 0 {
				break
			}
		}
		l, now := s.ring.following, instant()
		l.unlink()
		s.push(l)
		if period := l.shortest(); now >= l.due || period != l.period {
			l.renew()
			l.period, l.due = period, now+int64(period/parts)
		}
		next = min(next, l.look(now))
	}
	return next
}

// look returns when to look at the lease again.
func (l *Lease) look(now int64) int64 {
	return now + min(max(l.due-now, int64(soonest)), int64(latest))
}

// shortest returns the shortest Period of the limits.
func (l *Lease) shortest() time.Duration {
	least := time.Duration(never)
	for i := range l.units {
		if p := l.units[i].charge.Key.Limit().Period; p > 0 {
			least = min(least, p)
		}
	}
	return least
}

// renew renews each unit, or takes it again. It asks before it takes: a denial could block the key.
func (l *Lease) renew() {
	for i := range l.units {
		u := &l.units[i]
		if u.reservation != nil && u.reservation.Renew() == nil {
			continue
		}
		u.reservation.Cancel() // of the rest of it
		u.reservation = nil
		if d := u.charge.Key.Peek(u.charge.Cost); !d.Allowed || d.WouldDeny {
			continue
		}
		var reservations [1]*sluice.Reservation
		sluice.TakeAllReservations(reservations[:], nil, u.charge)
		if r := reservations[0]; !r.WouldDeny() {
			u.reservation = r
		}
	}
}

// push makes l the last of the ring.
func (s *shard) push(l *Lease) {
	l.prev, l.following = s.ring.prev, &s.ring
	l.prev.following, s.ring.prev = l, l
}

func (l *Lease) unlink() {
	l.prev.following, l.following.prev = l.following, l.prev
	l.prev, l.following = nil, nil
}
