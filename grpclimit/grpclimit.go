package grpclimit

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/hint"
)

// Per is the unit that a policy counts.
type Per uint8

const (
	// PerCall counts each call once, before its handler is called: a unary call, and a stream
	// when it is opened.
	PerCall Per = iota
	// PerReceived counts each message that a client sends on a stream, once it has been read and
	// before the handler sees it. A unary call is a message, too, and judged with its PerCall
	// policies.
	PerReceived
	// PerSent counts each message that the server sends on a stream, before it is sent. The
	// response of a unary call is not counted.
	PerSent
)

// A Call describes a call to the functions of a Config and of a ClientConfig. They must not
// change the message, nor keep it.
type Call struct {
	// FullMethod is the method, as in "/package.Service/Method".
	FullMethod string

	// Message is the request of a unary call, or the message that is judged. It is nil when a
	// stream is opened.
	Message any

	// Per is the subject of the judgement: the call, or one of the messages of a stream.
	Per Per

	// Stream reports whether the call is a stream.
	Stream bool

	// Target is the target of the connection, as of grpc.ClientConn.Target: of a Client. It is
	// empty at a server.
	Target string
}

// KeyFunc returns the key that a call is counted under. The error says that the call has none;
// see Config.OnKeyError. An empty key is a key, which all calls that have it share; return an
// error that matches ErrNoKey instead. It is called from many goroutines at once, before the
// handler; for policies per message, for each message.
type KeyFunc func(context.Context, Call) (key string, err error)

// Policy is one of the limits of a server.
type Policy struct {
	// Name tells the policies apart: in the details of a denial and in Decision. It
	// has 1 to 64 printable ASCII characters. Clients see it.
	Name string

	// Limiter counts the calls. Policies may share one; where their keys are equal, too, their
	// costs add up. One with sluice.Config.Shadow denies nobody: see Decision.WouldDeny.
	//
	// A Limiter of sluice.InFlight counts calls, and streams, that run at once: a call gives back its cost when its
	// handler has returned or panicked, and keeps it until then, however long that takes. A
	// denial has a RetryAfter of at most one second, since it is not known when another call ends.
	Limiter *sluice.Limiter

	// Remote counts them in place of a Limiter, such as a redislimit.Tier does for several
	// processes. Each policy has one of the two. Remotes are asked one after another when all
	// Limiters have admitted the call, with its context. If one of them denies, all that
	// has been charged before is given back; until then other calls see it charged. If one
	// returns an error, the call is answered with UNAVAILABLE. One whose method Algorithm returns
	// sluice.InFlight is refused.
	Remote httplimit.Remote

	// Shadow asks the Remote, but denies nothing, as sluice.Config.Shadow does for a
	// Limiter: its denials are in Decision.WouldDeny, and an error lets the call pass.
	Shadow bool

	// Key returns the key that a call is counted under.
	Key KeyFunc

	// MaxPerKey is how many of the calls, and messages, that wait may have one key of this policy, in place of the Queue's: more
	// for a key that all clients share. 0 means that. It is refused without a Queue, for a Remote and in shadow mode.
	MaxPerKey int

	// Per is the unit that is counted. The zero value is PerCall.
	Per Per

	// Cost returns the cost of a call, or a message; nil means 1. With 0 it passes if one unit
	// would, and is charged nothing. A negative cost, or one above the limiter's burst, is
	// denied for ever. The demands on KeyFunc hold here, too.
	Cost func(context.Context, Call) int

	// Limit returns a limit that the call brings, such as one in its token, and goes by:
	// see sluice.Key.WithLimit. The zero Limit is none; the call then goes by the limit of its
	// key. An error, or a limit that sluice.New would refuse for the Limiter, is an error of
	// Key. It is not for a Remote. Whoever can choose the limit is not limited. nil means
	// that no call brings one. The demands on KeyFunc hold here, too.
	Limit func(context.Context, Call) (sluice.Limit, error)

	// Settle returns the final cost of a call in this policy, in place of Config.Settle: 0 gives a login that succeeded back
	// to the policy of failed logins; policies without a Settle stay charged. It is asked only about calls that the policy
	// has charged. It is for PerCall, and not for a Limiter of sluice.InFlight. nil leaves it to Config.Settle.
	Settle func(ctx context.Context, call Call, code codes.Code) (cost int)

	// CountsDenialsOf is the name of another policy, which throttles, and has this one ban: it counts calls that the other one
	// denies, under its own Key, and not the calls that pass. While its key has no units it denies every call, and the
	// denial that takes the last unit blocks the key for the sluice.Config.BlockFor of its Limiter: with a limit of 5 an hour
	// and a BlockFor of a day, the fifth denial within an hour bans its key for a day, and says so. What it denies itself it
	// does not count. Cost is then of a denial; a cost below 1 counts nothing, and a larger one at most the units left. In shadow mode it also counts what the other
	// policy would deny in shadow mode, which is not counted else. It cannot be of sluice.InFlight, nor have a
	// Settle, and has the same Per. Empty means that it counts calls.
	CountsDenialsOf string
}

// Config describes the limits of a server. The zero value of every field but Policies is a
// sensible default. All functions are called on the goroutine of the call, and so from many at
// once.
type Config struct {
	// Policies that count the same are judged together: a call, or a message, that one of them
	// denies is charged to none. At least one is needed.
	Policies []Policy

	// Queue has calls wait for their turn in place of being denied, and messages of streams, whose RecvMsg or SendMsg
	// then takes as long: what httplimit.Queue says of requests holds for both. A call that has waited has the trailer
	// server-timing, such as queue;dur=53: milliseconds. One whose client has gone while it waited ends with CANCELED. nil
	// has none wait.
	Queue *httplimit.Queue

	// Skip returns true for calls that pass without being counted, their messages too. It is
	// asked once a call. nil means SkipHealthAndReflection; for none, give it a function that
	// returns false. A client that can make it return true is not limited.
	Skip func(context.Context, Call) bool

	// OnDecision is called once for each call, or message, that is judged, whatever the number
	// of policies, before the handler sees it or the client its denial. It is for metrics and
	// logs: the call waits for it. Call.Per says which of the two it is.
	OnDecision func(context.Context, Call, Decision)

	// OnKeyError decides on calls that have no key.
	OnKeyError KeyErrorAction

	// Settle returns the final cost of a call, in each of the policies without a Settle of their own that it was charged to
	// when it began, once its handler is done: 0 for a call that should not count, such as a login
	// that succeeded. A negative cost leaves the charge as it is. nil means that costs are
	// final, and adds nothing to a call; else each charge takes a reservation of some 200 bytes.
	// Charges of messages of streams are final.
	//
	// The code is of the status that the handler has returned, as gRPC makes it of an
	// error: codes.Unknown of one that is no status; codes.Internal if the handler has
	// panicked; codes.ResourceExhausted of a stream that was ended for a message. An
	// interceptor further out that changes the status is not seen.
	//
	// If too much was charged, Settle gives the rest back, as sluice.TakeAllReservations says: as
	// far as it has not come back by itself, also where calls of one key overlap. If too little
	// was charged, it charges the rest now, whatever remains: see sluice.Key.Debit.
	//
	// The refund of units that a Remote has charged too much is estimated: as if
	// its units came back evenly until the ResetAfter that it told. If it has charged too little, a
	// httplimit.RemoteDebiter is charged the rest now, and any other Remote as much of it as remains. A Remote that
	// panics counts as a handler that panics.
	Settle func(ctx context.Context, call Call, code codes.Code) (cost int)

	// RetryJitter is added to the wait that a denial tells, so that not all clients come back at the same
	// time: a whole number of milliseconds drawn evenly from 0 to RetryJitter. It must be 0 or whole milliseconds, up to an hour.
	RetryJitter time.Duration

	// MaxRetryAfter is the longest wait that a denial tells, before RetryJitter, in RetryInfo, pushback and text: a client that
	// would have to wait for a day asks again sooner, and is denied again if it is too early. It changes no decision, and
	// Decision.RetryAfter stays true. 0 means no bound; it must be whole milliseconds, up to 365 days.
	MaxRetryAfter time.Duration
}

// hint is how the wait after a denial is told.
func (c *Config) hint() hint.Hint {
	return hint.Hint{Most: c.MaxRetryAfter, Jitter: c.RetryJitter, Unit: time.Millisecond}
}

// KeyErrorAction decides on calls that have no key: calls for which a Key returns an error.
type KeyErrorAction uint8

const (
	// KeyErrorDeny denies the call with INVALID_ARGUMENT. No limiter is asked. A policy in shadow
	// mode denies nothing: it is left out, and named in Decision.WouldDeny.
	KeyErrorDeny KeyErrorAction = iota
	// KeyErrorSkip leaves the policy out for this call if the error matches ErrNoKey, and the
	// other policies judge. If there is no other, the call passes: who leaves out the key is
	// not limited. Any other error still denies: a key that is malformed is there, and must not
	// be a way around the limit.
	KeyErrorSkip
)

// Decision is the outcome of one call, or message.
type Decision struct {
	// Allowed reports whether the call passes to the handler, or the message on its way.
	Allowed bool

	// Code is codes.OK if it passes; codes.ResourceExhausted if it is denied,
	// codes.InvalidArgument if that is for the error of a Key, or codes.Unavailable if it is for
	// the error of a Remote; codes.Canceled if the client has gone while it waited in the Queue.
	Code codes.Code

	// Violated names the policies that have denied the call, in the order of Config.Policies:
	// all that stood in its way at the instant of the decision, or the first one with a Remote that did.
	Violated []string

	// WouldDeny names the policies that would have denied the call, had their limiter not been
	// in shadow mode. They are not asked about calls that the other policies deny.
	WouldDeny []string

	// OverSoft reports that the call passes by units of sluice.Config.Soft only.
	OverSoft bool

	// Remaining is the least that remains of any policy, in its own units; math.MaxInt if none
	// was asked. Those in shadow mode do not count.
	Remaining int

	// RetryAfter is the wait after which the call would pass if nothing else happens, or
	// sluice.Never if no wait helps. It is 0 if it passes, or has no key. It is in real time:
	// where a limiter's clock has a Resolution, as a sluice.CoarseClock has, by which it can
	// lag, twice that is in it. With a Queue those who wait in front are in it.
	RetryAfter time.Duration

	// Waited is how long the call has waited in the Queue, in real time; 0 for one that had no place there.
	Waited time.Duration

	// RemoteError is the error of a Remote that the call is denied for, or that could not count its denial. If it
	// passes, it is the first of those in shadow mode, or nil.
	RemoteError error

	// KeyError is the error of a Key that the call is denied for. If it is not, it is the first
	// that was passed over: by KeyErrorSkip, or of a policy in shadow mode.
	KeyError error

	// Charges lists the charges that the policies were asked for: policies with a Remote behind
	// Limiters, and policies in shadow mode last. It
	// leaves out policies for which the call has no key. With a KeyError that the call is
	// denied for, it has the charges that were found before it, and none of them has been
	// asked for. It is nil for a call that passes.
	Charges []PolicyCharge
}

// PolicyCharge is the charge of a call by one policy.
type PolicyCharge struct {
	Policy string // its name
	Key    string // under which the call is counted
	Cost   int
}

// ConfigError is the error of the constructors of this package.
type ConfigError struct {
	Field  string // the offending field, such as "Config.Policies[0].Name"
	Reason string // its value, the mistake, and a value that would be accepted
}

// Error names the field and the reason.
func (e *ConfigError) Error() string { return "grpclimit: " + e.Field + ": " + e.Reason }

func configErrorf(field, format string, args ...any) *ConfigError {
	return &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

func (c *Config) validate() error {
	for i, p := range c.Policies {
		field := fmt.Sprintf("Config.Policies[%d].Per", i)
		switch {
		case p.Per > PerSent:
			return configErrorf(field, "%d is nothing to count; want PerCall, PerReceived or PerSent", p.Per)
		case p.Per != PerCall && p.Settle != nil:
			return configErrorf(fmt.Sprintf("Config.Policies[%d].Settle", i), "is set for messages, whose charges are final; want nil, or PerCall")
		case p.Per != PerCall && p.Limiter != nil && p.Limiter.Config().Algorithm == sluice.InFlight:
			return configErrorf(field, "%d with a Limiter of in-flight, and messages do not run; want PerCall", p.Per)
		}
	}
	for i, p := range c.Policies {
		for _, of := range c.Policies {
			if of.Name == p.CountsDenialsOf && of.Per != p.Per {
				return configErrorf(fmt.Sprintf("Config.Policies[%d].CountsDenialsOf", i), "%q counts by another Per, and is judged at another time; want the same Per", of.Name)
			}
		}
	}
	if c.OnKeyError > KeyErrorSkip {
		return configErrorf("Config.OnKeyError", "%d is not an action; want KeyErrorDeny or KeyErrorSkip", c.OnKeyError)
	}
	h := c.hint()
	if reason := h.CheckJitter(); reason != "" {
		return &ConfigError{"Config.RetryJitter", reason}
	}
	if reason := h.CheckMost(); reason != "" {
		return &ConfigError{"Config.MaxRetryAfter", reason}
	}
	return nil
}
