package peers

import (
	"time"

	"github.com/puzpuzpuz/xsync/v4"
)

// keyed holds one limiter a key in a concurrent map, as a user of a limiter of
// one key writes around it. Adapters embed it and add Allow.
type keyed[T any] struct {
	m     *xsync.Map[string, T]
	fresh func() (v T, cancel bool) // made once: a closure made in Allow would be an allocation a call
}

func newKeyed[T any](fresh func() T) keyed[T] {
	return keyed[T]{m: xsync.NewMap[string, T](), fresh: func() (T, bool) { return fresh(), false }}
}

// of returns the limiter of key.
func (k *keyed[T]) of(key string) T {
	v, _ := k.m.LoadOrCompute(key, k.fresh)
	return v
}

func (k *keyed[T]) Keys() int { return k.m.Size() }

func (k *keyed[T]) Sweep() {}

func (k *keyed[T]) Close() {}

// interval is the time in which one unit returns, rounded down: the time that most peers
// keep. It is exact for all workloads.
func (o Options) interval() time.Duration { return o.Period / time.Duration(o.Rate) }

// uncounted is embedded by limiters that neither tell how many keys they track nor
// can be made to sweep.
type uncounted struct{}

func (uncounted) Keys() int { return -1 }

func (uncounted) Sweep() {}

func (uncounted) Close() {}
