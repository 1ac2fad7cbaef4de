// Package promtier tells Prometheus what the Tiers of redislimit do.
//
//	collector := promtier.New()
//	prometheus.MustRegister(collector)
//	if err := collector.Add("api", tier); err != nil { ... }
//
// It reads a Tier's statistics when it is scraped, and does nothing else: no decision takes longer for it. These
// are the metrics:
//
//	sluice_tier_decisions_total{limiter,source}   decisions by redis, cache, lease or fallback: see redislimit.Source
//	sluice_tier_degraded{limiter}                 1 while the keys of at least one primary are decided without it, or else 0
//	sluice_tier_outages_total{limiter}            times that a primary was no longer asked
//	sluice_tier_errors_total{limiter,cause}       late: calls that were not answered within the budget; failed: calls
//	                                              that the client or Redis answered with an error; pool_timeout:
//	                                              scripts for which the client had no connection; dial: scripts and
//	                                              probes for which it could make none
//	sluice_tier_scripts_total{limiter}            scripts that were sent
//	sluice_tier_led_scripts_total{limiter}        of these, those that callers have sent themselves
//	sluice_tier_lent_units_total{limiter}         units that Redis has lent
//	sluice_tier_returned_units_total{limiter}     of these, units that were given back unused
//
// A script for which there was no connection makes calls late or failed, so the causes do not add up to
// anything. No label has the key of a call in it: there are fourteen series a Tier, whatever clients send. The
// label "limiter" is a name that the program chooses, as with the limiters of package promsluice; a Tier and a limiter can have the same one.
//
// A registry takes one Collector: see package promsluice.
package promtier

import (
	"fmt"
	"maps"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/redislimit"
)

var (
	decisionsDesc = desc("sluice_tier_decisions_total", "Calls by what has decided them: Redis, a denial that still holds, units that Redis has lent, or the fallback.", "source")
	degradedDesc  = desc("sluice_tier_degraded", "1 while the keys of at least one primary are decided without it, or else 0.")
	outagesDesc   = desc("sluice_tier_outages_total", "Times that a primary was no longer asked.")
	errorsDesc    = desc("sluice_tier_errors_total", "Calls that were late or failed, and scripts for which the client had no connection.", "cause")
	scriptsDesc   = desc("sluice_tier_scripts_total", "Scripts that were sent to Redis.")
	ledDesc       = desc("sluice_tier_led_scripts_total", "Scripts that callers have sent to Redis themselves.")
	lentDesc      = desc("sluice_tier_lent_units_total", "Units that Redis has lent.")
	returnedDesc  = desc("sluice_tier_returned_units_total", "Units that Redis has lent, and that were given back unused.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"limiter"}, labels...), nil)
}

// A Collector is a prometheus.Collector of the Tiers that it has been given. It is safe for concurrent use,
// also while it is scraped. It is made by New.
type Collector struct {
	mutex sync.Mutex
	tiers map[string]Store
}

// A Store is a redislimit.Store, or something else that tells as much, such as a server of rulestore.Upstream.
type Store interface {
	Stats() redislimit.Stats
	Mode() redislimit.Mode
}

// New returns a Collector without Tiers.
func New() *Collector { return &Collector{tiers: map[string]Store{}} }

// Add makes t a part of all scrapes to come, under a name that is the label "limiter". The error says what is
// wrong with the name: it is empty, not UTF-8, or that of another Tier; or that t is nil. Nothing has changed
// then. A Tier that is closed can stay: what it has counted is told on.
func (c *Collector) Add(name string, t *redislimit.Tier) error {
	if t == nil {
		return fmt.Errorf("promtier: the tier for the name %q is nil; want one of redislimit.NewTier", name)
	}
	return c.add(name, t)
}

// AddStore is Add for a Store: the metrics are of all of its limits.
func (c *Collector) AddStore(name string, s Store) error {
	if own, ok := s.(*redislimit.Store); s == nil || ok && own == nil {
		return fmt.Errorf("promtier: the store for the name %q is nil; want one of redislimit.NewStore", name)
	}
	return c.add(name, s)
}

func (c *Collector) add(name string, s Store) error {
	switch {
	case name == "":
		return fmt.Errorf(`promtier: the name is empty, which Prometheus takes for no label; want one such as "api"`)
	case !utf8.ValidString(name):
		return fmt.Errorf(`promtier: the name %q is not UTF-8, as labels are; want one such as "api"`, name)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.tiers[name] != nil {
		return fmt.Errorf("promtier: the name %q is that of another tier; want a name of its own, or Remove(%[1]q) before", name)
	}
	c.tiers[name] = s
	return nil
}

// Remove takes the Tier of this name out, and reports whether there was one. A scrape that is under way may
// have it still.
func (c *Collector) Remove(name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_, found := c.tiers[name]
	delete(c.tiers, name)
	return found
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{decisionsDesc, degradedDesc, outagesDesc, errorsDesc, scriptsDesc, ledDesc, lentDesc, returnedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.mutex.Lock()
	tiers := maps.Clone(c.tiers)
	c.mutex.Unlock()
	for name, t := range tiers {
		collect(out, name, t)
	}
}

func collect(out chan<- prometheus.Metric, name string, t Store) {
	counter := func(d *prometheus.Desc, v uint64, label ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{name}, label...)...)
	}
	s := t.Stats()
	counter(decisionsDesc, s.Redis, redislimit.FromRedis.String())
	counter(decisionsDesc, s.Cache, redislimit.FromCache.String())
	counter(decisionsDesc, s.Lease, redislimit.FromLease.String())
	counter(decisionsDesc, s.Fallback, redislimit.FromFallback.String())
	degraded := 0.0
	if t.Mode() == redislimit.ModeDegraded {
		degraded = 1
	}
	out <- prometheus.MustNewConstMetric(degradedDesc, prometheus.GaugeValue, degraded, name)
	counter(outagesDesc, s.Outages)
	counter(errorsDesc, s.Late, "late")
	counter(errorsDesc, s.Failed, "failed")
	counter(errorsDesc, s.PoolTimeouts, "pool_timeout")
	counter(errorsDesc, s.DialErrors, "dial")
	counter(scriptsDesc, s.Scripts)
	counter(ledDesc, s.Led)
	counter(lentDesc, s.Lent)
	counter(returnedDesc, s.Returned)
}
