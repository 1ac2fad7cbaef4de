package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// stored counts with a Store.
type stored struct {
	config     *Config
	counters   map[StoreLimit]StoreCounter // the admin lock of the engine guards it
	unrecorded atomic.Uint64               // denied calls that the Store has not noted
}

// open opens the counters of set in the Store. The error is a *LoadError of all that the Store does not keep.
func (s *stored) open(set *Set, _ func(string) bool) (commit func(*generation) (after func()), err error) {
	opened := map[StoreLimit]StoreCounter{} // that were not open before
	open := func(l StoreLimit) error {
		if s.counters[l] != nil || opened[l] != nil {
			return nil
		}
		c, err := s.config.Store.Open(l)
		if err == nil {
			opened[l] = c
		}
		return err
	}
	var problems []Problem
	ofDomains := map[*domain]string{}
	for _, d := range set.domains {
		for _, u := range units {
			if err := open(unitLimit(d, u)); err != nil {
				problems = append(problems, d.at.problem(d.name, err.Error()))
				ofDomains[d] = err.Error()
				break
			}
		}
	}
	for _, r := range set.rules {
		if r.unlimited {
			continue
		}
		err := r.unshared()
		if err == nil {
			err = open(s.limit(r))
		}
		if err != nil && err.Error() != ofDomains[r.domain] {
			problems = append(problems, r.at.problem(r.path, err.Error()))
		}
	}
	if len(problems) == 0 {
		return func(g *generation) func() { return s.commit(g, opened) }, nil
	}
	for _, c := range opened {
		c.Close()
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), comparePlaces(a, b))
	})
	return nil, &LoadError{problems}
}

// unshared refuses rules that no Store can keep, or only as a weaker limit.
func (r *Rule) unshared() error {
	c := r.config
	switch {
	case c.Soft != 0:
		return fmt.Errorf("soft: %d is not supported with a store; want it deleted, or counts in memory", c.Soft)
	case r.limit > maxRequests:
		return fmt.Errorf("requests_per_unit times scale is %d, of which a store counts at most %d; want a smaller scale, or counts in memory", r.limit, uint64(maxRequests))
	case c.CountDenied && c.Algorithm != sluice.FixedWindow:
		return fmt.Errorf("count_denied: true with %v, of which a store counts what is admitted; want it deleted, or counts in memory", c.Algorithm)
	}
	return nil
}

// limit returns the StoreLimit of a rule.
func (s *stored) limit(r *Rule) StoreLimit {
	c := r.config
	l := StoreLimit{Algorithm: c.Algorithm, Limit: c.Limit, Offset: c.Offset, BlockFor: c.BlockFor}
	l.Domain, l.Atomic, l.Second = r.domain.name, r.domain.atomic || r.second != nil || r.isSecond, r.isSecond
	l.Admitted = l.Windows() && !r.counting
	l.Leases = s.config.Leases && !r.noLeases && !l.Atomic && !s.config.StopWhenOver
	return l
}

// unitLimit returns the StoreLimit of overrides of a unit. Their thresholds come with the calls.
func unitLimit(d *domain, u Unit) StoreLimit {
	return StoreLimit{Domain: d.name, Atomic: d.atomic, Override: true, Algorithm: sluice.FixedWindow, Limit: sluice.Per(maxRequests, u.Period())}
}

// commit puts the counters into g. The counters that no rule needs any more are closed when g is in force.
func (s *stored) commit(g *generation, opened map[StoreLimit]StoreCounter) (after func()) {
	before := opened
	maps.Copy(before, s.counters)
	s.counters = map[StoreLimit]StoreCounter{}
	use := func(l StoreLimit) StoreCounter {
		s.counters[l] = before[l]
		return before[l]
	}
	for i, r := range g.set.rules {
		if !r.unlimited {
			g.rules[i].counter = use(s.limit(r))
		}
	}
	for _, d := range g.domains {
		for _, u := range units {
			d.counters[u] = use(unitLimit(d.domain, u))
		}
	}
	now := s.counters
	return func() {
		for l, c := range before {
			if now[l] == nil {
				c.Close()
			}
		}
	}
}

func (s *stored) forget(func(string) bool) {}

func (s *stored) reset(_ string, b *batch) error {
	store, ok := s.config.Store.(ResetStore)
	if !ok {
		return ErrNoReset
	}
	b.list()
	if err := store.Reset(b.asked); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
}

func (s *stored) stats(out *Stats) { out.Unrecorded = s.unrecorded.Load() }

func (s *stored) held(int64, *Holds) {}
