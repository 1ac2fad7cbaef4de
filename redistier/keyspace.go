package redistier

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// A keyspace is the keys of a limit, or of several that have the same keys in Redis, and this process's
// share of them.
type keyspace struct {
	seed  maphash.Seed // of the ids of its keys
	local *sluice.Limiter
	lends atomic.Bool // there may be leases of its keys

	// Of a Tier, local is of its share, and of nobody else's.
	shareOf atomic.Pointer[plan] // that local has its part of
	sharing sync.Mutex           // held while local's limit changes

	// Of a Store, local is all keyspaces' of the same algorithm: keys bring their share along.
	parts *atomic.Int64 // processes that share limits, or nil
}

// A subject is a key of a keyspace. Its id tells it from those of all keyspaces of a core.
type subject struct {
	*keyspace
	key string
	id  uint64
}

func newKeyspace(local *sluice.Limiter) *keyspace {
	return &keyspace{seed: maphash.MakeSeed(), local: local}
}

func (k *keyspace) subject(key string) subject { return subject{k, key, maphash.String(k.seed, key)} }

// share returns the key in the local limiter, under this process's share of a plan.
func (s subject) share(p *plan) sluice.Key {
	if s.parts == nil {
		return s.local.Key(s.key)
	}
	key := s.local.KeyHash(s.id)
	if k, err := key.WithLimit(p.limit.Share(int(s.parts.Load()))); err == nil {
		return k
	}
	if k, err := key.WithLimit(p.limit); err == nil { // which Store.Limit has found out
		return k
	}
	return key
}

// newLocal returns a limiter of a part of a limit. It does not block: it is charged, too, by calls that
// it is not asked about. The error is a *ConfigError.
func newLocal(c Config, replicas, maxKeys int) (*sluice.Limiter, error) {
	local, err := sluice.New(sluice.Config{
		Algorithm: c.Algorithm, Limit: c.Limit.Share(replicas), Offset: c.Offset, MaxKeys: maxKeys,
	})
	if err != nil {
		return nil, configErrorf("Replicas", "a %d-th of %v cannot be kept: %v", replicas, c.Limit, err)
	}
	return local, nil
}

// reshare gives the local limiter of a Tier its part of the limit in force. A part that it cannot
// keep leaves it with the last one.
func (k *keyspace) reshare(of *Limiter, replicas int) {
	k.sharing.Lock()
	defer k.sharing.Unlock()
	p := of.plan.Load()
	_ = k.local.SetLimit(p.limit.Share(replicas))
	k.shareOf.Store(p)
}
