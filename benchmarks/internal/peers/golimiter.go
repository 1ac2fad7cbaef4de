package peers

import (
	"context"

	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
)

func goLimiter() Subject {
	return Subject{
		Name: "sethvargo/go-limiter", Module: "github.com/sethvargo/go-limiter", Kind: Library, Sweeps: true,
		Note: "Its burst is its rate. It refills in whole periods, and by too little where rate^2 exceeds the period in ns; no period ends during a run.",
		New: func(o Options) (Limiter, error) {
			store, err := memorystore.New(&memorystore.Config{Tokens: uint64(o.Rate), Interval: o.Period})
			return &goLimiterStore{store: store, ctx: context.Background()}, err
		},
	}
}

type goLimiterStore struct {
	uncounted
	store limiter.Store
	ctx   context.Context
}

func (l *goLimiterStore) Allow(key string) bool {
	_, _, _, ok, err := l.store.Take(l.ctx, key)
	return ok && err == nil
}

func (l *goLimiterStore) Close() {
	// The store's Close has no failure to report: it returns nil.
	_ = l.store.Close(l.ctx)
}
