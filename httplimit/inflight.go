package httplimit

import (
	"net"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// A policy whose Limiter is of InFlight limits requests that run at once. It gives its charge back when the
// handler returns or panics; after a Hijack, when the connection is closed.

// inUse is the unit of such a policy in RateLimit-Policy: section 3.1.2 of the draft.
const inUse = "concurrent-requests"

// retryInUse is the Retry-After for such a policy. The limiter knows only when the units lapse.
const retryInUse = time.Second

// retryAfter returns the wait that a denial by the Limiters tells of.
func (j *judgement) retryAfter() (wait time.Duration) {
	entries, _ := j.of(local)
	for i := range entries {
		d := &j.states[i]
		switch {
		case d.Allowed:
		case entries[i].policy.holds && d.RetryAfter != sluice.Never:
			wait = max(wait, retryInUse)
		default:
			wait = max(wait, d.RetryAfter)
		}
	}
	return wait
}

// end gives back what the InFlight policies have charged.
func (j *judgement) end() {
	for i := range j.entries {
		if e := &j.entries[i]; e.policy.holds {
			e.receipt.Cancel()
		}
	}
}

// endWith is end when the connection is closed.
func (j *judgement) endWith(c *heldConn) {
	var held []*sluice.Reservation
	for i := range j.entries {
		if e := &j.entries[i]; e.policy.holds {
			held = append(held, e.receipt)
		}
	}
	c.hold(held)
}

// A heldConn is a hijacked connection that gives units back when it is closed.
type heldConn struct {
	net.Conn
	mu     sync.Mutex
	closed bool
	held   []*sluice.Reservation
}

func (c *heldConn) hold(held []*sluice.Reservation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held = held; c.closed {
		c.release()
	}
}

func (c *heldConn) release() {
	for _, r := range c.held {
		r.Cancel()
	}
	c.held = nil
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.release()
	c.mu.Unlock()
	return c.Conn.Close()
}
