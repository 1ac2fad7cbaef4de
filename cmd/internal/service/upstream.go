package service

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice/rules"
)

// upstreamCollector has the metrics of envoyproxy/ratelimit, under their names, for dashboards that use
// them.
type upstreamCollector struct{ *server }

// upstreamHits are the metrics by rule.
var upstreamHits = []struct {
	desc *prometheus.Desc
	of   func(rules.Series) uint64
}{
	{byRule("total_hits", "Hits."), func(x rules.Series) uint64 { return x.Total }},
	{byRule("within_limit", "Hits of descriptors within their limits."), func(x rules.Series) uint64 { return x.Within }},
	{byRule("near_limit", "Hits near the limit."), func(x rules.Series) uint64 { return x.Near }},
	{byRule("over_limit", "Hits over the limit."), func(x rules.Series) uint64 { return x.Over }},
	{byRule("total_negative_hits", "Hits that were given back."), func(x rules.Series) uint64 { return x.Refunded }},
	{byRule("shadow_mode", "Hits over the limit that were admitted."), func(x rules.Series) uint64 { return x.Shadow }},
}

func byRule(name, help string) *prometheus.Desc {
	return desc("ratelimit_service_rate_limit_"+name, help, "domain", "key1", "key2")
}

var (
	upstreamUnknownDesc  = desc("ratelimit_service_rate_limit_domain_not_found", "Calls for domains without rules.", "domain")
	upstreamSuccessDesc  = desc("ratelimit_service_config_load_success", "Loads of the rules.")
	upstreamErrorDesc    = desc("ratelimit_service_config_load_error", "Loads of the rules that were refused.")
	upstreamShadowDesc   = desc("ratelimit_service_global_shadow_mode", "Calls that were over their limits and admitted.")
	upstreamRefusedDesc  = desc("ratelimit_service_should_rate_limit_error", "Calls that were refused.", "err_type")
	upstreamRequestsDesc = desc("ratelimit_service_total_requests", "Calls.", "grpc_method")
)

// upstreamLabels identify upstream's series: two levels, into which deeper levels are folded.
type upstreamLabels struct{ domain, key1, key2 string }

func (c *upstreamCollector) Describe(out chan<- *prometheus.Desc) {
	for _, h := range upstreamHits {
		out <- h.desc
	}
	for _, d := range []*prometheus.Desc{
		upstreamUnknownDesc, upstreamSuccessDesc, upstreamErrorDesc, upstreamShadowDesc, upstreamRefusedDesc, upstreamRequestsDesc,
	} {
		out <- d
	}
}

func (c *upstreamCollector) Collect(out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for k, sum := range foldSeries(c.engine.Series()) {
		for _, h := range upstreamHits {
			counter(h.desc, h.of(sum), k.domain, k.key1, k.key2)
		}
	}
	stats, calls := c.engine.Stats(), c.service.Counts()
	unknown := map[string]uint64{}
	for name, n := range stats.UnknownDomainsByName {
		unknown[sanitize(name)] += n
	}
	for name, n := range unknown {
		counter(upstreamUnknownDesc, n, name)
	}
	successes, failures := c.loads.counts()
	counter(upstreamSuccessDesc, successes)
	counter(upstreamErrorDesc, failures)
	counter(upstreamShadowDesc, stats.GlobalShadow)
	counter(upstreamRefusedDesc, calls.Refused+calls.Panics+c.checker.failed.Load(), "service_error")
	counter(upstreamRefusedDesc, 0, "redis_error")
	counter(upstreamRequestsDesc, calls.OK+calls.OverLimit+calls.Refused+calls.Panics, "ShouldRateLimit")
}

// foldSeries adds up the series with the same labels.
func foldSeries(all []rules.Series) map[upstreamLabels]rules.Series {
	sums := map[upstreamLabels]rules.Series{}
	for _, x := range all {
		k := upstreamLabels{domain: sanitize(x.Domain)}
		if len(x.Levels) > 0 {
			k.key1 = sanitize(x.Levels[0])
		}
		if len(x.Levels) > 1 {
			k.key2 = sanitize(x.Levels[1])
		}
		sum := sums[k]
		sum.Total, sum.Within, sum.Near = sum.Total+x.Total, sum.Within+x.Within, sum.Near+x.Near
		sum.Over, sum.Shadow, sum.Refunded = sum.Over+x.Over, sum.Shadow+x.Shadow, sum.Refunded+x.Refunded
		sums[k] = sum
	}
	return sums
}

// stats writes the statistics in upstream's text form: a name and a number on each line.
func (s *server) stats(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	const prefix = "ratelimit.service.rate_limit."
	for _, x := range s.engine.Series() {
		name := prefix + x.Path
		if x.Path == "override" || x.Path == "other" { // these belong to a domain, and to no rule
			name = prefix + x.Domain + "." + x.Path
		}
		name = sanitize(name)
		for _, v := range []struct {
			name string
			n    uint64
		}{{"near_limit", x.Near}, {"over_limit", x.Over}, {"over_limit_with_local_cache", 0}, {"shadow_mode", x.Shadow}, {"total_hits", x.Total}, {"total_negative_hits", x.Refunded}, {"within_limit", x.Within}} {
			fmt.Fprintf(w, "%s.%s: %d\n", name, v.name, v.n)
		}
	}
	successes, failures := s.loads.counts()
	fmt.Fprintf(w, "ratelimit.service.config_load_error: %d\nratelimit.service.config_load_success: %d\nratelimit.service.global_shadow_mode: %d\n",
		failures, successes, s.engine.Stats().GlobalShadow)
}

var (
	ipv4       = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)
	separators = strings.NewReplacer(":", "_", "|", "_", "\n", "_", "\r", "_")
)

// sanitize turns a path into the form that it has in upstream's statistics.
func sanitize(s string) string {
	s = separators.Replace(text(s))
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}
