package service

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

// A stranger is a connection that does not speak the protocol of its port: of a scanner, say, or of
// a client with the wrong address. The log has a line about the first one on each port, and then at
// most one a minute.

// strangersEvery is how often a port's log tells of them.
const strangersEvery = time.Minute

// strangers tells of those of one port.
type strangers struct {
	log  *slog.Logger
	port string

	mutex  sync.Mutex
	told   time.Time // of the last one
	untold int       // since then
}

func (s *server) strangers(port string) *strangers { return &strangers{log: s.log, port: port} }

// tell logs message unless it has told of another one lately; then it counts this one for the next line.
func (s *strangers) tell(now time.Time, message string, more ...any) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.told.IsZero() && now.Sub(s.told) < strangersEvery {
		s.untold++
		return
	}
	s.log.Warn(message, append([]any{"port", s.port, "others_since_last_told", s.untold}, more...)...)
	s.told, s.untold = now, 0
}

// errorLog is for http.Server, whose lines about panics of handlers are as frequent as those.
func (s *strangers) errorLog() *log.Logger { return log.New(s, "", 0) }

// Write takes lines of the log of package net/http.
func (s *strangers) Write(line []byte) (int, error) {
	s.tell(time.Now(), strings.TrimSpace(string(line)))
	return len(line), nil
}

// greeting is how every connection of HTTP/2 begins.
const greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// greeted are credentials of a server that look at how connections begin.
type greeted struct {
	credentials.TransportCredentials
	strangers *strangers
}

// ServerHandshake implements credentials.TransportCredentials.
func (g *greeted) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		if err != io.EOF && !errors.Is(err, syscall.ECONNRESET) { // which are health checks that only connect
			g.strangers.tell(time.Now(), "a connection is refused: the TLS handshake fails", "from", raw.RemoteAddr().String(), "error", err)
		}
		return conn, info, err
	}
	return &greetedConn{Conn: conn, strangers: g.strangers}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (g *greeted) Clone() credentials.TransportCredentials {
	return &greeted{g.TransportCredentials.Clone(), g.strangers}
}

// greetedConn is a connection of gRPC. One that ends before its first byte is a health check.
type greetedConn struct {
	net.Conn
	strangers *strangers
	known     int // bytes of the greeting that have been read, all of them also once there is a line of log
}

// Read is called by one goroutine at a time.
func (c *greetedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.known < len(greeting) {
		c.check(string(b[:min(n, len(greeting)-c.known)]), err)
	}
	return n, err
}

// check looks at what has been read next.
func (c *greetedConn) check(next string, err error) {
	begin := c.known
	c.known += len(next)
	stranger := next != greeting[begin:c.known]
	if stranger || err != nil && c.known > 0 && c.known < len(greeting) {
		c.known = len(greeting)
		c.strangers.tell(time.Now(), "a connection is closed: it does not begin as HTTP/2 does, which gRPC needs",
			"from", c.RemoteAddr().String(), "bytes", greeting[:begin]+next)
	}
}

// httpListener is a listener of connections that know whether they have sent a request.
type httpListener struct{ net.Listener }

// Accept implements net.Listener.
func (l httpListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &httpConn{Conn: conn}, nil
}

// httpConn is a connection of HTTP/1.
type httpConn struct {
	net.Conn
	pending bool // bytes have come, and no request yet; of the goroutine that serves the connection
}

type httpConnKey struct{}

// watchRequests makes h tell of connections that begin with bytes that are no request.
func watchRequests(h *http.Server, s *strangers) {
	inner := h.Handler
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(httpConnKey{}).(*httpConn); ok {
			c.pending = false
		}
		inner.ServeHTTP(w, r)
	})
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, httpConnKey{}, c) }
	h.ConnState = func(conn net.Conn, state http.ConnState) {
		c, ok := conn.(*httpConn)
		switch {
		case !ok:
		case state == http.StateActive:
			c.pending = true // until the handler is called, which is next
		case state == http.StateClosed && c.pending:
			s.tell(time.Now(), "a connection is closed: it has sent no whole request of HTTP/1, or one too large", "from", c.RemoteAddr().String())
		}
	}
}
