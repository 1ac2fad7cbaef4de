package sluice

import (
	"sync/atomic"
	"time"
)

// strikes counts denials in a row beside the state of an algorithm:
//
//	 63     62        61                 b  b-1              0    tail[0]            tail[1..]
//	+------+---------+---------------------+------------------+  +------------------+-----------+
//	| lock | blocked |  version            |  denials in a row |  | algorithm's word | and tail  |
//	+------+---------+---------------------+------------------+  +------------------+-----------+
//
// An admission ends the row. A key that is idle has been admitted, or will be, before it
// is denied again, so that forgetting it changes nothing. The version is raised with
// every change of the tail.
type strikes struct {
	inner policy
	after uint64
	bits  int
}

// state returns the word and the tail of the algorithm, which are those of a fresh key
// for word 0.
func (s *strikes) state(word uint64, tail []atomic.Uint64) (uint64, []atomic.Uint64) {
	if word == 0 {
		return 0, nil
	}
	return tail[0].Load(), tail[1:]
}

func (s *strikes) tailLen() int {
	if s.inner.wide != nil {
		return 1 + s.inner.wide.tailLen()
	}
	return 1
}

// row returns the denials in a row.
func (s *strikes) row(word uint64) uint64 { return word & (1<<s.bits - 1) }

// nextVersion returns word with the version raised by one and no denials.
func (s *strikes) nextVersion(word uint64) uint64 {
	version := word>>s.bits + 1
	if version == 1<<(wideBits-s.bits)-1 {
		version = 1
	}
	return version << s.bits
}

func (s *strikes) admit(word uint64, tail []atomic.Uint64, now int64, cost int) bool {
	word, tail = s.state(word, tail)
	if s.inner.wide != nil {
		return s.inner.wide.admit(word, tail, now, cost)
	}
	_, ok := s.inner.alg.charge(word, now, cost)
	return ok
}

func (s *strikes) describe(word uint64, tail []atomic.Uint64, now int64, cost int, charges bool) (bool, int, time.Duration, time.Duration) {
	word, tail = s.state(word, tail)
	return s.inner.judge(word, tail, now, cost, charges)
}

func (s *strikes) commit(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	inner := uint64(0)
	if word != 0 {
		inner = tail[0].Load()
	}
	tail[0].Store(s.inner.commit(inner, tail[1:], now, cost))
	return s.nextVersion(word)
}

// strike counts a denial, and reports whether it is the last that is let pass.
func (s *strikes) strike(word uint64, tail []atomic.Uint64, now int64, cost int) (next uint64, last bool) {
	if s.inner.counts != nil {
		tail[0].Store(s.inner.counts.countDenied(tail[0].Load(), tail[1:], now, cost))
	}
	row := s.row(word) + 1
	if row == s.after {
		return s.nextVersion(word), true
	}
	return s.nextVersion(word) | row, false
}

func (s *strikes) refund(word uint64, tail []atomic.Uint64, now int64, cost int) uint64 {
	tail[0].Store(s.inner.refund(tail[0].Load(), tail[1:], now, cost))
	return s.nextVersion(word) | s.row(word)
}

func (s *strikes) reset(word uint64, tail []atomic.Uint64) uint64 {
	tail[0].Store(s.inner.reset(tail[0].Load(), tail[1:]))
	return s.nextVersion(word)
}

func (s *strikes) idleAt(word uint64, tail []atomic.Uint64) uint64 {
	word, tail = s.state(word, tail)
	return s.inner.idleAt(entry{word, tail})
}

func (s *strikes) rank(word uint64, tail []atomic.Uint64, now int64) uint64 {
	word, tail = s.state(word, tail)
	return s.inner.rank(entry{word, tail}, now)
}

func (s *strikes) adopt(from *policy, e entry, tail []atomic.Uint64, now int64) uint64 {
	old := from.wide.(*strikes)
	row := min(old.row(e.word), s.after-1)
	word, rest := old.state(e.word, e.tail)
	tail[0].Store(s.inner.adopt(&old.inner, entry{word, rest}, tail[1:], now))
	return s.nextVersion(0) | row
}

func (s *strikes) worstCase(d int64) uint64 { return s.inner.worstCase(d) }
