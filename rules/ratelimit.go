package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-go/sluice"
)

// maxMaxKeys is the most that max_keys can be.
const maxMaxKeys = math.MaxInt32

// rateLimitReader reads "rate_limit" of one descriptor.
type rateLimitReader struct {
	*loader
	path string
	at   *yaml.Node
	by   fieldList
	out  rateLimit

	algorithm        sluice.Algorithm
	burst, soft      int64
	maxDebt          int64
	hasMaxDebt       bool
	period           time.Duration
	multiplier       int64
	atOnce           int64
	lease            time.Duration
	blockFor, offset time.Duration
	countDenied      *bool

	domain *domain
}

// rateLimit reads the limit of a descriptor; false if it has none. If the limit is given twice, the keys
// of both count, as in upstream.
func (l *loader) rateLimit(fields fieldList, d *domain, path string) (rateLimit, bool) {
	r := rateLimitReader{loader: l, path: path, multiplier: 1, domain: d}
	r.out.scale = 1
	var all fieldList
	for _, f := range fields {
		if f.name != "rate_limit" {
			continue
		}
		switch {
		case f.value.Kind == yaml.MappingNode:
			r.at = f.value
			all = append(all, l.fields(f.value, path)...)
		case isNull(f.value):
			r.at, all = nil, nil
			if list := fields.at("descriptors").value; list != nil && len(list.Content) > 0 {
				continue // it leads to limits
			}
			l.warnAt(f.key, path, "rate_limit is empty, so nothing is limited; want unit and requests_per_unit, or no rate_limit")
		default:
			l.errorAt(f.value, path, "rate_limit is %s; want a map with unit and requests_per_unit", show(f.value))
		}
	}
	if r.at == nil {
		return rateLimit{}, false
	}
	r.by, r.out.at = last(all), l.place(r.at)
	for _, f := range r.by {
		r.read(f)
	}
	if !r.checkAtOnce() {
		r.checkUnit()
	}
	r.checkReplaces()
	r.shape()
	return r.out, true
}

func (r *rateLimitReader) read(f field) {
	switch f.name {
	case "unit", "replaces":
	case "calendar":
		r.readCalendar(f)
	case "requests_per_unit":
		n, _ := r.number(f, r.path, 0, min(math.MaxUint32, maxRequests))
		r.out.requests = uint32(n)
	case "unlimited":
		r.out.unlimited = r.boolean(f, r.path)
	case "name":
		r.out.name = r.text(f, r.path)
		r.out.nameID = r.nameID(r.out.name)
	case "unit_multiplier":
		if n, ok := r.number(f, r.path, 1, math.MaxUint32); ok {
			r.multiplier = n
		}
	case "period":
		r.period = r.duration(f, 1)
	case "algorithm":
		err := r.algorithm.UnmarshalText([]byte(strings.ReplaceAll(r.text(f, r.path), "in_flight", "in-flight")))
		if err != nil || r.algorithm == sluice.TokenBucketInterval || r.algorithm == sluice.FixedWindowFirstCharge {
			r.errorAt(f.value, r.path, "algorithm is %s; want %s", show(f.value), "gcra, token-bucket, leaky-bucket, sliding-window, sliding-log, fixed-window or in-flight")
		}
	case "at_once":
		r.atOnce, _ = r.number(f, r.path, 0, min(math.MaxUint32, maxRequests))
	case "lease":
		r.lease = r.duration(f, 1)
	case "burst":
		r.burst, _ = r.number(f, r.path, 1, math.MaxInt32)
	case "soft":
		r.soft, _ = r.number(f, r.path, 0, math.MaxInt32)
	case "max_debt":
		r.maxDebt, r.hasMaxDebt = r.number(f, r.path, 0, math.MaxUint32)
	case "block_for":
		r.blockFor = r.duration(f, 0)
	case "offset":
		r.offset = r.duration(f, 0)
	case "count_denied":
		b := r.boolean(f, r.path)
		r.countDenied = &b
	case "leases":
		r.out.noLeases = !r.boolean(f, r.path)
	case "weights":
		r.out.weights = r.readWeights(f)
	case "then":
		r.out.then = r.text(f, r.path)
		r.out.thenAt = r.place(f.value)
	case "counts_denials_of":
		r.out.denialsOf = r.text(f, r.path)
		r.out.denialsID = r.nameID(r.out.denialsOf)
		r.out.denialsAt = r.place(f.value)
	case "scale":
		if n, ok := r.number(f, r.path, 1, maxScale); ok {
			r.out.scale = uint64(n)
		}
	default:
		r.unknown(f, r.path, inRateLimit)
	}
}

// duration reads a time such as 90s or 1h30m, of at least least.
func (r *rateLimitReader) duration(f field, least time.Duration) time.Duration {
	return r.loader.duration(f, r.path, least)
}

// duration reads a time of at least least.
func (l *loader) duration(f field, path string, least time.Duration) time.Duration {
	d, err := time.ParseDuration(l.text(f, path))
	if err != nil || d < least {
		l.errorAt(f.value, path, "%s is %s; want a time of at least %v, such as 90s, 15m or 1h30m", f.name, show(f.value), max(least, 0))
		return max(least, 0)
	}
	return d
}

// nameID numbers the names of rules, so that decisions compare numbers.
func (l *loader) nameID(name string) int {
	if name == "" {
		return 0
	}
	id := l.set.names[name]
	if id == 0 {
		id = len(l.set.names) + 1
		l.set.names[name] = id
	}
	return id
}

// checkAtOnce reads at_once and lease, which say the same as requests_per_unit, period and algorithm: in-flight.
// It returns false if neither is given.
func (r *rateLimitReader) checkAtOnce() bool {
	atOnce, hasAtOnce := r.by.get("at_once")
	lease, hasLease := r.by.get("lease")
	switch {
	case !hasAtOnce && !hasLease || r.out.unlimited:
		return false
	case !hasAtOnce:
		r.errorAt(lease.key, r.path, "lease is given without at_once; want at_once: a whole number beside it")
		return true
	case !hasLease:
		r.errorAt(atOnce.key, r.path, "at_once is given without lease; want lease: a time beside it, such as 1m: hits that nobody gives back or renews come back after it")
		return true
	}
	for _, name := range []string{"unit", "requests_per_unit", "unit_multiplier", "period", "algorithm"} {
		if f, ok := r.by.get(name); ok {
			r.errorAt(f.key, r.path, "at_once and %s are both given; want %s deleted", name, name)
		}
	}
	r.algorithm, r.out.requests = sluice.InFlight, uint32(r.atOnce)
	r.out.period, r.out.unit = r.lease, unitOf(r.lease)
	return true
}

// checkUnit finds the length of the window.
func (r *rateLimitReader) checkUnit() {
	unitField, hasUnit := r.by.get("unit")
	periodField, hasPeriod := r.by.get("period")
	name := ""
	if hasUnit {
		name = r.text(unitField, r.path)
	}
	unit, valid := parseUnit(name)
	switch {
	case r.out.unlimited:
		r.checkUnlimited(valid)
	case r.checkCalendar():
	case hasPeriod && hasUnit:
		r.errorAt(periodField.key, r.path, "unit and period are both given; want one of them")
	case hasPeriod && r.multiplier != 1:
		r.errorAt(r.by.at("unit_multiplier").key, r.path, "unit_multiplier and period are both given; want unit_multiplier with a unit only")
	case hasPeriod:
		r.out.period = r.period
		r.out.unit = unitOf(r.period)
	case !valid:
		at, what := r.at, "is missing"
		if hasUnit {
			at, what = unitField.value, "is "+show(unitField.value)
		}
		r.errorAt(at, r.path, "unit %s; want second, minute, hour, day, week, month or year, or period: a time, or calendar", what)
	case r.multiplier > int64(math.MaxInt64/unit.Period()):
		r.errorAt(r.by.at("unit_multiplier").value, r.path, "unit_multiplier is %d, and %d %ss do not fit in 292 years; want a smaller one",
			r.multiplier, r.multiplier, strings.ToLower(unit.String()))
	default:
		r.out.period = unit.Period() * time.Duration(r.multiplier)
		r.out.unit = unitOf(r.out.period)
	}
	if f, ok := r.by.get("requests_per_unit"); !r.out.unlimited && (!ok || isNull(f.value)) {
		r.warnAt(r.at, r.path, "requests_per_unit is missing, which is 0: everything is denied; want requests_per_unit: 0 to say so, or a number")
	}
}

func unitOf(period time.Duration) Unit {
	for _, u := range units {
		if u.Period() == period {
			return u
		}
	}
	return UnknownUnit
}

func (r *rateLimitReader) checkUnlimited(validUnit bool) {
	if validUnit {
		r.errorAt(r.by.at("unit").value, r.path, "unit is given, but the rule is unlimited; want one of unit and unlimited")
	}
	for _, name := range slices.Concat([]string{"unit", "requests_per_unit"}, known[inRateLimit].own) {
		if f, ok := r.by.get(name); ok && !(name == "unit" && validUnit) {
			r.warnAt(f.key, r.path, "%s means nothing, since the rule is unlimited; want it deleted", name)
		}
	}
}

// checkReplaces reads the list of names.
func (r *rateLimitReader) checkReplaces() {
	f, ok := r.by.get("replaces")
	if !ok || isNull(f.value) {
		return
	}
	for n := range r.maps(f, r.path, "name: NAME") {
		name := ""
		for _, f := range last(r.fields(n, r.path)) {
			if f.name != "name" {
				r.unknown(f, r.path, inReplaces)
				continue
			}
			name = r.text(f, r.path)
		}
		switch name {
		case "":
			r.errorAt(n, r.path, "replaces has an entry without a name; want name: the rate_limit.name of another rule")
		case r.out.name:
			r.errorAt(n, r.path, "replaces names %q, the rule itself; want the name of another rule", name)
		default:
			id := r.nameID(name)
			r.out.replaces = append(r.out.replaces, id)
			r.replaced = append(r.replaced, replacement{r.domain, id, r.problem(n, r.path, true,
				fmt.Sprintf("replaces names %q, %s", name, nobodysName))})
		}
	}
}

// shape decides how the rule counts, and checks it: a limit that cannot be kept is an error.
func (r *rateLimitReader) shape() {
	o := &r.out
	if o.unlimited || o.period == 0 || !r.inUnits() {
		return
	}
	_, hasAlgorithm := r.by.get("algorithm")
	_, hasAtOnce := r.by.get("at_once")
	hasAlgorithm = hasAlgorithm || hasAtOnce
	fixed := !hasAlgorithm || r.algorithm == sluice.FixedWindow
	denied := r.deniedCount(fixed)
	r.checkThen()
	r.checkDenials(fixed)
	r.checkMaxDebt()
	c := sluice.Config{
		Algorithm: sluice.FixedWindow, Limit: o.windows(int(o.limit)), Offset: r.offset,
		Soft: int(r.soft), BlockFor: r.blockFor, CountDenied: denied, Hash: sluice.HashStable,
	}
	if hasAlgorithm {
		c.Algorithm = r.algorithm
	}
	if r.algorithm == sluice.InFlight {
		c.Limit = sluice.AtOnce(int(o.limit), o.period)
	}
	if r.burst != 0 {
		c.Limit = c.Limit.WithBurst(int(r.burst))
	}
	o.counting = fixed && r.soft == 0 && r.blockFor == 0 && r.burst == 0 && o.then == "" && o.denialsOf == "" && (denied || r.domain.atomic)
	o.ownCounter = o.counting && (o.unit == UnknownUnit || r.offset != 0 || o.limit > maxRequests)
	o.config = r.keep.config(c)
	if o.counting && !o.ownCounter {
		return
	}
	c.MaxKeys, c.Shards = 1, 1
	_, err := sluice.New(c)
	if err == nil && o.counting {
		_, err = newCounter(o, sluice.Config{MaxKeys: 1, Shards: 1})
	}
	r.configError(err)
}

// deniedCount reports whether denied hits count: as the rule or the domain says, otherwise only for
// fixed windows, as in upstream.
func (r *rateLimitReader) deniedCount(fixed bool) bool {
	windowed := fixed || r.algorithm == sluice.SlidingWindow || r.algorithm == sluice.SlidingLog
	switch {
	case r.countDenied != nil:
		if *r.countDenied && r.domain.atomic {
			r.errorAt(r.by.at("count_denied").value, r.path, "count_denied is true, but the domain is atomic, where a call that is denied counts nothing; want it deleted")
		}
		r.out.deniedToo = *r.countDenied
		return *r.countDenied
	case r.domain.atomic || !windowed || r.out.then != "" || r.out.denialsOf != "":
		return false
	case r.domain.countDenied != nil:
		return *r.domain.countDenied
	}
	return fixed
}

// configFields names the key of a rule for each field of sluice.Config.
var configFields = map[string]string{
	"Limit": "requests_per_unit", "Limit.Rate": "requests_per_unit", "Limit.Period": "period", "Limit.Burst": "burst",
	"Offset": "offset", "Soft": "soft", "BlockFor": "block_for", "CountDenied": "count_denied", "Algorithm": "algorithm",
}

// atOnceFields are the keys for at_once and lease in the place of other keys.
var atOnceFields = map[string]string{"requests_per_unit": "at_once", "period": "lease"}

func (r *rateLimitReader) configError(err error) {
	if err == nil {
		return
	}
	var c *sluice.ConfigError
	if !errors.As(err, &c) {
		r.errorAt(r.at, r.path, "%s", err)
		return
	}
	name := configFields[c.Field]
	if own, ok := atOnceFields[name]; ok && r.lease != 0 {
		name = own
	}
	if c.Field == "Limit" && r.out.dates != nil {
		name = "calendar"
	}
	if f, ok := r.by.get("scale"); ok && r.out.scale > 1 && slices.Contains([]string{"requests_per_unit", "burst", "soft"}, name) {
		r.errorAt(f.value, r.path, "scale is %d, and in units %s: %s", r.out.scale, name, c.Reason)
		return
	}
	at := r.at
	if f, ok := r.by.get(name); ok {
		at = f.value
	}
	if name == "" {
		name = c.Field
	}
	r.errorAt(at, r.path, "%s: %s", name, c.Reason)
}
