package sluice

import (
	"math"
	"math/bits"
	"sort"
	"sync/atomic"
	"time"
)

// slidingLog is the sliding window log: it admits a call at t of n units iff the
// cost admitted in (t-P, t] plus n is at most the limit L, exactly.
//
// The log is a ring of L times, one for each unit, in the key's tail. An admitted
// unit takes the place of the oldest one. So a call of n units is
// admitted iff the n-th oldest place is unused, or its time s is old enough,
// s + P <= t. That is one read for any L; a charge writes n times.
//
// The word holds how far the ring has been written, and a version. Written
// counts the units charged since the key was fresh until it reaches 2L, and then
// stays within [L, 2L); written mod L is the place of the oldest unit once the ring
// has been full. (After a change to a lower limit the ring has more than L places;
// 2L then stands for twice the number of places.) The version counts charges and
// resets, so that a reader that sees the same unlocked word before and after has seen
// one state of the ring. (The version has at least 42 bits: it takes 18 hours of
// continuous charging at 15 ns each until a version comes back.)
//
// Invariant: times in the ring never fall from the oldest to the newest. A call
// with a now before the newest time is charged at the newest time.
type slidingLog struct {
	limit  uint64
	places uint64 // places in the ring, at least the limit
	spare  uint64 // places - limit
	period uint64
	bits   int // b
}

// maxLog is the largest limit of a sliding log, 8 MiB a key.
const maxLog = 1 << 20

func newSlidingLog(l Limit, reach int) (wideAlgorithm, *ConfigError) {
	if l.Rate > maxLog || reach > maxLog { // a hostile snapshot can claim such reach
		return nil, configErrorf("Limit.Rate", "%d with sliding-log, which keeps 8 bytes a unit for every key; want at most %d, or sliding-window or gcra, which keep 8 bytes a key",
			l.Rate, maxLog)
	}
	limit := uint64(l.Rate)
	return &slidingLog{
		limit:  limit,
		places: uint64(reach),
		spare:  uint64(reach) - limit,
		period: uint64(l.Period),
		bits:   bits.Len64(2*uint64(reach) - 1),
	}, nil
}

func (a *slidingLog) tailLen() int { return int(a.places) }

func (a *slidingLog) written(word uint64) uint64 { return word & (1<<a.bits - 1) }

// place returns the index in the ring of the i-th unit written, i < 3*places.
func (a *slidingLog) place(i uint64) uint64 {
	for i >= a.places {
		i -= a.places
	}
	return i
}

// refunded is the time in a place whose unit has been given back: it is unused again.
const refunded = math.MaxUint64

// nthOldest returns the time of the n-th oldest place, 1 <= n <= places. ok is false if
// the place is unused; unused places are older than all others.
func (a *slidingLog) nthOldest(key state, n uint64) (s uint64, ok bool) {
	i := a.written(key.word) + n - 1
	if i < a.places {
		return 0, false
	}
	s = key.tail[a.place(i)].Load()
	return s, s != refunded
}

func (a *slidingLog) newest(key state) (s uint64, ok bool) {
	return a.nthOldest(key, a.places)
}

// admitFrom returns the first nanosecond at which cost is admitted.
func (a *slidingLog) admitFrom(key state, cost uint64) uint64 {
	s, ok := a.nthOldest(key, a.spare+cost)
	if !ok {
		return 0
	}
	return s + a.period // both below 2^63
}

func (a *slidingLog) admit(key state, now int64, cost int) bool {
	return a.admitFrom(key, uint64(cost)) <= uint64(now)
}

func (a *slidingLog) commit(key state, now int64, cost int) uint64 {
	t := uint64(now)
	if s, ok := a.newest(key); ok {
		t = max(t, s)
	}
	written := a.written(key.word)
	for range min(uint64(cost), a.places) {
		key.tail[a.place(written)].Store(t)
		written++
	}
	if written >= 2*a.places {
		written -= a.places
	}
	return a.nextVersion(key.word) | written
}

func (a *slidingLog) lasts(now int64, _ int) uint64 { return uint64(now) + a.period }

// sound reports whether charges and refunds can have left this word and this ring.
func (a *slidingLog) sound(key state) bool {
	if a.written(key.word) >= 2*a.places {
		return false
	}
	last, used := uint64(0), false
	for n := uint64(1); n <= a.places; n++ {
		s, ok := a.nthOldest(key, n)
		if used && !ok || ok && (s < last || s > math.MaxInt64) {
			return false
		}
		if ok {
			last, used = s, true
		}
	}
	return true
}

// adopt takes over the newest units, as many as there are places for. It drops units that no longer
// count: under a longer period they would count again, unless a sweep came before.
func (a *slidingLog) adopt(from arithmetic, e state, ring []atomic.Uint64, now int64) uint64 {
	old := from.(*slidingLog)
	written := uint64(0)
	for n := old.places - min(old.counting(e, now), a.places) + 1; n <= old.places; n++ {
		s, _ := old.nthOldest(e, n)
		ring[written].Store(s)
		written++
	}
	return a.nextVersion(0) | written
}

// counting returns how many units count at now, which are the newest ones.
func (a *slidingLog) counting(key state, now int64) uint64 {
	return a.places - uint64(sort.Search(int(a.places), func(i int) bool {
		s, ok := a.nthOldest(key, uint64(i)+1)
		return ok && s+a.period > uint64(now)
	}))
}

// countDenied writes the cost as if it had been admitted, and so does a debit: of all units asked for, the
// newest count, as many as the limit. In a ring with spare places the oldest units are removed,
// since they would count under a higher limit later. Units that already counted beyond the
// limit, since it has been lowered, go on counting.
func (a *slidingLog) countDenied(key state, now int64, cost int) uint64 {
	t := now
	if s, ok := a.newest(key); ok {
		t = max(t, int64(s))
	}
	before := a.counting(key, t)
	key.word = a.commit(key, now, cost)
	if most := max(before, a.limit); before+uint64(cost) > most {
		for n := a.places - most; n > 0; n-- {
			if _, used := a.nthOldest(key, n); !used {
				break // all older places are unused, too
			}
			key.tail[a.place(a.written(key.word)+n-1)].Store(refunded)
		}
	}
	return key.word
}

// refund removes the newest units. In a ring that has been full, their places become
// the oldest ones. The units that they had overwritten do not come back; they did not
// count any more.
func (a *slidingLog) refund(key state, _ int64, cost int) uint64 {
	written := a.written(key.word)
	full := written >= a.places
	for range min(uint64(cost), written, a.places) {
		if full && written == a.places {
			written += a.places
		}
		written--
		key.tail[a.place(written)].Store(refunded)
	}
	return a.nextVersion(key.word) | written
}

// stamp is the time of the newest units.
func (a *slidingLog) stamp(key state) (stamp, end uint64) {
	s, _ := a.newest(key)
	return s, s + a.period
}

// takeOut moves newer units into the places of the units that it removes.
func (a *slidingLog) takeOut(key state, stamp, n uint64) uint64 {
	newer := uint64(sort.Search(int(a.places), func(i int) bool {
		s, ok := a.nthOldest(key, uint64(i)+1)
		return ok && s > stamp
	}))
	out := uint64(0)
	for out < min(n, newer) {
		if s, ok := a.nthOldest(key, newer-out); !ok || s != stamp {
			break
		}
		out++
	}
	if out == 0 {
		return key.word
	}
	first := a.written(key.word) // the oldest place
	for i := newer; i < a.places; i++ {
		s, _ := a.nthOldest(key, i+1)
		key.tail[a.place(first+i-out)].Store(s)
	}
	return a.refund(key, 0, int(out))
}

// nextVersion returns word with the version raised by one and nothing written.
// The version starts over before all of its bits are ones, since that word with the lock
// bit would be moved.
func (a *slidingLog) nextVersion(word uint64) uint64 {
	version := word>>a.bits + 1
	if version == 1<<(wideBits-a.bits)-1 {
		version = 0
	}
	return version << a.bits
}

func (a *slidingLog) reset(key state) uint64 { return a.nextVersion(key.word) }

func (a *slidingLog) blank(word uint64) bool { return a.written(word) == 0 }

func (a *slidingLog) describe(key state, now int64, cost int, charges bool) (allowed bool, remaining int, retry, reset time.Duration) {
	remaining = a.remaining(key, now)
	fresh := max(a.idleAt(key), uint64(now))
	allowed = cost <= remaining
	switch {
	case !allowed:
		retry = until(a.admitFrom(key, uint64(cost)), now)
	case charges:
		remaining -= cost
		fresh = max(fresh, uint64(now)+a.period)
	}
	return allowed, remaining, retry, until(fresh, now)
}

// remaining counts the places that are old enough. The places are in order of age, so
// the old ones are a prefix.
func (a *slidingLog) remaining(key state, now int64) int {
	return sort.Search(int(a.limit), func(i int) bool {
		return a.admitFrom(key, uint64(i+1)) > uint64(now)
	})
}

func (a *slidingLog) idleAt(key state) uint64 {
	return a.admitFrom(key, a.limit)
}

func (a *slidingLog) rank(key state, now int64) uint64 {
	return a.limit - uint64(a.remaining(key, now))
}

// worstCase is a full limit at each of the instants 0, P, 2P, ... of the span.
func (a *slidingLog) worstCase(d int64) uint64 {
	admitted, _ := mulDiv(a.limit, uint64(d)/a.period+1, 1)
	return admitted
}
