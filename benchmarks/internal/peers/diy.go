package peers

import (
	"sync/atomic"
	"time"
)

func diy() Subject {
	return Subject{
		Name: "30 lines on xsync", Kind: Baseline,
		Note: "GCRA on xsync.Map, time.Now and a CAS loop: what one would write oneself. It never forgets a key.",
		New: func(o Options) (Limiter, error) {
			interval := int64(o.interval())
			return &diyLimiter{
				keyed:    newKeyed(func() *atomic.Int64 { return new(atomic.Int64) }),
				interval: interval, budget: interval * int64(o.Burst),
			}, nil
		},
	}
}

type diyLimiter struct {
	keyed[*atomic.Int64]
	interval, budget int64
}

func (l *diyLimiter) Allow(key string) bool {
	tat := l.of(key)
	now := time.Now().UnixNano()
	for {
		old := tat.Load()
		next := max(old, now) + l.interval
		if next-now > l.budget {
			return false
		}
		if tat.CompareAndSwap(old, next) {
			return true
		}
	}
}
