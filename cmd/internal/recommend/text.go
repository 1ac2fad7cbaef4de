package recommend

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Target is a program, or a language, that a limit can be written for.
type Target struct {
	Name  string                // on the command line
	Title string                // for people
	Write func(r Result) string // the rule, with the end of its last line
}

// TargetsFor returns those that can count by the key of the result.
func (r Result) TargetsFor() (out []Target) {
	for _, t := range Targets {
		if _, known := r.actions(); len(r.Key) == 0 || t.Name == "go" || t.Name == "serve" && known {
			out = append(out, t)
		}
	}
	return out
}

// actionsOf are the actions of rules by the parts of keys.
var actionsOf = map[string]string{
	"client": "remote_address: {}",
	"path":   "path: {}",
	"method": "request_headers: {header_name: ':method', descriptor_key: method}",
	"host":   "request_headers: {header_name: ':authority', descriptor_key: host}",
	"agent":  "request_headers: {header_name: user-agent, descriptor_key: agent}",
}

// actions returns the actions that make descriptors by the key; false if rules have no words for it.
func (r Result) actions() (actions []string, known bool) {
	for _, part := range r.keyParts() {
		action, ok := actionsOf[part]
		if !ok {
			return nil, false
		}
		actions = append(actions, "{"+action+"}")
	}
	return actions, true
}

func (r Result) keyParts() []string {
	if len(r.Key) == 0 {
		return []string{"client"}
	}
	return r.Key
}

// Targets are all of them.
var Targets = []Target{
	{"serve", "sluiced serve", Result.Serve},
	{"nginx", "nginx", Result.NginxRule},
	{"envoy", "Envoy, local rate limit", Result.Envoy},
	{"haproxy", "HAProxy", Result.HAProxyRule},
	{"go", "Go", Result.Go},
}

// Serve is a file of rules for sluiced serve. It counts by each part of the key within the one before.
func (r Result) Serve() string {
	actions, _ := r.actions()
	var b strings.Builder
	fmt.Fprintf(&b, "domain: web\nhttp:\n- actions: [%s]\n", strings.Join(actions, ", "))
	margin := ""
	for _, part := range r.keyParts() {
		if part == "client" {
			part = "remote_address"
		}
		fmt.Fprintf(&b, "%sdescriptors:\n%s- key: %s\n", margin, margin, part)
		margin += "  "
	}
	limit := r.Bucket
	fmt.Fprintf(&b, "%srate_limit: {%s, requests_per_unit: %d, algorithm: gcra, burst: %d}\n", margin, yamlPeriod(limit.Period), limit.Rate, limit.Burst)
	return b.String()
}

func yamlPeriod(period time.Duration) string {
	for unit, d := range map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour} {
		if d == period {
			return "unit: " + unit
		}
	}
	return "period: " + period.String()
}

// NginxRule is directives for nginx. Its burst does not count the request that comes first, so it is one less.
func (r Result) NginxRule() string {
	if r.Nginx.Rate == (sluice.Limit{}) {
		return "# nginx has no such rate\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# in http\nlimit_req_zone $binary_remote_addr zone=clients:%dm rate=%s;\nlimit_req_status 429;\n",
		10+r.Evidence.Clients/8000, nginxText(r.Nginx.Rate))
	b.WriteString("# in server or location; an address in IPv6 is a client\nlimit_req zone=clients")
	if r.Nginx.Need > 0 { // burst=0 is an error
		fmt.Fprintf(&b, " burst=%d nodelay", r.Nginx.Need)
	}
	return b.String() + ";\n"
}

// nginxText is a rate in nginx's words.
func nginxText(rate sluice.Limit) string {
	if rate.Period == time.Second {
		return fmt.Sprintf("%dr/s", rate.Rate)
	}
	return fmt.Sprintf("%dr/m", rate.Rate)
}

// maxEnvoy is the largest number of tokens of Envoy.
const maxEnvoy = 1<<32 - 1

// minFill is Envoy's shortest interval of tokens.
const minFill = 50 * time.Millisecond

// Envoy is an HTTP filter for Envoy. It has a bucket for each address that it sees, and one beside that is never empty, since there has to be one.
func (r Result) Envoy() string {
	limit := r.Bucket
	if int64(limit.Burst) > maxEnvoy || int64(limit.Rate) > maxEnvoy/int64(minFill/MinPer) {
		return "# Envoy has no bucket of so many tokens\n"
	}
	times := max(1, int((minFill+limit.Period-1)/limit.Period))
	interval := strconv.FormatFloat((time.Duration(times)*limit.Period).Seconds(), 'f', -1, 64) + "s"
	return fmt.Sprintf(`# Envoy 1.34 or newer, in http_filters
- name: envoy.filters.http.local_ratelimit
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
    stat_prefix: clients
    filter_enabled: {default_value: {numerator: 100}}
    filter_enforced: {default_value: {numerator: 100}}
    always_consume_default_token_bucket: false
    token_bucket: {max_tokens: %d, tokens_per_fill: %d, fill_interval: %s}
    max_dynamic_descriptors: %d
    rate_limits:
    - actions: [{masked_remote_address: {v4_prefix_mask_len: 32, v6_prefix_mask_len: %d}}]
    descriptors:
    - entries: [{key: masked_remote_address}]
      token_bucket: {max_tokens: %d, tokens_per_fill: %d, fill_interval: %s}
`, uint32(maxEnvoy), uint32(maxEnvoy), interval, 10_000+2*r.Evidence.Clients, r.IPv6Prefix, limit.Burst, times*limit.Rate, interval)
}

// HAProxyRule is lines for a frontend of HAProxy, which has no bucket: it is a sliding window, and counts denied requests.
func (r Result) HAProxyRule() string {
	period := fmt.Sprintf("%dms", r.Per.Milliseconds())
	if r.Per%time.Second == 0 {
		period = fmt.Sprintf("%ds", r.Per/time.Second)
	}
	return fmt.Sprintf(`# in frontend; what is denied counts, too
stick-table type ipv6 size %dk expire %dms store http_req_rate(%s)
http-request track-sc0 src,ipmask(32,%d)
http-request deny deny_status 429 if { sc_http_req_rate(0) gt %d }
`, 100+r.Evidence.Clients/500, 2*r.Per.Milliseconds(), period, r.IPv6Prefix, r.HAProxy.Need)
}

// Go is a limiter.
func (r Result) Go() string {
	limit := r.Bucket
	for name, d := range map[string]time.Duration{"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour, "Day": 24 * time.Hour} {
		if d == limit.Period {
			return fmt.Sprintf("lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.Per%s(%d).WithBurst(%d)}))\n", name, limit.Rate, limit.Burst)
		}
	}
	return fmt.Sprintf("lim := sluice.Must(sluice.New(sluice.Config{Limit: sluice.Per(%d, %d).WithBurst(%d)})) // per %v\n",
		limit.Rate, limit.Period, limit.Burst, limit.Period)
}
