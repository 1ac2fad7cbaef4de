package rules

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
)

// hits is the numbers that a judgement adds to a series.
type hits struct{ total, within, near, over, shadow uint64 }

// series counts the hits of one rule, or of one value of it if detailed_metric or
// value_to_metric ask for that. It is striped, so that cores do not write to the same line.
type series struct {
	domain, path string
	levels       []string // nil for the levels of rule
	rule         *Rule
	stripes      []stripe

	estimated, settled atomic.Uint64 // hits of holds
}

type stripe struct {
	total, within, near, over, shadow, refunded, absorbed, unlimited atomic.Uint64 // a cache line
}

// stripeCount is a power of two.
var stripeCount = func() int {
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < 8 {
		n *= 2
	}
	return n
}()

func newSeries(domain, path string, levels []string) *series {
	return &series{domain: domain, path: path, levels: levels, stripes: make([]stripe, stripeCount)}
}

// seriesSlab makes series side by side, in few objects for the garbage collector to look at. An object stays in
// memory while one of its series is used. So the first has one series, and each next one twice as many, up to 32.
type seriesSlab struct {
	size    int // of the last object
	series  []series
	stripes []stripe
}

func (b *seriesSlab) one() *series {
	if len(b.series) == 0 {
		b.size = max(1, min(2*b.size, 32))
		b.series, b.stripes = make([]series, b.size), make([]stripe, b.size*stripeCount)
	}
	s := &b.series[0]
	s.stripes = b.stripes[:stripeCount:stripeCount]
	b.series, b.stripes = b.series[1:], b.stripes[stripeCount:]
	return s
}

// add counts h in the stripe that pick selects.
func (s *series) add(pick uint64, h *hits) {
	t := &s.stripes[pick&uint64(len(s.stripes)-1)]
	t.total.Add(h.total)
	if h.within != 0 {
		t.within.Add(h.within)
	}
	if h.near != 0 {
		t.near.Add(h.near)
	}
	if h.over != 0 {
		t.over.Add(h.over)
	}
	if h.shadow != 0 {
		t.shadow.Add(h.shadow)
	}
}

// refund counts hits that were to be given back, and how many of them were not.
func (s *series) refund(pick, refunded, absorbed uint64) {
	t := &s.stripes[pick&uint64(len(s.stripes)-1)]
	t.refunded.Add(refunded)
	if absorbed != 0 {
		t.absorbed.Add(absorbed)
	}
}

// pass counts hits of an unlimited rule.
func (s *series) pass(pick, n uint64) {
	s.stripes[pick&uint64(len(s.stripes)-1)].unlimited.Add(n)
}

// estimate counts hits that have been held, and settle hits of holds that were used.
func (s *series) estimate(n uint64) { s.estimated.Add(n) }
func (s *series) settle(n uint64)   { s.settled.Add(n) }

// Series is the hits that have been counted for one rule since the engine was made. It counts hits, not
// calls.
type Series struct {
	Domain string
	// Path is the rule's path: "domain.key_value.key". With detailed_metric and value_to_metric it
	// includes the values of requests. It is "override" for limits that come in a request, and
	// "other" for paths for which there is no room.
	Path string
	// Levels is the path's parts below the domain.
	Levels []string
	// Total is all hits. Within is the hits of descriptors that passed.
	Total, Within uint64
	// Near is the hits above 80% of the limit (Config.NearRatio) and up to it. Over is the hits above
	// it. Shadow is the hits in Over that a rule in shadow_mode admitted.
	Near, Over, Shadow uint64
	// Refunded is the hits that descriptors with Refund have asked to give back. They are in no other number.
	Refunded uint64
	// Absorbed is the hits in Refunded that were not given back, since as many hits of the same entries had been denied
	// and not counted. Denied hits wait for their refund for the limit's period from the last denial of these
	// entries on, but for at least an hour and at most a day. If denied calls get no refund, the refunds of
	// admitted calls are absorbed for that time.
	Absorbed uint64
	// Unlimited is the hits of unlimited rules. They are in no other number but Estimated.
	Unlimited uint64
	// Estimated is the hits that holds were admitted for, extensions included; they are in Total, too. Settled is the hits that
	// settled holds have used, which are in no other number. Holds that lapse are in Estimated only.
	Estimated, Settled uint64
}

func (s *series) snapshot() Series {
	out := Series{Domain: s.domain, Path: s.path, Levels: s.levels}
	if s.rule != nil {
		out.Levels = s.rule.staticLevels()
	}
	out.Estimated, out.Settled = s.estimated.Load(), s.settled.Load()
	for i := range s.stripes {
		t := &s.stripes[i]
		out.Total += t.total.Load()
		out.Within += t.within.Load()
		out.Near += t.near.Load()
		out.Over += t.over.Load()
		out.Shadow += t.shadow.Load()
		out.Refunded += t.refunded.Load()
		out.Absorbed += t.absorbed.Load()
		out.Unlimited += t.unlimited.Load()
	}
	return out
}

// hitsOf divides the hits of a judgement, which moved a count from before to after, into hits up
// to the threshold near, hits from there to the limit, and hits above the limit.
func hitsOf(n, before, after, near, limit uint64, over bool) hits {
	h := hits{total: n}
	switch {
	case over && (before >= limit || after <= limit): // the latter if the hits were not counted
		h.over = n
	case over:
		h.over = after - limit
		h.near = limit - max(near, before)
	default:
		h.within = n
		if after > near && after > before {
			h.near = min(n, after-near)
		}
	}
	return h
}

// dynamic is the series of a domain whose paths depend on requests.
type dynamic struct {
	left  *atomic.Int64 // how many more there can be, in all domains
	all   atomic.Pointer[map[string]*series]
	mutex sync.Mutex // held to add a series, which copies the map

	closed bool // guarded by mutex: no more series can be added
}

func newDynamic(left *atomic.Int64) *dynamic {
	d := &dynamic{left: left}
	d.all.Store(&map[string]*series{})
	return d
}

// maxSeriesPath is the longest path that gets a series, in bytes.
const maxSeriesPath = 1024

// get returns the series for these entries, or nil if there is no room for another series.
func (d *dynamic) get(r *Rule, entries []Entry) *series {
	var few [256]byte
	path := r.appendMetricPath(few[:0], entries)
	if s := (*d.all.Load())[string(path)]; s != nil {
		return s
	}
	if d.left.Load() <= 0 || len(path) > maxSeriesPath {
		return nil
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	old := *d.all.Load()
	if s := old[string(path)]; s != nil {
		return s
	}
	if d.closed {
		return nil
	}
	if d.left.Add(-1) < 0 {
		d.left.Add(1)
		return nil
	}
	s := newSeries(r.domain.name, string(path), r.metricLevels(entries))
	all := maps.Clone(old)
	all[s.path] = s
	d.all.Store(&all)
	return s
}

// close gives back the room of all series. A call that is still decided by old rules gets none.
func (d *dynamic) close() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.left.Add(int64(len(*d.all.Load())))
	d.all.Store(&map[string]*series{})
	d.closed = true
}

// appendLevel adds one level of a rule's path to b, as upstream names it in statistics: sharing is
// whether any level shares its counter for these entries.
func (r *Rule) appendLevel(b []byte, i int, e *Entry, sharing bool) []byte {
	n := r.levels[i]
	b = append(b, e.Key...)
	value := n.value()
	switch {
	case n.share && n.pattern != nil:
	case r.detailed:
		value = e.Value
		if value == "" && !sharing {
			return append(b, '_')
		}
	case value == "" && n.valueToMetric, n.pattern != nil && n.valueToMetric:
		value = e.Value
	}
	if value == "" {
		return b
	}
	return append(append(b, '_'), value...)
}

// sharing reports whether a level of the rule shares its counter for these entries. For upstream's statistics, a
// value that is spelled like the pattern does not share.
func (r *Rule) sharing(entries []Entry) bool {
	for i, n := range r.levels {
		if n.share && n.pattern != nil && entries[i].Value != n.value() {
			return true
		}
	}
	return false
}

// appendMetricPath adds the path that the rule's statistics have for these entries.
func (r *Rule) appendMetricPath(b []byte, entries []Entry) []byte {
	b = append(b, r.domain.name...)
	sharing := r.detailed && r.sharing(entries)
	for i := range entries {
		b = r.appendLevel(append(b, '.'), i, &entries[i], sharing)
	}
	return b
}

// metricLevels returns the parts that appendMetricPath joins.
func (r *Rule) metricLevels(entries []Entry) []string {
	out := make([]string, len(entries))
	sharing := r.detailed && r.sharing(entries)
	for i := range entries {
		out[i] = string(r.appendLevel(nil, i, &entries[i], sharing))
	}
	return out
}

func (r *Rule) staticLevels() []string {
	out := make([]string, len(r.levels))
	for i, n := range r.levels {
		out[i] = n.name
	}
	return out
}
