// Package surfaces is the suite of whatever takes a limiter from a user: middlewares, interceptors, clients and the
// doors of the service. Every surface runs the one table of rows, how calls end and what users' functions do, with exact
// totals and everything given back at the end. Only tests use it.
//
// A surface is a Surface in its own package's tests, which starts it and makes calls. A new surface is a new Surface; a
// new kind of limit, or a new way for calls to end, begins with a row here.
package surfaces

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// A Surface is one that is tested.
type Surface struct {
	// Open starts the surface with a Setup, and stops it when the test ends. The error is its constructor's.
	Open func(t *testing.T, s *Setup) (Door, error)

	// Cannot says of rows why the surface cannot run them. A key is the name of a row, or the beginning of several.
	Cannot map[string]string

	// Refuses is set for a surface that takes no limiter of sluice.InFlight: its error has this text, which names a
	// surface that does. Rows then go without such a policy.
	Refuses string

	// Each is set for a surface whose policies each count by themselves the calls that another one denies, unless that counts
	// what is in flight.
	Each bool

	// One is set for a surface that takes one policy only.
	One bool
}

// A Door makes calls through a surface that has been started.
type Door struct {
	// Call makes a call, and returns its outcome once it has ended. It calls Handler.Seen when the client has the
	// beginning of a response that is no denial.
	Call func(ctx context.Context) Outcome

	// Remaining returns the remaining units of a policy. nil means to Peek at its Limiter.
	Remaining func(p *Policy) int
}

// An Outcome is a call in the eyes of a client.
type Outcome struct {
	Denied     bool          // for want of units, which is not an error
	RetryAfter time.Duration // that the denial tells
	Err        error         // that the call failed with, a status that says so included
}

// Key is the key that all calls are counted under.
const Key = "k"

// A Setup has the settings that a row starts a surface with.
type Setup struct {
	Policies []*Policy
	Handler  *Handler

	// Functions are the user's functions that are set besides Key, by the names of their fields. Each calls Called.
	Functions map[string]bool

	// Final is the result of Settle.
	Final int

	// TimesOut says that there is somebody behind the limit who gives up on a handler that ends with TimesOut.
	TimesOut bool

	// MaxRetryAfter bounds the wait that a denial tells, and RetryJitter is added to it; 0 for neither.
	MaxRetryAfter, RetryJitter time.Duration

	// Queue has calls wait that would be denied; nil for none.
	Queue *httplimit.Queue

	// Clock is the one of all limiters.
	Clock *sluice.ManualClock

	arm arm
}

// A user's function calls Called first. It panics, or returns the error that the function is to return.
func (s *Setup) Called(function string) error { return s.arm.called(function) }

// Proxied trusts the peers of all calls as proxies. The calls have no header that names a client.
func (s *Setup) Proxied() httplimit.IPConfig {
	return httplimit.IPConfig{
		TrustedProxies:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Header:          "X-Forwarded-For",
		OnMissingHeader: func(*http.Request) { _ = s.Called("OnMissingHeader") },
	}
}

// A Policy is one of the limits.
type Policy struct {
	Name    string
	Config  sluice.Config
	Limiter *sluice.Limiter // made of Config

	// Remote is set for a policy that counts by it in place of the Limiter. It is in shadow mode if FarShadow is set.
	Remote    *Remote
	FarShadow bool

	// Final is the result of the policy's own Settle, unless it is nil.
	Final *int

	// CountsDenialsOf is the name of another policy, or empty.
	CountsDenialsOf string

	// Brings is the limit that each call brings, unless it is zero.
	Brings sluice.Limit

	setup *Setup
	fails bool // its Key does
}

// Key is the result of the policy's Key function.
func (p *Policy) Key() (string, error) {
	if p.fails {
		return "", errKey
	}
	return Key, p.setup.Called("Key")
}

// Cost is the result of the policy's Cost function.
func (p *Policy) Cost() int {
	_ = p.setup.Called("Cost")
	return 1
}
