package peers

import (
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

func fixedTables() []Subject {
	note := "Sluice's idea and nothing else: one flat table of fixed size, no growth, no eviction. What sluice takes longer is the price of its features; where it is faster, among a million keys, it has fetched slots ahead."
	subject := func(name, clock string, newLimiter func(Options) (Limiter, error)) Subject {
		return Subject{Name: name, Kind: Baseline, Clock: clock, Note: note, New: newLimiter}
	}
	return []Subject{
		subject("fixed table", System, func(o Options) (Limiter, error) { return &fixedSystem{newFixedTable(o), time.Now()}, nil }),
		subject("fixed table, fast clock", Fast, func(o Options) (Limiter, error) { return &fixedFast{newFixedTable(o), sluice.NewFastClock()}, nil }),
		subject("fixed table, coarse clock", Coarse, func(o Options) (Limiter, error) { return &fixedCoarse{newFixedTable(o), sluice.NewCoarseClock(0)}, nil }),
	}
}

// fixedTable is a table of {id, TAT} with linear probing.
type fixedTable struct {
	seed             maphash.Seed
	slots            []fixedSlot // a power of two of them
	interval, budget int64
}

type fixedSlot struct {
	id  atomic.Uint64 // 0: empty
	tat atomic.Int64
}

// newFixedTable returns a table that is at most half full with the expected keys.
func newFixedTable(o Options) fixedTable {
	keys := o.Expect
	if keys == 0 {
		keys = 1 << 20
	}
	interval := int64(o.interval())
	return fixedTable{
		seed:     maphash.MakeSeed(),
		slots:    make([]fixedSlot, 1<<bits.Len(uint(2*keys-1))),
		interval: interval, budget: interval * int64(o.Burst),
	}
}

// find returns the slot of key, taking an empty one if there is none. With more
// keys than slots it would not return; no workload has them.
func (s *fixedTable) find(key string) *fixedSlot {
	id := maphash.String(s.seed, key) | 1
	mask := uint64(len(s.slots) - 1)
	for i := id >> 1; ; i++ {
		slot := &s.slots[i&mask]
		switch slot.id.Load() {
		case id:
			return slot
		case 0:
			if slot.id.CompareAndSwap(0, id) || slot.id.Load() == id {
				return slot
			}
		}
	}
}

func (s *fixedTable) charge(slot *fixedSlot, now int64) bool {
	for {
		old := slot.tat.Load()
		next := max(old, now) + s.interval
		if next-now > s.budget {
			return false
		}
		if slot.tat.CompareAndSwap(old, next) {
			return true
		}
	}
}

func (s *fixedTable) Keys() int {
	n := 0
	for i := range s.slots {
		if s.slots[i].id.Load() != 0 {
			n++
		}
	}
	return n
}

func (s *fixedTable) Sweep() {}

func (s *fixedTable) Close() {}

type fixedSystem struct {
	fixedTable
	base time.Time
}

func (s *fixedSystem) Allow(key string) bool {
	return s.charge(s.find(key), int64(time.Since(s.base)))
}

type fixedCoarse struct {
	fixedTable
	clock *sluice.CoarseClock
}

func (s *fixedCoarse) Allow(key string) bool { return s.charge(s.find(key), s.clock.Now()) }

type fixedFast struct {
	fixedTable
	clock *sluice.FastClock
}

func (s *fixedFast) Allow(key string) bool { return s.charge(s.find(key), s.clock.Now()) }

func (s *fixedFast) Close() { noteSource(s.clock) }
