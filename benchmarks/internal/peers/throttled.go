package peers

import (
	"context"
	"math"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

func throttledSubject() Subject {
	return Subject{
		Name: "throttled", Module: "github.com/throttled/throttled/v2", Kind: Library, Bounded: true,
		Note: "A bound on keys replaces its map with an LRU under one mutex. Its limit on CAS attempts, 10, is lifted: at 10 it answers contention with an error.",
		New:  newThrottled,
	}
}

func newThrottled(o Options) (Limiter, error) {
	store, err := memstore.NewCtx(o.MaxKeys)
	if err != nil {
		return nil, err
	}
	lim, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(o.Rate, o.Period),
		MaxBurst: o.Burst - 1, // it counts the units beyond the first
	})
	if err != nil {
		return nil, err
	}
	lim.SetMaxCASAttemptsLimit(math.MaxInt)
	return &throttledLimiter{lim: lim, ctx: context.Background()}, nil
}

type throttledLimiter struct {
	uncounted
	lim *throttled.GCRARateLimiterCtx
	ctx context.Context
}

func (l *throttledLimiter) Allow(key string) bool {
	limited, _, err := l.lim.RateLimitCtx(l.ctx, key, 1)
	return !limited && err == nil
}
