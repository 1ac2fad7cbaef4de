package surfaces

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// An End is how a handler ends.
type End int

const (
	// Returns is a handler that answers.
	Returns End = iota
	// Answered is a handler that returns an error, which is answered.
	Answered
	// Unanswered is a handler that returns an error, which nobody answers.
	Unanswered
	// Panics is a handler that panics.
	Panics
	// Hijacks is a handler that takes the connection over, switches protocols, and returns. The connection is closed
	// when Handler.Closing is.
	Hijacks
	// Streams is a handler that begins a response and returns when Handler.Closing is closed.
	Streams
	// StreamsOn is a handler that returns while its response streams on, until Handler.Closing is closed.
	StreamsOn
	// TimesOut is a handler whose caller gives up on it and answers. It returns when Handler.Closing is closed.
	TimesOut
)

// A Handler tells the handlers of a surface how to act.
type Handler struct {
	begun, seen, left chan struct{}
	ran               atomic.Int64
	end               atomic.Int32
	going, closing    gate
	one               chan struct{} // lets one go

	mu      sync.Mutex
	cancels []func() // of those who give up on handlers
}

func newHandler() *Handler {
	const most = 1 << 10
	return &Handler{begun: make(chan struct{}, most), seen: make(chan struct{}, most), left: make(chan struct{}, most), one: make(chan struct{})}
}

// A handler calls Begin first. It returns when the handler is to end, and how.
func (h *Handler) Begin() End {
	h.ran.Add(1)
	h.begun <- struct{}{}
	select {
	case <-h.going.passed():
	case <-h.one:
	}
	return End(h.end.Load())
}

// Closing is closed when connections are to be closed and streams to be ended.
func (h *Handler) Closing() <-chan struct{} { return h.closing.passed() }

// OnGivingUp has a function called when a handler ends with TimesOut.
func (h *Handler) OnGivingUp(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancels = append(h.cancels, f)
}

// GaveUp calls the functions of those who give up, of other handlers that end now, too.
func (h *Handler) GaveUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.cancels {
		f()
	}
	h.cancels = nil
}

// Seen is called by a client that has the beginning of a response.
func (h *Handler) Seen() { h.seen <- struct{}{} }

// Left is called when the limit has returned from a call, whatever came of it: around a middleware, behind its recovery
// from panics; or when a client's function has returned.
func (h *Handler) Left() { h.left <- struct{}{} }

// A gate is opened once, and closed again for those who come later.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed if it is open
}

func (g *gate) passed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
	return g.open
}

// pass lets those pass that wait, and who comes.
func (g *gate) pass() {
	g.passed()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isOpen() {
		close(g.open)
	}
}

// stop lets nobody pass any more who comes.
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpen() {
		g.open = nil
	}
}

func (g *gate) isOpen() bool {
	select {
	case <-g.open:
		return true
	default:
		return false
	}
}

var (
	errKey = errors.New("surfaces: there is no key")

	// ErrAnswered is the error of a handler that the middleware or the framework answers.
	ErrAnswered = errors.New("surfaces: the handler fails")
	// ErrUnanswered is the error of a handler that nobody answers.
	ErrUnanswered = errors.New("surfaces: the handler fails, and nobody answers")
)

// Panic is the value that handlers and functions panic with.
const Panic = "surfaces: a panic on purpose"

// arm says which function panics.
type arm struct {
	mu     sync.Mutex
	panics string
	calls  int // of it
}

func (a *arm) called(function string) error {
	a.mu.Lock()
	panics := a.panics == function
	if panics {
		a.calls++
	}
	a.mu.Unlock()
	if panics {
		panic(fmt.Sprintf("%s: %s", Panic, function))
	}
	return nil
}

func (a *arm) set(function string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.panics, a.calls = function, 0
}

func (a *arm) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}
