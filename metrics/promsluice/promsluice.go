// Package promsluice tells Prometheus what limiters, tiers and engines of rules count.
//
//	collector, err := promsluice.New(limiter.Metrics("login")) // or redislimit.Metrics("api", tier), or engine.Metrics()
//	if err != nil { ... }
//	prometheus.MustRegister(collector)
//
// A scrape reads statistics, and does nothing else: no decision takes longer for it. Names are as in the documentation of
// Metrics, with underscores for dots, and counters end in _total: sluice.limiter.keys is sluice_limiter_keys, and
// sluice.decisions is sluice_decisions_total.
//
// A registry takes each name once: a second collector for it gets a prometheus.AlreadyRegisteredError.
// registry.Unregister takes a limiter out. For several engines give each a label, by
// prometheus.WrapRegistererWith(prometheus.Labels{"engine": "api"}, registry).
package promsluice

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/metrics"
)

// A Collector is a prometheus.Collector of a metrics.Set. It is safe for concurrent use. It is made by New.
type Collector struct {
	set   metrics.Set
	descs map[*metrics.Desc]*prometheus.Desc
}

// New returns a Collector of the metrics of one limiter, tier or engine. The error says that its name is
// empty or not UTF-8.
func New(s metrics.Set) (*Collector, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	labels := prometheus.Labels{}
	for _, l := range s.Labels {
		labels[l.Name] = l.Value
	}
	c := &Collector{set: s, descs: map[*metrics.Desc]*prometheus.Desc{}}
	for _, d := range s.Descs {
		name := strings.ReplaceAll(d.Name, ".", "_")
		if d.Kind == metrics.Counter {
			name += "_total"
		}
		c.descs[d] = prometheus.NewDesc(name, d.Help, d.Labels, labels)
	}
	return c, nil
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.set.Descs {
		out <- c.descs[d]
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.set.Read(func(d *metrics.Desc, value uint64, labels ...string) {
		kind := prometheus.GaugeValue
		if d.Kind == metrics.Counter {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(c.descs[d], kind, float64(value), labels...)
	})
}
