package service

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// openPorts is a service on unix sockets, so that no other process has to do with it, and a fuzzer
// does not run out of ports.
func openPorts(f *testing.F) (s *server, log *servetest.Log, sockets map[string]string) {
	log, sockets = new(servetest.Log), map[string]string{}
	s, err := newServer(configure(f, "--rules", rulesFile(f, someRules), "--manual-clock", "--reflection"), slog.New(slog.NewTextHandler(log, nil)), nil)
	require.NoError(f, err)
	require.NoError(f, s.newGRPC())
	dir, err := os.MkdirTemp("", "sluice")
	require.NoError(f, err)
	listeners := map[string]net.Listener{}
	for _, name := range []string{"grpc", "http", "debug", "metrics"} {
		sockets[name] = filepath.Join(dir, name)
		listeners[name], err = net.Listen("unix", sockets[name])
		require.NoError(f, err)
	}
	s.serve(listeners)
	s.updateHealth()
	f.Cleanup(func() {
		s.close()
		_ = os.RemoveAll(dir)
	})
	return s, log, sockets
}

// exchange writes to a port, and reads until the service closes the connection, which it must.
func exchange(t *testing.T, socket string, data []byte) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(servetest.Patience)))
	go func() {
		_, _ = conn.Write(data) // which the service need not read to its end
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	out, err := io.ReadAll(io.LimitReader(conn, 64<<20))
	if err, ok := err.(net.Error); ok && err.Timeout() {
		t.Fatalf("the connection stays open: %q", out)
	}
}

// goesOn fails if the service has panicked, or does not decide any more.
func goesOn(t *testing.T, s *server, log *servetest.Log) {
	t.Helper()
	// Not just "panic": the log quotes what connections begin with.
	if said := log.String(); strings.Contains(said, "a call panicked") || strings.Contains(said, "http: panic serving") || s.service.Counts().Panics != 0 {
		t.Fatal(log.String())
	}
	w := httptest.NewRecorder()
	s.health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthcheck", nil))
	require.Equal(t, http.StatusOK, w.Code)
	before := s.engine.Stats().Calls["d"].OK
	_, err := s.service.ShouldRateLimit(t.Context(), one("day", "alive"))
	require.NoError(t, err)
	require.Greater(t, s.engine.Stats().Calls["d"].OK, before)
}

// http2 makes bytes what a server of HTTP/2 takes for frames.
func http2(kind byte, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return append(binary.BigEndian.AppendUint32(append(b, flags), stream), payload...)
}

// hello is how a connection of HTTP/2 begins.
var hello = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), http2(4, 0, 0, nil)...)

// headers is a block of headers, none of which is indexed or compressed.
func headers(pairs ...string) (b []byte) {
	for i, text := range pairs {
		if i%2 == 0 {
			b = append(b, 0)
		}
		b = append(append(b, byte(len(text))), text...)
	}
	return b
}

// requestHeaders begin a call.
var requestHeaders = headers(":method", "POST", ":scheme", "http", ":authority", "x", "te", "trailers",
	"content-type", "application/grpc", ":path", pb.RateLimitService_ShouldRateLimit_FullMethodName)

// FuzzPort_GRPC: the bytes are a connection's; or come after its begin; or are the frames of a call; or
// its message.
func FuzzPort_GRPC(f *testing.F) {
	s, log, sockets := openPorts(f)
	message, err := proto.Marshal(one("two", "x"))
	require.NoError(f, err)
	whole := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	f.Add(byte(0), []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(byte(1), append(http2(1, 4, 1, requestHeaders), http2(0, 1, 1, whole)...))
	f.Add(byte(1), http2(1, 0, 1, requestHeaders))
	f.Add(byte(2), http2(0, 1, 1, whole))
	f.Add(byte(2), append(http2(0, 0, 1, whole[:7]), http2(3, 0, 1, []byte{0, 0, 0, 8})...))
	f.Add(byte(2), http2(0, 1, 1, []byte{0, 0xff, 0xff, 0xff, 0xff}))
	f.Add(byte(3), message)
	f.Add(byte(3), []byte("\x12\xff"))
	f.Fuzz(func(t *testing.T, form byte, data []byte) {
		if len(data) > 16_000 { // of a frame
			return
		}
		call := http2(1, 4, 1, requestHeaders)
		switch form % 4 {
		case 1:
			data = append(append([]byte{}, hello...), data...)
		case 2:
			data = append(append(append([]byte{}, hello...), call...), data...)
		case 3:
			body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(data))), data...)
			data = append(append(append([]byte{}, hello...), call...), http2(0, 1, 1, body)...)
		}
		exchange(t, sockets["grpc"], data)
		goesOn(t, s, log)
	})
}

// fuzzHTTP fuzzes a port of HTTP/1: the bytes are a connection's.
func fuzzHTTP(f *testing.F, port string, seeds ...string) {
	s, log, sockets := openPorts(f)
	for _, seed := range seeds {
		f.Add([]byte(strings.ReplaceAll(seed, "\n", "\r\n")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		now := s.manual.Now()
		exchange(t, sockets[port], data)
		goesOn(t, s, log)
		if s.manual.Now() < now {
			t.Fatal("the clock goes back")
		}
	})
}

func FuzzPort_HTTP(f *testing.F) {
	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "two", "value": "x"}]}]}`
	fuzzHTTP(f, "http", "GET /healthcheck HTTP/1.1\nHost: x\n\n", "POST /json HTTP/1.0\nContent-Length: 77\n\n"+body,
		"POST /json HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n4\n{}  \n0\n\n",
		"GET /check/d?deny=403 HTTP/1.1\nHost: x\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Uri: /a?b=c\n\nGET /check/ HTTP/1.1\nHost: y\n\n")
}

func FuzzPort_Debug(f *testing.F) {
	fuzzHTTP(f, "debug", "GET / HTTP/1.0\n\n", "GET /rlconfig?format=json HTTP/1.1\nHost: x\n\n", "GET /stats HTTP/1.1\nHost: x\n\n",
		"POST /clock HTTP/1.1\nHost: x\nContent-Length: 4\n\n1000", "GET /debug/pprof/symbol?0x1 HTTP/1.0\n\n", "GET /debug/pprof/profile?seconds=9 HTTP/1.0\n\n")
}

func FuzzPort_Metrics(f *testing.F) {
	fuzzHTTP(f, "metrics", "GET /metrics HTTP/1.1\nHost: x\nAccept: */*\n\n", "GET /metrics HTTP/1.1\nHost: x\nAccept-Encoding: gzip\nAccept: application/openmetrics-text\n\n")
}
