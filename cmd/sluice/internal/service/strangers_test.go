package service

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// knock sends bytes to a port, and reads until the service closes the connection.
func (r *running) knock(port string, data string) {
	r.Helper()
	conn, err := net.Dial("tcp", r.addresses[port].String())
	require.NoError(r, err)
	defer conn.Close()
	require.NoError(r, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, data)
	require.NoError(r, err)
	_ = conn.(*net.TCPConn).CloseWrite() // which fails if the service has closed the connection already
	_, err = io.Copy(io.Discard, conn)
	if err, ok := err.(net.Error); ok && err.Timeout() {
		r.Fatalf("the connection to %s stays open", port)
	}
}

// lines counts the lines of the log that have all parts.
func (r *running) lines(parts ...string) (n int) {
	for line := range strings.Lines(r.log.String()) {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			n++
		}
	}
	return n
}

// TestStrangers_OneLine sends random bytes, and less than a request, to each port: the log has one line
// for each. Connections without a byte, and those of clients, have none.
func TestStrangers_OneLine(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules))
	ports := []string{"grpc", "http", "debug", "metrics"}
	for _, port := range ports {
		r.knock(port, "")
	}
	assert.Equal(t, 1, remaining(t, r.dial(), "two", "x"))
	for port, path := range map[string]string{"http": "/healthcheck", "debug": "/rlconfig", "metrics": "/metrics"} {
		code, _ := r.get(port, path)
		assert.Equal(t, 200, code)
		code, _ = r.get(port, "/nothing-there")
		assert.Equal(t, 404, code)
	}
	assert.Zero(t, r.lines("level=WARN", "connection"), r.log)
	r.knock("http", strings.Repeat("GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n", 3))
	assert.Zero(t, r.lines("level=WARN", "connection"), r.log)
	for range 3 {
		for _, port := range ports {
			r.knock(port, "\x16\x03\x01\x00\xa5\xff no protocol of ours\r\n\r\n")
			r.knock(port, "P")
		}
	}
	for _, port := range ports {
		eventually(t, "a line about "+port, func() bool { return r.lines("level=WARN", "connection is closed", "port="+port) > 0 })
		assert.Equal(t, 1, r.lines("level=WARN", "port="+port), r.log)
	}
	assert.Equal(t, 1, r.lines("port=grpc", `no protocol`, "from=127.0.0.1:"), r.log)
	assert.Equal(t, 0, remaining(t, r.dial(), "two", "x"))
}

func TestStrangers_TLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, "service")
	r := start(t, "--rules", rulesFile(t, someRules),
		"--tls-cert", write(t, filepath.Join(dir, "cert"), string(cert)), "--tls-key", write(t, filepath.Join(dir, "key"), string(key)))
	r.knock("grpc", "")
	assert.Zero(t, r.lines("level=WARN"), r.log)
	r.knock("grpc", greeting)
	eventually(t, "a line", func() bool { return r.lines("level=WARN", "port=grpc", "the TLS handshake fails") == 1 })

	other := start(t, "--rules", rulesFile(t, someRules), "--tls-cert", filepath.Join(dir, "cert"), "--tls-key", filepath.Join(dir, "key"))
	conn, err := tls.Dial("tcp", other.addresses["grpc"].String(), func() *tls.Config { c := a.client(t, nil, nil); c.NextProtos = []string{"h2"}; return c }())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	eventually(t, "a line", func() bool {
		return other.lines("level=WARN", "port=grpc", "does not begin as HTTP/2", "GET / HTTP/1.1") == 1
	})
}

// TestStrangers_OncePerMinute has times of its own.
func TestStrangers_OncePerMinute(t *testing.T) {
	var log bytes.Buffer
	s := &strangers{log: slog.New(slog.NewTextHandler(&log, nil)), port: "http"}
	begin := time.Unix(1000, 0)
	for second := range 121 {
		s.tell(begin.Add(time.Duration(second)*time.Second), "x")
	}
	assert.Equal(t, 3, strings.Count(log.String(), "msg=x port=http"), &log)
	assert.Equal(t, 1, strings.Count(log.String(), "others_since_last_told=0"), &log)
	assert.Equal(t, 2, strings.Count(log.String(), "others_since_last_told=59"), &log)
}

// TestStrangers_PanicsOfHandlers: what net/http logs goes the same way.
func TestStrangers_PanicsOfHandlers(t *testing.T) {
	log := new(buffer)
	s := &strangers{log: slog.New(slog.NewTextHandler(log, nil)), port: "http"}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") }))
	server.Config.ErrorLog = s.errorLog()
	server.Start()
	for range 5 {
		_, err := client.Get(server.URL)
		require.Error(t, err)
	}
	server.Close()
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log)
	assert.Contains(t, log.String(), "http: panic serving")
	assert.Contains(t, log.String(), "on purpose")
}
