// Package otelengine tells OpenTelemetry what an engine of rules decides.
//
//	collector, err := otelengine.New(engine, otelengine.Config{})
//
// It reads the engine's statistics when a reader of the SDK collects, and does nothing else: no decision takes
// longer for it. The instruments are observable:
//
//	sluice.hits               counter, by domain, rule and outcome: hits within a limit, or unlimited; near it; over it, and denied;
//	                          over it, and admitted by a rule in shadow_mode, which is the outcome shadow
//	sluice.refunded_hits      counter, by domain and rule: hits that were to be given back
//	sluice.absorbed_hits      counter, by domain and rule: of these, hits that gave nothing back; see rules.Series.Absorbed
//	sluice.holds              counter, by outcome: holds held; and then settled, released or lapsed; holds denied, and
//	                          extensions that were cut
//	sluice.holds.open         up-down counter: open holds, of an engine without a Store
//	sluice.holds.estimated_hits  counter, by domain and rule: hits that holds were admitted for
//	sluice.holds.settled_hits    counter, by domain and rule: of holds that were settled, hits that were used
//	sluice.unrecorded_denials counter: denied calls that were not remembered; see rules.Stats.Unrecorded
//	sluice.requests           counter, by domain and code: calls ok and over_limit
//	sluice.config.generation  gauge: the number of the rules in force
//	sluice.keys               up-down counter, by unit: tracked keys, by the unit of their window
//	sluice.evicted            counter: keys that were dropped for want of room
//	sluice.untracked          counter: calls for new keys for which there was no room
//	sluice.unknown_domain     counter: descriptors of calls for domains without rules
//	sluice.shadowed           counter: calls that rules.Config.Shadow has admitted
//
// OpenTelemetry's Prometheus exporter makes of these the names that package promengine and `sluiced serve` have, so
// that their dashboard and alerts, in the folder deploy, serve here, too.
//
// # Cardinality
//
// A rule is the path in its file, and no value of a request, unless detailed_metric or value_to_metric ask for that.
// The SDK keeps 1,999 attribute sets of an instrument apart, and a rule has four of sluice.hits: 499 rules,
// rules.Config.MaxSeries of values included, which by itself is 2,000. The hits of all others, in the order of domains and rules,
// are added up under the attribute otel.metric.overflow. With more of them, or MaxSeries as it is, give the
// SDK its option WithCardinalityLimit, of four for each rule and each of MaxSeries, and one more.
package otelengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/rules"
)

// Config describes a Collector. The zero value of every field is a good default.
type Config struct {
	// MeterProvider makes the instruments. nil means the global one of package otel.
	MeterProvider metric.MeterProvider

	// Attributes are added to all that is observed. Engines that share a MeterProvider want some that tell
	// them apart, such as attribute.String("engine", "api"): the SDK adds up what has the same ones.
	Attributes []attribute.KeyValue
}

const scope = "github.com/sluice-go/sluice/metrics/otelsluice/otelengine"

// A Collector observes an engine. It is safe for concurrent use. It is made by New.
type Collector struct {
	instruments instruments
	callback    metric.Registration
	engine      *rules.Engine
	attributes  []attribute.KeyValue

	mutex sync.Mutex
	last  map[labels]uint64 // what was told last
}

type labels struct{ domain, rule, outcome string }

// New returns a Collector of an engine. The error says that the engine is nil, or is the MeterProvider's.
func New(e *rules.Engine, c Config) (*Collector, error) {
	if e == nil {
		return nil, errors.New("otelengine: the engine is nil; want one of rules.New")
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	out := &Collector{engine: e, attributes: slices.Clone(c.Attributes)}
	meter := c.MeterProvider.Meter(scope)
	err := out.instruments.make(meter)
	if err != nil {
		return nil, fmt.Errorf("otelengine: %w", err)
	}
	if out.callback, err = meter.RegisterCallback(out.observe, out.instruments.all()...); err != nil {
		return nil, fmt.Errorf("otelengine: %w", err)
	}
	return out, nil
}

// Unregister ends the observation, for good. It is not needed where the MeterProvider is shut down.
func (c *Collector) Unregister() error { return c.callback.Unregister() }

func (c *Collector) observe(_ context.Context, o metric.Observer) error {
	observe := func(i metric.Int64Observable, v uint64, more ...string) {
		attributes := slices.Clone(c.attributes)
		for j := 0; j < len(more); j += 2 {
			attributes = append(attributes, attribute.String(more[j], more[j+1]))
		}
		o.ObserveInt64(i, int64(v), metric.WithAttributes(attributes...))
	}
	i := &c.instruments
	series := c.engine.Series()
	hits := c.hits(series)
	for _, l := range inOrder(hits) {
		observe(i.hits, hits[l], "domain", l.domain, "rule", l.rule, "outcome", l.outcome)
	}
	byRule := func(to metric.Int64Observable, number func(*rules.Series) uint64) {
		sums := ruleSums(series, number)
		for _, l := range inOrder(sums) {
			observe(to, sums[l], "domain", l.domain, "rule", l.rule)
		}
	}
	byRule(i.refunded, func(x *rules.Series) uint64 { return x.Refunded })
	byRule(i.absorbed, func(x *rules.Series) uint64 { return x.Absorbed })
	byRule(i.estimated, func(x *rules.Series) uint64 { return x.Estimated })
	byRule(i.settled, func(x *rules.Series) uint64 { return x.Settled })
	holds := c.engine.Holds()
	observe(i.open, uint64(holds.Open))
	for outcome, n := range map[string]uint64{
		"held": holds.Held, "settled": holds.Settled, "released": holds.Released, "lapsed": holds.Lapsed, "denied": holds.Denied, "cut": holds.Cut,
	} {
		observe(i.holds, n, "outcome", outcome)
	}
	stats := c.engine.Stats()
	for name, n := range stats.Calls {
		observe(i.requests, n.OK, "domain", name, "code", "ok")
		observe(i.requests, n.OverLimit, "domain", name, "code", "over_limit")
	}
	_, number := c.engine.Set()
	observe(i.generation, number)
	for u := rules.UnknownUnit; u <= rules.Week; u++ {
		name := "other"
		if u.Valid() {
			name = strings.ToLower(u.String())
		}
		observe(i.keys, uint64(stats.Keys[u]), "unit", name)
	}
	observe(i.evicted, stats.Evicted)
	observe(i.untracked, stats.Untracked)
	observe(i.unrecorded, stats.Unrecorded)
	observe(i.unknown, stats.UnknownDomains)
	observe(i.shadowed, stats.GlobalShadow)
	return nil
}

// inOrder makes the same rules be among those that the SDK keeps apart, each time.
func inOrder(m map[labels]uint64) []labels {
	return slices.SortedFunc(maps.Keys(m), func(a, b labels) int {
		return cmp.Or(strings.Compare(a.domain, b.domain), strings.Compare(a.rule, b.rule), strings.Compare(a.outcome, b.outcome))
	})
}

// ruleSums adds up a number of what has the same labels, without an outcome. Rules for which it is 0 have none.
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
// difference of two of them may be a few hits lower than it was: what has been told once stays, since a
// counter never goes down.
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

// text makes anything an attribute's value, which is UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
