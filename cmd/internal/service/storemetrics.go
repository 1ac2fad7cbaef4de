package service

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/metrics/promsluice"
	"github.com/sluice-go/sluice/redislimit"
)

// Metrics of a store beside redislimit's. The label is the same, with the same values. With upstream's names
// there are no owed and leased units, and no replicas.
var (
	storeSinceDesc    = desc("sluice_store_mode_since_timestamp_seconds", "When the present mode of the store has begun, in Unix time.", "limiter")
	storeUnsharedDesc = desc("sluice_store_unshared_units_total", "Units that were admitted, or counted, without the store.", "limiter")
	storeOwedDesc     = desc("sluice_store_owed_units", "Units that the store has still to be told of.", "limiter")
	storeLeasedDesc   = desc("sluice_store_leased_units", "Units that can be spent from leases now.", "limiter")
	storeReplicasDesc = desc("sluice_store_replicas", "Processes that count together, as far as this one knows.", "limiter")
	storeTripsDesc    = desc("sluice_store_trips_total", "Pipelines that have come back from the store.", "limiter")
	storeTripTimeDesc = desc("sluice_store_trip_seconds_total", "How long these have taken, in all.", "limiter")
)

// storeCollector has the metrics of the store.
type storeCollector struct {
	tiers  []*promsluice.Collector
	stores map[string]storePart
}

// storePart is one server of a store.
type storePart interface {
	redislimit.Counted
	Status() redislimit.Status
	Reach(ctx context.Context) error
}

// partNames are the labels of the servers of a store, and their flags.
var partNames = []string{"redis", "redis-per-second"}

// newStoreCollector returns a collector, or nil without a store.
func newStoreCollector(s *sharedStore) *storeCollector {
	c := &storeCollector{stores: map[string]storePart{}}
	for i, r := range s.parts() {
		c.stores[partNames[i]] = r
		c.tiers = append(c.tiers, collectorOf(redislimit.Metrics(partNames[i], r)))
	}
	if len(c.stores) == 0 {
		return nil
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *storeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, t := range c.tiers {
		t.Describe(out)
	}
	for _, d := range []*prometheus.Desc{
		storeSinceDesc, storeUnsharedDesc, storeOwedDesc, storeLeasedDesc, storeReplicasDesc, storeTripsDesc, storeTripTimeDesc,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *storeCollector) Collect(out chan<- prometheus.Metric) {
	for _, t := range c.tiers {
		t.Collect(out)
	}
	for name, r := range c.stores {
		metric := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
			out <- prometheus.MustNewConstMetric(desc, kind, value, name)
		}
		stats := r.Stats()
		metric(storeSinceDesc, prometheus.GaugeValue, float64(r.Status().Since.UnixMilli())/1000)
		metric(storeUnsharedDesc, prometheus.CounterValue, float64(stats.Unshared))
		metric(storeTripsDesc, prometheus.CounterValue, float64(stats.Trips))
		metric(storeTripTimeDesc, prometheus.CounterValue, stats.TripTime.Seconds())
		if own, ok := r.(*redislimit.Store); ok { // with upstream's names there are no leases, debts or replicas
			metric(storeOwedDesc, prometheus.GaugeValue, float64(stats.Owed))
			metric(storeLeasedDesc, prometheus.GaugeValue, float64(stats.Leased))
			metric(storeReplicasDesc, prometheus.GaugeValue, float64(own.Replicas()))
		}
	}
}
