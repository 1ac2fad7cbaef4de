// Package oteltier tells OpenTelemetry what the Tiers of redislimit do.
//
//	collector, err := oteltier.New(oteltier.Config{})
//	if err != nil { ... }
//	if err := collector.Add("api", tier); err != nil { ... }
//
// It reads a Tier's statistics when a reader of the SDK collects, and does nothing else: no decision takes longer
// for it. The instruments are observable:
//
//	sluice.tier.decisions       counter, by limiter and source: decisions by redis, cache, lease or fallback: see
//	                            redislimit.Source
//	sluice.tier.degraded        gauge, by limiter: 1 while the keys of at least one primary are decided without it,
//	                            or else 0
//	sluice.tier.outages         counter, by limiter: times that a primary was no longer asked
//	sluice.tier.errors          counter, by limiter and cause: late, calls that were not answered within the budget;
//	                            failed, calls that the client or Redis answered with an error; pool_timeout,
//	                            scripts for which the client had no connection; dial, scripts and probes for which
//	                            it could make none
//	sluice.tier.scripts         counter, by limiter: scripts that were sent
//	sluice.tier.led_scripts     counter, by limiter: of these, those that callers have sent themselves
//	sluice.tier.lent_units      counter, by limiter: units that Redis has lent
//	sluice.tier.returned_units  counter, by limiter: of these, units that were given back unused
//
// OpenTelemetry's Prometheus exporter makes of these the names that package promtier has. No attribute has the key of
// a call in it. The attribute "limiter" is a name that the program chooses.
package oteltier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/redislimit"
)

// Config describes a Collector. The zero value of every field is a good default.
type Config struct {
	// MeterProvider makes the instruments. nil means the global one of package otel.
	MeterProvider metric.MeterProvider
}

const (
	scope = "github.com/sluice-go/sluice/metrics/otelsluice/oteltier"

	// maxTiers have fewer attribute sets than 2,000, of which the SDK keeps all but one apart: four of
	// sluice.tier.decisions each.
	maxTiers = 499
)

// A Collector observes the Tiers that it has been given, 499 at most: so many fit into the SDK's limit of
// cardinality. It is safe for concurrent use, also while it is asked. It is made by New; a MeterProvider should
// have one, since the SDK adds up what two of them observe of the same name.
type Collector struct {
	instruments instruments
	callback    metric.Registration

	mutex sync.Mutex
	tiers map[string]source
}

// A source is what is asked of a redislimit.Tier.
type source interface {
	Stats() redislimit.Stats
	Mode() redislimit.Mode
}

// New returns a Collector without Tiers. An error is the MeterProvider's.
func New(c Config) (*Collector, error) {
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	out := &Collector{tiers: map[string]source{}}
	meter := c.MeterProvider.Meter(scope)
	err := out.instruments.make(meter)
	if err != nil {
		return nil, fmt.Errorf("oteltier: %w", err)
	}
	if out.callback, err = meter.RegisterCallback(out.observe, out.instruments.all()...); err != nil {
		return nil, fmt.Errorf("oteltier: %w", err)
	}
	return out, nil
}

// Add makes t a part of all that is told from now on, under a name that is the attribute "limiter". The error says
// what is wrong with the name: it is empty, not UTF-8, or that of another Tier; or that t is nil, or that there are
// 499 Tiers. Nothing has changed then. A Tier that is closed can stay: what it has counted is told on.
func (c *Collector) Add(name string, t *redislimit.Tier) error {
	if t == nil {
		return fmt.Errorf("oteltier: the tier for the name %q is nil; want one of redislimit.NewTier", name)
	}
	return c.add(name, t)
}

func (c *Collector) add(name string, s source) error {
	switch {
	case name == "":
		return fmt.Errorf(`oteltier: the name is empty, which Prometheus takes for no label; want one such as "api"`)
	case !utf8.ValidString(name):
		return fmt.Errorf(`oteltier: the name %q is not UTF-8, as attributes are; want one such as "api"`, name)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.tiers[name] != nil {
		return fmt.Errorf("oteltier: the name %q is that of another tier; want a name of its own, or Remove(%[1]q) before", name)
	}
	if len(c.tiers) == maxTiers {
		return fmt.Errorf("oteltier: the tier %q would be one more than %d, for which the SDK keeps no attributes apart; want fewer", name, maxTiers)
	}
	c.tiers[name] = s
	return nil
}

// Remove takes the Tier of this name out, and reports whether there was one.
func (c *Collector) Remove(name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_, found := c.tiers[name]
	delete(c.tiers, name)
	return found
}

// Unregister ends the observation of all Tiers, for good. It is not needed where the MeterProvider is shut down.
func (c *Collector) Unregister() error { return c.callback.Unregister() }

func (c *Collector) observe(_ context.Context, o metric.Observer) error {
	c.mutex.Lock()
	tiers := maps.Clone(c.tiers)
	c.mutex.Unlock()
	for name, t := range tiers {
		c.instruments.observe(o, name, t)
	}
	return nil
}

type instruments struct {
	decisions, outages, errors, scripts, led, lent, returned metric.Int64ObservableCounter
	degraded                                                 metric.Int64ObservableGauge
}

// make makes the instruments, with the descriptions that package promtier has.
func (i *instruments) make(m metric.Meter) error {
	var all []error
	counter := func(to *metric.Int64ObservableCounter, name, unit, description string) {
		var err error
		*to, err = m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		all = append(all, err)
	}
	counter(&i.decisions, "sluice.tier.decisions", "{call}", "Calls by what has decided them: Redis, a denial that still holds, units that Redis has lent, or the fallback.")
	counter(&i.outages, "sluice.tier.outages", "{outage}", "Times that a primary was no longer asked.")
	counter(&i.errors, "sluice.tier.errors", "{error}", "Calls that were late or failed, and scripts for which the client had no connection.")
	counter(&i.scripts, "sluice.tier.scripts", "{script}", "Scripts that were sent to Redis.")
	counter(&i.led, "sluice.tier.led_scripts", "{script}", "Scripts that callers have sent to Redis themselves.")
	counter(&i.lent, "sluice.tier.lent_units", "{unit}", "Units that Redis has lent.")
	counter(&i.returned, "sluice.tier.returned_units", "{unit}", "Units that Redis has lent, and that were given back unused.")
	var err error
	i.degraded, err = m.Int64ObservableGauge("sluice.tier.degraded",
		metric.WithDescription("1 while the keys of at least one primary are decided without it, or else 0."))
	return errors.Join(append(all, err)...)
}

func (i *instruments) all() []metric.Observable {
	return []metric.Observable{i.decisions, i.outages, i.errors, i.scripts, i.led, i.lent, i.returned, i.degraded}
}

func (i *instruments) observe(o metric.Observer, name string, t source) {
	limiter := attribute.String("limiter", name)
	counter := func(c metric.Int64ObservableCounter, v uint64, more ...attribute.KeyValue) {
		o.ObserveInt64(c, int64(v), metric.WithAttributes(append(more, limiter)...))
	}
	s := t.Stats()
	counter(i.decisions, s.Redis, attribute.String("source", redislimit.FromRedis.String()))
	counter(i.decisions, s.Cache, attribute.String("source", redislimit.FromCache.String()))
	counter(i.decisions, s.Lease, attribute.String("source", redislimit.FromLease.String()))
	counter(i.decisions, s.Fallback, attribute.String("source", redislimit.FromFallback.String()))
	counter(i.outages, s.Outages)
	counter(i.errors, s.Late, attribute.String("cause", "late"))
	counter(i.errors, s.Failed, attribute.String("cause", "failed"))
	counter(i.errors, s.PoolTimeouts, attribute.String("cause", "pool_timeout"))
	counter(i.errors, s.DialErrors, attribute.String("cause", "dial"))
	counter(i.scripts, s.Scripts)
	counter(i.led, s.Led)
	counter(i.lent, s.Lent)
	counter(i.returned, s.Returned)
	degraded := int64(0)
	if t.Mode() == redislimit.ModeDegraded {
		degraded = 1
	}
	o.ObserveInt64(i.degraded, degraded, metric.WithAttributes(limiter))
}
