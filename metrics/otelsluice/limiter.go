package otelsluice

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice"
)

type instruments struct {
	decisions, evicted, untracked metric.Int64ObservableCounter
	keys, waiting                 metric.Int64ObservableUpDownCounter
}

// make makes the instruments, with the descriptions that package promsluice has.
func (i *instruments) make(m metric.Meter) error {
	var errs [5]error
	i.decisions, errs[0] = m.Int64ObservableCounter("sluice.decisions", metric.WithUnit("{call}"),
		metric.WithDescription("Calls by outcome: admitted; denied; blocked, and so denied; over the limit, and admitted in shadow mode."))
	i.evicted, errs[1] = m.Int64ObservableCounter("sluice.limiter.evicted", metric.WithUnit("{key}"),
		metric.WithDescription("Keys that were dropped for want of room while they still counted."))
	i.untracked, errs[2] = m.Int64ObservableCounter("sluice.limiter.untracked", metric.WithUnit("{call}"),
		metric.WithDescription("Calls for new keys that were decided without a count, since there was no room for them."))
	i.keys, errs[3] = m.Int64ObservableUpDownCounter("sluice.limiter.keys", metric.WithUnit("{key}"),
		metric.WithDescription("Tracked keys."))
	i.waiting, errs[4] = m.Int64ObservableUpDownCounter("sluice.limiter.waiting", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that wait now until they are admitted."))
	return errors.Join(errs[:]...)
}

func (i *instruments) all() []metric.Observable {
	return []metric.Observable{i.decisions, i.evicted, i.untracked, i.keys, i.waiting}
}

// A limiter is a sluice.Limiter with a name, and its attributes, ready.
type limiter struct {
	*sluice.Limiter
	name     string
	itself   metric.ObserveOption
	outcomes []outcome
}

type outcome struct {
	attributes metric.ObserveOption
	value      func(sluice.Stats) uint64
}

func newLimiter(name string, l *sluice.Limiter) *limiter {
	of := func(more ...attribute.KeyValue) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more, attribute.String("limiter", name))...))
	}
	n := &limiter{Limiter: l, name: name, itself: of()}
	add := func(name string, value func(sluice.Stats) uint64) {
		n.outcomes = append(n.outcomes, outcome{of(attribute.String("outcome", name)), value})
	}
	switch c := l.Config(); {
	case c.Stats && c.Shadow:
		add("admitted", func(s sluice.Stats) uint64 { return s.Admitted - s.WouldDeny })
		add("shadow", func(s sluice.Stats) uint64 { return s.WouldDeny })
	case c.Stats:
		add("admitted", func(s sluice.Stats) uint64 { return s.Admitted })
		add("blocked", func(s sluice.Stats) uint64 { return s.Blocked })
		add("denied", func(s sluice.Stats) uint64 { return s.Denied - s.Blocked })
	}
	return n
}

// sets is how many attribute sets the limiter has of sluice.decisions. Of the others it has one.
func (l *limiter) sets() int { return len(l.outcomes) }

// observe reads the statistics once for all instruments.
func (l *limiter) observe(i *instruments, o metric.Observer) {
	s := l.Stats()
	for _, x := range l.outcomes {
		o.ObserveInt64(i.decisions, int64(x.value(s)), x.attributes)
	}
	o.ObserveInt64(i.evicted, int64(s.Evicted), l.itself)
	o.ObserveInt64(i.untracked, int64(s.Untracked), l.itself)
	o.ObserveInt64(i.keys, int64(s.Keys), l.itself)
	o.ObserveInt64(i.waiting, int64(s.Waiting), l.itself)
}
