package httplimit

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sluice-go/sluice/internal/inflight"
)

// A policy whose Limiter is of InFlight limits requests that run at once: see "Requests that run at once" in doc.go.

// inUse is the unit of such a policy in RateLimit-Policy: section 3.1.2 of the draft.
const inUse = "concurrent-requests"

// running are the units of InFlight policies that a request holds until it ends.
type running struct {
	lease inflight.Lease
	over  func()      // called in place of lease.End, unless it is nil
	held  atomic.Bool // a hold ends it
}

// end ends it, unless a hold does that.
func (r *running) end() {
	switch {
	case r.held.Load():
	case r.over != nil:
		r.over()
	default:
		r.lease.End()
	}
}

// Follow is for middlewares of other counters. It returns the ResponseWriter for a handler, which has the
// interfaces of w among http.Flusher, http.Hijacker and http.Pusher, and a function to call, in a defer, when the handler has returned or panicked. over is called
// once: by that function; or, if the handler has taken the connection over, when the connection is closed or garbage.
func Follow(w http.ResponseWriter, over func()) (_ http.ResponseWriter, returned func()) {
	r := &running{over: sync.OnceFunc(over)}
	return (&recorder{ResponseWriter: w, running: r}).writer(), r.end
}

// end gives back the units of the request, unless a hold does so.
func (j *judgement) end() {
	if held := j.held(); held != nil {
		held.end()
	}
	j.Release()
}

// held returns the lease of the request, or nil.
func (j *judgement) held() *running {
	if j.running == nil {
		return nil
	}
	return *j.running
}

// A hold ends a request that goes on when its handler has returned. It does so when it is closed, or when it is
// garbage: a connection that is dropped, or closed by other means, is in use no more. It does not know of the connection, which
// would never be garbage: the Renewer has the lease.
type hold struct{ end func() }

func (r *running) hold() *hold {
	h := &hold{r.over}
	if r.over == nil {
		h.end = r.lease.End
	}
	r.held.Store(true)
	runtime.AddCleanup(h, func(end func()) { go end() }, h.end) // which may take a call to a server
	return h
}

// Close implements io.Closer. It returns nil.
func (h *hold) Close() error {
	h.end()
	return nil
}

// noHold is the hold of a request that holds nothing.
type noHold struct{}

func (noHold) Close() error { return nil }

// Hold keeps the units of InFlight policies beyond Settle and End, for a request that goes on when its handler has
// returned: until the io.Closer is closed, by anybody and as often as they like, or is garbage. Call it once. Close returns nil.
func (v *Verdict) Hold() io.Closer {
	if v.held == nil {
		return noHold{}
	}
	return v.held.hold()
}

// End gives back the units of InFlight policies, for a request that is over although its status is not known yet. It can
// be called more than once, and beside Settle.
func (v *Verdict) End() { v.judgement.end() }

// Writer returns the ResponseWriter for the handler of an admitted request: one by which a connection that the handler
// takes over, by http.Hijacker or http.ResponseController, stays in use after Settle and End until it is closed. It has
// the interfaces of w among http.Flusher, http.Hijacker and http.Pusher. It is w itself if no InFlight policy has been charged.
func (v *Verdict) Writer(w http.ResponseWriter) http.ResponseWriter {
	if v.held == nil {
		return w
	}
	return (&recorder{ResponseWriter: w, running: v.held}).writer()
}

// conn returns a hijacked connection as one that ends the request when it is closed. It has the methods of that connection
// which are known here.
func (h *hold) conn(conn net.Conn) net.Conn {
	switch c := conn.(type) {
	case *net.TCPConn:
		return &heldTCP{c, h}
	case *net.UnixConn:
		return &heldUnix{c, h}
	case *tls.Conn:
		return &heldTLS{c, h}
	}
	held := heldConn{conn, h}
	w, half := conn.(closeWriter)
	s, raw := conn.(syscall.Conn)
	switch {
	case half && raw:
		return &struct {
			heldConn
			closeWriter
			syscall.Conn
		}{held, w, s}
	case half:
		return &struct {
			heldConn
			closeWriter
		}{held, w}
	case raw:
		return &struct {
			heldConn
			syscall.Conn
		}{held, s}
	}
	return &held
}

// A closeWriter is a connection that can be closed in one direction, by which ReverseProxy passes an end on.
type closeWriter interface{ CloseWrite() error }

type (
	// A heldTCP is such a connection. NetConn returns the one below, as of a tls.Conn.
	heldTCP struct {
		*net.TCPConn
		hold *hold
	}
	heldUnix struct {
		*net.UnixConn
		hold *hold
	}
	heldTLS struct {
		*tls.Conn
		hold *hold
	}
	heldConn struct {
		net.Conn
		hold *hold
	}
)

func (c *heldTCP) NetConn() net.Conn  { return c.TCPConn }
func (c *heldUnix) NetConn() net.Conn { return c.UnixConn }
func (c *heldConn) NetConn() net.Conn { return c.Conn }

// closeWith closes a connection, and ends its request before: who sees it closed sees its units, too.
func closeWith(c net.Conn, h *hold) error {
	h.end()
	return c.Close()
}

func (c *heldTCP) Close() error  { return closeWith(c.TCPConn, c.hold) }
func (c *heldUnix) Close() error { return closeWith(c.UnixConn, c.hold) }
func (c *heldTLS) Close() error  { return closeWith(c.Conn, c.hold) }
func (c *heldConn) Close() error { return closeWith(c.Conn, c.hold) }
