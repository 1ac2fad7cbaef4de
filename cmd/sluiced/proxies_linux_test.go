package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// These tests start the configurations in deploy/ with the real programs, between a client, the
// service and an application.

// deployed is a file of deploy/, with other addresses in it. Each of them must be there.
func deployed(t *testing.T, name string, replace ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../deploy", name))
	require.NoError(t, err)
	text := string(data)
	for i := 0; i+1 < len(replace); i += 2 {
		require.Contains(t, text, replace[i], name)
	}
	return strings.NewReplacer(replace...).Replace(text)
}

const webRules = `
domain: web
http:
- actions: [{remote_address: {}}]
- actions: [{path: {}}, {remote_address: {}}]
- actions: [{path: {}}]
descriptors:
- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 5}}
- key: path
  value: /login
  descriptors:
  - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: path, value: /closed, rate_limit: {unit: day, requests_per_unit: 0}}
`

// testCheck looks at what clients of a proxy get that asks /check. The service stops at the end;
// then the proxy must answer with the code.
func testCheck(t *testing.T, s *program, p *servetest.Proxy, app *servetest.Application, without int) {
	t.Helper()
	resp, body := p.Get("/")
	require.Equal(t, 200, resp.StatusCode, body)
	require.Equal(t, "the application", body)
	resp, _ = p.Get("/forbidden")
	assert.Equal(t, 403, resp.StatusCode, "the application's own answer")
	resp, _ = p.Get("/login?again=1")
	assert.Equal(t, 200, resp.StatusCode)

	calls := app.Calls.Load()
	forged := []string{
		"X-Forwarded-For: 198.51.100.1", "X-Real-Ip: 198.51.100.1", "Forwarded: for=198.51.100.1", "X-Forwarded-Uri: /", "X-Forwarded-Method: POST",
		"X-Forwarded-Host: x", "X-Original-Uri: /", "Via: x", "Client-Ip: 198.51.100.1",
	}
	resp, _ = p.Get("/login", forged...)
	assert.Equal(t, 429, resp.StatusCode, "what a client writes changes nothing")
	assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	resp, _ = p.Get("/", append(forged, "X-Forwarded-For: 198.51.100.2")...)
	assert.Equal(t, 200, resp.StatusCode)
	for i := range 3 {
		resp, _ = p.Get("/", fmt.Sprintf("X-Forwarded-For: 198.51.100.%d", i))
		assert.Equal(t, 429, resp.StatusCode, "six calls are too many")
		assert.Regexp(t, `^[1-9][0-9]*$`, resp.Header.Get("Retry-After"))
	}
	resp, _ = p.Get("/closed")
	assert.Equal(t, 429, resp.StatusCode)
	resp, _ = p.Get("/?deny=never")
	assert.Equal(t, 429, resp.StatusCode, "the query of the client is not that of the proxy's call")
	resp, _ = p.Get("/" + strings.Repeat("x", 5000))
	assert.Contains(t, []int{400, 429}, resp.StatusCode, "what is refused does not pass")
	assert.Equal(t, calls+1, app.Calls.Load(), "the application does not see what is denied")

	require.Equal(t, 0, s.end(syscall.SIGKILL)+1) // killed: -1
	resp, _ = p.Get("/")
	assert.Equal(t, without, resp.StatusCode)
}

func serveWeb(t *testing.T) *program {
	return startServe(t, nil, "--rules", servetest.Files(t, map[string]string{"web.yaml": webRules}), "--manual-clock", "--log-level", "info")
}

func TestDeploy_Nginx(t *testing.T) {
	nginx := servetest.Installed(t, "nginx", "apt-get install nginx-light")
	s, app, port := serveWeb(t), servetest.StartApplication(t), servetest.Reserve(t)
	config := deployed(t, "nginx/nginx.conf", "127.0.0.1:8080", s.addresses["http"], "127.0.0.1:3000", app.Address,
		"listen 8000;", "listen 127.0.0.1:"+port+" reuseport;",
		"http {\n", "http {\naccess_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n",
		"events {}", "daemon off; worker_processes 1; pid nginx.pid; error_log stderr;\nevents {}")
	dir := servetest.Files(t, map[string]string{"nginx.conf": config, "logs/x": ""})
	p := servetest.StartProxy(t, port, exec.Command(nginx, "-p", dir, "-c", filepath.Join(dir, "nginx.conf")))
	testCheck(t, s, p, app, 200)
}

func TestDeploy_Caddy(t *testing.T) {
	caddy := servetest.Installed(t, "caddy", "apt-get install caddy")
	s, app, port := serveWeb(t), servetest.StartApplication(t), servetest.Reserve(t)
	config := deployed(t, "caddy/Caddyfile", "127.0.0.1:8080", s.addresses["http"], "127.0.0.1:3000", app.Address, ":8000 {", "http://127.0.0.1:"+port+" {")
	dir := servetest.Files(t, map[string]string{"Caddyfile": "{\n\tadmin off\n}\n" + config})
	cmd := exec.Command(caddy, "run", "--config", filepath.Join(dir, "Caddyfile"), "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	testCheck(t, s, servetest.StartProxy(t, port, cmd), app, 502)
}

func TestDeploy_HAProxy(t *testing.T) {
	t.Parallel() // it waits for HAProxy, which tries for three seconds before it gives up
	haproxy := servetest.Installed(t, "haproxy", "apt-get install haproxy")
	for _, without := range []int{200, 503} {
		t.Run(fmt.Sprint("without=", without), func(t *testing.T) {
			t.Parallel()
			s, app, port := serveWeb(t), servetest.StartApplication(t), servetest.Reserve(t)
			replace := []string{"127.0.0.1:8080", s.addresses["http"], "127.0.0.1:3000", app.Address, "bind :8000", "bind 127.0.0.1:" + port}
			if without == 503 {
				replace = append(replace, "#http-request", "http-request")
			}
			dir := servetest.Files(t, map[string]string{"haproxy.cfg": deployed(t, "haproxy/haproxy.cfg", replace...), "sluice.lua": deployed(t, "haproxy/sluice.lua")})
			cmd := exec.Command(haproxy, "-W", "-f", "haproxy.cfg")
			cmd.Dir = dir
			testCheck(t, s, servetest.StartProxy(t, port, cmd), app, without)
		})
	}
}
