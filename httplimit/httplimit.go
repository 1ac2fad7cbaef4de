package httplimit

import (
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-go/sluice"
)

// KeyFunc returns the key that a request is counted under. The error says that the
// request has none; see Config.OnKeyError. An empty key is a key, which all requests that
// have it share; return an error that matches ErrNoKey instead. It is called from many
// goroutines at once, before the handler, and must not read the request's body: for a key
// that is in the body see the example of Judge.
type KeyFunc func(*http.Request) (key string, err error)

// Policy is one of the limits of a middleware.
type Policy struct {
	// Name tells the policies of a middleware apart: in headers, problem
	// documents and Decision. It has 1 to 64 printable ASCII characters.
	Name string

	// Limiter counts the requests. Policies may share one; where their keys are equal,
	// too, their costs add up.
	//
	// A Limiter of sluice.InFlight counts requests that run at once, however long: see "Requests that run at once" in the
	// documentation of the package.
	Limiter *sluice.Limiter

	// Remote counts them in place of a Limiter, such as a redislimit.Tier does for several
	// processes. Each policy has one of the two. Remotes are asked one after another when all
	// Limiters have admitted the request, with its context. If one of them denies, all that
	// has been charged before is given back; until then other requests see it charged. If one
	// returns an error, the request is answered with 503. One whose method Algorithm returns
	// sluice.InFlight is refused.
	Remote Remote

	// Shadow asks the Remote, but denies nothing, as sluice.Config.Shadow does for a
	// Limiter: its denials are in Decision.WouldDeny, and an error lets the request pass.
	Shadow bool

	// Key returns the key that a request is counted under.
	Key KeyFunc

	// Cost returns the cost of a request; nil means 1. With 0 the request passes if one
	// unit would, and is charged nothing. A negative cost, or one above the limiter's
	// burst, is denied for ever. The demands on KeyFunc hold here, too.
	Cost func(*http.Request) int

	// Limit returns a limit that the request brings, such as one in its token, and goes by:
	// see sluice.Key.WithLimit. The zero Limit is none; the request then goes by the limit of its
	// key. An error, or a limit that sluice.New would refuse for the Limiter, is an error of
	// Key. It is not for a Remote. Whoever can choose the limit is not limited. nil means
	// that no request brings one. The demands on KeyFunc hold here, too.
	Limit func(*http.Request) (sluice.Limit, error)

	// Settle returns the final cost of a request in this policy, in place of Config.Settle: 0 gives a login that succeeded
	// back to the policy of failed logins; policies without a Settle stay charged. It is asked only about requests that the
	// policy has charged. It is not for a Limiter of sluice.InFlight. nil leaves it to Config.Settle.
	Settle func(r *http.Request, status int) (cost int)

	// CountsDenialsOf is the name of another policy, which throttles, and has this one ban: it counts requests that the other one
	// denies, under its own Key, and not the requests that pass. While its key has no units it denies every request, and the
	// denial that takes the last unit blocks the key for the sluice.Config.BlockFor of its Limiter: with a limit of 5 an hour
	// and a BlockFor of a day, the fifth denial within an hour bans its key for a day, and says so. What it denies itself it
	// does not count. Cost is then of a denial; a cost below 1 counts nothing, and a larger one at most the units left. In shadow mode it also counts what the other
	// policy would deny in shadow mode, which is not counted else. It cannot be of sluice.InFlight, nor have a
	// Settle. Empty means that it counts requests.
	CountsDenialsOf string

	// MaxPerKey is how many of the requests that wait may have one key of this policy, in place of QueueConfig.MaxPerKey: more
	// for a key that all clients share. 0 means that. It is refused without a Queue, for a Remote and in shadow mode.
	MaxPerKey int

	// Unit is the quota unit (qu) in RateLimit-Policy, such as "content-bytes"; empty
	// means "requests". It has at most 64 printable ASCII characters.
	Unit string
}

// Config describes a middleware. The zero value of every field but Policies is a
// sensible default. All functions are called on the goroutine of the request, and so
// from many at once.
type Config struct {
	// Policies are judged together: a request that one of them denies is charged to
	// none. At least one is needed.
	Policies []Policy

	// Queue has requests wait for their turn in place of being denied. nil has none wait.
	Queue *Queue

	// Skip returns true for requests that pass without being counted; they get no
	// headers. nil skips none. A client that can make it return true is not limited.
	Skip func(*http.Request) bool

	// OnDenied answers the requests that are denied. Headers have been set. If it
	// writes nothing, the status of the decision is sent. Before a body it must write the
	// status itself, w.WriteHeader(d.Status), as any handler must: without it net/http sends
	// 200, which clients and metrics take for an admission. nil means WriteProblem.
	OnDenied func(http.ResponseWriter, *http.Request, Decision)

	// OnDecision is called once for each request that is not skipped, whatever its
	// number of policies, before the handler or OnDenied. It is for metrics and logs:
	// the request waits for it.
	OnDecision func(*http.Request, Decision)

	// Explain makes the decisions on admitted requests say as much as those on denied
	// ones, with Decision.Charges, and lets the handlers see them: DecisionFromContext.
	// It takes a request four allocations.
	Explain bool

	// OnKeyError decides on requests that have no key.
	OnKeyError KeyErrorAction

	// OnCountedTwice is called for each request that a handler of the middleware gets
	// from another one of its own, as when it is on a router and on one of its routes: the
	// request is charged twice. nil looks for that in the first 1,024 requests only, and
	// logs the first one found by slog.Default. Middlewares that share a Limiter are
	// taken to mean it. Judge.Decide does not look.
	OnCountedTwice func(*http.Request)

	// Settle returns the final cost of a request, in each of the policies without a Settle of their own, once its
	// handler is done: 0 for a request that should not count, such as a login that succeeded. A
	// negative cost leaves the charge as it is. nil means that costs are final, and
	// adds nothing to a request; else each charge takes a reservation of some 200 bytes. The request is the one that the middleware was given;
	// its body has been read.
	//
	// The status is the response's: 200 if the handler has set none, and not an
	// informational one; 500 if it has panicked before anything was written; 101 if it
	// has hijacked the connection before; StatusClientGone if it has returned without a
	// response after the context of the request has ended, as handlers do when the client
	// has gone. A hook or a Remote that panics once the request is charged counts as a handler
	// that does.
	//
	// The status is the one that comes by way of the ResponseWriter. A framework whose
	// handlers return errors, which it answers later, needs a middleware of its own: see
	// Judge. In front of a http.TimeoutHandler Settle is told its 503; behind one it is
	// told of writes that come too late. http.MaxBytesReader does not find the
	// server's own ResponseWriter under Settle, and no longer closes the connection, so
	// that the server reads up to 256 KiB more; put http.MaxBytesHandler in front.
	//
	// If too much was charged, Settle gives the rest back, as sluice.TakeAllReservations says: as far
	// as it has not come back by itself, also where requests of one key overlap. If too little was
	// charged, it charges the rest now, whatever remains. The key then has a debt, and is denied
	// until it has been paid back: see sluice.Key.Debit. Bound the cost if a single request must not
	// shut out its client for long. Requests that run at the same time do not see each
	// other's final costs, so costs that can turn out high are better charged first and
	// given back.
	//
	// The refund of units that a Remote has charged too much is estimated: as if
	// its units came back evenly until the ResetAfter that it told. That is exact for
	// buckets, and less for windows while they last; of a sliding window that is over it can be
	// more. If it has charged too little, a RemoteDebiter is charged the rest now, and any other Remote as much of
	// the rest as remains.
	Settle func(r *http.Request, status int) (cost int)

	// Headers chooses the fields of responses that tell about the limits.
	Headers Headers
}

// KeyErrorAction decides on requests that have no key: requests for which a Key
// returns an error.
type KeyErrorAction uint8

const (
	// KeyErrorDeny denies the request with status 400. No limiter is asked. A policy in shadow
	// mode denies nothing: it is left out, and named in Decision.WouldDeny.
	KeyErrorDeny KeyErrorAction = iota
	// KeyErrorSkip leaves the policy out for this request if the error matches ErrNoKey,
	// and the other policies judge. If there is no other, the request passes: who leaves
	// out the key is not limited. Any other error still denies: a key that is malformed
	// or too long is there, and must not be a way around the limit.
	KeyErrorSkip
)

// Decision is the outcome of one request.
type Decision struct {
	// Allowed reports whether the request passes to the handler.
	Allowed bool

	// Status is the status for a request that is denied: 429, 400 if a Key has returned an
	// error, or 503 if a Remote has; StatusClientGone for one whose client has gone while it waited in the Queue. It is
	// 0 if the request passes.
	Status int

	// Violated names the policies that have denied the request, in the order of
	// Config.Policies: all that stood in its way at the instant of the decision, or the first
	// one with a Remote that did.
	Violated []string

	// WouldDeny names the policies that would have denied the request, had their
	// limiter not been in shadow mode. They are not asked about requests that the other
	// policies deny.
	WouldDeny []string

	// OverSoft reports that the request passes by units of sluice.Config.Soft only.
	OverSoft bool

	// Remaining is the least that remains of any policy, in its own units; math.MaxInt
	// if none was asked. Those in shadow mode do not count.
	Remaining int

	// RetryAfter is the wait after which the request would pass if nothing else
	// happens, or sluice.Never if no wait helps. It is 0 if it passes, or has no key.
	// It is in real time: where a limiter's clock has a Resolution, as a
	// sluice.CoarseClock has, by which it can lag, twice that is in it. With a Queue those who wait in front are in it.
	RetryAfter time.Duration

	// Waited is how long the request has waited in the Queue, in real time; 0 for one that had no place there.
	Waited time.Duration

	// RemoteError is the error of a Remote that the request is denied for, or that could not count its denial. If it
	// passes, it is the first of those in shadow mode, or nil.
	RemoteError error

	// KeyError is the error of a Key that the request is denied for. If it is not, it is
	// the first that KeyErrorSkip or a policy in shadow mode has made nothing of, or nil.
	KeyError error

	// Charges lists the charges that the policies were asked for: policies with a Remote behind
	// Limiters, and policies in shadow mode last. It leaves out policies for which the request has no key. With a KeyError that
	// the request is denied for, it has the charges that were found before it, and none
	// of them has been asked for. It is nil for admitted requests without Config.Explain.
	Charges []PolicyCharge
}

// PolicyCharge is the charge of a request by one policy.
type PolicyCharge struct {
	Policy string // its name
	Key    string // under which the request is counted
	Cost   int
}

// ConfigError is the error of the constructors of this package.
type ConfigError struct {
	Field  string // the offending field, such as "Config.Policies[0].Name"
	Reason string // its value, the mistake, and a value that would be accepted
}

// Error names the field and the reason.
func (e *ConfigError) Error() string { return "httplimit: " + e.Field + ": " + e.Reason }

func configErrorf(field, format string, args ...any) *ConfigError {
	return &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

func (c *Config) validate() error {
	if c.OnKeyError > KeyErrorSkip {
		return configErrorf("Config.OnKeyError", "%d is not an action; want KeyErrorDeny or KeyErrorSkip", c.OnKeyError)
	}
	return c.Headers.validate()
}
