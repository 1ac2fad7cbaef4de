package service

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// knock sends bytes to a port and their end, and reads until the service closes the connection.
func (r *running) knock(port string, data string) {
	r.Helper()
	r.knocks(port, data, true)
}

// knocks is knock, without the end if there is none.
func (r *running) knocks(port string, data string, end bool) {
	r.Helper()
	conn, err := net.Dial("tcp", r.addresses[port].String())
	require.NoError(r, err)
	defer conn.Close()
	require.NoError(r, conn.SetDeadline(time.Now().Add(servetest.Patience)))
	_, err = io.WriteString(conn, data)
	require.NoError(r, err)
	if end {
		_ = conn.(*net.TCPConn).CloseWrite() // which fails if the service has closed the connection already
	}
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
	r := start(t, "--rules", rulesFile(t, someRules), "--manual-clock")
	ports := []string{"grpc", "http", "debug", "metrics"}
	for _, port := range ports {
		r.knock(port, "")
	}
	assert.Equal(t, 1, remaining(t, r.dial(), "two"))
	for port, path := range map[string]string{"http": "/healthcheck", "debug": "/rlconfig", "metrics": "/metrics"} {
		code, _ := r.get(port, path)
		assert.Equal(t, 200, code)
		code, _ = r.get(port, "/nothing-there")
		assert.Equal(t, 404, code)
	}
	assert.Zero(t, r.lines("level=WARN", "connection"), r.log)
	r.knock("http", strings.Repeat("GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n", 3))
	r.knock("http", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
	assert.Zero(t, r.lines("level=WARN", "connection"), r.log)
	for range 3 {
		for _, port := range ports {
			r.knock(port, "\x16\x03\x01\x00\xa5\xff no protocol of ours\r\n\r\n")
			r.knock(port, "P")
		}
	}
	for _, port := range ports {
		servetest.Eventually(t, "a line about "+port, func() bool { return r.lines("level=WARN", "connection is closed", "port="+port) > 0 })
		assert.Equal(t, 1, r.lines("level=WARN", "port="+port), r.log)
	}
	assert.Equal(t, 1, r.lines("port=grpc", `no protocol`, "from=127.0.0.1:"), r.log)
	assert.Equal(t, 0, remaining(t, r.dial(), "two"))
}

// settings is an empty frame of HTTP/2 that every client sends first.
const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// TestStrangers_BehindTheGreeting: bytes that are no HTTP/2 have a line of log also behind its greeting,
// and behind frames.
func TestStrangers_BehindTheGreeting(t *testing.T) {
	t.Parallel()                                        // it mostly waits
	const data = "\x00\x00\x05\x00\x00\x00\x00\x00\x02" // a frame of 5 bytes of a stream that no client can open
	for name, c := range map[string]struct{ data, line string }{
		"at once":      {greeting + "\x16\x03\x01 no protocol of ours", "what it sends is not HTTP/2"},
		"no settings":  {greeting + data + "12345", "what it sends is not HTTP/2"},
		"long frame":   {greeting + settings + "\xff\xff\xff\x00\x00\x00\x00\x00\x01", "what it sends is not HTTP/2"},
		"bad frame":    {greeting + settings + "\x00\x00\x01\x06\x00\x00\x00\x00\x00p", "what it sends is not HTTP/2"},
		"bad headers":  {greeting + settings + "\x00\x00\x03\x01\x05\x00\x00\x00\x01\xff\xff\xff", "what it sends is not HTTP/2"},
		"even stream":  {greeting + settings + "\x00\x00\x01\x01\x05\x00\x00\x00\x02\x83", "it breaks the rules of HTTP/2, error code 1"},
		"half a head":  {greeting + settings + "\x00\x00", "it ends within a frame"},
		"half a frame": {greeting + settings + data + "12", "it ends within a frame"},
		"no fault":     {greeting + settings + settings, ""},
		"only that":    {greeting, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, "--rules", rulesFile(t, someRules))
			// The service does not wait for the end where what has come is wrong already.
			end := c.line == "" || strings.HasPrefix(c.line, "it ends")
			for range 3 {
				r.knocks("grpc", c.data, end)
			}
			assert.Equal(t, 1, remaining(t, r.dial(), "two"))
			if c.line != "" {
				servetest.Eventually(t, "a line", func() bool {
					return r.lines("level=WARN", "connection is closed: "+c.line, "port=grpc", "from=127.0.0.1:") == 1
				})
			}
			r.end()
			want := 1
			if c.line == "" {
				want = 0
			}
			assert.Equal(t, want, r.lines("level=WARN", "connection"), r.log)
		})
	}
}

// TestStrangers_BehindACall: a connection that has served a call has a line if it turns bad, and none if
// it ends as connections do.
func TestStrangers_BehindACall(t *testing.T) {
	for _, garbage := range []string{"", "no protocol of ours", "\x00"} {
		r := start(t, "--rules", rulesFile(t, someRules))
		var raw net.Conn
		conn, err := grpc.NewClient("passthrough:///"+r.addresses["grpc"].String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (_ net.Conn, err error) {
				raw, err = new(net.Dialer).DialContext(ctx, "tcp", address)
				return raw, err
			}))
		require.NoError(t, err)
		assert.Equal(t, 1, remaining(t, conn, "two"))
		if garbage != "" {
			_, err = io.WriteString(raw, garbage)
			require.NoError(t, err)
			_ = raw.(*net.TCPConn).CloseWrite()
			servetest.Eventually(t, "a line", func() bool { return r.lines("level=WARN", "connection is closed", "port=grpc") == 1 })
		}
		require.NoError(t, conn.Close())
		r.end()
		assert.Equal(t, min(len(garbage), 1), r.lines("level=WARN", "connection"), r.log)
	}
	for _, port := range []string{"http", "debug", "metrics"} {
		r := start(t, "--rules", rulesFile(t, someRules))
		r.knock(port, "GET /nothing-there HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01 no protocol of ours\r\n\r\n")
		servetest.Eventually(t, "a line", func() bool { return r.lines("level=WARN", "connection is closed", "port="+port) == 1 })
	}
}

// TestStrangers_GoAway: a connection that gRPC ends by a GOAWAY has no line, unless that says what was
// wrong, and then one.
func TestStrangers_GoAway(t *testing.T) {
	for code, want := range map[string]int{"\x00": 0, "\x0b": 1} {
		log := new(servetest.Log)
		s := &strangers{log: slog.New(slog.NewTextHandler(log, nil)), port: "grpc"}
		client, server := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		c := newGreetedConn(server, s, newUnderWay(0))
		_, err := io.WriteString(c, settings+"\x00\x00\x08\x07\x00\x00\x00\x00\x00"+"\x00\x00\x00\x01"+"\x00\x00\x00"+code)
		require.NoError(t, err)
		_, err = io.WriteString(c, settings)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		assert.Equal(t, want, strings.Count(log.String(), "it breaks the rules of HTTP/2, error code 11"))
		assert.Equal(t, want, strings.Count(log.String(), "\n"))
		assert.Zero(t, s.untold)
	}
}

// TestFrames cuts a connection at every place: frames are the same ones.
func TestFrames(t *testing.T) {
	const away = "\x00\x00\x0a\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x01" + "\x00\x00\x00\x0b" + "xy"
	all := settings + "\x00\x00\x03\x00\x01\x00\x00\x00\x01abc" + "\x00\x00\x02\x07\x00\x00\x00\x00\x00zz" + away
	ends := []int{0, 9, 21, 32, len(all)}
	for i := range all {
		for j := i; j <= len(all); j++ {
			var f frames
			for _, part := range []string{all[:i], all[i:j], all[j:]} {
				f.follow([]byte(part))
			}
			require.False(t, f.within())
			require.Equal(t, []any{true, uint32(11)}, []any{f.goingAway, f.code})
		}
		var f frames
		f.follow([]byte(all[:i]))
		require.Equal(t, !slices.Contains(ends, i), f.within(), i)
		require.Equal(t, i >= len(all)-2, f.goingAway, i)
	}
}

func TestStrangers_TLS(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, "service")
	r := start(t, "--rules", rulesFile(t, someRules),
		"--tls-cert", write(t, filepath.Join(dir, "cert"), string(cert)), "--tls-key", write(t, filepath.Join(dir, "key"), string(key)))
	r.knock("grpc", "")
	assert.Zero(t, r.lines("level=WARN"), r.log)
	r.knock("grpc", greeting)
	servetest.Eventually(t, "a line", func() bool { return r.lines("level=WARN", "port=grpc", "the TLS handshake fails") == 1 })

	other := start(t, "--rules", rulesFile(t, someRules), "--tls-cert", filepath.Join(dir, "cert"), "--tls-key", filepath.Join(dir, "key"))
	conn, err := tls.Dial("tcp", other.addresses["grpc"].String(), func() *tls.Config { c := a.client(t, nil, nil); c.NextProtos = []string{"h2"}; return c }())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	servetest.Eventually(t, "a line", func() bool {
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
	log := new(servetest.Log)
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
