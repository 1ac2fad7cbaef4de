// Package promises drives every limiter through the patterns of limittest in real time, and finds out which keep
// the promise of their documentation.
package promises

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/didip/tollbooth/v7"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/limittest"
)

// A Subject is a limiter and its promise.
type Subject struct {
	peers.Subject

	// Says is the promise in words, from the documentation of the limiter, and Most the same as the most
	// units in a span d.
	Says, Most string
	Promise    func(peers.Options) limittest.Promise
}

// A promise is shared by several subjects.
type promise struct {
	says, most string
	of         func(peers.Options) limittest.Promise
}

// The readings of documentations. Where one leaves open when a period begins, it is read in the limiter's favour.
var (
	bucket = promise{"a token bucket", "burst + rate x d", func(o peers.Options) limittest.Promise {
		return limittest.Bucket(sluice.Per(o.Rate, o.Period).WithBurst(o.Burst))
	}}
	slack = promise{"the rate, and what was unused, up to the slack", "slack + 1 + rate x d", func(o peers.Options) limittest.Promise {
		return limittest.Bucket(sluice.Per(o.Rate, o.Period).WithBurst(o.Burst + 1))
	}}
	// A token is there at each tick: a full bucket can be spent right before one.
	ticks = promise{"one token every interval, on a tick", "capacity + d / interval, rounded up", func(o peers.Options) limittest.Promise {
		interval := o.Period / time.Duration(o.Rate) // as the adapter gives it
		return limittest.Bound(func(d time.Duration) int { return o.Burst + int((d+interval-1)/interval) }, 0)
	}}
	windows = promise{"so many a period", "limit x (1 + d / period, rounded up)", func(o peers.Options) limittest.Promise {
		return limittest.Bound(func(d time.Duration) int { return o.Rate * (1 + int((d+o.Period-1)/o.Period)) }, 0)
	}}
	// The unit on top is for its rounding of the last window's share.
	counter = promise{"the sliding window counter", "limit x (1 + d / period) + 1, rounded up", func(o peers.Options) limittest.Promise {
		return limittest.Bound(func(d time.Duration) int {
			return o.Rate + int((int64(d)*int64(o.Rate)+int64(o.Period)-1)/int64(o.Period)) + 1
		}, 0)
	}}
)

// promised is which promise a subject's documentation makes.
var promised = map[string]promise{
	"sethvargo/go-limiter":       windows,
	"throttled":                  bucket,
	"ulule/limiter":              windows,
	"go-chi/httprate":            counter,
	"failsafe-go in xsync":       windows,
	"juju/ratelimit in xsync":    ticks,
	"uber/ratelimit in xsync":    slack,
	"x/time/rate in a mutex map": bucket,
	"30 lines on xsync":          bucket,
}

// Subjects are those whose promises are looked at: all peers once, and the algorithms of sluice.
func Subjects() []Subject {
	var all []Subject
	for _, s := range peers.All() {
		switch p, ok := promised[s.Name]; {
		case s.Kind == peers.Ours && s.Clock == peers.System:
			all = append(all, Subject{Subject: s, Says: "WorstCase", Most: "Limiter.WorstCase(d)", Promise: worstCase(s)})
		case ok:
			all = append(all, Subject{Subject: s, Says: p.says, Most: p.most, Promise: p.of})
		}
	}
	for _, s := range []peers.Subject{goLimiterSwept(), ululeSwept()} {
		all = append(all, Subject{Subject: s, Says: windows.says, Most: windows.most, Promise: windows.of})
	}
	all = append(all, Subject{Subject: tollboothSubject(), Says: bucket.says, Most: bucket.most, Promise: bucket.of})
	slices.SortStableFunc(all, func(a, b Subject) int { return rank(a) - rank(b) })
	return all
}

// rank puts ours first and baselines last.
func rank(s Subject) int {
	switch s.Kind {
	case peers.Ours:
		return 0
	case peers.Baseline:
		return 2
	}
	return 1
}

// worstCase asks a limiter for its promise.
func worstCase(s peers.Subject) func(peers.Options) limittest.Promise {
	return func(o peers.Options) limittest.Promise {
		l, err := s.New(o)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", s.Name, err)) // a run has made one already
		}
		defer l.Close()
		return limittest.Of(l.(interface{ Limiter() *sluice.Limiter }).Limiter(), 0)
	}
}

// sweeping is how often limiters with an interval for it clean up, to meet calls while they do.
const sweeping = time.Millisecond

// limiterFunc is a limiter of which no more than Allow is of interest.
type limiterFunc struct {
	allow func(key string) bool
	end   func()
}

func (l limiterFunc) Allow(key string) bool { return l.allow(key) }
func (limiterFunc) Keys() int               { return -1 }
func (limiterFunc) Sweep()                  {}
func (l limiterFunc) Close()                { l.end() }

// goLimiterSwept keeps a key for the interval that it limits, as SweepMinTTL wants it.
func goLimiterSwept() peers.Subject {
	return peers.Subject{
		Name: "sethvargo/go-limiter, sweeping", Module: "github.com/sethvargo/go-limiter", Kind: peers.Library,
		New: func(o peers.Options) (peers.Limiter, error) {
			store, err := memorystore.New(&memorystore.Config{
				Tokens: uint64(o.Rate), Interval: o.Period, SweepInterval: sweeping, SweepMinTTL: o.Period,
			})
			if err != nil {
				return nil, err
			}
			ctx := context.Background()
			return limiterFunc{func(key string) bool {
				_, _, _, ok, err := store.Take(ctx, key)
				return ok && err == nil
			}, func() { _ = store.Close(ctx) }}, nil // it returns nil
		},
	}
}

func ululeSwept() peers.Subject {
	return peers.Subject{
		Name: "ulule/limiter, sweeping", Module: "github.com/ulule/limiter/v3", Kind: peers.Library,
		New: func(o peers.Options) (peers.Limiter, error) {
			store := memory.NewStoreWithOptions(limiter.StoreOptions{Prefix: limiter.DefaultPrefix, CleanUpInterval: sweeping})
			lim, ctx := limiter.New(store, limiter.Rate{Period: o.Period, Limit: int64(o.Rate)}), context.Background()
			return limiterFunc{func(key string) bool {
				c, err := lim.Get(ctx, key)
				return err == nil && !c.Reached
			}, func() {}}, nil
		},
	}
}

// tollboothSubject is the decision of its middleware, with a burst of its own.
func tollboothSubject() peers.Subject {
	return peers.Subject{
		Name: "didip/tollbooth v7", Module: "github.com/didip/tollbooth/v7", Kind: peers.Library,
		New: func(o peers.Options) (peers.Limiter, error) {
			lmt := tollbooth.NewLimiter(float64(o.Rate)/o.Period.Seconds(), nil).SetBurst(o.Burst)
			return limiterFunc{func(key string) bool {
				return tollbooth.LimitByKeys(lmt, []string{key}) == nil
			}, func() {}}, nil
		},
	}
}
