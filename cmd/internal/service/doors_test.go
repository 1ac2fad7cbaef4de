package service

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

const aCall = `{"domain":"d","descriptors":[{"entries":[{"key":"day","value":"x"}]}]}`

// TestMeanings: each flag that means something only with another one is an error without it, and none with it.
func TestMeanings(t *testing.T) {
	values := map[string]string{
		"redis-pool-size": "3", "redis-ca": "x", "store-budget": "-5s", "on-store-failure": "nope", "leases": "true", "replicas": "-1", "store-health": "true",
		"xds-tls": "true", "xds-retry": "1s", "xds-retry-max": "1m", "uds-mode": "0600", "trusted-proxies": "10.0.0.1", "require-client-header": "true", "fail-open": "true", "headers-draft11": "true",
		"live-keys": "true", "metrics-path": "/m", "metrics-names": "upstream", "grpc": ":1",
	}
	without := map[string]string{
		"--redis": "", "--redis-per-second": "--redis redis://x", "--xds": "", "no --uds": "--uds /x", "--uds": "", "--http": "--http=", "--trusted-proxies": "--trusted-proxies=",
		"--headers": "", "--debug": "--debug=", "--metrics": "--metrics=",
	}
	seen := map[string]bool{}
	for _, m := range new(Config).meanings() {
		needed, _, _ := strings.Cut(m.want, ",")
		needed, _, _ = strings.Cut(needed, " which")
		args, known := without[needed]
		require.True(t, known, needed)
		for _, flag := range strings.Fields(m.flags) {
			seen[flag] = true
			value := values[flag]
			if value == "" {
				value = "x"
			}
			c, _, err := parse(append(strings.Fields("--rules r "+args), "--"+flag+"="+value), nil)
			require.NoError(t, err, flag)
			require.EqualError(t, c.Check(), "--"+flag+" means nothing here: want "+m.want)
		}
	}
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	new(Config).Flags(f)
	f.VisitAll(func(f *pflag.Flag) { // about the store and the management server no flag is forgotten
		if name := f.Name; name != "redis" && name != "xds" && (strings.HasPrefix(name, "redis-") || strings.HasPrefix(name, "store-") || strings.HasPrefix(name, "xds-")) {
			assert.True(t, seen[name], name)
		}
	})
	for _, args := range []string{
		"--redis r:1 --replicas 3 --on-store-failure closed --store-health", "--xds h:1 --xds-node n", "--uds /x --uds-mode 0600", "--headers --limit-header L",
		"--grpc :1", "--uds /x --grpc=",
	} {
		if !strings.Contains(args, "--xds") {
			args += " --rules r"
		}
		c, _, err := parse(strings.Fields(args), nil)
		require.NoError(t, err)
		require.NoError(t, c.Check(), args)
	}
	c, _, err := parse([]string{"--rules", "r"}, []string{"REDIS_TYPE=x", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1h", "GRPC_UDS=/x"})
	require.NoError(t, err)
	require.NoError(t, c.Check(), "variables may be there for others")
	c, _, err = parse([]string{"--rules", "r", "--grpc", ":1"}, []string{"GRPC_UDS=/x"})
	require.NoError(t, err)
	require.NoError(t, c.Check())
	require.Equal(t, port{"grpc", "tcp", ":1"}, c.ports()[0], "the command line wins")
}

// TestUDS: errors name --uds, and only its mode says who may connect.
func TestUDS(t *testing.T) {
	long := "/" + strings.Repeat("x", 120)
	for args, want := range map[string]string{
		"--uds " + long:              "--uds " + long + ": it is 121 bytes long; want at most 1",
		"--uds /x --uds-mode rw":     `--uds-mode "rw": want three octal digits, such as 0660`,
		"--uds /x --uds-mode 1777":   `--uds-mode "1777": want`,
		"--http-tls":                 "--http-tls without --tls-cert or --http",
		"--http-plain":               "--http-plain without --client-ca",
		"--uds /x --uds-mode -0660 ": `--uds-mode "-0660": want`,
	} {
		c, _, err := parse(append([]string{"--rules", "r"}, strings.Fields(args)...), nil)
		require.NoError(t, err)
		require.ErrorContains(t, c.Check(), want)
	}
	rules := rulesFile(t, someRules)
	err := Run(configure(t, "--rules", rules, "--uds", t.TempDir()), slog.New(slog.DiscardHandler), Hooks{})
	require.ErrorContains(t, err, "--uds: ")
	for given, want := range map[string]os.FileMode{"": 0o660, "0606": 0o606} {
		name := servetest.SocketName(t)
		args := []string{"--rules", rules, "--uds", name}
		if given != "" {
			args = append(args, "--uds-mode", given)
		}
		r := start(t, args...)
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm())
		assert.Equal(t, 999_999, remaining(t, r.dial(), "day"))
	}
}

// over asks the HTTP port by TLS.
func (r *running) over(c *tls.Config, path string) (int, error) {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(r.Context(), servetest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.addresses["http"].String()+path, strings.NewReader(aCall))
	require.NoError(r, err)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, nil
}

// TestHTTPTLS: the HTTP port asks clients for the same certificates as that of gRPC, except for health checks.
func TestHTTPTLS(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.issue(t, "service")
	args := []string{
		"--rules", rulesFile(t, someRules), "--http-tls",
		"--tls-cert", write(t, dir+"/cert", string(cert)), "--tls-key", write(t, dir+"/key", string(key)),
	}
	r := start(t, args...)
	code, err := r.over(ours.client(t, nil, nil), "/json")
	require.NoError(t, err)
	assert.Equal(t, 200, code, "no certificate is asked for")

	envoyCert, envoyKey := ours.issue(t, "envoy")
	otherCert, otherKey := ours.issue(t, "other")
	strangerCert, strangerKey := theirs.issue(t, "envoy")
	r = start(t, append(args, "--client-ca", write(t, dir+"/ca", string(ours.pem)), "--client-san", "envoy")...)
	for path, want := range map[string]int{"/json": 403, "/hold": 403, "/check/d": 403, "/other": 403, "/healthcheck": 200} {
		code, err := r.over(ours.client(t, nil, nil), path)
		require.NoError(t, err)
		assert.Equal(t, want, code, path)
	}
	code, err = r.over(ours.client(t, envoyCert, envoyKey), "/json")
	require.NoError(t, err)
	assert.Equal(t, 200, code)
	for _, c := range []*tls.Config{ours.client(t, otherCert, otherKey), theirs.client(t, strangerCert, strangerKey)} {
		c.RootCAs = ours.client(t, nil, nil).RootCAs
		_, err := r.over(c, "/healthcheck")
		assert.Error(t, err)
	}
	servetest.Eventually(t, "a line about it", func() bool { return r.lines("the TLS handshake fails", "port=http") == 1 })
}

// TestHTTPPlain: without TLS the HTTP port is for this machine where --client-ca says who may ask, and the log says so.
func TestHTTPPlain(t *testing.T) {
	dir := t.TempDir()
	ours := newAuthority(t)
	cert, key := ours.issue(t, "service")
	args := []string{
		"--tls-cert", write(t, dir+"/cert", string(cert)), "--tls-key", write(t, dir+"/key", string(key)), "--client-ca", write(t, dir+"/ca", string(ours.pem)),
	}
	from := func(s *server, address, path string) int {
		r := httptest.NewRequest("POST", path, strings.NewReader(aCall))
		r.RemoteAddr = address
		w := httptest.NewRecorder()
		s.public().ServeHTTP(w, r)
		return w.Code
	}
	s, _ := still(t, someRules, args...)
	s.health.Set(true)
	for path, want := range map[string]int{"/json": 403, "/settle": 403, "/check/d": 403, "/healthcheck": 200} {
		assert.Equal(t, want, from(s, "192.0.2.1:1", path), path)
	}
	for _, own := range []string{"127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		assert.Equal(t, 200, from(s, own, "/json"))
	}
	s, _ = still(t, someRules, append(args, "--http-plain")...)
	assert.Equal(t, 200, from(s, "192.0.2.1:1", "/json"))
	s, _ = still(t, someRules)
	assert.Equal(t, 200, from(s, "192.0.2.1:1", "/json"), "without --client-ca all may ask, as with upstream")

	r := start(t, append(args, "--rules", rulesFile(t, someRules))...)
	r.oneProblem("--client-ca guards gRPC only")
	r = start(t, append(args, "--rules", rulesFile(t, someRules), "--http-plain")...)
	r.oneProblem("--client-ca does not guard the HTTP port")
}

// TestOtherSites: pages of other sites cannot make a browser count, hold or settle. A proxy's clients may come from anywhere.
func TestOtherSites(t *testing.T) {
	s, _ := still(t, someRules)
	code := func(path string, headers ...string) int {
		r := httptest.NewRequest("POST", path, strings.NewReader(aCall))
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		s.public().ServeHTTP(w, r)
		return w.Code
	}
	for _, path := range []string{"/json", "/hold", "/extend", "/settle", "/release", "/check/d"} {
		for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
			assert.Equal(t, 403, code(path, headers...), "%s %s", path, headers)
			if path != "/check/d" {
				assert.Equal(t, 403, code(path, append(headers, "X-Forwarded-For", "192.0.2.1")...), "%s %s", path, headers)
			}
		}
		assert.NotEqual(t, 403, code(path), path)
		assert.NotEqual(t, 403, code(path, "Sec-Fetch-Site", "same-origin"), path)
	}
	assert.Equal(t, 204, code("/check/d", "Sec-Fetch-Site", "cross-site", "X-Forwarded-Uri", "/"))
	assert.Equal(t, 204, code("/check/d", "Origin", "https://other.example", "X-Forwarded-For", "192.0.2.1"))
}

// TestOtherSites_Debug: nor can they ask the ports for operators, but for links to the pages, which have nothing in them.
func TestOtherSites_Debug(t *testing.T) {
	s, _ := still(t, someRules)
	code := func(h http.Handler, method, path string, headers ...string) int {
		r := httptest.NewRequest(method, "http://127.0.0.1:6070"+path, nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	debug, metrics := s.debug(), s.metrics.handler()
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		for _, path := range []string{"/rlconfig", "/stats", "/live/events", "/live/live.js", "/debug/pprof/", "/debug/pprof/heap?gc=1", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol", "/debug/pprof/trace"} {
			assert.Equal(t, 403, code(debug, "GET", path, headers...), "%s %s", path, headers)
		}
		for _, path := range []string{"/reset", "/clock"} {
			assert.Equal(t, 403, code(debug, "POST", path, headers...), "%s %s", path, headers)
		}
		assert.Equal(t, 403, code(metrics, "GET", s.metrics.path, headers...), headers)
		assert.Equal(t, 200, code(debug, "GET", "/live", headers...), headers)
		assert.Equal(t, 200, code(debug, "GET", "/", headers...), headers)
	}
	for _, headers := range [][]string{nil, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://127.0.0.1:6070"}} {
		assert.Equal(t, 200, code(debug, "GET", "/rlconfig", headers...), headers)
		assert.Equal(t, 200, code(metrics, "GET", s.metrics.path, headers...), headers)
	}
}

// TestDebug_Host: a page whose name leads to the debug port does not read it, and the command line is not there to be read.
func TestDebug_Host(t *testing.T) {
	s, _ := still(t, someRules, "--debug-hosts", "sluice.internal")
	code := func(host, path string) int {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		s.debug().ServeHTTP(w, r)
		return w.Code
	}
	for host, want := range map[string]int{
		"127.0.0.1:6070": 200, "[::1]:6070": 200, "[::1]": 200, "localhost:6070": 200, "localhost": 200, "192.0.2.1": 200, "sluice.internal:6070": 200,
		"evil.example": 403, "evil.example:6070": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:80": 403,
	} {
		for _, path := range []string{"/rlconfig", "/stats", "/live", "/debug/pprof/"} {
			assert.Equal(t, want, code(host, path), "%s%s", host, path)
		}
	}
	assert.Equal(t, 404, code("localhost", "/debug/pprof/cmdline"))
	assert.Equal(t, 200, code("localhost", "/debug/pprof/goroutine"))
}

// TestCheck_UnknownDomain: a misspelt domain admits all, and one line of log says so.
func TestCheck_UnknownDomain(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules))
	for range 5 {
		code, _ := r.get("http", "/check/TYPO")
		assert.Equal(t, 204, code)
	}
	r.oneProblem("/check is asked about a domain without rules, and admits all", `TYPO`)
	assert.Equal(t, 204, r.check("/check/d", "X-Forwarded-For: 192.0.2.1").StatusCode)
	assert.Len(t, r.log.Problems(), 1)
}
