package redistier

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// A keyspace is the keys of a limit, and this process's share of it.
type keyspace struct {
	seed    maphash.Seed // of the ids of its keys
	local   *sluice.Limiter
	shareOf atomic.Pointer[plan] // that local has its part of
	sharing sync.Mutex           // held while local's limit changes
}

// A subject is a key of a limit. Its id tells it from those of all limits of a core.
type subject struct {
	*keyspace
	key string
	id  uint64
}

func newKeyspace(local *sluice.Limiter) *keyspace {
	return &keyspace{seed: maphash.MakeSeed(), local: local}
}

func (k *keyspace) subject(key string) subject { return subject{k, key, maphash.String(k.seed, key)} }

// newLocal returns a limiter of a part of a limit. It does not block: it is charged, too, by calls that
// it is not asked about. The error is a *ConfigError.
func newLocal(c Config, replicas, maxKeys int) (*sluice.Limiter, error) {
	local, err := sluice.New(sluice.Config{
		Algorithm: c.Algorithm, Limit: c.Limit.Share(replicas), Refill: c.Refill, Anchor: c.Anchor, Offset: c.Offset, MaxKeys: maxKeys,
	})
	if err != nil {
		return nil, configErrorf("Replicas", "a %d-th of %v cannot be kept: %v", replicas, c.Limit, err)
	}
	return local, nil
}

// reshare gives the local limiter its part of the limit in force. A part that it cannot
// keep leaves it with the last one.
func (k *keyspace) reshare(of *Limiter, replicas int) {
	k.sharing.Lock()
	defer k.sharing.Unlock()
	p := of.plan.Load()
	_ = k.local.SetLimit(p.limit.Share(replicas))
	k.shareOf.Store(p)
}
