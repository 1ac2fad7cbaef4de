package promsluice

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-go/sluice"
)

var (
	decisionsDesc = desc("sluice_decisions_total", "Calls by outcome: admitted; denied; blocked, and so denied; over the limit, and admitted in shadow mode.", "limiter", "outcome")
	keysDesc      = desc("sluice_limiter_keys", "Tracked keys.", "limiter")
	evictedDesc   = desc("sluice_limiter_evicted_total", "Keys that were dropped for want of room while they still counted.", "limiter")
	untrackedDesc = desc("sluice_limiter_untracked_total", "Calls for new keys that were decided without a count, since there was no room for them.", "limiter")
	waitingDesc   = desc("sluice_limiter_waiting", "Calls that wait now until they are admitted.", "limiter")

	descs = []*prometheus.Desc{decisionsDesc, keysDesc, evictedDesc, untrackedDesc, waitingDesc}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// A limiter is a sluice.Limiter with a name, and the series that it has.
type limiter struct {
	*sluice.Limiter
	name   string
	series []series
}

// A series has its labels ready: to make them for each scrape would be half of its time.
type series struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	kind   prometheus.ValueType
	value  func(sluice.Stats) uint64
}

func newLimiter(name string, l *sluice.Limiter) *limiter {
	n := &limiter{Limiter: l, name: name}
	add := func(d *prometheus.Desc, kind prometheus.ValueType, value func(sluice.Stats) uint64, outcome ...string) {
		n.series = append(n.series, series{d, prometheus.MakeLabelPairs(d, append([]string{name}, outcome...)), kind, value})
	}
	counter := func(d *prometheus.Desc, value func(sluice.Stats) uint64, outcome ...string) {
		add(d, prometheus.CounterValue, value, outcome...)
	}
	switch c := l.Config(); {
	case c.Stats && c.Shadow:
		counter(decisionsDesc, func(s sluice.Stats) uint64 { return s.Admitted - s.WouldDeny }, "admitted")
		counter(decisionsDesc, func(s sluice.Stats) uint64 { return s.WouldDeny }, "shadow")
	case c.Stats:
		counter(decisionsDesc, func(s sluice.Stats) uint64 { return s.Admitted }, "admitted")
		counter(decisionsDesc, func(s sluice.Stats) uint64 { return s.Blocked }, "blocked")
		counter(decisionsDesc, func(s sluice.Stats) uint64 { return s.Denied - s.Blocked }, "denied")
	}
	counter(evictedDesc, func(s sluice.Stats) uint64 { return s.Evicted })
	counter(untrackedDesc, func(s sluice.Stats) uint64 { return s.Untracked })
	add(keysDesc, prometheus.GaugeValue, func(s sluice.Stats) uint64 { return uint64(s.Keys) })
	add(waitingDesc, prometheus.GaugeValue, func(s sluice.Stats) uint64 { return uint64(s.Waiting) })
	return n
}

// collect reads the statistics once for all series of the limiter.
func (l *limiter) collect(out chan<- prometheus.Metric) {
	stats := l.Stats()
	metrics := make([]metric, len(l.series))
	for i := range l.series {
		s := &l.series[i]
		metrics[i] = metric{s, float64(s.value(stats))}
		out <- &metrics[i]
	}
}

// A metric is a series with the value that one scrape has.
type metric struct {
	*series
	number float64
}

func (m *metric) Desc() *prometheus.Desc { return m.desc }

// Write shares the labels, which have no spare capacity: who appends to them makes a copy.
func (m *metric) Write(out *dto.Metric) error {
	out.Label = m.labels
	if m.kind == prometheus.CounterValue {
		out.Counter = &dto.Counter{Value: &m.number}
	} else {
		out.Gauge = &dto.Gauge{Value: &m.number}
	}
	return nil
}
