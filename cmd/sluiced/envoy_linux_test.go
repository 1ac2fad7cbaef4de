package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// envoy is Envoy with the configuration of deploy/, in front of the application.
type envoy struct {
	*servetest.Proxy
	admin *http.Client
}

// envoyAddress is an address, or the path of a socket, in Envoy's words.
func envoyAddress(t *testing.T, address string) string {
	if filepath.IsAbs(address) {
		return "{pipe: {path: " + address + "}}"
	}
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, port)
}

// startEnvoy starts it; services are the addresses of the rate limit services, and changes are
// further ones of the configuration.
func startEnvoy(t *testing.T, app *servetest.Application, services []string, changes ...string) *envoy {
	t.Helper()
	return startEnvoyOf(t, "envoy/envoy.yaml", app, services, changes...)
}

// startEnvoyOf starts it with another file of deploy/.
func startEnvoyOf(t *testing.T, file string, app *servetest.Application, services []string, changes ...string) *envoy {
	t.Helper()
	path, port, admin := servetest.EnvoyPath(t), servetest.Reserve(t), servetest.SocketName(t)
	var endpoints strings.Builder
	for _, s := range services {
		fmt.Fprintf(&endpoints, "\n        - endpoint: {address: %s}", envoyAddress(t, s))
	}
	was := func(host, port string) string {
		return "{socket_address: {address: " + host + ", port_value: " + port + "}}"
	}
	// Of two changes of one text the first is made.
	config := deployed(t, file, append(slices.Clone(changes),
		was("127.0.0.1", "9901"), envoyAddress(t, admin), was("0.0.0.0", "8000"), envoyAddress(t, "127.0.0.1:"+port),
		was("127.0.0.1", "3000"), envoyAddress(t, app.Address),
		"\n        - endpoint: {address: "+was("127.0.0.1", "8081")+"}", endpoints.String(),
		"timeout: 0.1s", "timeout: 60s", // a machine that is busy is no failure
		"  - name: sluice\n", "  - name: sluice\n    common_lb_config: {update_merge_window: 0s}\n", // or workers hear of health a second later
		"    - timeout: 1s\n      interval: 1s", "    - timeout: 60s\n      interval: 0.05s\n      no_traffic_interval: 0.05s",
	)...)
	dir := servetest.Files(t, map[string]string{"envoy.yaml": config})
	cmd := exec.Command(path, "-c", filepath.Join(dir, "envoy.yaml"), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warn")
	cmd.Dir = dir
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin)
	}
	e := &envoy{servetest.StartProxy(t, port, cmd), &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}}
	for _, s := range services {
		e.waitFor("the service is healthy", s+"::health_flags::healthy")
	}
	return e
}

// waitFor waits until the admin port tells something of the clusters.
func (e *envoy) waitFor(what, text string) {
	e.Helper()
	servetest.Eventually(e.T, what, func() bool { return strings.Contains(e.ask("/clusters"), text) })
}

func (e *envoy) ask(path string) string {
	e.Helper()
	resp, err := e.admin.Get("http://admin" + path)
	require.NoError(e, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(e, err)
	require.Equal(e, 200, resp.StatusCode)
	return string(body)
}

// stat is one of Envoy's counters.
func (e *envoy) stat(name string) string {
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `: (\d+)$`).FindStringSubmatch(e.ask("/stats"))
	if m == nil {
		return ""
	}
	return m[1]
}

const envoyRules = `
domain: web
descriptors:
- {key: masked_remote_address, rate_limit: {unit: day, requests_per_unit: 5}}
- key: path
  value: /login
  descriptors:
  - {key: masked_remote_address, rate_limit: {unit: day, requests_per_unit: 1, name: login}}
- {key: weight, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: tokens, rate_limit: {unit: day, requests_per_unit: 100}}
`

func serveEnvoy(t *testing.T, rules string, args ...string) *program {
	servetest.EnvoyPath(t)
	dir := servetest.Files(t, map[string]string{"web.yaml": rules})
	return startServe(t, nil, append([]string{"--rules", dir, "--manual-clock", "--log-level", "info", "--drain", "1h"}, args...)...)
}

// TestEnvoy_Limits: Envoy denies what is over its limit, and makes its X-RateLimit headers of our
// statuses.
func TestEnvoy_Limits(t *testing.T) {
	s, app := serveEnvoy(t, envoyRules, "--headers"), servetest.StartApplication(t)
	e := startEnvoy(t, app, []string{s.addresses["grpc"]})
	resp, body := e.Get("/")
	require.Equal(t, 200, resp.StatusCode, body)
	assert.Equal(t, "5, 5;w=86400", resp.Header.Get("X-Ratelimit-Limit"))
	assert.Equal(t, "4", resp.Header.Get("X-Ratelimit-Remaining"))
	assert.Equal(t, "86400", resp.Header.Get("X-Ratelimit-Reset"))
	assert.Equal(t, "4", resp.Header.Get("RateLimit-Remaining"), "and ours, by --headers")

	resp, _ = e.Get("/login")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, `1, 5;w=86400, 1;w=86400;name="login"`, resp.Header.Get("X-Ratelimit-Limit"), "the tightest one first")
	assert.Equal(t, "0", resp.Header.Get("X-Ratelimit-Remaining"))
	resp, _ = e.Get("/login", "X-Forwarded-For: 198.51.100.1", "X-Envoy-External-Address: 198.51.100.1")
	assert.Equal(t, 429, resp.StatusCode, "what a client writes changes nothing")
	assert.Equal(t, "true", resp.Header.Get("X-Envoy-Ratelimited"))
	for i := range 4 {
		resp, _ = e.Get("/")
		assert.Equal(t, map[bool]int{true: 200, false: 429}[i < 2], resp.StatusCode, i)
	}
	for _, path := range []string{"/login?again=1", "//login", "/%6cogin", "/a/../login"} {
		resp, _ = e.Get(path)
		assert.Contains(t, resp.Header.Get("X-Ratelimit-Limit"), "login", "%s is another spelling", path)
	}
	resp, _ = e.Get("/" + strings.Repeat("x", 50_000))
	assert.Equal(t, 429, resp.StatusCode, "no length of what Envoy takes is refused, and then passed on")
	assert.EqualValues(t, 4, app.Calls.Load())
	assert.Equal(t, "4", e.stat("cluster.app.ratelimit.ok"))
	assert.Equal(t, "8", e.stat("cluster.app.ratelimit.over_limit"))
	assert.Empty(t, strings.Trim(e.stat("cluster.app.ratelimit.error"), "0"))
}

// TestEnvoy_MaxRetryAfter: a domain with max_retry_after has Envoy tell denied clients a wait, and none other.
func TestEnvoy_MaxRetryAfter(t *testing.T) {
	s, app := serveEnvoy(t, strings.Replace(envoyRules, "descriptors:", "sluice: {max_retry_after: 5m}\ndescriptors:", 1)), servetest.StartApplication(t)
	e := startEnvoy(t, app, []string{s.addresses["grpc"]})
	for i := range 2 {
		resp, _ := e.Get("/login")
		assert.Equal(t, map[bool]int{true: 200, false: 429}[i == 0], resp.StatusCode)
		assert.Equal(t, map[bool]string{true: "", false: "300"}[i == 0], resp.Header.Get("Retry-After"))
		assert.Equal(t, "86400", resp.Header.Get("X-Ratelimit-Reset"), "which stays exact")
	}
}

// TestEnvoy_SaysWhichRule: the access log, and by --rule-header the client, are told which rule denied, and no value of
// the request that it is not told otherwise.
func TestEnvoy_SaysWhichRule(t *testing.T) {
	s, app := serveEnvoy(t, envoyRules, "--rule-header", "X-Denied-By"), servetest.StartApplication(t)
	log := filepath.Join(t.TempDir(), "access.log")
	e := startEnvoy(t, app, []string{s.addresses["grpc"]}, "/dev/stdout", log)
	denied := "web.path_/login.masked_remote_address"
	for i, want := range []string{"", denied, denied} {
		resp, _ := e.Get("/login")
		assert.Equal(t, map[bool]int{true: 200, false: 429}[i == 0], resp.StatusCode)
		assert.Equal(t, want, resp.Header.Get("X-Denied-By"))
	}
	_, _ = e.Get("/")
	_, _ = e.Get("/")
	resp, _ := e.Get("/")
	assert.Equal(t, "web.masked_remote_address", resp.Header.Get("X-Denied-By"))
	var lines []string
	servetest.Eventually(t, "the log is written", func() bool {
		b, err := os.ReadFile(log)
		lines = strings.Split(string(b), "\n")
		return err == nil && len(lines) == 7
	})
	for i, want := range []string{
		`"GET /login HTTP/1.1" 200 - -`, `"GET /login HTTP/1.1" 429 RL ` + denied, `"GET /login HTTP/1.1" 429 RL ` + denied,
		`"GET / HTTP/1.1" 200 - -`, `"GET / HTTP/1.1" 200 - -`, `"GET / HTTP/1.1" 429 RL web.masked_remote_address`, "",
	} {
		assert.True(t, strings.HasSuffix(lines[i], want), "%s\n%s", want, lines[i])
	}
}

// TestEnvoy_Failure stops the service: Envoy lets requests pass, or denies them.
func TestEnvoy_Failure(t *testing.T) {
	for deny, want := range map[string]int{"false": 200, "true": 500} {
		s, app := serveEnvoy(t, envoyRules), servetest.StartApplication(t)
		e := startEnvoy(t, app, []string{s.addresses["grpc"]}, "failure_mode_deny: false", "failure_mode_deny: "+deny)
		resp, _ := e.Get("/")
		require.Equal(t, 200, resp.StatusCode)
		s.end(syscall.SIGKILL)
		for range 10 {
			resp, _ = e.Get("/")
			assert.Equal(t, want, resp.StatusCode, "failure_mode_deny: "+deny)
		}
		assert.Equal(t, "10", e.stat("cluster.app.ratelimit.error"))
	}
}

// TestEnvoy_Unjudged: with --dynamic-metadata the access log tells requests that were admitted from those that passed since nobody
// has answered, as deploy/envoy/README.md has it. A service that hangs costs nothing once its health check has failed, if Envoy may do without one.
func TestEnvoy_Unjudged(t *testing.T) {
	s, app := serveEnvoy(t, envoyRules, "--dynamic-metadata"), servetest.StartApplication(t)
	log := filepath.Join(t.TempDir(), "access.log")
	e := startEnvoy(t, app, []string{s.addresses["grpc"]}, "/dev/stdout", log, "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:sluice:rule)%", "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:domain)%",

		"  - name: sluice\n", "  - name: sluice\n    common_lb_config: {update_merge_window: 0s, healthy_panic_threshold: {value: 0}}\n",
		"    - timeout: 1s\n      interval: 1s", "    - timeout: 0.5s\n      interval: 0.05s\n      no_traffic_interval: 0.05s")
	resp, _ := e.Get("/")
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	e.waitFor("Envoy sees that it hangs", s.addresses["grpc"]+"::health_flags::/failed_active_hc")
	resp, _ = e.Get("/") // 60 s, if it were asked
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	var lines []string
	servetest.Eventually(t, "the log is written", func() bool {
		b, err := os.ReadFile(log)
		lines = strings.Split(string(b), "\n")
		return err == nil && len(lines) == 3
	})
	assert.True(t, strings.HasSuffix(lines[0], `"GET / HTTP/1.1" 200 - web`), lines[0])
	assert.True(t, strings.HasSuffix(lines[1], `"GET / HTTP/1.1" 200 - -`), lines[1])
	assert.Equal(t, "1", e.stat("cluster.app.ratelimit.failure_mode_allowed"))
}

// TestEnvoy_IPv6: a client of IPv6 is its /64, as in /check, and one of IPv4 its address.
func TestEnvoy_IPv6(t *testing.T) {
	s, app := serveEnvoy(t, envoyRules), servetest.StartApplication(t)
	e := startEnvoy(t, app, []string{s.addresses["grpc"]}, "xff_num_trusted_hops: 0", "xff_num_trusted_hops: 1")
	from := func(client string) int {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+e.Address+"/login", nil)
		require.NoError(t, err)
		req.Header.Set("X-Forwarded-For", client)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	assert.Equal(t, 200, from("2001:db8::1"))
	assert.Equal(t, 429, from("2001:db8::ffff:2"), "the same /64")
	assert.Equal(t, 200, from("2001:db8:0:1::1"))
	assert.Equal(t, 200, from("192.0.2.1"))
	assert.Equal(t, 200, from("192.0.2.2"))
	assert.Equal(t, 429, from("192.0.2.2"))
}

// TestEnvoy_Restart ends one service after the other under load, and starts another in its place.
// Envoy denies what it gets no answer for, and denies nothing.
func TestEnvoy_Restart(t *testing.T) {
	const many = "domain: web\ndescriptors:\n- {key: masked_remote_address, rate_limit: {unit: day, requests_per_unit: 100000000}}\n"
	// Sockets, since nobody else can take the place of the first service before it is back.
	socket := servetest.SocketName(t)
	first, second, app := serveEnvoy(t, many, "--grpc=", "--uds", socket), serveEnvoy(t, many, "--grpc=", "--uds", servetest.SocketName(t)), servetest.StartApplication(t)
	e := startEnvoy(t, app, []string{first.addresses["grpc"], second.addresses["grpc"]}, "failure_mode_deny: false", "failure_mode_deny: true")
	var calls atomic.Int64
	var load sync.WaitGroup
	stop := make(chan struct{})
	defer load.Wait()
	for range 4 {
		load.Go(func() {
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := client.Get("http://" + e.Address + "/")
				if !assert.NoError(t, err) {
					return
				}
				_ = resp.Body.Close()
				assert.Equal(t, 200, resp.StatusCode)
				calls.Add(1)
			}
		})
	}
	defer close(stop)
	more := func() {
		before := calls.Load()
		servetest.Eventually(t, "load", func() bool { return calls.Load() > before+50 })
	}
	more()
	for _, s := range []*program{first, second} {
		if s == second { // the first one is back, under the same address
			serveEnvoy(t, many, "--grpc=", "--uds", socket)
			e.waitFor("the first service is healthy again", socket+"::health_flags::healthy")
		}
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		e.waitFor("Envoy sees the drain", s.addresses["grpc"]+"::health_flags::/failed_active_hc")
		more()
		require.Equal(t, 0, s.end(syscall.SIGTERM), s.log.String())
		more()
	}
	assert.Empty(t, strings.Trim(e.stat("cluster.app.ratelimit.error"), "0"))
	assert.Empty(t, strings.Trim(e.stat("cluster.app.ratelimit.over_limit"), "0"))
}

// perRoute are limits whose hits Envoy reads from the request, or from the response when it has
// ended.
const perRoute = `
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{generic_key: {descriptor_key: weight, descriptor_value: x}}]
                      hits_addend: {format: "%REQ(WEIGHT)%"}
                    - actions: [{generic_key: {descriptor_key: tokens, descriptor_value: x}}]
                      hits_addend: {number: 0}
                    - actions: [{generic_key: {descriptor_key: tokens, descriptor_value: x}}]
                      hits_addend: {format: "%RESP(TOKENS)%"}
                      apply_on_stream_done: true`

// TestEnvoy_Hits: descriptors have hits of their own; those of a response are reported when it has
// ended, as for the tokens of a language model.
func TestEnvoy_Hits(t *testing.T) {
	s, app := serveEnvoy(t, envoyRules), servetest.StartApplication(t)
	e := startEnvoy(t, app, []string{s.addresses["grpc"]}, "\n                route: {cluster: app}", "\n                route: {cluster: app}"+perRoute)
	left := func(descriptor string) string {
		_, stdout, stderr := s.askFor("-d", "web", descriptor, "--hits", "0")
		require.Empty(t, stderr)
		return regexp.MustCompile(`(\d+) of`).FindStringSubmatch(stdout)[1]
	}
	resp, body := e.Get("/tokens/30", "Weight: 4")
	require.Equal(t, 200, resp.StatusCode, body)
	assert.Equal(t, "6", left("weight=x"))
	servetest.Eventually(t, "tokens are reported", func() bool { return left("tokens=x") == "70" })
	resp, _ = e.Get("/tokens/90", "Weight: 7")
	assert.Equal(t, 429, resp.StatusCode, "11 of 10")
	resp, _ = e.Get("/tokens/90", "Weight: 0")
	assert.Equal(t, 429, resp.StatusCode, "still")
	assert.Equal(t, "70", left("tokens=x"))
}

// estimates asks for 100 tokens when a request comes, and gives 70 back when it has ended.
const estimates = `
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{generic_key: {descriptor_key: budget, descriptor_value: x}}]
                      hits_addend: {number: 100}
                    - actions: [{generic_key: {descriptor_key: budget, descriptor_value: x}}]
                      hits_addend: {number: 70, is_negative_hits: true}
                      apply_on_stream_done: true`

// TestEnvoy_Estimates: Envoy gives hits back also for requests that were denied. These add nothing to what is left.
func TestEnvoy_Estimates(t *testing.T) {
	for _, limit := range []string{"algorithm: gcra", "algorithm: sliding-log", "count_denied: false"} {
		rules := "domain: web\ndescriptors:\n- {key: budget, rate_limit: {unit: day, requests_per_unit: 150, " + limit + "}}\n"
		s, app := serveEnvoy(t, rules), servetest.StartApplication(t)
		e := startEnvoy(t, app, []string{s.addresses["grpc"]}, "\n                route: {cluster: app}", "\n                route: {cluster: app}"+estimates)
		for i := range 6 {
			resp, body := e.Get("/")
			assert.Equal(t, map[bool]int{true: 200, false: 429}[i < 2], resp.StatusCode, "%s %d %s", limit, i, body)
			servetest.Eventually(t, "the refund is there", func() bool {
				metrics, err := plainGet("http://" + s.addresses["metrics"] + "/metrics")
				require.NoError(t, err)
				return strings.Contains(metrics, fmt.Sprintf(`sluice_refunded_hits_total{domain="web",rule="web.budget"} %d`+"\n", 70*(i+1)))
			})
		}
		_, stdout, _ := s.askFor("-d", "web", "budget=x", "--hits", "0")
		assert.Contains(t, stdout, "90 of 150", limit)
	}
}
