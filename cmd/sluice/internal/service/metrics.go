package service

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-go/sluice/rules"
)

// buckets are the upper bounds of durations, in seconds.
var buckets = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1}

// metrics serves the statistics to Prometheus.
type metrics struct {
	path     string
	registry *prometheus.Registry

	grpc, http, check prometheus.Observer // how long calls took
}

func newMetrics(s *server) *metrics {
	m := &metrics{path: s.config.MetricsPath, registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.config.MetricsNames == upstreamNames {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ratelimit_service_response_time_seconds", Help: "How long calls took.", Buckets: buckets,
		}, []string{"grpc_method"})
		m.grpc = h.WithLabelValues("ShouldRateLimit")
		m.http, m.check = m.grpc, m.grpc
		m.registry.MustRegister(h, &upstreamCollector{s})
		return m
	}
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sluice_request_duration_seconds", Help: "How long calls took, without the network.", Buckets: buckets,
	}, []string{"transport"})
	m.grpc, m.http, m.check = h.WithLabelValues("grpc"), h.WithLabelValues("json"), h.WithLabelValues("check")
	m.registry.MustRegister(h, &collector{server: s})
	return m
}

func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(m.path, promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8}))
	return mux
}

// All metrics except durations.
var (
	hitsDesc       = desc("sluice_hits_total", "Hits by rule: within its limit; near it; over it, and denied; over it, and admitted in shadow mode.", "domain", "rule", "outcome")
	refundedDesc   = desc("sluice_refunded_hits_total", "Hits that calls have given back (is_negative_hits), by rule. No other metric has them.", "domain", "rule")
	absorbedDesc   = desc("sluice_absorbed_hits_total", "Hits given back that gave nothing, by rule: as many had been denied and not counted.", "domain", "rule")
	unrecordedDesc = desc("sluice_unrecorded_denials_total", "Denied calls that there was no room to remember: refunds of keys that are not remembered give nothing back for a while.")
	requestsDesc   = desc("sluice_requests_total", "Calls by answer. Those that were refused, or failed, belong to no domain.", "domain", "code")
	reloadsDesc    = desc("sluice_config_reloads_total", "Loads of the rules, the first one included.", "result")
	lastReloadDesc = desc("sluice_config_last_reload_successful", "1 if the files of rules were accepted when they were last read, 0 if the rules before them are in force.")
	generationDesc = desc("sluice_config_generation", "The number of the rules in force: one more after each load that was fine.")
	keysDesc       = desc("sluice_keys", "Tracked keys by the unit of their window; other for rules with a period or an algorithm of their own.", "unit")
	evictedDesc    = desc("sluice_evicted_total", "Keys that were dropped for want of room while they still counted.")
	untrackedDesc  = desc("sluice_untracked_total", "Calls for new keys that were decided without a count, since there was no room for them.")
	unknownDesc    = desc("sluice_unknown_domain_total", "Calls for domains without rules.")
	shadowedDesc   = desc("sluice_shadowed_total", "Calls that were over their limits and admitted, since the service is in shadow mode.")
	buildDesc      = desc("sluice_build_info", "The version of this program.", "version", "goversion")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// collector makes the metrics from the engine's statistics, when they are asked for.
type collector struct {
	*server
	mutex sync.Mutex
	last  map[hitsLabels]uint64 // what the last scrape was told
}

type hitsLabels struct{ domain, rule, outcome string }

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		hitsDesc, refundedDesc, absorbedDesc, unrecordedDesc, requestsDesc, reloadsDesc, lastReloadDesc, generationDesc, keysDesc, evictedDesc, untrackedDesc, unknownDesc, shadowedDesc, buildDesc,
	} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
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
	for l, n := range ruleSums(series, func(x *rules.Series) uint64 { return x.Refunded }) {
		counter(refundedDesc, n, l.domain, l.rule)
	}
	for l, n := range ruleSums(series, func(x *rules.Series) uint64 { return x.Absorbed }) {
		counter(absorbedDesc, n, l.domain, l.rule)
	}
	stats, calls := c.engine.Stats(), c.service.Counts()
	for name, n := range stats.Calls {
		counter(requestsDesc, n.OK, name, "ok")
		counter(requestsDesc, n.OverLimit, name, "over_limit")
	}
	counter(requestsDesc, calls.Refused+c.checker.failed.Load(), "", "refused")
	counter(requestsDesc, calls.Panics, "", "internal")
	successes, failures := c.loads.counts()
	counter(reloadsDesc, failures, "error")
	counter(reloadsDesc, successes, "success")
	accepted := 0.0
	if c.loads.report().Err == nil {
		accepted = 1
	}
	gauge(lastReloadDesc, accepted)
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
	gauge(buildDesc, 1, version(), runtime.Version())
}

// ruleSums adds up a number of what has the same labels, without an outcome. Rules for which it is 0 have no line.
func ruleSums(all []rules.Series, number func(*rules.Series) uint64) map[hitsLabels]uint64 {
	sums := map[hitsLabels]uint64{}
	for i := range all {
		if n := number(&all[i]); n != 0 {
			sums[hitsLabels{domain: text(all[i].Domain), rule: text(all[i].Path)}] += n
		}
	}
	return sums
}

// hits divides the hits of rules by outcome. Statistics are read while they are counted, so that a
// difference of two of them may be a few hits lower than it was: what a scrape has been told once
// stays, or Prometheus would take the counter for one that began anew.
func (c *collector) hits(all []rules.Series) map[hitsLabels]uint64 {
	now := map[hitsLabels]uint64{}
	for _, x := range all {
		domain, rule := text(x.Domain), text(x.Path)
		for outcome, n := range map[string]uint64{
			"within": less(less(x.Total, x.Over), x.Near), "near": x.Near, "over": less(x.Over, x.Shadow), "shadow": x.Shadow,
		} {
			now[hitsLabels{domain, rule, outcome}] += n
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

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
