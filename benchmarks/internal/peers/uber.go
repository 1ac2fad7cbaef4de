package peers

import "go.uber.org/ratelimit"

func uber() Subject {
	return Subject{
		Name: "uber/ratelimit in xsync", Module: "go.uber.org/ratelimit", Kind: Keyed, Blocks: true,
		Note: "It makes callers wait and denies nobody. Its burst (slack) is only what was left unused since a key's first call. Where others have units that are never spent, it has 10^9 a second, for which no call waits.",
		New: func(o Options) (Limiter, error) {
			return &uberLimiter{newKeyed(func() ratelimit.Limiter {
				return ratelimit.New(o.Rate, ratelimit.Per(o.Period), ratelimit.WithSlack(o.Burst))
			})}, nil
		},
	}
}

type uberLimiter struct{ keyed[ratelimit.Limiter] }

func (l *uberLimiter) Allow(key string) bool {
	l.of(key).Take()
	return true
}
