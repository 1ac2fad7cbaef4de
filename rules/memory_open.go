package rules

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/sluice-go/sluice"
)

// kept is the counter or limiter of a rule, and its configuration.
type kept struct {
	counter
	config sluice.Config
	gone   uint64 // the first generation without the rule, 0 while it is in force
}

func newMemory(c *Config, key *sipKey) (*memory, error) {
	m := &memory{config: c, key: key, kept: map[string]*kept{}, absent: map[string]*kept{}}
	m.holds.next.Store(math.MaxInt64)
	m.denials.bound(cmp.Or(c.MaxKeys, 1<<20))
	m.spilled.most = m.denials.most
	shared, err := newCounters(m.base(&domainOptions{}))
	m.groups = map[string]*counters{"": shared}
	return m, err
}

// base returns the configuration that all limiters of a domain have in common.
func (m *memory) base(o *domainOptions) sluice.Config {
	c := sluice.Config{MaxKeys: m.config.MaxKeys, Overflow: m.config.Overflow, Clock: m.config.Clock, Hash: sluice.HashStable}
	if o.maxKeys != 0 {
		c.MaxKeys = o.maxKeys
	}
	if o.overflowSet {
		c.Overflow = o.overflow
	}
	return c
}

func (m *memory) open(set *Set, known func(domain string) bool) (commit func(*generation) (after func()), err error) {
	groups := map[string]*counters{}
	for name, d := range set.domains {
		if groups[name], err = m.group(d, known(name)); err != nil {
			return nil, fmt.Errorf("rules: domain %s: %w", name, err)
		}
	}
	limiters := make([]*kept, len(set.rules))
	for i, r := range set.rules {
		if limiters[i], err = m.keep(r); err != nil {
			return nil, fmt.Errorf("rules: %s: %w", r.path, err)
		}
	}
	return func(g *generation) func() {
		m.commit(g, groups, limiters)
		return func() {}
	}, nil
}

// commit puts counters and limiters into g. Limiters that stay get their new limits first, so that no decision
// by the new rules uses an old limit.
func (m *memory) commit(g *generation, groups map[string]*counters, limiters []*kept) {
	for name, d := range g.domains {
		if groups[name] != m.groups[""] {
			m.groups["="+name] = groups[name]
		}
		for _, u := range units {
			d.counters[u] = &groups[name][u]
		}
	}
	next := map[string]*kept{}
	for i, r := range g.set.rules {
		k := limiters[i]
		switch {
		case r.unlimited:
			continue
		case k == nil:
			g.rules[i].counter = g.domains[r.domain.name].counters[r.unit]
			continue
		case !r.counting && k.config.Limit != r.config.Limit:
			// Load has accepted the same limit, so this cannot fail.
			if err := k.limiter.SetLimit(r.config.Limit); err != nil {
				panic(fmt.Sprintf("rules: %s: a limit that was accepted before: %v", r.path, err))
			}
		}
		k.config, next[r.identity()] = *r.config, k
		g.rules[i].counter = &k.counter
	}
	m.part(next, g.number)
	m.kept = next
	m.holds.share(m.config.MaxHolds, len(g.domains))
}

// group returns the counters of a domain: the ones that it has already, or new ones of its own, or the shared ones. A domain that is
// known keeps the shared counters.
func (m *memory) group(d *domain, known bool) (*counters, error) {
	if own := m.groups["="+d.name]; own != nil {
		return own, nil
	}
	if !d.ownCounters() || known {
		return m.groups[""], nil
	}
	return newCounters(m.base(&d.domainOptions))
}

// keep returns the limiter or counter of a rule, or nil for the counters of its unit. It returns the present one
// if that fits the rule, otherwise a new one.
func (m *memory) keep(r *Rule) (*kept, error) {
	if r.unlimited || r.counting && !r.ownCounter {
		return nil, nil
	}
	if old := cmp.Or(m.kept[r.identity()], m.absent[r.identity()]); old != nil && old.fits(r) {
		return old, nil
	}
	base := m.base(&r.domain.domainOptions)
	if r.counting {
		c, err := newCounter(&r.rateLimit, base)
		return &kept{counter: c, config: *r.config}, err
	}
	c := *r.config
	c.MaxKeys, c.Overflow, c.Clock = base.MaxKeys, base.Overflow, base.Clock
	lim, err := sluice.New(c)
	return &kept{counter: counter{limiter: lim}, config: *r.config}, err
}

// fits reports whether r can go on counting with k. A counter fits if its windows are the same, and it counts up to
// the threshold. A limiter fits if at most its limit has changed.
func (k *kept) fits(r *Rule) bool {
	if r.counting {
		return k.most >= int(max(r.limit, 1)) && k.config.Limit.Period == r.period && k.config.Limit.Calendar() == r.config.Limit.Calendar() && k.config.Offset == r.config.Offset
	}
	a, b := k.config, *r.config
	a.Limit, b.Limit = sluice.Limit{}, sluice.Limit{}
	return k.most == 0 && a == b
}

// part puts the limiters of rules that are no longer in force aside, so that a rule that comes back finds its counts, and its
// holds. A limiter goes when its rule is absent from forgetAfter generations in a row, or has another limiter.
func (m *memory) part(next map[string]*kept, number uint64) {
	for identity, k := range m.kept {
		if next[identity] == nil {
			k.gone, m.absent[identity] = number, k
		} else if next[identity] != k {
			m.retire(k.limiter)
		}
	}
	for identity, k := range m.absent {
		switch {
		case next[identity] == k:
			k.gone = 0
		case next[identity] == nil && number-k.gone+1 < forgetAfter:
			continue
		default:
			m.retire(k.limiter)
		}
		delete(m.absent, identity)
	}
}

// forget drops counters of domains that are not coming back, when they hold nothing.
func (m *memory) forget(known func(domain string) bool) {
	for group, cs := range m.groups {
		if name, own := strings.CutPrefix(group, "="); own && !known(name) && cs.empty() {
			for _, u := range units {
				m.retire(cs[u].limiter)
			}
			delete(m.groups, group)
		}
	}
}

// retire adds the sums of a limiter that is dropped to those in Stats, so that sums never go down.
func (m *memory) retire(l *sluice.Limiter) {
	s := l.Stats()
	m.evicted += s.Evicted
	m.untracked += s.Untracked
}
