package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/calendar"
	"github.com/sluice-go/sluice/internal/hint"
)

// Unit is a unit of time, by the numbers of Envoy's protocol.
type Unit uint8

// The units. Windows of a week begin on Thursdays, as 1970 did. A month is 30 days and a year 365.
const (
	UnknownUnit Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
)

// units lists the units, by length.
var units = []Unit{Second, Minute, Hour, Day, Week, Month, Year}

var unitNames = [...]string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"}

var unitPeriods = [...]time.Duration{
	Second: time.Second, Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour,
	Week: 7 * 24 * time.Hour, Month: 30 * 24 * time.Hour, Year: 365 * 24 * time.Hour,
}

// Valid reports whether u is one of the units.
func (u Unit) Valid() bool { return u >= Second && u <= Week }

// String returns the name in capitals, as in the protocol, or Unit(n).
func (u Unit) String() string {
	if int(u) < len(unitNames) {
		return unitNames[u]
	}
	return fmt.Sprintf("Unit(%d)", uint8(u))
}

// Period is the length of the unit, 0 for UnknownUnit.
func (u Unit) Period() time.Duration {
	if int(u) < len(unitPeriods) {
		return unitPeriods[u]
	}
	return 0
}

func parseUnit(s string) (Unit, bool) {
	for _, u := range units {
		if strings.EqualFold(s, unitNames[u]) {
			return u, true
		}
	}
	return UnknownUnit, false
}

// A Set is the rules of a number of files. It never changes, and so is safe for concurrent use.
type Set struct {
	domains  map[string]*domain
	rules    []*Rule
	names    map[string]int // numbers of rate_limit.name, from 1
	warnings []Problem
	digest   string
}

// Warnings returns the problems that Load found in the files although it accepted them.
func (s *Set) Warnings() []Problem { return slices.Clone(s.warnings) }

// Digest identifies the content of the files that the set was loaded from.
func (s *Set) Digest() string { return s.digest }

// Domains returns the names of all domains, sorted.
func (s *Set) Domains() []string {
	out := make([]string, 0, len(s.domains))
	for name := range s.domains {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Len returns how many rules there are.
func (s *Set) Len() int { return len(s.rules) }

// Rules returns all rules, sorted by path.
func (s *Set) Rules() []*Rule {
	out := slices.Clone(s.rules)
	slices.SortFunc(out, func(a, b *Rule) int { return strings.Compare(a.path, b.path) })
	return out
}

type domain struct {
	name string
	at   place // where it was first named
	root *node

	actions [][]Action // "http"
	domainOptions
	inFlight bool // there are rules of units in flight
}

// domainOptions are the keys of "sluice".
type domainOptions struct {
	maxKeys     int // 0 for the engine's
	overflow    sluice.Overflow
	overflowSet bool
	atomic      bool
	countDenied *bool
	hint        hint.Hint // how the wait after a denial is told
	hints       bool      // the file says how
}

// ownCounters reports whether the domain has counters of its own.
func (o *domainOptions) ownCounters() bool { return o.maxKeys != 0 || o.overflowSet }

// node is a descriptor of the configuration.
type node struct {
	name          string   // key_value, or key
	keyLen        int      // of the key, in name
	pattern       *pattern // of a value with "*"
	share         bool     // share_threshold
	valueToMetric bool
	rule          *Rule // nil for none
	children      map[string]*branch
}

func (n *node) key() string { return n.name[:n.keyLen] }

// value returns the descriptor's value, empty if it has none.
func (n *node) value() string {
	if len(n.name) == n.keyLen {
		return ""
	}
	return n.name[n.keyLen+1:]
}

// branch holds the descriptors of a level that have the same key.
type branch struct {
	values   map[string]*node // by value; patterns are there, too
	patterns []*node          // in the order of the file
	all      *node            // the one without a value
}

// child returns the descriptor for an entry: the one with exactly its value, else the first pattern
// that fits, else the one without a value; nil if there is none.
func (n *node) child(e *Entry) *node {
	b := n.children[e.Key]
	if b == nil {
		return nil
	}
	if c := b.values[e.Value]; c != nil {
		return c
	}
	for _, c := range b.patterns {
		if c.pattern.fits(e.Value) {
			return c
		}
	}
	return b.all
}

// An Entry is a part of a descriptor.
type Entry struct{ Key, Value string }

// Match returns the rule that limits a descriptor with these entries, or nil. The choice for an
// entry is final: a more specific descriptor hides a more general one, even if it has no
// rule at the depth of the last entry. Entries with counts for the weights of a rule come after the rule's own.
func (s *Set) Match(domain string, entries []Entry) *Rule {
	d := s.domains[domain]
	if d == nil {
		return nil
	}
	return d.match(entries)
}

// Named returns the entries of a descriptor that name its limit: all but the counts for the weights of its rule.
func (s *Set) Named(domain string, entries []Entry) []Entry {
	if r := s.Match(domain, entries); r != nil && r.weights != nil {
		return entries[:len(r.levels)]
	}
	return entries
}

// InFlight returns the rule of units in flight, of the shortest Period, that limits one of a request's descriptors, or nil.
// Whoever decides such a request has to say when it ends: by Engine.Hold and Settle, or by a Descriptor with Refund.
func (s *Set) InFlight(req *Request) (shortest *Rule) {
	d := s.domains[req.Domain]
	if d == nil || !d.inFlight {
		return nil
	}
	for i := range req.Descriptors {
		r := d.match(req.Descriptors[i].Entries)
		if req.Descriptors[i].Override != nil || !r.inFlight() {
			continue
		}
		if shortest == nil || r.period < shortest.period {
			shortest = r
		}
	}
	return shortest
}

func (d *domain) match(entries []Entry) *Rule {
	if len(entries) == 0 {
		return nil
	}
	n := d.root
	for i := range entries {
		next := n.child(&entries[i])
		switch {
		case next != nil:
			n = next
		case n.rule != nil && n.rule.weights.has(entries[i].Key):
			return n.rule // the rest is counts
		default:
			return nil
		}
	}
	return n.rule
}

// A Rule is a rate_limit of a file.
type Rule struct {
	index     int
	domain    *domain
	path      string
	levels    []*node // from the top to the rule's own
	rateLimit         // the limit in the file

	shadow, quota bool
	detailed      bool
	metricValues  bool // the series depends on the request's values
	metadata      map[string]any

	second   *Rule // by then
	isSecond bool  // of another rule
	valueAt  []int // for each level of second the entry that has its value, -1 for its own
}

// rateLimit is the keys of "rate_limit".
type rateLimit struct {
	requests   uint32
	unit       Unit              // UnknownUnit if the period is not the length of a unit
	period     time.Duration     // of a calendar, the longest
	calendar   sluice.Calendar   // with a unit if the windows are a calendar's
	dates      *calendar.Windows // of the calendar, or nil
	unlimited  bool
	name       string
	nameID     int // 0 for none
	replaces   []int
	counting   bool // in counters, of the unit or of its own; else in a limiter
	ownCounter bool
	noLeases   bool           // leases: false, for a Store
	weights    *weights       // nil for none
	then       string         // the name of the second budget
	thenAt     place          // of that name
	denialsOf  string         // the name of the rules whose denials are counted
	denialsID  int            // of that name, 0 for none
	denialsAt  place          // of that name
	deniedToo  bool           // count_denied: true, in the rule itself
	scale      uint64         // units in one of requests
	limit      uint64         // requests in units
	debt       uint64         // max_debt in units
	config     *sluice.Config // of the limiter, without MaxKeys, Overflow, Clock; nil if unlimited
	at         place
}

// Path is the rule's place: domain, keys and values, "domain.key_value.key".
func (r *Rule) Path() string { return r.path }

// Domain is the name of the rule's domain.
func (r *Rule) Domain() string { return r.domain.name }

// Name is rate_limit.name, which other rules can replace; empty if there is none.
func (r *Rule) Name() string { return r.name }

// Requests is requests_per_unit.
func (r *Rule) Requests() uint32 { return r.requests }

// Unit is the unit of the limit; UnknownUnit if Period is not the length of a unit.
func (r *Rule) Unit() Unit { return r.unit }

// Period is the time over which Requests are counted; 0 if the rule is unlimited. Of a Calendar it is the length of the longest
// window, as if days had 24 hours.
func (r *Rule) Period() time.Duration { return r.period }

// Calendar says where the windows of the rule begin, if that is by the calendar of a time zone; otherwise it is zero.
func (r *Rule) Calendar() sluice.Calendar { return r.calendar }

// windows is a limit of n in each of the windows.
func (o *rateLimit) windows(n int) sluice.Limit {
	if o.dates != nil {
		return sluice.PerCalendar(n, o.calendar)
	}
	return sluice.Per(n, o.period)
}

// Unlimited reports whether the rule admits everything.
func (r *Rule) Unlimited() bool { return r.unlimited }

// Shadow reports whether the rule counts and never denies.
func (r *Rule) Shadow() bool { return r.shadow }

// Quota reports whether the rule denies only together with all other quotas of a request.
func (r *Rule) Quota() bool { return r.quota }

// Algorithm is how the rule counts.
func (r *Rule) Algorithm() sluice.Algorithm {
	if r.counting || r.unlimited {
		return sluice.FixedWindow
	}
	return r.config.Algorithm
}

// inFlight reports whether the rule is of units in flight.
func (r *Rule) inFlight() bool { return r != nil && r.Algorithm() == sluice.InFlight }

// Metadata is the descriptor's metadata: text, bool, int64, float64, nil, []any and
// map[string]any. It must not be changed.
func (r *Rule) Metadata() map[string]any { return r.metadata }

// String describes the rule in a line, in upstream's form, followed by the settings that upstream does not have.
func (r *Rule) String() string {
	limit := fmt.Sprintf("unit=%s requests_per_unit=%d", r.unit, r.requests)
	if r.inFlight() {
		limit = fmt.Sprintf("at_once: %d, lease: %s", r.requests, r.period)
	}
	if r.dates != nil {
		limit = fmt.Sprintf("calendar: {%s}, requests_per_unit: %d", r.dates.Calendar.Fields(), r.requests)
	}
	s := fmt.Sprintf("%s: %s, shadow_mode: %t, quota_mode: %t", r.path, limit, r.shadow, r.quota)
	if r.unlimited {
		return s + ", unlimited: true"
	}
	if r.unit == UnknownUnit && !r.inFlight() && r.dates == nil {
		s += fmt.Sprintf(", period: %s", r.period)
	}
	if r.weights != nil {
		s += ", weights: " + r.weights.String()
	}
	if r.scale > 1 {
		s += fmt.Sprintf(", scale: %d", r.scale)
	}
	if r.then != "" {
		s += fmt.Sprintf(", then: %s", r.then)
	}
	if r.denialsOf != "" {
		s += fmt.Sprintf(", counts_denials_of: %s", r.denialsOf)
	}
	c, burst := r.config, max(r.config.Limit.Burst, 0)
	if !r.counting && !r.inFlight() {
		s += fmt.Sprintf(", algorithm: %s", c.Algorithm)
	}
	if burst != 0 {
		s += fmt.Sprintf(", burst: %d", burst)
	}
	if c.Soft != 0 {
		s += fmt.Sprintf(", soft: %d", c.Soft)
	}
	if r.debt != r.defaultDebt(uint64(burst)) {
		s += fmt.Sprintf(", max_debt: %d", r.debt/r.scale)
	}
	if c.BlockFor != 0 {
		s += fmt.Sprintf(", block_for: %s", c.BlockFor)
	}
	if c.Offset != 0 {
		s += fmt.Sprintf(", offset: %s", c.Offset)
	}
	return s
}
