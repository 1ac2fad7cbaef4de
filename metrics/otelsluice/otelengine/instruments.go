package otelengine

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

type instruments struct {
	hits, refunded, absorbed, unrecorded, requests, evicted, untracked, unknown, shadowed metric.Int64ObservableCounter
	holds, estimated, settled                                                             metric.Int64ObservableCounter
	keys, open                                                                            metric.Int64ObservableUpDownCounter
	generation                                                                            metric.Int64ObservableGauge
}

// make makes the instruments, with the descriptions that package promengine has.
func (i *instruments) make(m metric.Meter) error {
	var all []error
	counter := func(to *metric.Int64ObservableCounter, name, unit, description string) {
		var err error
		*to, err = m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		all = append(all, err)
	}
	counter(&i.hits, "sluice.hits", "{hit}", "Hits by rule: within its limit; near it; over it, and denied; over it, and admitted in shadow mode.")
	counter(&i.refunded, "sluice.refunded_hits", "{hit}", "Hits that calls have given back (is_negative_hits), by rule. No other metric has them.")
	counter(&i.absorbed, "sluice.absorbed_hits", "{hit}", "Hits given back that gave nothing, by rule: as many had been denied and not counted.")
	counter(&i.estimated, "sluice.holds.estimated_hits", "{hit}", "Hits that holds and their extensions were admitted for, by rule.")
	counter(&i.settled, "sluice.holds.settled_hits", "{hit}", "Hits that settled holds have used, by rule.")
	counter(&i.holds, "sluice.holds", "{hold}", "Holds by what became of them: held, and then settled, released or lapsed; denied; and extensions that were cut.")
	counter(&i.unrecorded, "sluice.unrecorded_denials", "{call}", "Denied calls that there was no room to remember: refunds of keys that are not remembered give nothing back for a while.")
	counter(&i.requests, "sluice.requests", "{call}", "Calls by answer. Those that were refused, or failed, belong to no domain.")
	counter(&i.evicted, "sluice.evicted", "{key}", "Keys that were dropped for want of room while they still counted.")
	counter(&i.untracked, "sluice.untracked", "{call}", "Calls for new keys that were decided without a count, since there was no room for them.")
	counter(&i.unknown, "sluice.unknown_domain", "{call}", "Calls for domains without rules.")
	counter(&i.shadowed, "sluice.shadowed", "{call}", "Calls that were over their limits and admitted, since the service is in shadow mode.")
	var err error
	i.keys, err = m.Int64ObservableUpDownCounter("sluice.keys", metric.WithUnit("{key}"),
		metric.WithDescription("Tracked keys by the unit of their window; other for rules with a period or an algorithm of their own."))
	all = append(all, err)
	i.open, err = m.Int64ObservableUpDownCounter("sluice.holds.open", metric.WithUnit("{hold}"),
		metric.WithDescription("Open holds. With a store only the store knows."))
	all = append(all, err)
	i.generation, err = m.Int64ObservableGauge("sluice.config.generation",
		metric.WithDescription("The number of the rules in force: one more after each load that was fine."))
	return errors.Join(append(all, err)...)
}

func (i *instruments) all() []metric.Observable {
	return []metric.Observable{i.hits, i.refunded, i.absorbed, i.unrecorded, i.requests, i.evicted, i.untracked, i.unknown, i.shadowed, i.holds, i.estimated, i.settled, i.keys, i.open, i.generation}
}
