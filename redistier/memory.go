package redistier

import (
	"hash/maphash"
	"sync"
)

// A memory keeps the last states that were seen of keys, to send them with the next calls:
// what Redis loses is put back. Keys are told apart by 64 bits of a seeded hash; two that
// collide could only make each other's state stricter, and one in 2^64 pairs does.
//
// It is safe for concurrent use.
type memory struct {
	seed   maphash.Seed
	shards [memoryShards]memoryShard
	room   int // entries of a shard
}

const (
	memoryShards = 16
	// memorySample is how many entries are looked at for one to drop.
	memorySample = 8
)

type memoryShard struct {
	mu      sync.Mutex
	entries map[uint64]remembered
}

type remembered struct {
	state string
	fresh int64 // us of Unix time from which on it says nothing
}

// newMemory returns one for up to n keys, or nil, which keeps none, if n is not positive.
func newMemory(n int) *memory {
	if n <= 0 {
		return nil
	}
	m := &memory{seed: maphash.MakeSeed(), room: (n-1)/memoryShards + 1}
	for i := range m.shards {
		m.shards[i].entries = map[uint64]remembered{}
	}
	return m
}

func (m *memory) shard(key string) (*memoryShard, uint64) {
	h := maphash.String(m.seed, key)
	return &m.shards[h%memoryShards], h
}

// last returns the state of key that was seen last, or nothing.
func (m *memory) last(key string) string {
	if m == nil {
		return ""
	}
	s, h := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[h].state
}

// see notes a state of key, which says nothing from fresh on; now is the time of the reply.
// Replies can come in another order than the scripts ran in: generation and time, which
// states begin with, say which of two is the newer.
func (m *memory) see(key, state string, now, fresh int64) {
	if m == nil {
		return
	}
	s, h := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.entries[h]
	if known && old.fresh <= now {
		delete(s.entries, h)
		known = false
	}
	switch {
	case state == "" || known && old.state[1:] > state[1:]:
		return
	case fresh <= now:
		delete(s.entries, h)
		return
	case !known && len(s.entries) >= m.room:
		s.drop(now)
	}
	s.entries[h] = remembered{state, fresh}
}

// drop makes room for one entry: of a few, the one that is fresh soonest goes, and with it
// all others that are fresh.
func (s *memoryShard) drop(now int64) {
	soonest, at, left := uint64(0), int64(0), memorySample
	for h, e := range s.entries { // which begins anywhere
		if e.fresh <= now {
			delete(s.entries, h)
		}
		if left == memorySample || e.fresh < at {
			soonest, at = h, e.fresh
		}
		if left--; left == 0 {
			break
		}
	}
	delete(s.entries, soonest)
}
