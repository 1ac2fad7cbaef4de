package rules

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// Config describes an Engine. The zero value of every field is a sensible default.
type Config struct {
	// Clock tells the time. nil means sluice.SystemClock.
	Clock sluice.Clock

	// MaxKeys bounds the tracked keys, for each unit by itself, and for each rule with a limiter of its
	// own. Overflow says what happens when there are more. Both mean the same as in sluice.Config,
	// and hold for domains that do not set their own. MaxKeys also bounds the keys with denied hits that wait for
	// their refund, for all domains together; see Stats.Unrecorded for what happens when there are more.
	MaxKeys  int
	Overflow sluice.Overflow

	// NearRatio is the share of a limit above which hits count as near it, in statistics. 0 means 0.8. A negative
	// number means none: all hits up to the limit are then near it.
	NearRatio float32

	// MaxSeries bounds the series of statistics whose paths depend on requests (detailed_metric,
	// value_to_metric). Hits of further paths, and of paths above 1024 bytes, are counted as the
	// domain's "other". 0 means 2000; a negative number none.
	MaxSeries int

	// Shadow counts as usual, but answers OK in Response.Code. The statuses are not changed.
	Shadow bool
	// Quota makes all descriptors quotas, also those without a rule. Descriptors with an unlimited rule are no quotas.
	Quota bool
	// MaxHolds bounds the limits that are held at the same time in the engine's memory, and those of Extends: a hold of three
	// limits counts as three. Half of it is divided evenly among the domains with rules, the rest is for whoever comes first.
	// Hold and Extend return ErrManyHolds for more. Each domain remembers as many ends of holds as its even part of MaxHolds.
	// 0 means 100,000; a hold of one limit takes some 450 bytes, and its end 180, with its id. A Store has bounds of its own.
	MaxHolds int
	// MaxHoldTTL is the longest Hold.TTL. 0 means an hour.
	MaxHoldTTL time.Duration

	// StopWhenOver counts only the descriptors that are over their limit, if there are any. It is exact
	// even if calls come at the same time, unless a Store counts.
	StopWhenOver bool

	// Store counts instead of the engine's memory. nil means the memory. A Store ignores MaxKeys and Overflow.
	// It refuses rules that it cannot keep: New and Swap then return a *LoadError. The counters that an engine has
	// opened in a Store are closed with the Store.
	Store Store
	// Leases lets the Store admit hits from units that it has been lent, except for rules with leases:
	// false. Remaining is then approximate, and so is the count of a window above its limit; admissions are exact.
	Leases bool
}

// An Engine decides by the rules of a Set, which can be swapped for another Set while it does.
// It is safe for concurrent use, and does not have to be closed. A Config.Store has to be, when no engine
// needs it any more.
type Engine struct {
	config Config
	clock  sluice.Clock
	key    sipKey
	now    atomic.Pointer[generation]
	locks  [256]sync.Mutex // of keys, by hash: for calls that look before they count

	denials denials
	holds   holds
	spilled spills

	unrestored []string // set once, by Restore

	globalShadow atomic.Uint64
	unknown      unknownDomains
	seriesLeft   atomic.Int64

	admin    sync.Mutex // guards the fields below
	groups   map[string]*counters
	kept     map[string]*kept
	absent   map[string]*kept            // of rules that are not in force
	shared   map[StoreLimit]StoreCounter // with a Store, instead of groups and kept
	domains  map[string]*domainSeries
	previous []*series // of the rules in force, by Rule.index
	number   uint64

	evicted, untracked uint64 // of limiters that are no longer there
}

// domainSeries is the statistics of a domain beside the series of its rules.
type domainSeries struct {
	override, other *series
	dynamic         *dynamic
	ok, overLimit   atomic.Uint64 // calls
	gone            uint64        // the first generation without the domain, 0 while it is in force
}

// kept is the counter or limiter of a rule, and its configuration.
type kept struct {
	counter
	config sluice.Config
	gone   uint64 // the first generation without the rule, 0 while it is in force
}

// generation is a set in force. It does not change.
type generation struct {
	set     *Set
	number  uint64
	domains map[string]*domainState
	rules   []ruleState // by Rule.index
}

type domainState struct {
	*domain
	*domainSeries
	hash     sip // fed the domain
	counters *counters

	shared    sharedUnits // with a Store, instead of counters
	storeName string      // begins the names of its keys in the Store
}

// ruleState is the state of a rule that decisions need.
type ruleState struct {
	counter
	near   uint64
	offset int64 // of the rule's windows
	series *series

	shared StoreCounter // with a Store, instead of counter
}

// New returns an engine that decides by set.
func New(set *Set, c Config) (*Engine, error) {
	var key sipKey
	rand.Read(key[:])
	return newEngine(set, c, key)
}

func newEngine(set *Set, c Config, key sipKey) (*Engine, error) {
	c.NearRatio = cmp.Or(c.NearRatio, 0.8)
	c.NearRatio = max(c.NearRatio, 0)
	if !(c.NearRatio <= 1) { // also if it is no number
		return nil, fmt.Errorf("rules: Config.NearRatio is %v; want at most 1, 0 for 0.8, or a negative number for none", c.NearRatio)
	}
	c.MaxSeries = cmp.Or(c.MaxSeries, 2000)
	c.MaxHolds, c.MaxHoldTTL = cmp.Or(c.MaxHolds, 100_000), cmp.Or(c.MaxHoldTTL, time.Hour)
	if c.MaxHolds < 0 || c.MaxHoldTTL < 0 {
		return nil, fmt.Errorf("rules: Config.MaxHolds is %d and MaxHoldTTL is %v; want at least 1 and more than 0, or 0 for the defaults", c.MaxHolds, c.MaxHoldTTL)
	}
	if c.Clock == nil {
		c.Clock = sluice.SystemClock()
	}
	e := &Engine{
		config: c, clock: c.Clock, key: key,
		groups: map[string]*counters{}, kept: map[string]*kept{}, absent: map[string]*kept{}, domains: map[string]*domainSeries{},
	}
	e.seriesLeft.Store(int64(c.MaxSeries))
	e.holds.next.Store(math.MaxInt64)
	e.denials.bound(cmp.Or(c.MaxKeys, 1<<20))
	e.spilled.most = e.denials.most
	if c.Store != nil {
		return e, e.Swap(set)
	}
	shared, err := newCounters(e.base(&domainOptions{}))
	if err != nil {
		return nil, err
	}
	e.groups[""] = shared
	return e, e.Swap(set)
}

// base returns the configuration that all limiters of a domain have in common.
func (e *Engine) base(o *domainOptions) sluice.Config {
	c := sluice.Config{MaxKeys: e.config.MaxKeys, Overflow: e.config.Overflow, Clock: e.clock, Hash: sluice.HashStable}
	if o.maxKeys != 0 {
		c.MaxKeys = o.maxKeys
	}
	if o.overflowSet {
		c.Overflow = o.overflow
	}
	return c
}

// Swap puts other rules into force. Counts stay: the counts of windows belong to domains, entries and
// units, and a rule with a limiter of its own keeps it, found by its path, unless more than its
// limit has changed. If ten Swaps in a row have not had the rule, its limiter is gone. New values of max_keys and overflow, of a domain or of such a rule, take effect when the
// process starts again. If ten Swaps in a row have not named a domain and it then comes back, its statistics begin
// anew, and its counters are chosen anew. Counters of its own stay until all of their keys are
// idle. Calls that start after Swap has returned are decided by the new rules, and each
// call is decided by one set from its begin to its end. After an error nothing has changed.
func (e *Engine) Swap(set *Set) error {
	if set == nil {
		return errors.New("rules: Swap of no set; want one that Load has returned")
	}
	e.admin.Lock()
	defer e.admin.Unlock()
	g := &generation{set: set, number: e.number + 1, domains: map[string]*domainState{}, rules: make([]ruleState, len(set.rules))}
	groups := map[string]*counters{}
	if e.config.Store != nil {
		opened, err := e.openAll(set)
		if err != nil {
			return err
		}
		for name := range set.domains {
			groups[name] = &counters{} // no counters
		}
		e.commit(g, groups, make([]*kept, len(set.rules)), opened)
		return nil
	}
	for name, d := range set.domains {
		group, err := e.group(d)
		if err != nil {
			return fmt.Errorf("rules: domain %s: %w", name, err)
		}
		groups[name] = group
	}
	limiters := make([]*kept, len(set.rules))
	for i, r := range set.rules {
		k, err := e.keep(r)
		if err != nil {
			return fmt.Errorf("rules: %s: %w", r.path, err)
		}
		limiters[i] = k
	}
	e.commit(g, groups, limiters, nil)
	return nil
}

// group returns the counters of a domain: the ones that it has already, or new ones of its own, or the shared ones.
func (e *Engine) group(d *domain) (*counters, error) {
	if known := e.groups["="+d.name]; known != nil {
		return known, nil
	}
	if !d.ownCounters() || e.domains[d.name] != nil {
		return e.groups[""], nil
	}
	return newCounters(e.base(&d.domainOptions))
}

// keep returns the limiter or counter of a rule, or nil for the counters of its unit. It returns the present one
// if that fits the rule, otherwise a new one.
func (e *Engine) keep(r *Rule) (*kept, error) {
	if r.unlimited || r.counting && !r.ownCounter {
		return nil, nil
	}
	if old := cmp.Or(e.kept[r.identity()], e.absent[r.identity()]); old != nil && old.fits(r) {
		return old, nil
	}
	base := e.base(&r.domain.domainOptions)
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
		return k.most >= int(max(r.limit, 1)) && k.config.Limit.Period == r.period && k.config.Offset == r.config.Offset
	}
	a, b := k.config, *r.config
	a.Limit, b.Limit = sluice.Limit{}, sluice.Limit{}
	return k.most == 0 && a == b
}

// commit puts g into force. Limiters that stay get their new limits first, so that no decision
// by the new rules uses an old limit.
func (e *Engine) commit(g *generation, groups map[string]*counters, limiters []*kept, opened map[StoreLimit]StoreCounter) {
	for name, d := range g.set.domains {
		if e.domains[name] == nil {
			e.domains[name] = &domainSeries{
				override: newSeries(name, "override", []string{"override"}),
				other:    newSeries(name, "other", []string{"other"}),
				dynamic:  newDynamic(&e.seriesLeft),
			}
		}
		if e.config.Store == nil && groups[name] != e.groups[""] {
			e.groups["="+name] = groups[name]
		}
		g.domains[name] = &domainState{domain: d, domainSeries: e.domains[name], hash: e.domainHash(name), counters: groups[name], storeName: string(appendPart(nil, '.', name))}
	}
	all := e.seriesOf(g.set.rules)
	next := map[string]*kept{}
	for i, r := range g.set.rules {
		state := ruleState{near: near(e.config.NearRatio, r.limit), series: all[i]}
		if k := limiters[i]; k != nil {
			if !r.counting && k.config.Limit != r.config.Limit {
				// Load has accepted the same limit, so this cannot fail.
				if err := k.limiter.SetLimit(r.config.Limit); err != nil {
					panic(fmt.Sprintf("rules: %s: a limit that was accepted before: %v", r.path, err))
				}
			}
			k.config, state.offset = *r.config, int64(r.config.Offset)
			next[r.identity()] = k
			state.counter = k.counter
		} else if !r.unlimited && e.config.Store == nil {
			state.counter = groups[r.domain.name][r.unit]
		}
		g.rules[i] = state
	}
	e.part(next, g.number)
	idle := e.commitShared(g, opened)
	e.kept, e.previous = next, all
	e.number = g.number
	e.holds.share(e.config.MaxHolds, len(g.domains))
	e.now.Store(g)
	for _, c := range idle {
		c.Close()
	}
	e.forget(g)
}

// part puts the limiters of rules that are no longer in force aside, so that a rule that comes back finds its counts, and its
// holds. A limiter goes when its rule is absent from forgetAfter generations in a row, or has another limiter.
func (e *Engine) part(next map[string]*kept, number uint64) {
	for identity, k := range e.kept {
		if next[identity] == nil {
			k.gone, e.absent[identity] = number, k
		} else if next[identity] != k {
			e.retire(k.limiter)
		}
	}
	for identity, k := range e.absent {
		switch {
		case next[identity] == k:
			k.gone = 0
		case next[identity] == nil && number-k.gone+1 < forgetAfter:
			continue
		default:
			e.retire(k.limiter)
		}
		delete(e.absent, identity)
	}
}

// forgetAfter is how many generations in a row a domain, or a rule, must be missing from.
const forgetAfter = 10

// forget drops the state of domains that are not coming back. Counters of their own are only
// dropped when they hold nothing.
func (e *Engine) forget(g *generation) {
	for name, d := range e.domains {
		switch {
		case g.domains[name] != nil:
			d.gone = 0
		case d.gone == 0:
			d.gone = g.number
		case g.number-d.gone+1 >= forgetAfter:
			d.dynamic.close()
			delete(e.domains, name)
		}
	}
	for group, cs := range e.groups {
		if name, own := strings.CutPrefix(group, "="); own && e.domains[name] == nil && cs.empty() {
			for _, u := range units {
				e.retire(cs[u].limiter)
			}
			delete(e.groups, group)
		}
	}
}

// retire adds the sums of a limiter that is dropped to those in Stats, so that sums never go down.
func (e *Engine) retire(l *sluice.Limiter) {
	s := l.Stats()
	e.evicted += s.Evicted
	e.untracked += s.Untracked
}

// seriesOf returns the series of each rule: the series of its path in the last set, or a new one.
func (e *Engine) seriesOf(rules []*Rule) []*series {
	type name struct{ domain, path string }
	known := make(map[name]*series, len(e.previous))
	for _, s := range e.previous {
		known[name{s.domain, s.path}] = s
		s.rule = nil
	}
	var fresh seriesSlab
	all := make([]*series, len(rules))
	for i, r := range rules {
		n := name{r.domain.name, r.path}
		s := known[n]
		if s == nil {
			s = fresh.one()
			known[n] = s
		}
		// With the strings of the new set, so that the old set does not stay in memory.
		s.domain, s.path, s.rule = n.domain, n.path, r
		all[i] = s
	}
	for _, s := range e.previous {
		if s.rule == nil { // series beside it may stay in memory
			s.domain, s.path = "", ""
		}
	}
	return all
}

// near is the count above which hits are near the limit, rounded as upstream rounds it.
func near(ratio float32, limit uint64) uint64 { return uint64(float32(limit) * ratio) }

func (e *Engine) domainHash(name string) sip {
	h := newSip(&e.key)
	h.word(uint64(len(name)))
	h.text(name)
	return h
}

// Set returns the rules in force, and their number: 1 for the first rules, one more after each Swap.
func (e *Engine) Set() (*Set, uint64) {
	g := e.now.Load()
	return g.set, g.number
}
