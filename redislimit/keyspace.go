package redislimit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// A keyspace is the keys of a limit, or of several limits that have the same keys in Redis, with this process's
// share of them.
type keyspace struct {
	seed  maphash.Seed // for the ids of its keys
	local *sluice.Limiter
	lends atomic.Bool // its keys may have leases

	// For a Tier, local has the share of this keyspace alone.
	shareOf atomic.Pointer[plan] // the plan of which local has a part
	sharing sync.Mutex           // held while local's limit changes

	// For a Store, all keyspaces of a family share local: each key brings its share along.
	parts *atomic.Int64 // processes that share limits, or nil
}

// A subject is a key of a keyspace. Its id is its own among the keys of all keyspaces of a core.
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
	if k, err := key.WithLimit(p.limit); err == nil { // Store.Limit has checked that this limit can be kept
		return k
	}
	return key
}

// newLocal returns a limiter of a part of a limit. It never blocks a key: it is also charged for calls that
// it does not decide. The error is a *ConfigError.
func newLocal(c Config, replicas, maxKeys int) (*sluice.Limiter, error) {
	local, err := sluice.New(sluice.Config{
		Algorithm: c.Algorithm, Limit: c.Limit.Share(replicas), Offset: c.Offset, MaxKeys: maxKeys,
	})
	if err != nil {
		return nil, configErrorf("Replicas", "a %d-th of %v cannot be kept: %v", replicas, c.Limit, err)
	}
	return local, nil
}

// reshare gives the local limiter of a Tier its part of the limit in force. If it cannot keep that
// part it stays with the last one.
func (k *keyspace) reshare(of *Limiter, replicas int) {
	k.sharing.Lock()
	defer k.sharing.Unlock()
	p := of.plan.Load()
	_ = k.local.SetLimit(p.limit.Share(replicas))
	k.shareOf.Store(p)
}
