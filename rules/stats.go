package rules

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Series returns the statistics: of each rule in force, of the values that detailed_metric and
// value_to_metric ask for, and of each domain's overrides and others, sorted by domain and path.
// Rules that have counted nothing have zeros; overrides and others that have counted nothing are left out.
// A series that has been dropped, and comes back, begins at 0.
func (e *Engine) Series() []Series {
	e.admin.Lock()
	defer e.admin.Unlock()
	all := slices.Clone(e.previous)
	for _, d := range e.domains {
		all = slices.AppendSeq(all, maps.Values(*d.dynamic.all.Load()))
		for _, s := range []*series{d.override, d.other} {
			if sum := s.snapshot(); sum.Total|sum.Refunded != 0 {
				all = append(all, s)
			}
		}
	}
	return sums(all)
}

// sums returns the counts of each series, added up for series with the same path, of which the first has the levels. It sorts all.
func sums(all []*series) []Series {
	slices.SortStableFunc(all, func(a, b *series) int {
		return cmp.Or(strings.Compare(a.domain, b.domain), strings.Compare(a.path, b.path))
	})
	out := slices.Grow([]Series(nil), len(all))
	first := 0 // of the series with the path of the last sum
	for i, s := range all {
		if i == 0 || s.domain != all[first].domain || s.path != all[first].path {
			first = i
			out = append(out, s.snapshot())
			continue
		}
		if slices.Contains(all[first:i], s) {
			continue
		}
		sum, o := s.snapshot(), &out[len(out)-1]
		o.Total, o.Within, o.Near = o.Total+sum.Total, o.Within+sum.Within, o.Near+sum.Near
		o.Over, o.Shadow = o.Over+sum.Over, o.Shadow+sum.Shadow
		o.Estimated, o.Settled = o.Estimated+sum.Estimated, o.Settled+sum.Settled
		o.Refunded, o.Absorbed = o.Refunded+sum.Refunded, o.Absorbed+sum.Absorbed
		o.Unlimited += sum.Unlimited
	}
	return out
}

// Stats is the contents of an engine, and its counters beside hits.
type Stats struct {
	// Keys is the number of tracked keys, by the unit of their window; UnknownUnit stands for keys of rules
	// with a limiter, or windows, of their own.
	Keys [Week + 1]int
	// Evicted is the live keys that have been dropped for lack of room. Untracked is the calls for new keys
	// that were decided without a count, since Overflow keeps the old keys.
	Evicted, Untracked uint64
	// Denied is the keys whose denied hits wait for their refund, at most Config.MaxKeys, or one key in each of 256
	// parts, including some that wait no longer. Unrecorded is the denied calls that were not noted for lack of room. For
	// as long as their hits would have waited, refunds of keys of the same part that are not in Denied give nothing back.
	Denied     int
	Unrecorded uint64
	// Uncounted is the denied calls that rules with counts_denials_of have not counted, or not to the end, since the Store did not answer.
	Uncounted uint64
	// Series is how many series have paths that depend on requests, at most Config.MaxSeries.
	Series int
	// Calls is the number of answers, by domain.
	Calls map[string]Calls
	// GlobalShadow is the calls that Config.Shadow has admitted, and that would have been denied.
	GlobalShadow uint64
	// UnknownDomains is the number of descriptors of calls for domains without rules. UnknownDomainsByName has them by
	// name: at most 100 names, the others as "other".
	UnknownDomains       uint64
	UnknownDomainsByName map[string]uint64
}

// Calls is how often a domain's calls have been answered with each code.
type Calls struct{ OK, OverLimit uint64 }

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	e.admin.Lock()
	defer e.admin.Unlock()
	var out Stats
	e.counts.stats(&out)
	out.Uncounted = e.uncounted.Load()
	out.Calls = make(map[string]Calls, len(e.domains))
	for name, d := range e.domains {
		out.Calls[name] = Calls{d.ok.Load(), d.overLimit.Load()}
		out.Series += len(*d.dynamic.all.Load())
	}
	out.GlobalShadow = e.globalShadow.Load()
	out.UnknownDomains, out.UnknownDomainsByName = e.unknown.counts()
	return out
}

// unknownDomains counts descriptors of calls for domains that no file defines. Clients of the service choose
// these names, so only a few are kept.
type unknownDomains struct {
	mutex sync.Mutex
	total uint64
	names map[string]uint64
}

const maxUnknownDomains = 100

func (u *unknownDomains) add(name string, n uint64) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.total += n
	if u.names == nil {
		u.names = map[string]uint64{}
	}
	if _, ok := u.names[name]; !ok && (len(u.names) >= maxUnknownDomains || len(name) > 256) {
		name = "other"
	}
	u.names[strings.Clone(name)] += n
}

func (u *unknownDomains) counts() (uint64, map[string]uint64) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.total, maps.Clone(u.names)
}
