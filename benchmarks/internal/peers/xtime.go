package peers

import (
	"sync"

	"golang.org/x/time/rate"
)

const xtimeModule = "golang.org/x/time"

func xtimeSubjects() []Subject {
	return []Subject{{
		Name: "x/time/rate in a mutex map", Module: xtimeModule, Kind: Keyed,
		Note: "The mutex guards the map only; each limiter has its own.",
		New: func(o Options) (Limiter, error) {
			return &xtimeMutex{options: o, m: make(map[string]*rate.Limiter)}, nil
		},
	}, {
		Name: "x/time/rate in sync.Map", Module: xtimeModule, Kind: Keyed,
		New: func(o Options) (Limiter, error) { return &xtimeSync{options: o}, nil },
	}, {
		Name: "x/time/rate in xsync", Module: xtimeModule, Kind: Keyed,
		New: func(o Options) (Limiter, error) {
			return &xtimeKeyed{newKeyed(func() *rate.Limiter { return newXtime(o) })}, nil
		},
	}, {
		Name: "x/time/rate alone", Module: xtimeModule, Kind: Bare,
		Note: "One limiter for all keys: what it costs without any map.",
		New:  func(o Options) (Limiter, error) { return xtimeBare{lim: newXtime(o)}, nil },
	}}
}

func newXtime(o Options) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(o.Rate)/o.Period.Seconds()), o.Burst)
}

type xtimeMutex struct {
	options Options
	mu      sync.Mutex
	m       map[string]*rate.Limiter
}

func (l *xtimeMutex) Allow(key string) bool {
	l.mu.Lock()
	lim, ok := l.m[key]
	if !ok {
		lim = newXtime(l.options)
		l.m[key] = lim
	}
	l.mu.Unlock()
	return lim.Allow()
}

func (l *xtimeMutex) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.m)
}

func (l *xtimeMutex) Sweep() {}

func (l *xtimeMutex) Close() {}

type xtimeSync struct {
	options Options
	m       sync.Map
}

// Allow loads before it makes a limiter, so that a known key allocates none.
func (l *xtimeSync) Allow(key string) bool {
	v, ok := l.m.Load(key)
	if !ok {
		v, _ = l.m.LoadOrStore(key, newXtime(l.options))
	}
	return v.(*rate.Limiter).Allow()
}

func (l *xtimeSync) Keys() int {
	n := 0
	l.m.Range(func(any, any) bool { n++; return true })
	return n
}

func (l *xtimeSync) Sweep() {}

func (l *xtimeSync) Close() {}

type xtimeKeyed struct{ keyed[*rate.Limiter] }

func (l *xtimeKeyed) Allow(key string) bool { return l.of(key).Allow() }

type xtimeBare struct {
	uncounted
	lim *rate.Limiter
}

func (l xtimeBare) Allow(string) bool { return l.lim.Allow() }
