// Package promengine tells Prometheus what an engine of rules decides, with the series that `sluiced serve` has for
// the same engine. So its dashboard and alerts, in the folder deploy, serve programs that embed the engine, too.
//
//	prometheus.MustRegister(promengine.New(engine))
//
// It reads the engine's statistics when it is scraped, and does nothing else: no decision takes longer for it.
// These are the metrics:
//
//	sluice_hits_total{domain,rule,outcome}      hits within a limit, or of unlimited rules; near it; over it, and denied; over it, and admitted
//	                                            by a rule in shadow_mode, which is the outcome shadow
//	sluice_refunded_hits_total{domain,rule}     hits that were to be given back
//	sluice_absorbed_hits_total{domain,rule}     of these, hits that gave nothing back; see rules.Series.Absorbed
//	sluice_holds_open                           open holds, of an engine without a Store
//	sluice_holds_total{outcome}                 holds held; and then settled, released or lapsed; holds denied, and
//	                                            extensions that were cut
//	sluice_holds_estimated_hits_total{domain,rule}  hits that holds were admitted for
//	sluice_holds_settled_hits_total{domain,rule}    of holds that were settled, hits that were used
//	sluice_unrecorded_denials_total             denied calls that were not remembered; see rules.Stats.Unrecorded
//	sluice_requests_total{domain,code}          calls ok and over_limit
//	sluice_config_generation                    the number of the rules in force
//	sluice_keys{unit}                           tracked keys, by the unit of their window
//	sluice_evicted_total                        keys that were dropped for want of room
//	sluice_untracked_total                      calls for new keys for which there was no room
//	sluice_unknown_domain_total                 descriptors of calls for domains without rules
//	sluice_shadowed_total                       calls that rules.Config.Shadow has admitted
//
// A rule is the path in its file, and no value of a request, unless detailed_metric or value_to_metric ask for that;
// rules.Config.MaxSeries bounds those.
//
// # Several engines
//
// An engine has no name of its own, so that the series are those of the service. For several engines in a registry
// give each a label, by prometheus.WrapRegistererWith(prometheus.Labels{"engine": "api"}, registry). Without that
// the second one gets a prometheus.AlreadyRegisteredError; so does an engine that is registered twice.
package promengine

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/rules"
)

var (
	hitsDesc       = desc("sluice_hits_total", "Hits by rule: within its limit; near it; over it, and denied; over it, and admitted in shadow mode.", "domain", "rule", "outcome")
	refundedDesc   = desc("sluice_refunded_hits_total", "Hits that calls have given back (is_negative_hits), by rule. No other metric has them.", "domain", "rule")
	absorbedDesc   = desc("sluice_absorbed_hits_total", "Hits given back that gave nothing, by rule: as many had been denied and not counted.", "domain", "rule")
	estimatedDesc  = desc("sluice_holds_estimated_hits_total", "Hits that holds and their extensions were admitted for, by rule.", "domain", "rule")
	settledDesc    = desc("sluice_holds_settled_hits_total", "Hits that settled holds have used, by rule.", "domain", "rule")
	holdsDesc      = desc("sluice_holds_total", "Holds by what became of them: held, and then settled, released or lapsed; denied; and extensions that were cut.", "outcome")
	openDesc       = desc("sluice_holds_open", "Open holds. With a store only the store knows.")
	unrecordedDesc = desc("sluice_unrecorded_denials_total", "Denied calls that there was no room to remember: refunds of keys that are not remembered give nothing back for a while.")
	requestsDesc   = desc("sluice_requests_total", "Calls by answer. Those that were refused, or failed, belong to no domain.", "domain", "code")
	generationDesc = desc("sluice_config_generation", "The number of the rules in force: one more after each load that was fine.")
	keysDesc       = desc("sluice_keys", "Tracked keys by the unit of their window; other for rules with a period or an algorithm of their own.", "unit")
	evictedDesc    = desc("sluice_evicted_total", "Keys that were dropped for want of room while they still counted.")
	untrackedDesc  = desc("sluice_untracked_total", "Calls for new keys that were decided without a count, since there was no room for them.")
	unknownDesc    = desc("sluice_unknown_domain_total", "Calls for domains without rules.")
	shadowedDesc   = desc("sluice_shadowed_total", "Calls that were over their limits and admitted, since the service is in shadow mode.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// A Collector is a prometheus.Collector of an engine. It is safe for concurrent use. It is made by New.
type Collector struct {
	engine *rules.Engine
	mutex  sync.Mutex
	last   map[labels]uint64 // what the last scrape was told
}

type labels struct{ domain, rule, outcome string }

// New returns a Collector of an engine, which must not be nil.
func New(e *rules.Engine) *Collector {
	if e == nil {
		panic("promengine: the engine is nil; want one of rules.New")
	}
	return &Collector{engine: e}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		hitsDesc, refundedDesc, absorbedDesc, estimatedDesc, settledDesc, holdsDesc, openDesc, unrecordedDesc, requestsDesc, generationDesc, keysDesc, evictedDesc, untrackedDesc, unknownDesc, shadowedDesc,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	series := c.engine.Series()
	for l, n := range c.hits(series) {
		counter(hitsDesc, n, l.domain, l.rule, l.outcome)
	}
	byRule := func(d *prometheus.Desc, number func(*rules.Series) uint64) {
		for l, n := range ruleSums(series, number) {
			counter(d, n, l.domain, l.rule)
		}
	}
	byRule(refundedDesc, func(x *rules.Series) uint64 { return x.Refunded })
	byRule(absorbedDesc, func(x *rules.Series) uint64 { return x.Absorbed })
	byRule(estimatedDesc, func(x *rules.Series) uint64 { return x.Estimated })
	byRule(settledDesc, func(x *rules.Series) uint64 { return x.Settled })
	holds := c.engine.Holds()
	gauge(openDesc, float64(holds.Open))
	for outcome, n := range map[string]uint64{
		"held": holds.Held, "settled": holds.Settled, "released": holds.Released, "lapsed": holds.Lapsed, "denied": holds.Denied, "cut": holds.Cut,
	} {
		counter(holdsDesc, n, outcome)
	}
	stats := c.engine.Stats()
	for name, n := range stats.Calls {
		counter(requestsDesc, n.OK, name, "ok")
		counter(requestsDesc, n.OverLimit, name, "over_limit")
	}
	_, number := c.engine.Set()
	gauge(generationDesc, float64(number))
	for u := rules.UnknownUnit; u <= rules.Week; u++ {
		name := "other"
		if u.Valid() {
			name = strings.ToLower(u.String())
		}
		gauge(keysDesc, float64(stats.Keys[u]), name)
	}
	counter(evictedDesc, stats.Evicted)
	counter(untrackedDesc, stats.Untracked)
	counter(unrecordedDesc, stats.Unrecorded)
	counter(unknownDesc, stats.UnknownDomains)
	counter(shadowedDesc, stats.GlobalShadow)
}

// ruleSums adds up a number of what has the same labels, without an outcome. Rules for which it is 0 have no line.
func ruleSums(all []rules.Series, number func(*rules.Series) uint64) map[labels]uint64 {
	sums := map[labels]uint64{}
	for i := range all {
		if n := number(&all[i]); n != 0 {
			sums[labels{domain: text(all[i].Domain), rule: text(all[i].Path)}] += n
		}
	}
	return sums
}

// hits divides the hits of rules by outcome. Statistics are read while they are counted, so that a
// difference of two of them may be a few hits lower than it was: what a scrape has been told once
// stays, or Prometheus would take the counter for one that began anew.
func (c *Collector) hits(all []rules.Series) map[labels]uint64 {
	now := map[labels]uint64{}
	for _, x := range all {
		domain, rule := text(x.Domain), text(x.Path)
		for outcome, n := range map[string]uint64{
			"within": less(less(x.Total, x.Over), x.Near) + x.Unlimited, "near": x.Near, "over": less(x.Over, x.Shadow), "shadow": x.Shadow,
		} {
			now[labels{domain, rule, outcome}] += n
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for l := range now {
		now[l] = max(now[l], c.last[l])
	}
	c.last = now
	return now
}

// less is a-b, or 0.
func less(a, b uint64) uint64 { return a - min(a, b) }

// text makes anything a label's value, which is UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
