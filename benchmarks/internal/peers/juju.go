package peers

import "github.com/juju/ratelimit"

func juju() Subject {
	return Subject{
		Name: "juju/ratelimit in xsync", Module: "github.com/juju/ratelimit", Kind: Keyed,
		New: func(o Options) (Limiter, error) {
			return &jujuLimiter{newKeyed(func() *ratelimit.Bucket {
				return ratelimit.NewBucket(o.interval(), int64(o.Burst))
			})}, nil
		},
	}
}

type jujuLimiter struct{ keyed[*ratelimit.Bucket] }

func (l *jujuLimiter) Allow(key string) bool { return l.of(key).TakeAvailable(1) == 1 }
