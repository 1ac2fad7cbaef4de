package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/sluice/internal/servetest"
)

// These tests start the configurations in deploy/ with the real programs, between a client, the
// service and an application.

// soReusePort is SO_REUSEPORT, which package syscall does not have on all of Linux.
const soReusePort = 15

// reserve returns a port that nobody gets by asking for any: it is bound, and not listened to. The
// programs here share it, since they open theirs for sharing, too.
func reserve(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soReusePort, 1))
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	return fmt.Sprint(name.(*syscall.SockaddrInet4).Port)
}

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

// application is what the proxies protect.
type application struct {
	address string
	calls   atomic.Int64
	hold    chan struct{} // until it is closed /held/N does not answer
}

func startApplication(t *testing.T) *application {
	a := &application{hold: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.calls.Add(1)
		if tokens, ok := strings.CutPrefix(r.URL.Path, "/tokens/"); ok {
			w.Header().Set("Tokens", tokens)
		}
		if tokens, ok := strings.CutPrefix(r.URL.Path, "/held/"); ok {
			select {
			case <-a.hold:
			case <-r.Context().Done():
			}
			w.Header().Set("X-Tokens", tokens)
		}
		if r.URL.Path == "/forbidden" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = io.WriteString(w, "the application")
	}))
	t.Cleanup(server.Close)
	a.address = server.Listener.Addr().String()
	return a
}

// proxy is a program in front of the application.
type proxy struct {
	*testing.T
	address string
	done    chan struct{}
	log     servetest.Log
}

// startProxy starts a program that listens at the port, and waits until it does.
func startProxy(t *testing.T, port string, cmd *exec.Cmd) *proxy {
	t.Helper()
	p := &proxy{T: t, address: "127.0.0.1:" + port, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.WaitDelay = 10 * time.Second
	require.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // a kill would leave workers
		select {
		case <-p.done:
		case <-time.After(servetest.Patience):
			_ = cmd.Process.Kill()
			t.Error("it does not end")
		}
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	servetest.Eventually(t, "the proxy answers", func() bool {
		select {
		case <-p.done:
			t.Fatal("the proxy has ended")
		default:
		}
		conn, err := net.Dial("tcp", p.address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return p
}

var plainClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get asks the proxy; headers are NAME: VALUE.
func (p *proxy) get(path string, headers ...string) (*http.Response, string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), servetest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+p.address+path, nil)
	require.NoError(p, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := plainClient.Do(req)
	require.NoError(p, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p, err)
	return resp, string(body)
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
func testCheck(t *testing.T, s *program, p *proxy, app *application, without int) {
	t.Helper()
	resp, body := p.get("/")
	require.Equal(t, 200, resp.StatusCode, body)
	require.Equal(t, "the application", body)
	resp, _ = p.get("/forbidden")
	assert.Equal(t, 403, resp.StatusCode, "the application's own answer")
	resp, _ = p.get("/login?again=1")
	assert.Equal(t, 200, resp.StatusCode)

	calls := app.calls.Load()
	forged := []string{
		"X-Forwarded-For: 198.51.100.1", "X-Real-Ip: 198.51.100.1", "Forwarded: for=198.51.100.1", "X-Forwarded-Uri: /", "X-Forwarded-Method: POST",
		"X-Forwarded-Host: x", "X-Original-Uri: /", "Via: x", "Client-Ip: 198.51.100.1",
	}
	resp, _ = p.get("/login", forged...)
	assert.Equal(t, 429, resp.StatusCode, "what a client writes changes nothing")
	assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	resp, _ = p.get("/", append(forged, "X-Forwarded-For: 198.51.100.2")...)
	assert.Equal(t, 200, resp.StatusCode)
	for i := range 3 {
		resp, _ = p.get("/", fmt.Sprintf("X-Forwarded-For: 198.51.100.%d", i))
		assert.Equal(t, 429, resp.StatusCode, "six calls are too many")
		assert.Regexp(t, `^[1-9][0-9]*$`, resp.Header.Get("Retry-After"))
	}
	resp, _ = p.get("/closed")
	assert.Equal(t, 429, resp.StatusCode)
	resp, _ = p.get("/?deny=never")
	assert.Equal(t, 429, resp.StatusCode, "the query of the client is not that of the proxy's call")
	resp, _ = p.get("/" + strings.Repeat("x", 5000))
	assert.Contains(t, []int{400, 429}, resp.StatusCode, "what is refused does not pass")
	assert.Equal(t, calls+1, app.calls.Load(), "the application does not see what is denied")

	require.Equal(t, 0, s.end(syscall.SIGKILL)+1) // killed: -1
	resp, _ = p.get("/")
	assert.Equal(t, without, resp.StatusCode)
}

func serveWeb(t *testing.T) *program {
	return startServe(t, nil, "--rules", files(t, map[string]string{"web.yaml": webRules}), "--manual-clock", "--log-level", "info")
}

func TestDeploy_Nginx(t *testing.T) {
	nginx := installed(t, "nginx", "apt-get install nginx-light")
	s, app, port := serveWeb(t), startApplication(t), reserve(t)
	config := deployed(t, "nginx/nginx.conf", "127.0.0.1:8080", s.addresses["http"], "127.0.0.1:3000", app.address,
		"listen 8000;", "listen 127.0.0.1:"+port+" reuseport;",
		"http {\n", "http {\naccess_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n",
		"events {}", "daemon off; worker_processes 1; pid nginx.pid; error_log stderr;\nevents {}")
	dir := files(t, map[string]string{"nginx.conf": config, "logs/x": ""})
	p := startProxy(t, port, exec.Command(nginx, "-p", dir, "-c", filepath.Join(dir, "nginx.conf")))
	testCheck(t, s, p, app, 200)
}

func TestDeploy_Caddy(t *testing.T) {
	caddy := installed(t, "caddy", "apt-get install caddy")
	s, app, port := serveWeb(t), startApplication(t), reserve(t)
	config := deployed(t, "caddy/Caddyfile", "127.0.0.1:8080", s.addresses["http"], "127.0.0.1:3000", app.address, ":8000 {", "http://127.0.0.1:"+port+" {")
	dir := files(t, map[string]string{"Caddyfile": "{\n\tadmin off\n}\n" + config})
	cmd := exec.Command(caddy, "run", "--config", filepath.Join(dir, "Caddyfile"), "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	testCheck(t, s, startProxy(t, port, cmd), app, 502)
}

func TestDeploy_HAProxy(t *testing.T) {
	t.Parallel() // it waits for HAProxy, which tries for three seconds before it gives up
	haproxy := installed(t, "haproxy", "apt-get install haproxy")
	for _, without := range []int{200, 503} {
		t.Run(fmt.Sprint("without=", without), func(t *testing.T) {
			t.Parallel()
			s, app, port := serveWeb(t), startApplication(t), reserve(t)
			replace := []string{"127.0.0.1:8080", s.addresses["http"], "127.0.0.1:3000", app.address, "bind :8000", "bind 127.0.0.1:" + port}
			if without == 503 {
				replace = append(replace, "#http-request", "http-request")
			}
			dir := files(t, map[string]string{"haproxy.cfg": deployed(t, "haproxy/haproxy.cfg", replace...), "sluice.lua": deployed(t, "haproxy/sluice.lua")})
			cmd := exec.Command(haproxy, "-W", "-f", "haproxy.cfg")
			cmd.Dir = dir
			testCheck(t, s, startProxy(t, port, cmd), app, without)
		})
	}
}
