package rules

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-go/sluice/metrics"
)

var (
	hitsMetric = &metrics.Desc{Name: "sluice.hits", Unit: "hit", Labels: []string{"domain", "rule", "outcome"},
		Help: "Hits by rule: within its limit; near it; over it, and denied; over it, and admitted in shadow mode."}
	refundedMetric = &metrics.Desc{Name: "sluice.refunded_hits", Unit: "hit", Labels: []string{"domain", "rule"},
		Help: "Hits that calls have given back (is_negative_hits), by rule. No other metric has them."}
	absorbedMetric = &metrics.Desc{Name: "sluice.absorbed_hits", Unit: "hit", Labels: []string{"domain", "rule"},
		Help: "Hits given back that gave nothing, by rule: as many had been denied and not counted."}
	estimatedMetric = &metrics.Desc{Name: "sluice.holds.estimated_hits", Unit: "hit", Labels: []string{"domain", "rule"},
		Help: "Hits that holds and their extensions were admitted for, by rule."}
	settledMetric = &metrics.Desc{Name: "sluice.holds.settled_hits", Unit: "hit", Labels: []string{"domain", "rule"},
		Help: "Hits that settled holds have used, by rule."}
	holdsMetric = &metrics.Desc{Name: "sluice.holds", Unit: "hold", Labels: []string{"outcome"},
		Help: "Holds by what became of them: held, and then settled, released or lapsed; denied; and extensions that were cut."}
	openMetric = &metrics.Desc{Name: "sluice.holds.open", Kind: metrics.UpDown, Unit: "hold",
		Help: "Open holds. With a store only the store knows."}
	unrecordedMetric = &metrics.Desc{Name: "sluice.unrecorded_denials", Unit: "call",
		Help: "Denied calls that there was no room to remember: refunds of keys that are not remembered give nothing back for a while."}
	uncountedMetric = &metrics.Desc{Name: "sluice.uncounted_denials", Unit: "call",
		Help: "Denied calls that rules with counts_denials_of have not counted, since the store did not answer."}
	requestsMetric = &metrics.Desc{Name: "sluice.requests", Unit: "call", Labels: []string{"domain", "code"},
		Help: "Calls by answer. Those that were refused, or failed, belong to no domain."}
	generationMetric = &metrics.Desc{Name: "sluice.config.generation", Kind: metrics.Gauge,
		Help: "The number of the rules in force: one more after each load that was fine."}
	keysMetric = &metrics.Desc{Name: "sluice.keys", Kind: metrics.UpDown, Unit: "key", Labels: []string{"unit"},
		Help: "Tracked keys by the unit of their window; other for rules with a period or an algorithm of their own."}
	evictedMetric = &metrics.Desc{Name: "sluice.evicted", Unit: "key",
		Help: "Keys that were dropped for want of room while they still counted."}
	untrackedMetric = &metrics.Desc{Name: "sluice.untracked", Unit: "call",
		Help: "Calls for new keys that were decided without a count, since there was no room for them."}
	unknownMetric  = &metrics.Desc{Name: "sluice.unknown_domain", Unit: "call", Help: "Calls for domains without rules."}
	shadowedMetric = &metrics.Desc{Name: "sluice.shadowed", Unit: "call",
		Help: "Calls that were over their limits and admitted, since the service is in shadow mode."}

	engineMetrics = []*metrics.Desc{hitsMetric, refundedMetric, absorbedMetric, estimatedMetric, settledMetric, holdsMetric, openMetric,
		unrecordedMetric, uncountedMetric, requestsMetric, generationMetric, keysMetric, evictedMetric, untrackedMetric, unknownMetric, shadowedMetric}
)

// Metrics returns the counts of the engine, for promsluice, otelsluice or another translator: the series of `sluiced serve`, whose
// dashboard and alerts, in the folder deploy, serve here, too.
//
//	sluice.hits                  by domain, rule and outcome: hits within a limit, or unlimited; near it; over it, and denied;
//	                             and shadow: over it, and admitted by a rule in shadow_mode
//	sluice.refunded_hits         by domain and rule: hits that were to be given back
//	sluice.absorbed_hits         by domain and rule: of these, hits that gave nothing back; see Series.Absorbed
//	sluice.holds                 by outcome: holds held; and then settled, released or lapsed; holds denied, and
//	                             extensions that were cut
//	sluice.holds.open            open holds, of an engine without a Store
//	sluice.holds.estimated_hits  by domain and rule: hits that holds were admitted for
//	sluice.holds.settled_hits    by domain and rule: of holds that were settled, hits that were used
//	sluice.unrecorded_denials    denied calls that were not remembered; see Stats.Unrecorded
//	sluice.uncounted_denials     denied calls that bans have not counted; see Stats.Uncounted
//	sluice.requests              by domain and code: calls ok and over_limit
//	sluice.config.generation     the number of the rules in force
//	sluice.keys                  by unit: tracked keys, by the unit of their window
//	sluice.evicted               keys that were dropped for want of room
//	sluice.untracked             calls for new keys for which there was no room
//	sluice.unknown_domain        descriptors of calls for domains without rules
//	sluice.shadowed              calls that Config.Shadow has admitted
//
// A rule is the path in its file, and no value of a request, unless detailed_metric or value_to_metric ask for that;
// Config.MaxSeries bounds those. An engine has no name: to tell several apart give the translator a label.
func (e *Engine) Metrics() metrics.Set {
	r := &metricsReader{engine: e}
	return metrics.Set{Descs: engineMetrics, Read: r.read}
}

// A metricsReader remembers the values that it has told, so that no counter goes down.
type metricsReader struct {
	engine *Engine
	mutex  sync.Mutex
	last   map[metricLabels]uint64
}

type metricLabels struct{ domain, rule, outcome string }

func (r *metricsReader) read(yield metrics.Yield) {
	e := r.engine
	series := e.Series()
	r.readHits(series, yield)
	byRule := func(d *metrics.Desc, number func(*Series) uint64) {
		sums := map[metricLabels]uint64{}
		for i := range series {
			if n := number(&series[i]); n != 0 { // rules without any have no line
				sums[metricLabels{domain: labelText(series[i].Domain), rule: labelText(series[i].Path)}] += n
			}
		}
		for _, l := range inOrder(sums) {
			yield(d, sums[l], l.domain, l.rule)
		}
	}
	byRule(refundedMetric, func(x *Series) uint64 { return x.Refunded })
	byRule(absorbedMetric, func(x *Series) uint64 { return x.Absorbed })
	byRule(estimatedMetric, func(x *Series) uint64 { return x.Estimated })
	byRule(settledMetric, func(x *Series) uint64 { return x.Settled })
	holds := e.Holds()
	yield(openMetric, uint64(holds.Open))
	yield(holdsMetric, holds.Held, "held")
	yield(holdsMetric, holds.Settled, "settled")
	yield(holdsMetric, holds.Released, "released")
	yield(holdsMetric, holds.Lapsed, "lapsed")
	yield(holdsMetric, holds.Denied, "denied")
	yield(holdsMetric, holds.Cut, "cut")
	stats := e.Stats()
	for _, name := range slices.Sorted(maps.Keys(stats.Calls)) {
		yield(requestsMetric, stats.Calls[name].OK, name, "ok")
		yield(requestsMetric, stats.Calls[name].OverLimit, name, "over_limit")
	}
	_, generation := e.Set()
	yield(generationMetric, generation)
	for u := UnknownUnit; u <= Week; u++ {
		name := "other"
		if u.Valid() {
			name = strings.ToLower(u.String())
		}
		yield(keysMetric, uint64(stats.Keys[u]), name)
	}
	yield(evictedMetric, stats.Evicted)
	yield(untrackedMetric, stats.Untracked)
	yield(unrecordedMetric, stats.Unrecorded)
	yield(uncountedMetric, stats.Uncounted)
	yield(unknownMetric, stats.UnknownDomains)
	yield(shadowedMetric, stats.GlobalShadow)
}

// readHits divides the hits of rules by outcome. Statistics are read while they are counted, so that a
// difference of two of them may be a few hits lower than it was. A reader that was told a number is not told
// less later, or it would take the counter for one that began anew.
func (r *metricsReader) readHits(series []Series, yield metrics.Yield) {
	now := map[metricLabels]uint64{}
	for i := range series {
		x := &series[i]
		add := func(outcome string, n uint64) {
			now[metricLabels{labelText(x.Domain), labelText(x.Path), outcome}] += n
		}
		add("within", less(less(x.Total, x.Over), x.Near)+x.Unlimited)
		add("near", x.Near)
		add("over", less(x.Over, x.Shadow))
		add("shadow", x.Shadow)
	}
	r.mutex.Lock()
	for l := range now {
		now[l] = max(now[l], r.last[l])
	}
	r.last = now // which nobody writes to
	r.mutex.Unlock()
	for _, l := range inOrder(now) {
		yield(hitsMetric, now[l], l.domain, l.rule, l.outcome)
	}
}

// inOrder makes the same rules be among those that a reader keeps apart, each time.
func inOrder(m map[metricLabels]uint64) []metricLabels {
	return slices.SortedFunc(maps.Keys(m), func(a, b metricLabels) int {
		return cmp.Or(strings.Compare(a.domain, b.domain), strings.Compare(a.rule, b.rule), strings.Compare(a.outcome, b.outcome))
	})
}

// less is a-b, or 0.
func less(a, b uint64) uint64 { return a - min(a, b) }

// labelText makes anything a label's value, which is UTF-8.
func labelText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
