package rules

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
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
	// own. Overflow decides on new keys when there are more. Both mean the same as in sluice.Config,
	// and hold for domains that do not set their own. MaxKeys also bounds the keys with denied hits that wait for
	// their refund, for all domains together; see Stats.Unrecorded for the effect when there are more.
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
	// MaxHolds bounds the limits that are held at the same time in the engine's memory, Extends included: a hold of three
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
	counts counts
	memory *memory // which is counts, unless a Store is

	holds      holdStats
	unrestored []string // set once, by Restore

	globalShadow atomic.Uint64
	uncounted    atomic.Uint64 // calls whose denials a Store has not charged to the rules that count them
	unknown      unknownDomains
	seriesLeft   atomic.Int64

	admin    sync.Mutex // guards the fields below
	domains  map[string]*domainSeries
	previous []*series // of the rules in force, by Rule.index
	number   uint64
}

// domainSeries is the statistics of a domain beside the series of its rules.
type domainSeries struct {
	override, other *series
	dynamic         *dynamic
	ok, overLimit   atomic.Uint64 // calls
	gone            uint64        // the first generation without the domain, 0 while it is in force
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
	hash      sip                    // fed the domain
	counters  [Week + 1]StoreCounter // of overrides, by unit
	storeName string                 // begins the names of its keys in a Store; "" without one
}

// ruleState is the state of a rule that decisions need.
type ruleState struct {
	counter StoreCounter // nil if the rule is unlimited
	near    uint64
	offset  int64 // of the rule's windows
	series  *series
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
		config: c, clock: c.Clock, key: key, domains: map[string]*domainSeries{},
	}
	e.seriesLeft.Store(int64(c.MaxSeries))
	if c.Store != nil {
		e.counts = &stored{config: &e.config}
		return e, e.Swap(set)
	}
	m, err := newMemory(&e.config, &e.key)
	if err != nil {
		return nil, err
	}
	e.counts, e.memory = m, m
	return e, e.Swap(set)
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
	commit, err := e.counts.open(set, e.knows)
	if err != nil {
		return err
	}
	e.commit(set, commit)
	return nil
}

// knows reports whether a domain is in force, or has been lately.
func (e *Engine) knows(domain string) bool { return e.domains[domain] != nil }

// commit puts a set into force, whose counters are ready.
func (e *Engine) commit(set *Set, counters func(*generation) (after func())) {
	g := &generation{set: set, number: e.number + 1, domains: map[string]*domainState{}, rules: make([]ruleState, len(set.rules))}
	for name, d := range set.domains {
		if e.domains[name] == nil {
			e.domains[name] = &domainSeries{
				override: newSeries(name, "override", []string{"override"}),
				other:    newSeries(name, "other", []string{"other"}),
				dynamic:  newDynamic(&e.seriesLeft),
			}
		}
		state := &domainState{domain: d, domainSeries: e.domains[name], hash: e.domainHash(name)}
		if e.config.Store != nil {
			state.storeName = string(appendPart(nil, '.', name))
		}
		g.domains[name] = state
	}
	all := e.seriesOf(set.rules)
	for i, r := range set.rules {
		g.rules[i] = ruleState{near: near(e.config.NearRatio, r.limit), series: all[i]}
		if !r.unlimited {
			g.rules[i].offset = int64(r.config.Offset)
		}
	}
	after := counters(g)
	e.previous, e.number = all, g.number
	e.now.Store(g)
	after()
	e.forget(g)
}

// forgetAfter is how many generations in a row a domain, or a rule, must be missing from.
const forgetAfter = 10

// forget drops the state of domains that are not coming back.
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
	e.counts.forget(e.knows)
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
