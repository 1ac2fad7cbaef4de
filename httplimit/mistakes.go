package httplimit

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
)

// Mistakes in a set-up that no test of a single machine shows, and that are silent
// otherwise: they are said once, unless a hook is told each time.

// unnamedProxy looks for requests that come through a proxy which nobody has named.
type unnamedProxy struct {
	headers []string // canonical
	hook    func(r *http.Request, header string)
	said    atomic.Bool
}

func newUnnamedProxy(c IPConfig) *unnamedProxy {
	u := &unnamedProxy{headers: []string{headerXFF, headerForwarded, "X-Real-Ip"}, hook: c.OnUntrustedProxy}
	if header := http.CanonicalHeaderKey(c.Header); header != "" && !slices.Contains(u.headers, header) {
		u.headers = append(u.headers, header)
	}
	return u
}

// oneIn is of how many requests one is looked at if all that comes of it is a line in a log:
// looking costs a third of the key.
const oneIn = 16

// look looks at a request whose peer is no trusted proxy.
func (u *unnamedProxy) look(r *http.Request) {
	if u == nil || u.hook == nil && (u.said.Load() || rand.Uint32()%oneIn != 0) {
		return
	}
	for _, name := range u.headers {
		if len(r.Header[name]) > 0 {
			u.tell(r, name)
			return
		}
	}
}

func (u *unnamedProxy) tell(r *http.Request, header string) {
	switch {
	case u.hook != nil:
		u.hook(r, header)
	case u.said.CompareAndSwap(false, true):
		slog.WarnContext(r.Context(), "httplimit: a forwarding header from a peer that is no trusted proxy: "+
			"if it is a proxy, all of its clients share one budget; name it in IPConfig.TrustedProxies and its header in IPConfig.Header",
			"peer", r.RemoteAddr, "header", header)
	}
}

// missingHeader tells of requests from a trusted proxy that does not say whom it speaks for.
type missingHeader struct {
	hook func(*http.Request)
	said atomic.Bool
}

func (m *missingHeader) tell(r *http.Request, header string) {
	switch {
	case m == nil:
	case m.hook != nil:
		m.hook(r)
	case !m.said.Load() && m.said.CompareAndSwap(false, true):
		slog.WarnContext(r.Context(), "httplimit: a trusted proxy has sent no header that names its client, and is counted under its own address: "+
			"if it speaks for clients, all of them share one budget; have it write the header, and set IPConfig.RequireHeader",
			"peer", r.RemoteAddr, "header", header)
	}
}

// requestsLookedAt is for how many requests a middleware looks whether it is around
// itself. A set-up in which it is shows that as soon as the route is asked for.
const requestsLookedAt = 1024

// countedTwice looks for requests that a middleware counts a second time.
type countedTwice struct {
	hook   func(*http.Request)
	looked atomic.Int64
	said   atomic.Bool

	mu     sync.Mutex
	inside map[uintptr]struct{} // the header maps of requests that are being handled
}

// looking reports whether a request is to be looked at.
func (c *countedTwice) looking() bool {
	return c.hook != nil || c.looked.Load() < requestsLookedAt && c.looked.Add(1) <= requestsLookedAt
}

// enter notes that r is being handled, and reports whether it already was. Copies of a
// request, as routers make them, have its header map. It is in use until leave, so that no
// other one can be in its place.
func (c *countedTwice) enter(r *http.Request) (id uintptr, again bool) {
	id = reflect.ValueOf(r.Header).Pointer()
	if id == 0 {
		return id, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again = c.inside[id]; !again {
		if c.inside == nil {
			c.inside = make(map[uintptr]struct{})
		}
		c.inside[id] = struct{}{}
	}
	return id, again
}

func (c *countedTwice) leave(id uintptr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inside, id)
}

func (c *countedTwice) tell(r *http.Request) {
	switch {
	case c.hook != nil:
		c.hook(r)
	case c.said.CompareAndSwap(false, true):
		slog.WarnContext(r.Context(), "httplimit: a middleware is around itself, so that it counts a request twice; use it once on the way to a handler",
			"method", r.Method, "path", r.URL.Path)
	}
}

// serveWatched is serve for a request that is looked at.
func (h *handler) serveWatched(w http.ResponseWriter, r *http.Request) {
	id, again := h.twice.enter(r)
	if again {
		h.twice.tell(r)
	} else {
		defer h.twice.leave(id)
	}
	h.serve(w, r)
}
