package peers

import (
	"context"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

func ulule() Subject {
	return Subject{
		Name: "ulule/limiter", Module: "github.com/ulule/limiter/v3", Kind: Library, Sweeps: true,
		Note: "Fixed windows that begin with a key's first call. Its burst is its rate. Its store puts a prefix before each key, which is an allocation a call.",
		New: func(o Options) (Limiter, error) {
			return &ululeLimiter{
				lim: limiter.New(memory.NewStore(), limiter.Rate{Period: o.Period, Limit: int64(o.Rate)}),
				ctx: context.Background(),
			}, nil
		},
	}
}

type ululeLimiter struct {
	uncounted
	lim *limiter.Limiter
	ctx context.Context
}

func (l *ululeLimiter) Allow(key string) bool {
	c, err := l.lim.Get(l.ctx, key)
	return err == nil && !c.Reached
}
