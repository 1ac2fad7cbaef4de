package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/original"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rules"
)

const checkRules = `
domain: web
http:
- actions: [{remote_address: {}}]
- actions: [{path: {}}, {remote_address: {}}]
- actions: [{request_headers: {header_name: ":method", descriptor_key: method}}, {path: {}}]
- actions: [{request_headers: {header_name: ":authority", descriptor_key: host}}]
- actions: [{request_headers: {header_name: x-api-key, descriptor_key: client}}]
- actions: [{query_parameters: {query_parameter_name: user, descriptor_key: user}}]
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 3, name: each}}
- {key: remote_address, value: 192.0.2.9, rate_limit: {unlimited: true}}
- {key: remote_address, value: 192.0.2.66, rate_limit: {unit: minute, requests_per_unit: 0}}
- key: path
  value: /login
  descriptors:
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: method, value: DELETE, descriptors: [{key: path, value: /all, rate_limit: {unit: day, requests_per_unit: 0}}]}
- {key: host, value: old.example, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: client, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
`

// check asks /check with headers, each NAME: VALUE.
func (r *running) check(path string, headers ...string) *http.Response {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), servetest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.addresses["http"].String()+path, nil)
	require.NoError(r, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := client.Do(req)
	require.NoError(r, err)
	_ = resp.Body.Close()
	return resp
}

// TestCheck_MaxRetryAfter: Retry-After is cut, and the reset stays exact.
func TestCheck_MaxRetryAfter(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, strings.Replace(checkRules, "http:", "sluice: {max_retry_after: 30s}\nhttp:", 1)), "--manual-clock", "--headers")
	for range 3 {
		assert.Equal(t, 204, r.check("/check/web", "X-Forwarded-For: 192.0.2.1").StatusCode)
	}
	resp := r.check("/check/web", "X-Forwarded-For: 192.0.2.1")
	assert.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, "30", resp.Header.Get("Retry-After"))
	assert.Equal(t, "60", resp.Header.Get("RateLimit-Reset"))
}

func TestCheck_Answers(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock", "--headers", "--headers-draft11", "--rule-header", "X-Denied-By")
	for i := range 3 {
		resp := r.check("/check/web", "X-Forwarded-For: 192.0.2.1")
		assert.Equal(t, 204, resp.StatusCode)
		assert.Equal(t, fmt.Sprint(2-i), resp.Header.Get("RateLimit-Remaining"))
		assert.Equal(t, fmt.Sprintf(`"each";r=%d;t=60`, 2-i), resp.Header.Get("RateLimit"))
		assert.Equal(t, `"each";q=3;w=60`, resp.Header.Get("RateLimit-Policy"))
		assert.Empty(t, resp.Header.Get("Retry-After"))
		assert.Empty(t, resp.Header.Get("X-Denied-By"))
	}
	resp := r.check("/check/web", "X-Forwarded-For: 192.0.2.1")
	assert.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, "web.remote_address", resp.Header.Get("X-Denied-By"))
	assert.Equal(t, "60", resp.Header.Get("Retry-After"))
	assert.EqualValues(t, 0, resp.ContentLength)
	resp = r.check("/check/web?deny=403", "X-Forwarded-For: 192.0.2.1")
	assert.Equal(t, 403, resp.StatusCode)
	assert.Equal(t, "60", resp.Header.Get("Retry-After"))
	assert.Equal(t, 204, r.check("/check", "X-Forwarded-For: 192.0.2.2").StatusCode, "the only domain")
	resp = r.check("/check/web", "X-Forwarded-For: 192.0.2.66")
	assert.Equal(t, 429, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("Retry-After"), "no wait helps")
	for range 5 {
		assert.Equal(t, 204, r.check("/check/web", "X-Forwarded-For: 192.0.2.9").StatusCode)
	}
	assert.Equal(t, 204, r.check("/check/unknown", "X-Forwarded-For: 192.0.2.1").StatusCode)
	assert.Equal(t, 400, r.check("/check/web?deny=200").StatusCode)
	got := r.scrape()
	assert.EqualValues(t, 3, got[`sluice_requests_total{code="over_limit",domain="web"}`])
	assert.EqualValues(t, 9, got[`sluice_requests_total{code="ok",domain="web"}`])
	assert.EqualValues(t, 1, got[`sluice_unknown_domain_total`])
	assert.EqualValues(t, 14, got[`sluice_request_duration_seconds_count{transport="check"}`])
}

// TestCheck_InFlight: what /check could not give back is refused, whatever the flags say, and counts nothing.
func TestCheck_InFlight(t *testing.T) {
	const text = `domain: web
http:
- actions: [{remote_address: {}}]
- actions: [{path: {}}]
descriptors:
- {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: path, value: /stream, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: in-flight}}
- {key: path, value: /trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: in-flight}}
`
	r := start(t, "--rules", rulesFile(t, text), "--manual-clock", "--fail-open", "--headers")
	require.Contains(t, r.log.String(), "/check does not hear when a request ends: it answers 501")
	require.Contains(t, r.log.String(), "web.path_/stream")
	for range 5 {
		for _, query := range []string{"", "?deny=403"} {
			require.Equal(t, 501, r.check("/check/web"+query, "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Uri: /stream").StatusCode)
		}
	}
	resp := r.check("/check/web", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Uri: /other")
	require.Equal(t, 204, resp.StatusCode)
	require.Equal(t, "4", resp.Header.Get("RateLimit-Remaining"))
	for range 4 {
		require.Equal(t, 204, r.check("/check/web", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Uri: /trial").StatusCode, "it denies nobody")
	}
	r = start(t, "--rules", rulesFile(t, text), "--manual-clock", "--shadow")
	for range 4 {
		require.Equal(t, 204, r.check("/check/web", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Uri: /stream").StatusCode, "nothing is denied under --shadow")
	}
}

func TestCheck_WithoutADomain(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, checkRules)+","+write(t, t.TempDir()+"/b.yaml", "domain: e\n"))
	assert.Equal(t, 404, r.check("/check").StatusCode)
	assert.Equal(t, 404, r.check("/check/").StatusCode)
	assert.Equal(t, 204, r.check("/check/web").StatusCode)
}

// TestCheck_Actions: descriptors are made by the actions of the domain, and a reload changes them.
func TestCheck_Actions(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock")
	code := func(headers ...string) int { return r.check("/check/web", headers...).StatusCode }
	for i, uri := range []string{"/login", "/login/", "//login", "/%6cogin?page=x", "/a/../login", "http://old.example/login"} {
		from := "X-Forwarded-For: 198.51.100.1"
		want := 429
		if i == 0 {
			want = 204
		}
		assert.Equal(t, want, code(from, "X-Forwarded-Uri: "+uri), uri)
	}
	assert.Equal(t, 204, code("X-Forwarded-For: 198.51.100.2", "X-Forwarded-Uri: /login"), "another client")
	assert.Equal(t, 204, code("X-Forwarded-For: 198.51.100.3", "X-Forwarded-Uri: /all", "X-Forwarded-Method: GET"))
	assert.Equal(t, 429, code("X-Forwarded-For: 198.51.100.4", "X-Forwarded-Uri: /all", "X-Forwarded-Method: DELETE"))
	for i, host := range []string{"old.example", "OLD.example:8080", "old.example."} {
		want := 204
		if i == 2 {
			want = 429
		}
		assert.Equal(t, want, code(fmt.Sprintf("X-Forwarded-For: 203.0.113.%d", i), "X-Forwarded-Host: "+host), host)
	}
}

func TestCheck_HeadersAndQueries(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock", "--fail-open")
	for i, c := range []struct {
		want    int
		headers []string
	}{
		{204, []string{"X-Api-Key: a"}}, {429, []string{"X-Api-Key: a"}}, {204, []string{"X-Api-Key: b"}},
		{204, []string{"X-Forwarded-Uri: /x?user=a"}}, {429, []string{"X-Forwarded-Uri: /y?z=1&user=a"}},
		// A client that can be read in two ways is denied, also by what admits what it cannot decide.
		{400, []string{"X-Api-Key: c", "X-Api-Key: d"}},
		{400, []string{"X-Forwarded-Uri: /?user=c&user=d"}},
		{400, []string{"X-Forwarded-Uri: /?%zz"}},
		{400, []string{"X-Forwarded-Uri: /" + strings.Repeat("x", 5000)}},
		{400, []string{"X-Forwarded-Uri: /login/..%2Fa?x"}},
		{400, []string{"X-Forwarded-Uri: /x#/../login"}},
		{400, []string{"X-Forwarded-Uri: /?x#&user=a"}},
		{400, []string{"X-Forwarded-Uri: /?user=a#user=b"}},
		{400, []string{"X-Forwarded-Uri: /#?user=a"}},
	} {
		from := fmt.Sprintf("X-Forwarded-For: 198.51.100.%d", i)
		assert.Equal(t, c.want, r.check("/check/web", append(c.headers, from)...).StatusCode, c.headers)
		if c.want == 400 {
			assert.Equal(t, 403, r.check("/check/web?deny=403", append(c.headers, from)...).StatusCode, c.headers)
		}
	}
}

func TestCheck_Reload(t *testing.T) {
	t.Parallel() // it mostly waits
	file := rulesFile(t, "domain: web\ndescriptors:\n- {key: host, rate_limit: {unit: day, requests_per_unit: 0}}\n")
	r := start(t, "--rules", file)
	assert.Equal(t, 204, r.check("/check/web", "X-Forwarded-Host: h").StatusCode, "without actions there is remote_address alone")
	write(t, file, "domain: web\nhttp: [{actions: [{request_headers: {header_name: ':authority', descriptor_key: host}}]}]\n"+
		"descriptors:\n- {key: host, rate_limit: {unit: day, requests_per_unit: 0}}\n")
	r.waitFor("generation 2, ")
	assert.Equal(t, 429, r.check("/check/web", "X-Forwarded-Host: h").StatusCode)
	assert.Equal(t, 204, r.check("/check/web").StatusCode, "it is not said")
}

// TestCheck_Forged: what a client writes in front of what its proxy writes changes nothing, and what a
// peer writes that is no proxy changes nothing at all.
func TestCheck_Forged(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock")
	for i := range 5 {
		want := 204
		if i >= 3 {
			want = 429
		}
		forged := fmt.Sprintf("X-Forwarded-For: 10.1.1.%d, 192.0.2.1", i)
		if i%2 == 1 {
			forged = fmt.Sprintf("X-Forwarded-For: 10.1.1.%d", i) // a line of its own
		}
		assert.Equal(t, want, r.check("/check/web", forged, "X-Forwarded-For: 192.0.2.1", fmt.Sprintf("Forwarded: for=10.2.2.%d", i)).StatusCode)
	}
	two := []string{"X-Forwarded-For: 198.51.100.1", "X-Forwarded-Uri: /harmless", "X-Forwarded-Uri: /login"}
	assert.Equal(t, 204, r.check("/check/web", two...).StatusCode)
	assert.Equal(t, 429, r.check("/check/web", two...).StatusCode, "the proxy's line counts")

	for _, proxies := range []string{"--trusted-proxies=", "--trusted-proxies=192.0.2.7,10.0.0.0/8"} {
		r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock", proxies)
		for i := range 5 {
			want := 204
			if i >= 3 {
				want = 429
			}
			assert.Equal(t, want, r.check("/check/web", fmt.Sprintf("X-Forwarded-For: 192.0.2.%d", i), "X-Forwarded-Uri: /login").StatusCode)
		}
		assert.Equal(t, 1, strings.Count(r.log.String(), "no trusted proxy"))
	}
}

func TestCheck_ClientHeader(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock", "--client-header", "X-Real-IP")
	for i := range 4 {
		want := 204
		if i == 3 {
			want = 429
		}
		assert.Equal(t, want, r.check("/check/web", "X-Real-IP: 192.0.2.1", fmt.Sprintf("X-Forwarded-For: 192.0.2.10%d", i)).StatusCode)
	}
}

// TestCheck_Failures: what cannot be decided is denied, or admitted under --fail-open. Nothing that a
// client can send is such a thing.
func TestCheck_Failures(t *testing.T) {
	for _, open := range []bool{false, true} {
		r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock", fmt.Sprintf("--fail-open=%t", open))
		want := 500
		if open {
			want = 204
		}
		assert.Equal(t, want, r.check("/check/web", "X-Forwarded-For: unknown").StatusCode)
		assert.Equal(t, want, r.check("/check/web", "X-Forwarded-For: unknown").StatusCode)
		assert.Equal(t, 1, strings.Count(r.log.String(), "a call of /check failed"))
		assert.EqualValues(t, 2, r.scrape()[`sluice_requests_total{code="refused",domain=""}`])
		for i := range 4 {
			want := 204
			if i == 3 {
				want = 429
			}
			assert.Equal(t, want, r.check("/check/web", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Method: ?", "X-Forwarded-Host: \x80[", "X-Forwarded-Uri: %zz\xff").StatusCode)
		}
	}
}

// TestCheck_NoClientHeader: a trusted proxy that names no client is counted under its own address, which a metric and one line
// in the log tell; with --require-client-header it is refused, also under --fail-open.
func TestCheck_NoClientHeader(t *testing.T) {
	const metric = "sluice_check_without_client_header_total"
	other := "domain: other\nhttp:\n- actions: [{request_headers: {header_name: x-api-key, descriptor_key: client}}]\ndescriptors:\n- {key: client, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	r := start(t, "--rules", rulesFile(t, checkRules)+","+rulesFile(t, other), "--manual-clock")
	for i, want := range []int{204, 204, 204, 429, 429} {
		assert.Equal(t, want, r.check("/check/web").StatusCode, i)
	}
	assert.EqualValues(t, 5, r.scrape()[metric], "once each, although two descriptors have the address")
	assert.Equal(t, 204, r.check("/check/other").StatusCode)
	assert.Equal(t, 204, r.check("/check/unknown").StatusCode)
	assert.Equal(t, 204, r.check("/check/web", "X-Forwarded-For: 192.0.2.1").StatusCode)
	assert.EqualValues(t, 5, r.scrape()[metric])
	assert.Equal(t, 1, strings.Count(r.log.String(), "without a header that names the client"))
	for _, open := range []bool{false, true} {
		r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock", "--require-client-header", fmt.Sprintf("--fail-open=%t", open))
		for range 5 {
			resp := r.check("/check/web")
			assert.Equal(t, 500, resp.StatusCode)
		}
		assert.Equal(t, 204, r.check("/check/web", "X-Forwarded-For: 192.0.2.1").StatusCode)
		assert.Zero(t, r.scrape()[metric])
		assert.Equal(t, 1, strings.Count(r.log.String(), "trusted proxy has sent no header X-Forwarded-For"))
		assert.Equal(t, 1, strings.Count(r.log.String(), "admitted=false"))
	}
}

// TestCheck_ReplayAgrees: sluice replay decides each line of a log as /check decided the request that the
// line is of, whatever its client has sent.
func TestCheck_ReplayAgrees(t *testing.T) {
	rng := seeded.Rand(t)
	r := start(t, "--rules", rulesFile(t, checkRules), "--manual-clock")
	set, _ := rules.Load([]rules.File{{Name: "r", Data: []byte(checkRules)}}, rules.Options{})
	clients, err := replay.NewClients(replay.IPv6Prefix)
	require.NoError(t, err)
	log, err := replay.New(nil, clients)
	require.NoError(t, err)
	require.NoError(t, log.AddFile(replay.File{Set: set, Domain: "web"}))
	parsers, err := accesslog.Select(accesslog.Auto, "", "")
	require.NoError(t, err)
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	var decisions strings.Builder
	now := int64(1_790_000_000_000) // milliseconds
	for range 600 {
		now += rng.Int64N(20_000)
		code, _ := r.send("POST", "debug", "/clock", fmt.Sprint(now))
		require.Equal(t, 204, code)
		client := fmt.Sprintf(pick("192.0.2.%d", "198.51.100.%d", "2001:db8:0:%d::1"), rng.IntN(12))
		method, host := pick("GET", "DELETE", "purge"), pick("old.example", "OLD.example:80", "other", "other", "other", "")
		uri := pick("/login", "//login/", "/%6cogin?user=a", "/all", "/?user=a&user=b", "/x?user=%zz", fmt.Sprintf("/x?user=%d", rng.IntN(200)), "/", "/x", "http://old.example/all", "*")
		if strings.HasPrefix(uri, "http:") {
			host = "old.example" // as every server takes it from there
		}
		headers := map[string][]string{}
		ask := []string{"X-Forwarded-For: " + client, "X-Forwarded-Method: " + method, "X-Forwarded-Uri: " + uri}
		if host != "" {
			ask = append(ask, "X-Forwarded-Host: "+host)
		}
		for range max(0, rng.IntN(6)-3) {
			key := fmt.Sprint(rng.IntN(200))
			headers["X-Api-Key"] = append(headers["X-Api-Key"], key)
			ask = append(ask, "X-Api-Key: "+key)
		}
		if code := r.check("/check/web", ask...).StatusCode; code == 204 {
			decisions.WriteByte('A')
		} else {
			require.Contains(t, []int{400, 429}, code)
			decisions.WriteByte('D')
		}
		line, err := json.Marshal(map[string]any{
			"request": map[string]any{"client_ip": client, "method": method, "host": host, "uri": uri, "headers": headers},
			"ts":      float64(now) / 1000,
		})
		require.NoError(t, err)
		sources := []accesslog.Source{accesslog.Stream("log", bytes.NewReader(line))}
		_, err = accesslog.Read(context.Background(), accesslog.Config{Sources: sources, Parsers: parsers, Requests: true}, func(rec accesslog.Record) {
			log.Add(rec.Client, rec.Time, rec.Request)
		})
		require.NoError(t, err)
	}
	result := log.Result(0).Rules[0]
	require.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(decisions.String()))), result.DecisionsSHA256)
	require.Greater(t, result.Denied, int64(50))
	require.Greater(t, result.Allowed, int64(50))
	require.Positive(t, result.Refused)
}

func TestCheck_ConfigErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--trusted-proxies x":                    `--trusted-proxies "x": want an address, or a range such as 10.0.0.0/8`,
		"--trusted-proxies 0.0.0.0/0":            "--trusted-proxies or --client-header: ",
		"--trusted-proxies 10.0.0.1/8":           "--trusted-proxies or --client-header: ",
		"--client-header x:y":                    "--trusted-proxies or --client-header: ",
		"--client-header= --trusted-proxies ::1": "--trusted-proxies or --client-header: ",
	} {
		c, _, err := parse(append(strings.Fields(args), "--rules", "r"), nil)
		require.NoError(t, err)
		assert.ErrorContains(t, c.Check(), want, args)
	}
}

// FuzzCheck: whatever a client sends, before what its proxy writes, it is judged, and a client that is
// banned stays so.
func FuzzCheck(f *testing.F) {
	c := configure(f, "--rules", rulesFile(f, `
domain: web
http:
- actions: [{remote_address: {}}]
- actions: [{request_headers: {header_name: ":authority", descriptor_key: host}}, {path: {}}, {remote_address: {}}]
descriptors:
- {key: remote_address, value: 192.0.2.66, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: host, descriptors: [{key: path, value: /*, descriptors: [{key: remote_address, rate_limit: {unlimited: true}}]}]}
`), "--manual-clock")
	s, err := newServer(c, slog.New(slog.DiscardHandler), nil)
	require.NoError(f, err)
	handler := s.public()
	f.Add("198.51.100.1", "GET", "/login", "old.example:80")
	f.Add("unknown, \"", "", "//a/../%2e%2e/%zz?#", "[::1")
	f.Fuzz(func(t *testing.T, forged, method, uri, host string) {
		for client, want := range map[string]int{"192.0.2.66": 429, "192.0.2.9": 204} {
			r := httptest.NewRequest("GET", "/check/web", nil)
			r.RemoteAddr = "127.0.0.1:1"
			r.Header["X-Forwarded-For"] = []string{forged, forged + "," + client}
			r.Header["X-Forwarded-Method"] = []string{"GET", method}
			r.Header["X-Forwarded-Uri"] = []string{"/", uri}
			r.Header["X-Forwarded-Host"] = []string{"h", host}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			long := len(uri) > httplimit.MaxKeyLen/3 || len(host) > httplimit.MaxKeyLen/3
			refused := long || strings.Contains(strings.ToLower(uri), "%2f") || strings.Contains(uri, "#")
			if w.Code != want && !(refused && w.Code == http.StatusBadRequest) {
				t.Fatalf("%s: %d %s, want %d", client, w.Code, w.Body, want)
			}
		}
		p := original.Path(uri)
		if p != "" && (!strings.HasPrefix(p, "/") || path.Clean(p) != p) {
			t.Fatalf("%q: %q", uri, p)
		}
		original.Host(host)
	})
}
