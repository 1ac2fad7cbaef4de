package peers

import (
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

func sketches() []Subject {
	note := "Sluice's idea and nothing else: one flat table of fixed size, no growth, no eviction. What sluice takes longer is the price of its features; where it is faster, among a million keys, it has fetched slots ahead."
	sketch := func(name, clock string, newLimiter func(Options) (Limiter, error)) Subject {
		return Subject{Name: name, Kind: Baseline, Clock: clock, Note: note, New: newLimiter}
	}
	return []Subject{
		sketch("sketch", System, func(o Options) (Limiter, error) { return &sketchSystem{newSketch(o), time.Now()}, nil }),
		sketch("sketch, fast clock", Fast, func(o Options) (Limiter, error) { return &sketchFast{newSketch(o), sluice.NewFastClock()}, nil }),
		sketch("sketch, coarse clock", Coarse, func(o Options) (Limiter, error) { return &sketchCoarse{newSketch(o), sluice.NewCoarseClock(0)}, nil }),
	}
}

// sketch is a table of {id, TAT} with linear probing.
type sketch struct {
	seed             maphash.Seed
	slots            []sketchSlot // a power of two of them
	interval, budget int64
}

type sketchSlot struct {
	id  atomic.Uint64 // 0: empty
	tat atomic.Int64
}

// newSketch returns a table that is at most half full with the expected keys.
func newSketch(o Options) sketch {
	keys := o.Expect
	if keys == 0 {
		keys = 1 << 20
	}
	interval := int64(o.interval())
	return sketch{
		seed:     maphash.MakeSeed(),
		slots:    make([]sketchSlot, 1<<bits.Len(uint(2*keys-1))),
		interval: interval, budget: interval * int64(o.Burst),
	}
}

// find returns the slot of key, taking an empty one if there is none. With more
// keys than slots it would not return; no workload has them.
func (s *sketch) find(key string) *sketchSlot {
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

func (s *sketch) charge(slot *sketchSlot, now int64) bool {
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

func (s *sketch) Keys() int {
	n := 0
	for i := range s.slots {
		if s.slots[i].id.Load() != 0 {
			n++
		}
	}
	return n
}

func (s *sketch) Sweep() {}

func (s *sketch) Close() {}

type sketchSystem struct {
	sketch
	base time.Time
}

func (s *sketchSystem) Allow(key string) bool {
	return s.charge(s.find(key), int64(time.Since(s.base)))
}

type sketchCoarse struct {
	sketch
	clock *sluice.CoarseClock
}

func (s *sketchCoarse) Allow(key string) bool { return s.charge(s.find(key), s.clock.Now()) }

type sketchFast struct {
	sketch
	clock *sluice.FastClock
}

func (s *sketchFast) Allow(key string) bool { return s.charge(s.find(key), s.clock.Now()) }

func (s *sketchFast) Close() { noteSource(s.clock) }
