package service

import (
	"fmt"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-go/sluice/rls/holdpb"
)

const metricRules = `
domain: d
descriptors:
- {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: seen, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: each, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- key: outer
  value: v
  descriptors:
  - key: middle
    descriptors:
    - {key: inner, rate_limit: {unit: day, requests_per_unit: 5}}
`

// scrape returns the metrics by name and labels.
func (r *running) scrape() map[string]float64 {
	r.Helper()
	code, body := r.get("metrics", "/metrics")
	require.Equal(r, 200, code, body)
	return samples(r.T, body)
}

func samples(t *testing.T, body string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64)
		require.NoError(t, err, line)
		out[line[:i]] = v
	}
	return out
}

// TestMetrics_AllIsNear: NEAR_LIMIT_RATIO=0 starts, as it does upstream, and puts all hits up to the limit near it.
func TestMetrics_AllIsNear(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, metricRules), "--manual-clock", "--near-ratio", "0")
	conn := r.dial()
	for range 3 {
		ask(t, conn, one("ten", "a"))
	}
	got := r.scrape()
	assert.EqualValues(t, 3, got[`sluice_hits_total{domain="d",outcome="near",rule="d.ten"}`])
	assert.EqualValues(t, 0, got[`sluice_hits_total{domain="d",outcome="within",rule="d.ten"}`])
}

func (r *running) lint() string {
	r.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		r.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	_, body := r.get("metrics", "/metrics")
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(body)
	out, _ := cmd.CombinedOutput() // what it says decides
	return string(out)
}

// exercise makes the service count something of everything.
func exercise(r *running) {
	conn := r.dial()
	for range 12 {
		ask(r.T, conn, one("ten", "x"))
	}
	ask(r.T, conn, &pb.RateLimitRequest{Domain: "d", HitsAddend: 3, Descriptors: one("seen", "x").Descriptors})
	ask(r.T, conn, one("each", "10.0.0.1"))
	req := one("", "")
	req.Descriptors[0] = descriptor("outer", "v", "middle", "a", "inner", "b")
	ask(r.T, conn, req)
	ask(r.T, conn, &pb.RateLimitRequest{Domain: "nobody:s", Descriptors: req.Descriptors})
	r.send("POST", "http", "/json", "nonsense")
}

// giveBack makes a call that gives back 5 hits of d.ten.
func giveBack(r *running) {
	req := one("ten", "x")
	req.HitsAddend, req.Descriptors[0].IsNegativeHits = 5, true
	ask(r.T, r.dial(), req)
}

func TestMetrics(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, metricRules), "--manual-clock")
	exercise(r)
	got := r.scrape()
	for name, want := range map[string]float64{
		`sluice_hits_total{domain="d",outcome="within",rule="d.ten"}`:                  8,
		`sluice_hits_total{domain="d",outcome="near",rule="d.ten"}`:                    2,
		`sluice_hits_total{domain="d",outcome="over",rule="d.ten"}`:                    2,
		`sluice_hits_total{domain="d",outcome="shadow",rule="d.seen"}`:                 2,
		`sluice_hits_total{domain="d",outcome="over",rule="d.seen"}`:                   0,
		`sluice_hits_total{domain="d",outcome="near",rule="d.each_10.0.0.1"}`:          1,
		`sluice_hits_total{domain="d",outcome="within",rule="d.outer_v.middle.inner"}`: 1,
		`sluice_requests_total{code="ok",domain="d"}`:                                  13,
		`sluice_requests_total{code="over_limit",domain="d"}`:                          2,
		`sluice_requests_total{code="refused",domain=""}`:                              1,
		`sluice_requests_total{code="internal",domain=""}`:                             0,
		`sluice_config_reloads_total{result="success"}`:                                1,
		`sluice_config_reloads_total{result="error"}`:                                  0,
		`sluice_config_last_reload_successful`:                                         1,
		`sluice_config_generation`:                                                     1,
		`sluice_keys{unit="minute"}`:                                                   2,
		`sluice_keys{unit="hour"}`:                                                     1,
		`sluice_evicted_total`:                                                         0,
		`sluice_untracked_total`:                                                       0,
		`sluice_unknown_domain_total`:                                                  1,
		`sluice_shadowed_total`:                                                        0,
		`sluice_request_duration_seconds_count{transport="grpc"}`:                      16,
		`sluice_request_duration_seconds_count{transport="json"}`:                      1,
	} {
		assert.Contains(t, got, name)
		assert.Equal(t, want, got[name], name)
	}
	assert.Contains(t, got, "go_goroutines")
	assert.NotContains(t, got, `sluice_refunded_hits_total{domain="d",rule="d.ten"}`)
	giveBack(r)
	assert.EqualValues(t, 5, r.scrape()[`sluice_refunded_hits_total{domain="d",rule="d.ten"}`])
	assert.EqualValues(t, 0, r.scrape()["sluice_unrecorded_denials_total"])
	assert.Empty(t, r.lint())
}

// TestMetrics_HoldDurations: every call about a hold, refused or not, is in the histogram of its transport.
func TestMetrics_HoldDurations(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, metricRules), "--manual-clock")
	conn := r.dial()
	ten := []*holdpb.Descriptor{{Entries: []*holdpb.Descriptor_Entry{{Key: "ten", Value: "x"}}}}
	for _, service := range []string{"sluice.ratelimit.v1.HoldService", "kuadrant.service.ratelimit.v1.RateLimitService"} {
		for _, call := range []struct {
			method  string
			in, out proto.Message
		}{
			{"Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: ten, Amount: 2, IdempotencyKey: service}, new(holdpb.ReserveResponse)},
			{"Extend", &holdpb.ExtendRequest{Domain: "d", Descriptors: ten, ReservationId: service, Amount: 1}, new(holdpb.ExtendResponse)},
			{"Commit", &holdpb.CommitRequest{Domain: "d", Descriptors: ten, ReservationId: service, ActualAmount: 1}, new(holdpb.CommitResponse)},
			{"Release", &holdpb.ReleaseRequest{Domain: "d", Descriptors: ten, ReservationId: service}, new(holdpb.ReleaseResponse)}, // NOT_FOUND
		} {
			_ = conn.Invoke(t.Context(), "/"+service+"/"+call.method, call.in, call.out) // Kuadrant's has no Extend and no Release
		}
	}
	for _, path := range []string{"/hold", "/extend", "/settle", "/release"} {
		r.send("POST", "http", path, `{"domain":"d","descriptors":[{"entries":[{"key":"ten","value":"x"}]}],"id":"h"}`) // /extend and /settle want hits
	}
	got := r.scrape()
	assert.EqualValues(t, 3, got[`sluice_holds_total{outcome="held"}`])
	assert.EqualValues(t, 6, got[`sluice_request_duration_seconds_count{transport="grpc"}`])
	assert.EqualValues(t, 4, got[`sluice_request_duration_seconds_count{transport="json"}`])
}

// TestMetrics_Absorbed: a refund that gives nothing back is told.
func TestMetrics_Absorbed(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 2, algorithm: gcra}}]\n"), "--manual-clock")
	conn := r.dial()
	for _, back := range []bool{false, true} {
		ask(t, conn, &pb.RateLimitRequest{Domain: "d", HitsAddend: 3, Descriptors: []*common.RateLimitDescriptor{
			{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k", Value: "a"}}, IsNegativeHits: back}}})
	}
	got := r.scrape()
	assert.EqualValues(t, 3, got[`sluice_refunded_hits_total{domain="d",rule="d.k"}`])
	assert.EqualValues(t, 3, got[`sluice_absorbed_hits_total{domain="d",rule="d.k"}`])
}

func TestMetrics_UpstreamNames(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, metricRules), "--manual-clock", "--metrics-names", "upstream", "--metrics-path", "/metrics")
	exercise(r)
	got := r.scrape()
	for name, want := range map[string]float64{
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="ten",key2=""}`:           12,
		`ratelimit_service_rate_limit_within_limit{domain="d",key1="ten",key2=""}`:         10,
		`ratelimit_service_rate_limit_near_limit{domain="d",key1="ten",key2=""}`:           2,
		`ratelimit_service_rate_limit_over_limit{domain="d",key1="ten",key2=""}`:           2,
		`ratelimit_service_rate_limit_shadow_mode{domain="d",key1="seen",key2=""}`:         2,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="each_10_0_0_1",key2=""}`: 1,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="outer_v",key2="middle"}`: 1,
		`ratelimit_service_rate_limit_domain_not_found{domain="nobody_s"}`:                 1,
		`ratelimit_service_config_load_success`:                                            1,
		`ratelimit_service_config_load_error`:                                              0,
		`ratelimit_service_global_shadow_mode`:                                             0,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"}`:              1,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"}`:                0,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`:                  17,
		`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}`:     17,
	} {
		assert.Contains(t, got, name)
		assert.Equal(t, want, got[name], name)
	}
	giveBack(r)
	got = r.scrape()
	assert.EqualValues(t, 5, got[`ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="ten",key2=""}`])
	assert.EqualValues(t, 12, got[`ratelimit_service_rate_limit_total_hits{domain="d",key1="ten",key2=""}`])
	_, stats := r.get("debug", "/stats")
	assert.Contains(t, stats, "\nratelimit.service.rate_limit.d.ten.total_negative_hits: 5\n")
	// Upstream's counters do not end in _total; nothing else is odd about them.
	for line := range strings.Lines(r.lint()) {
		assert.Contains(t, line, `counter metrics should have "_total" suffix`)
	}
}

// TestMetrics_UpstreamSums: hits of overrides, of values that there is no series for, and of deep levels
// are in the sum of their domain.
func TestMetrics_UpstreamSums(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, metricRules), "--manual-clock", "--metrics-names", "upstream", "--metrics-max-series", "2")
	conn := r.dial()
	hits := 0
	for i := range 20 {
		req := one("each", fmt.Sprint(i))
		req.Descriptors = append(req.Descriptors, descriptor("outer", "v", "middle", "m", "inner", fmt.Sprint(i)), descriptor("nothing", "x"))
		req.Descriptors[2].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR}
		req.HitsAddend = uint32(i + 1)
		for _, st := range ask(t, conn, req).Statuses {
			if st.CurrentLimit != nil {
				hits += i + 1
			}
		}
	}
	require.Equal(t, 3*210, hits)
	sum := 0.0
	for name, v := range r.scrape() {
		if strings.HasPrefix(name, `ratelimit_service_rate_limit_total_hits{domain="d",`) {
			sum += v
		}
	}
	assert.EqualValues(t, hits, sum)
}

// TestMetrics_Bounded: strangers choose values, and there are not more series for that.
func TestMetrics_Bounded(t *testing.T) {
	for _, c := range []struct {
		flag  string
		extra int
	}{{"5", 5}, {"0", 0}} {
		r := start(t, "--rules", rulesFile(t, metricRules), "--metrics-max-series", c.flag, "--manual-clock")
		conn := r.dial()
		for i := range 100 {
			ask(t, conn, one("each", fmt.Sprint(i)))
		}
		series, hits := 0, 0.0
		for name, v := range r.scrape() {
			if strings.Contains(name, `outcome="near",rule="d.each_`) {
				series++
			}
			if strings.HasPrefix(name, "sluice_hits_total{") {
				hits += v
			}
		}
		assert.Equal(t, c.extra, series)
		assert.Equal(t, 100.0, hits, "the others are counted, too")
		assert.EqualValues(t, 100-c.extra, r.scrape()[`sluice_hits_total{domain="d",outcome="near",rule="other"}`])
	}
}

// TestMetrics_AreTheEngines: a program that embeds the engine has the same series as the service, with the same
// values. These others are the service's own.
func TestMetrics_AreTheEngines(t *testing.T) {
	s, _ := still(t, metricRules)
	for _, key := range []string{"ten", "seen", "each", "nothing", "each\xff"} {
		for range 12 {
			_, err := s.service.ShouldRateLimit(t.Context(), one(key, "a\xff"))
			require.NoError(t, err)
		}
	}
	req := one("ten", "x")
	req.Descriptors[0].IsNegativeHits = true
	_, err := s.service.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	_, err = s.service.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "nobody's", Descriptors: req.Descriptors})
	require.NoError(t, err)
	embedded := prometheus.NewRegistry()
	embedded.MustRegister(collectorOf(s.engine.Metrics()))
	engine := exposition(t, embedded)
	require.Greater(t, len(engine), 30)
	var own []string
	for name, v := range exposition(t, s.metrics.registry) {
		family, _, _ := strings.Cut(name, "{")
		value, ok := engine[name]
		switch {
		case ok:
			assert.Equal(t, v, value, name)
			delete(engine, name)
		case family == "sluice_build_info":
			own = append(own, family) // without the versions
		case strings.HasPrefix(family, "sluice_") && !strings.Contains(family, "duration"):
			own = append(own, name)
		}
	}
	assert.Empty(t, engine, "the service lacks these")
	assert.ElementsMatch(t, []string{
		"sluice_build_info", "sluice_check_without_client_header_total", "sluice_config_last_reload_successful", `sluice_config_reloads_total{result="error"}`, `sluice_config_reloads_total{result="success"}`,
		`sluice_requests_total{code="internal",domain=""}`, `sluice_requests_total{code="refused",domain=""}`,
	}, own)
}

// exposition returns what a registry tells, as scrape does.
func exposition(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(g, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return samples(t, w.Body.String())
}

func TestMetrics_SanitizedNames(t *testing.T) {
	assert.Equal(t, "a_b_10_0_0_1_x", sanitize("a:b|10.0.0.1_x"))
}

// TestMetrics_WhileCounting scrapes and reloads under load: nothing fails, and no counter goes down.
func TestMetrics_WhileCounting(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, metricRules))
	var load sync.WaitGroup
	defer load.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for range 2 {
		conn := r.dial()
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					ask(t, conn, one("ten", "x"))
				}
			}
		})
	}
	last := map[string]float64{}
	for i := range 50 {
		if i%10 == 0 {
			r.signal(r.reload)
		}
		now := r.scrape()
		for name, v := range last {
			if strings.HasPrefix(name, "sluice_") && strings.Contains(name, "_total") {
				require.GreaterOrEqual(t, now[name], v, name)
			}
		}
		last = now
	}
}
