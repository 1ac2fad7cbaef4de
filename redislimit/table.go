package redislimit

import (
	"hash/maphash"
	"sync"
)

// A table keeps values of keys for a while, for a bounded number of keys. Keys are told
// apart by their ids, 64 bits of a seeded hash: strangers cannot find two keys that collide, and among n keys
// two collide with a chance of n^2/2^65.
//
// It is safe for concurrent use.
type table[V any] struct {
	seed   maphash.Seed
	shards [tableShards]tableShard[V]
	room   int // entries of a shard
}

const (
	tableShards = 16
	// tableSample is how many entries are looked at to find one to drop.
	tableSample = 8
)

type tableShard[V any] struct {
	mu      sync.Mutex
	entries map[uint64]tableEntry[V]
	_       [40]byte
}

type tableEntry[V any] struct {
	value V
	until int64 // the value does not hold from this time on
}

// newTable returns a table for up to n keys. If n is not positive it returns nil, which keeps nothing.
func newTable[V any](n int) *table[V] {
	if n <= 0 {
		return nil
	}
	t := &table[V]{seed: maphash.MakeSeed(), room: (n-1)/tableShards + 1}
	for i := range t.shards {
		t.shards[i].entries = map[uint64]tableEntry[V]{}
	}
	return t
}

// id returns the id of a key.
func (t *table[V]) id(key string) uint64 {
	if t == nil {
		return 0
	}
	return maphash.String(t.seed, key)
}

func (t *table[V]) shard(id uint64) *tableShard[V] { return &t.shards[id%tableShards] }

// get returns the value of an id, and until when it holds, if it holds at now.
func (t *table[V]) get(id uint64, now int64) (value V, until int64, ok bool) {
	if t == nil {
		return value, 0, false
	}
	s := t.shard(id)
	s.mu.Lock()
	e, ok := s.entries[id]
	s.mu.Unlock()
	return e.value, e.until, ok && e.until > now
}

// update replaces the value of an id, and the time until which it holds, by the results of f. If the present value
// does not hold at now, f gets zero values. If the new value does not hold at now, the id
// is forgotten.
func (t *table[V]) update(id uint64, now int64, f func(old V, until int64) (V, int64)) {
	if t == nil {
		return
	}
	s := t.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	old, tracked := s.entries[id]
	if old.until <= now {
		old = tableEntry[V]{}
	}
	value, until := f(old.value, old.until)
	switch {
	case until <= now:
		delete(s.entries, id)
		return
	case !tracked && len(s.entries) >= t.room:
		s.drop(now)
	}
	s.entries[id] = tableEntry[V]{value, until}
}

// forget forgets the value of an id.
func (t *table[V]) forget(id uint64) {
	if t == nil {
		return
	}
	s := t.shard(id)
	s.mu.Lock()
	delete(s.entries, id)
	s.mu.Unlock()
}

// drop makes room for one entry. It looks at a few, and drops the one that ends soonest and all
// that have ended.
func (s *tableShard[V]) drop(now int64) {
	soonest, at, left := uint64(0), int64(0), tableSample
	for h, e := range s.entries { // begins at a random entry
		if e.until <= now {
			delete(s.entries, h)
		}
		if left == tableSample || e.until < at {
			soonest, at = h, e.until
		}
		if left--; left == 0 {
			break
		}
	}
	delete(s.entries, soonest)
}
