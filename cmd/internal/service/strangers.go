package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

// A stranger is a connection that does not speak the protocol of its port. It may come from a scanner, or from
// a client with the wrong address. For each port the log has a line about the first one, and then at
// most one line a minute.

// strangersEvery is the least time between two lines about strangers of a port.
const strangersEvery = time.Minute

// strangers logs the strangers of one port.
type strangers struct {
	log  *slog.Logger
	port string

	mutex  sync.Mutex
	told   time.Time // when the last line was logged
	untold int       // strangers since then
}

func (s *server) strangers(port string) *strangers { return &strangers{log: s.log, port: port} }

// tell logs message, unless it has logged a line lately. Then it counts the stranger for the next line.
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

// errorLog returns a log for http.Server. Its lines about panics of handlers are bounded in the same way.
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
	underWay  *underWay
}

// ServerHandshake implements credentials.TransportCredentials.
func (g *greeted) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		if err != io.EOF && !errors.Is(err, syscall.ECONNRESET) { // health checks that only connect are no strangers
			g.strangers.tell(time.Now(), "a connection is refused: the TLS handshake fails", "from", raw.RemoteAddr().String(), "error", err)
		}
		return conn, info, err
	}
	return newGreetedConn(conn, g.strangers, g.underWay), info, nil
}

// Clone implements credentials.TransportCredentials.
func (g *greeted) Clone() credentials.TransportCredentials {
	return &greeted{g.TransportCredentials.Clone(), g.strangers, g.underWay}
}

// greetedConn is a connection of gRPC. A connection that ends before its first byte is a health check.
//
// gRPC closes a connection silently if it cannot read a frame. That is the case if Close comes and
// nothing before has announced the end: no error of Read or Write, and no GOAWAY, which gRPC sends
// before it ends a connection itself.
type greetedConn struct {
	net.Conn
	strangers *strangers
	calls     connCalls
	known     int    // bytes of the greeting that have been read; set to all of them once a fault is logged
	in        frames // after the greeting
	out       frames
	over      atomic.Bool // the connection ends, and the reason is known
	told      atomic.Bool
}

func newGreetedConn(conn net.Conn, s *strangers, u *underWay) *greetedConn {
	c := &greetedConn{Conn: conn, strangers: s, calls: connCalls{all: u}}
	c.in.each, c.out.each = c.calls.received, c.calls.sent
	return c
}

// Read is called by one goroutine at a time.
func (c *greetedConn) Read(b []byte) (int, error) {
	c.calls.wait(func() {
		c.fault("its calls under way take more than its share, and it does not let them end")
		_ = c.Close()
	})
	n, err := c.Conn.Read(b)
	next := b[:n]
	if c.known < len(greeting) {
		m := min(n, len(greeting)-c.known)
		c.check(string(next[:m]), err)
		next = next[m:]
	}
	c.in.follow(next)
	switch {
	case err == io.EOF && c.in.within():
		c.fault("it ends within a frame of HTTP/2")
	case err != nil:
		c.over.Store(true)
	}
	return n, err
}

// Write is called by one goroutine at a time.
func (c *greetedConn) Write(b []byte) (int, error) {
	_ = c.Conn.SetWriteDeadline(time.Now().Add(2 * messageTime)) // for clients that do not read
	n, err := c.Conn.Write(b)
	c.out.follow(b[:n])
	switch {
	case c.out.goingAway && c.out.code != 0:
		c.fault(fmt.Sprintf("it breaks the rules of HTTP/2, error code %d", c.out.code))
	case c.out.goingAway, err != nil:
		c.over.Store(true)
	}
	if err != nil { // gRPC relies on Read to fail, too
		c.calls.close()
		_ = c.Conn.Close()
	}
	return n, err
}

// Close may be called by several goroutines, and at any time.
func (c *greetedConn) Close() error {
	if !c.over.Load() {
		c.fault("what it sends is not HTTP/2, or it answers no pings")
	}
	c.calls.close()
	return c.Conn.Close()
}

// fault logs why a connection ends, once.
func (c *greetedConn) fault(why string, more ...any) {
	c.over.Store(true)
	if !c.told.Swap(true) {
		c.strangers.tell(time.Now(), "a connection is closed: "+why, append([]any{"from", c.RemoteAddr().String()}, more...)...)
	}
}

// check looks at the next bytes that have been read.
func (c *greetedConn) check(next string, err error) {
	begin := c.known
	c.known += len(next)
	stranger := next != greeting[begin:c.known]
	if stranger || err != nil && c.known > 0 && c.known < len(greeting) {
		c.known = len(greeting)
		c.fault("it does not begin as HTTP/2 does, which gRPC needs", "bytes", greeting[:begin]+next)
	}
}

// httpListener accepts connections that know whether they have sent a request.
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

	// Used only by the goroutine that serves the connection:
	pending   bool  // bytes have come, but no request yet
	answering bool  // a request has come, and its answer is not done
	refused   bool  // package net/http itself answers the bytes, since they are no request
	handshake error // of TLS, which failed
}

// Read implements net.Conn.
func (c *httpConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if t, ok := c.Conn.(*tls.Conn); ok && err != nil && err != io.EOF && !t.ConnectionState().HandshakeComplete {
		c.handshake = err
	}
	return n, err
}

// Write implements net.Conn.
func (c *httpConn) Write(b []byte) (int, error) {
	c.refused = c.refused || !c.answering
	return c.Conn.Write(b)
}

type httpConnKey struct{}

// watchRequests makes h report connections that begin with bytes that are no request.
func watchRequests(h *http.Server, s *strangers) {
	inner := h.Handler
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(httpConnKey{}).(*httpConn); ok {
			c.pending, c.answering = false, true
		}
		inner.ServeHTTP(w, r)
	})
	h.DisableGeneralOptionsHandler = true // it would answer instead of Handler
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, httpConnKey{}, c) }
	h.ConnState = func(conn net.Conn, state http.ConnState) {
		c, ok := conn.(*httpConn)
		switch {
		case !ok:
		case state == http.StateClosed && c.handshake != nil:
			s.tell(time.Now(), "a connection is refused: the TLS handshake fails", "from", c.RemoteAddr().String(), "error", c.handshake)
		case state == http.StateActive:
			c.pending = true // until the handler is called, which is next
		case state == http.StateIdle:
			c.answering = false
		case state == http.StateClosed && (c.pending || c.refused):
			s.tell(time.Now(), "a connection is closed: it has sent no whole request of HTTP/1, or one too large", "from", c.RemoteAddr().String())
		}
	}
}
