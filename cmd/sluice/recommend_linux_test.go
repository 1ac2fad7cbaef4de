package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// What is recommended for a program is tried in it: so many requests at once as it says pass, and no more. The log has one client, with requests
// at one second, and the rate is so low that none comes back within the test.

const atOnce = 7

// recommendedRule is a rule for a program, for which the number of requests at once is atOnce.
func recommendedRule(t *testing.T, target string, args ...string) string {
	t.Helper()
	line := "127.0.0.1 - - [02/Mar/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n"
	args = append([]string{"recommend", "--output", target, writeFile(t, strings.Repeat(line, atOnce))}, args...)
	code, rule, stderr := execute(nil, args...)
	require.Equal(t, cli.ExitOK, code, stderr)
	return rule
}

// requireAtOnce sends more requests than may pass.
func requireAtOnce(t *testing.T, p *servetest.Proxy, app *servetest.Application) {
	t.Helper()
	for i := range atOnce + 3 {
		want := 200
		if i >= atOnce {
			want = 429
		}
		resp, body := p.Get("/")
		require.Equal(t, want, resp.StatusCode, "request %d: %s", i+1, body)
	}
	assert.EqualValues(t, atOnce, app.Calls.Load())
}

func TestRecommend_Nginx(t *testing.T) {
	nginx := servetest.Installed(t, "nginx", "apt-get install nginx-light")
	app, port := servetest.StartApplication(t), servetest.Reserve(t)
	http, server, ok := strings.Cut(recommendedRule(t, "nginx", "--rate", "1/h"), "# in server")
	require.True(t, ok)
	config := fmt.Sprintf(`daemon off; worker_processes 1; pid nginx.pid; error_log stderr;
events {}
http {
access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
%s
server {
listen 127.0.0.1:%s reuseport;
# in server%s
location / { proxy_pass http://%s; }
}
}`, http, port, server, app.Address)
	dir := servetest.Files(t, map[string]string{"nginx.conf": config, "logs/x": ""})
	out, err := exec.Command(nginx, "-t", "-p", dir, "-c", filepath.Join(dir, "nginx.conf")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	requireAtOnce(t, servetest.StartProxy(t, port, exec.Command(nginx, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))), app)
}

func TestRecommend_HAProxy(t *testing.T) {
	haproxy := servetest.Installed(t, "haproxy", "apt-get install haproxy")
	app, port := servetest.StartApplication(t), servetest.Reserve(t)
	config := fmt.Sprintf(`defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend web
  bind 127.0.0.1:%s
%s
  default_backend app
backend app
  server app %s
`, port, recommendedRule(t, "haproxy", "--per", "24h"), app.Address)
	dir := servetest.Files(t, map[string]string{"haproxy.cfg": config})
	out, err := exec.Command(haproxy, "-c", "-f", filepath.Join(dir, "haproxy.cfg")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, strings.ToUpper(string(out)), "WARNING")
	requireAtOnce(t, servetest.StartProxy(t, port, exec.Command(haproxy, "-W", "-f", filepath.Join(dir, "haproxy.cfg"))), app)
}

func TestRecommend_Envoy(t *testing.T) {
	path := servetest.EnvoyPath(t)
	app, port := servetest.StartApplication(t), servetest.Reserve(t)
	filter := regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSpace(recommendedRule(t, "envoy", "--rate", "1/h")), "          ")
	host, appPort, _ := strings.Cut(app.Address, ":")
	config := fmt.Sprintf(`static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config: {virtual_hosts: [{name: web, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: app}}]}]}
          http_filters:
%s
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: app
    load_assignment: {cluster_name: app, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}]}]}
`, port, filter, host, appPort)
	file := filepath.Join(servetest.Files(t, map[string]string{"envoy.yaml": config}), "envoy.yaml")
	out, err := exec.Command(path, "--mode", "validate", "-c", file).CombinedOutput()
	require.NoError(t, err, "%s%s", out, config)
	cmd := exec.Command(path, "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warn")
	requireAtOnce(t, servetest.StartProxy(t, port, cmd), app)
}

// TestRecommend_ProxyNumbers: nginx does not count the first request of a burst, and HAProxy has a number for a time.
func TestRecommend_ProxyNumbers(t *testing.T) {
	for target, want := range map[string]string{"nginx": ` burst=(\d+) nodelay;`, "haproxy": ` gt (\d+) `, "envoy": `max_tokens: (\d+), tokens_per_fill: 1,`, "serve": `burst: (\d+)}`, "go": `WithBurst\((\d+)\)`} {
		match := regexp.MustCompile(want).FindStringSubmatch(recommendedRule(t, target, "--rate", "1/h"))
		require.NotNil(t, match, target)
		n, err := strconv.Atoi(match[1])
		require.NoError(t, err)
		if target == "nginx" {
			n++
		}
		assert.Equal(t, atOnce, n, target)
	}
}
