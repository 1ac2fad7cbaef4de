package redislimit

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const clusterSlots = 16384

// A router finds the lane of a key. There is a lane for each primary, so that a slow primary
// does not hold up the keys of others. Commands find their primary by themselves: a router
// that is out of date costs isolation, and nothing else. It asks for the slots of a cluster in the
// background, one goroutine at a time; until it has them there is one lane. A ring knows its shards by itself.
type router struct {
	first   *lane
	make    func() *lane
	cluster *redis.ClusterClient // nil for any other client
	ring    *redis.Ring          // nil for any other client
	slots   atomic.Pointer[[clusterSlots]*lane]
	asked   atomic.Int64 // when it last asked, in Unix ns
	asking  atomic.Bool

	mu     sync.Mutex
	lanes  map[string]*lane // by address
	unused []*lane          // lanes that no longer have an address
	done   sync.WaitGroup
}

// slotsAge is the age at which a router asks for the slots again.
const slotsAge = 10 * time.Second

func newRouter(client redis.UniversalClient, make func() *lane) *router {
	r := &router{first: make(), make: make, lanes: map[string]*lane{}}
	r.cluster, _ = client.(*redis.ClusterClient)
	r.ring, _ = client.(*redis.Ring)
	switch c := client.(type) {
	case *Client:
		r.first.at(c.Options().Addr)
	case *redis.Client:
		r.first.at(c.Options().Addr)
	}
	return r
}

// lane returns the lane of a name in Redis.
func (r *router) lane(name string, now time.Time) *lane {
	if r.ring != nil {
		return r.shard(name)
	}
	if r.cluster == nil {
		return r.first
	}
	if now.UnixNano()-r.asked.Load() > int64(slotsAge) && r.asking.CompareAndSwap(false, true) {
		r.asked.Store(now.UnixNano())
		r.done.Go(func() {
			defer r.asking.Store(false)
			ctx, cancel := context.WithTimeout(context.Background(), slotsAge)
			defer cancel()
			_ = r.ask(ctx)
		})
	}
	if slots := r.slots.Load(); slots != nil {
		if l := slots[slotOf(name)]; l != nil {
			return l
		}
	}
	return r.first
}

// shard returns the lane of the shard that a ring has for a name now.
func (r *router) shard(name string) *lane {
	client, err := r.ring.GetShardClientForKey(name)
	if err != nil { // there is no shard
		return r.first
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	addr := client.Options().Addr
	l := r.lanes[addr]
	if l == nil {
		l = r.make()
		l.at(addr)
		r.lanes[addr] = l
	}
	return l
}

// stale makes the next call ask for the slots again, but not more than once a second.
func (r *router) stale(now time.Time) {
	if asked := r.asked.Load(); now.UnixNano()-asked > int64(time.Second) {
		r.asked.CompareAndSwap(asked, 0)
	}
}

// ask asks for the slots of a cluster.
func (r *router) ask(ctx context.Context) error {
	//lint:ignore SA1019 CLUSTER SHARDS needs Redis 7
	ranges, err := r.cluster.ClusterSlots(ctx).Result()
	if err != nil {
		return err
	}
	slots, unused := r.assign(ranges)
	r.slots.Store(slots)
	for _, l := range unused {
		owed, held := l.retire()
		to := func(name string) *lane {
			return cmp.Or(slots[slotOf(name)], r.first)
		}
		for name, o := range owed {
			to(name).inherit(name, o)
		}
		for _, of := range held {
			to(of.key).inheritHold(of)
		}
	}
	return nil
}

// assign returns the lane of each slot, and the lanes without slots.
func (r *router) assign(ranges []redis.ClusterSlot) (slots *[clusterSlots]*lane, unused []*lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slots = new([clusterSlots]*lane)
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(s redis.ClusterSlot) bool { return len(s.Nodes) == 0 })
	before := r.lanes
	r.lanes = map[string]*lane{}
	for _, s := range ranges {
		if l := before[s.Nodes[0].Addr]; l != nil {
			r.lanes[s.Nodes[0].Addr] = l
		}
	}
	for addr, l := range before {
		if r.lanes[addr] == nil {
			r.unused = append(r.unused, l)
		}
	}
	covered := 0
	for _, s := range ranges {
		l := r.lanes[s.Nodes[0].Addr]
		if l == nil {
			l = r.spare()
			l.at(s.Nodes[0].Addr)
			r.lanes[s.Nodes[0].Addr] = l
		}
		for i := max(s.Start, 0); i <= min(s.End, clusterSlots-1); i++ {
			slots[i] = l
			covered++
		}
	}
	unused = slices.Clone(r.unused)
	if covered >= clusterSlots { // otherwise the first lane has the other slots
		unused = append(unused, r.first)
	}
	return slots, unused
}

// spare returns a lane for a new address: an unused lane, if nothing is under way in it. So the number of lanes
// does not keep growing if primaries come back under new addresses. The caller holds mu.
func (r *router) spare() *lane {
	for i, l := range r.unused {
		if l.quiet() {
			r.unused = slices.Delete(r.unused, i, i+1)
			return l
		}
	}
	return r.make()
}

// owed returns the units that Redis has to be told of. now is in us.
func (r *router) owed(now int64) (units int64) {
	for _, l := range r.all() {
		l.mu.Lock()
		for _, o := range l.owed {
			units += o.left(now)
		}
		for _, holds := range l.held {
			for _, of := range holds {
				units += of.owed(l.core, now)
			}
		}
		l.mu.Unlock()
	}
	return units
}

// all returns all lanes.
func (r *router) all() []*lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append([]*lane{r.first}, r.unused...)
	for _, l := range r.lanes {
		all = append(all, l)
	}
	return all
}

// slotOf returns the slot of a name: the CRC-16 (XMODEM) of the text between the first {
// and the next }, if that text is not empty, or else of the whole name.
func slotOf(name string) int {
	if _, rest, ok := strings.Cut(name, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			name = tag
		}
	}
	crc := uint16(0)
	for i := range len(name) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^name[i]]
	}
	return int(crc % clusterSlots)
}

var crc16 = func() (t [256]uint16) {
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
		t[i] = crc
	}
	return t
}()
