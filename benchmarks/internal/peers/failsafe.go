package peers

import "github.com/failsafe-go/failsafe-go/ratelimiter"

func failsafeGo() Subject {
	return Subject{
		Name: "failsafe-go in xsync", Module: "github.com/failsafe-go/failsafe-go", Kind: Keyed,
		Note: "Its bursty limiter, as its smooth one has no burst: fixed windows that begin with a key's first call. Its burst is its rate.",
		New: func(o Options) (Limiter, error) {
			return &failsafeLimiter{newKeyed(func() ratelimiter.RateLimiter[any] {
				return ratelimiter.NewBursty[any](uint(o.Rate), o.Period)
			})}, nil
		},
	}
}

type failsafeLimiter struct {
	keyed[ratelimiter.RateLimiter[any]]
}

func (l *failsafeLimiter) Allow(key string) bool { return l.of(key).TryAcquirePermit() }
