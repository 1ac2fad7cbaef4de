package service

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	sluicemetrics "github.com/sluice-go/sluice/metrics"
	"github.com/sluice-go/sluice/metrics/promsluice"
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
	if c := newStoreCollector(s.store); c != nil {
		m.registry.MustRegister(c)
	}
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
	m.registry.MustRegister(h, &collector{s, collectorOf(s.engine.Metrics())})
	return m
}

// collectorOf returns the collector of metrics whose labels the program has chosen.
func collectorOf(s sluicemetrics.Set) *promsluice.Collector {
	c, err := promsluice.New(s)
	if err != nil {
		panic(err)
	}
	return c
}

func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(m.path, ownSite(newScrapes(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})), byNobody))
	return mux
}

// The metrics of the service itself. A call that was refused, or failed, is also in a metric of the engine.
var (
	requestsDesc   = desc("sluice_requests_total", "Calls by answer. Those that were refused, or failed, belong to no domain.", "domain", "code")
	reloadsDesc    = desc("sluice_config_reloads_total", "Loads of the rules, the first one included.", "result")
	lastReloadDesc = desc("sluice_config_last_reload_successful", "1 if the files of rules were accepted when they were last read, 0 if the rules before them are in force.")
	headerlessDesc = desc("sluice_check_without_client_header_total", "Calls of /check from a trusted proxy without --client-header, counted under the proxy's address.")
	buildDesc      = desc("sluice_build_info", "The version of this program.", "version", "goversion")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// collector adds the counters of the service to the metrics of the engine.
type collector struct {
	*server
	rules *promsluice.Collector
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	c.rules.Describe(out)
	for _, d := range []*prometheus.Desc{requestsDesc, reloadsDesc, lastReloadDesc, headerlessDesc, buildDesc} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.rules.Collect(out)
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	calls := c.service.Counts()
	counter(requestsDesc, calls.Refused+c.checker.failed.Load(), "", "refused")
	counter(requestsDesc, calls.Panics, "", "internal")
	counter(headerlessDesc, c.checker.headerless.Load())
	successes, failures := c.loads.counts()
	counter(reloadsDesc, failures, "error")
	counter(reloadsDesc, successes, "success")
	accepted := 0.0
	if c.loads.report().Err == nil {
		accepted = 1
	}
	out <- prometheus.MustNewConstMetric(lastReloadDesc, prometheus.GaugeValue, accepted)
	out <- prometheus.MustNewConstMetric(buildDesc, prometheus.GaugeValue, 1, version(), runtime.Version())
}

// text makes a string valid as the value of a label, which is UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
