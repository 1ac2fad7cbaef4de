package rules

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A refund is first subtracted from the denied hits of its key. Hits that were never counted are then settled. Hits that
// the count of the present window holds leave the count, as upstream. A refund does not say whether it is for an
// admitted call or for a denied one. The refunds of denied calls are taken to come first, so that all refunds together
// give back the admitted hits, and never more. Denied hits are not counted if another window has begun since, or if the
// limiter counts none or only some of them (count_denied of an algorithm other than fixed windows, block_for).

// Denied hits wait for their refund for the period of the limit, from the last denial of the key on, but for a
// time between these bounds. A proxy ends a denied stream, so its refund comes at once; it comes late from
// streams that a rule in shadow mode has let pass.
const (
	leastWait = time.Hour
	mostWait  = 24 * time.Hour
)

// denials are the denied hits of keys whose refunds may still come. At a stream's end a proxy gives back the hits
// that it has asked for, even if they were denied. If denied hits were not counted there is nothing to give
// back: their refund would create units.
//
// Keys are the ids of rules' entries, not of limiters, so that nothing is forgotten when a rule gets another
// algorithm. If there is no room for a key, all keys that are not there count as denied without bound.
type denials struct {
	shards     [256]denialShard
	most       int           // keys of a shard
	unrecorded atomic.Uint64 // denied calls that were not noted for lack of room
}

// denial is the hits that a key has been denied, and that have not been given back.
type denial struct {
	missing uint64 // hits that no count holds; boundless means all hits that ever come
	counted uint64 // hits that the count of a window holds
	window  uint64 // the window of counted
	until   int64  // when both are forgotten, Unix nanoseconds
}

const boundless = math.MaxUint64

type denialShard struct {
	mutex sync.Mutex
	keys  map[uint64]denial
	room  int   // how many keys there can be before the shard is searched for keys to forget
	look  int64 // when a full shard is searched again
	blind int64 // until then, a key that is not here may have been denied
}

// lookPause is how long a full shard is not searched again: a search takes time in proportion to its keys.
const lookPause = int64(time.Minute)

// bound makes room for so many keys, and for some of each shard.
func (d *denials) bound(keys int) {
	if keys < 0 {
		keys = math.MaxInt
	}
	d.most = max(1, keys/len(d.shards))
}

func (d *denials) shard(id uint64) *denialShard { return &d.shards[id>>56] }

// add notes hits that a key was denied.
func (d *denials) add(id uint64, now int64, more denial) {
	s := d.shard(id)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key, known := s.keys[id]
	switch {
	case known && key.until > now:
		key.roll(more.window)
	case !known && !s.fits(d.most, now):
		s.blind = max(s.blind, more.until)
		d.unrecorded.Add(1)
		return
	default:
		key = denial{window: more.window}
		if s.blind > now { // the key may have been denied more hits than are known
			key.missing, key.until = boundless, s.blind
		}
	}
	key.missing = addUpTo(key.missing, more.missing)
	key.counted = addUpTo(key.counted, more.counted)
	key.until = max(key.until, more.until)
	s.keys[id] = key
}

// absorb subtracts n hits from the denied hits of the key, and returns how many of them were never counted.
func (d *denials) absorb(id uint64, now int64, n, window uint64) (absorbed uint64) {
	s := d.shard(id)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	key, known := s.keys[id]
	if known && key.until <= now {
		delete(s.keys, id)
		known = false
	}
	switch {
	case !known && s.blind > now:
		return n
	case !known:
		return 0
	}
	key.roll(window)
	if key.missing == boundless {
		return n
	}
	absorbed = min(n, key.missing)
	key.missing -= absorbed
	key.counted -= min(key.counted, n-absorbed)
	if key.missing|key.counted == 0 {
		delete(s.keys, id)
	} else {
		s.keys[id] = key
	}
	return absorbed
}

// roll moves on to another window. Its count does not hold the hits that the count of the window before held.
func (k *denial) roll(window uint64) {
	if k.window != window {
		k.missing, k.counted, k.window = addUpTo(k.missing, k.counted), 0, window
	}
}

func addUpTo(a, b uint64) uint64 {
	if a > boundless-b {
		return boundless
	}
	return a + b
}

// fits reports whether there is room for another key. If it is full, fits first drops keys to forget.
func (s *denialShard) fits(most int, now int64) bool {
	if len(s.keys) < s.room {
		return true
	}
	if len(s.keys) >= most && now < s.look {
		return false
	}
	live := make(map[uint64]denial, len(s.keys)/2)
	for id, k := range s.keys {
		if k.until > now {
			live[id] = k
		}
	}
	s.keys, s.room = live, min(most, max(16, 2*len(live)))
	s.look = addTime(now, lookPause)
	return len(live) < most
}

// addTime is now+d, at most the end of time.
func addTime(now, d int64) int64 {
	if now > math.MaxInt64-d {
		return math.MaxInt64
	}
	return now + d
}

// uncount is called when nothing counts against a key any more: no count holds hits that it was denied.
func (d *denials) uncount(id uint64) {
	s := d.shard(id)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if key, known := s.keys[id]; known {
		key.missing, key.counted = addUpTo(key.missing, key.counted), 0
		s.keys[id] = key
	}
}

// len is how many keys there are, including some that are due to be forgotten.
func (d *denials) len() (n int) {
	for i := range d.shards {
		s := &d.shards[i]
		s.mutex.Lock()
		n += len(s.keys)
		s.mutex.Unlock()
	}
	return n
}

// denialSize is the size of a key in a snapshot: id, missing, counted, window, until. Before them is the latest
// blind, of 8 bytes.
const denialSize = 5 * 8

// appendTo writes the state of all keys.
func (d *denials) appendTo(b []byte) []byte {
	at, blind := len(b), int64(0)
	b = append(b, make([]byte, 8)...)
	for i := range d.shards {
		s := &d.shards[i]
		s.mutex.Lock()
		blind = max(blind, s.blind)
		for id, k := range s.keys {
			for _, v := range [...]uint64{id, k.missing, k.counted, k.window, uint64(k.until)} {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
		}
		s.mutex.Unlock()
	}
	binary.LittleEndian.PutUint64(b[at:], uint64(blind))
	return b
}

// restore adds the state that appendTo has written.
func (d *denials) restore(b []byte, now int64) error {
	if len(b)%denialSize != 8 {
		return badSnapshot("the denied hits are cut short")
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	for i := 1; i < len(b)/8; i += 5 {
		if until := int64(word(i + 4)); until > now {
			d.add(word(i), now, denial{missing: word(i + 1), counted: word(i + 2), window: word(i + 3), until: until})
		}
	}
	for i := range d.shards {
		s := &d.shards[i]
		s.blind = max(s.blind, int64(word(0)))
	}
	return nil
}
