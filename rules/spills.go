package rules

import (
	"encoding/binary"
	"time"
)

// spills are the units that keys have taken from their second budgets. What is given back is theirs first. So the second budget
// never gets more back than was taken from it for the key, and never units that other calls have taken. The lock of the key guards its
// shard. If there is no room for a key, all that it gives back goes to its first budget.
type spills struct {
	most   int // keys of a shard
	shards [256]spillShard
}

type spillShard struct {
	keys map[uint64]spill
	look int64 // when a full shard is searched again
}

type spill struct {
	units uint64
	of    uint64 // the second budget
	until int64  // when the second budget has forgotten them, Unix nanoseconds
}

func (s *spills) add(id, of uint64, now int64, n uint64, life time.Duration) {
	shard := &s.shards[id>>56]
	key, known := shard.keys[id]
	if !known && !shard.fits(s.most, now) {
		return
	}
	if key.until <= now || key.of != of {
		key = spill{of: of}
	}
	key.units = addUpTo(key.units, n)
	key.until = max(key.until, addTime(now, int64(life)))
	shard.keys[id] = key
}

// take returns how many of n units were taken from the second budget "of", and takes them off.
func (s *spills) take(id, of uint64, now int64, n uint64) uint64 {
	shard := s.shards[id>>56].keys
	key, known := shard[id]
	if !known {
		return 0
	}
	if key.until <= now || key.of != of {
		delete(shard, id)
		return 0
	}
	n = min(n, key.units)
	if key.units -= n; key.units == 0 {
		delete(shard, id)
	} else {
		shard[id] = key
	}
	return n
}

// fits reports whether there is room for another key. A shard that is full is searched for keys to forget.
func (s *spillShard) fits(most int, now int64) bool {
	if s.keys == nil {
		s.keys = map[uint64]spill{}
	}
	if len(s.keys) < most || now < s.look {
		return len(s.keys) < most
	}
	for id, k := range s.keys {
		if k.until <= now {
			delete(s.keys, id)
		}
	}
	s.look = addTime(now, lookPause)
	return len(s.keys) < most
}

// spillSize is the size of a key in a snapshot: id, units, of, until.
const spillSize = 4 * 8

// appendSpills writes all keys.
func (m *memory) appendSpills(b []byte) []byte {
	for i := range m.spilled.shards {
		m.locks[i].Lock()
		for id, k := range m.spilled.shards[i].keys {
			for _, v := range [...]uint64{id, k.units, k.of, uint64(k.until)} {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
		}
		m.locks[i].Unlock()
	}
	return b
}

// restoreSpills adds the keys that appendSpills has written.
func (m *memory) restoreSpills(b []byte, now int64) error {
	if len(b)%spillSize != 0 {
		return badSnapshot("the units of second budgets are cut short")
	}
	for ; len(b) > 0; b = b[spillSize:] {
		word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
		shard := &m.spilled.shards[word(0)>>56]
		if k := (spill{word(1), word(2), int64(word(3))}); k.until > now && shard.fits(m.spilled.most, now) {
			shard.keys[word(0)] = k
		}
	}
	return nil
}
