package grpclimit

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/policies"
)

// pushbackKey is the trailer by which a server tells clients when to retry, or not to: gRFC A6.
const pushbackKey = "grpc-retry-pushback-ms"

// The bounds of a denial's trailers: clients accept 8 KiB of them, and the denial is not alone in
// setting some. Beside the names a denial takes less than 1 KiB.
const (
	maxNamed      = 16      // policies that it names
	maxNamedBytes = 5 << 10 // that the names of more than one policy take
)

// DeniedError is the error of a call, or message, that was denied. As the error of a handler it is
// the status that clients see: see GRPCStatus.
type DeniedError struct {
	Decision Decision

	told  time.Duration // of Decision.RetryAfter; 0 for all of it
	begun bool          // the handler has been called
}

// newDenied returns the error of a call that is denied. It draws the jitter.
func (j *Judge) newDenied(d Decision, begun bool) *DeniedError {
	return &DeniedError{Decision: d, told: j.hint.Of(d.RetryAfter), begun: begun}
}

// retryAfter is the wait that the client is told.
func (e *DeniedError) retryAfter() time.Duration { return cmp.Or(e.told, e.Decision.RetryAfter) }

// Error says which policies have denied the call, and when to come back.
func (e *DeniedError) Error() string { return "grpclimit: " + e.text() }

// text is the message that clients see. It has nothing of the key, or of its error: they may
// come from a proxy and not from the client.
func (e *DeniedError) text() string {
	d := &e.Decision
	switch {
	case d.Code == codes.Canceled:
		return "the client has ended the call while it waited for its turn"
	case d.Code == codes.Unavailable:
		return "a limit that the call has to be counted by does not answer; retry after " + e.retryAfter().String()
	case !d.passesLater():
		return "the call lacks something that it has to be counted by, or has it in a form that cannot be used"
	}
	named := make([]string, 0, maxNamed)
	for _, name := range d.named() {
		named = append(named, strconv.Quote(name))
	}
	when := "no wait helps"
	if d.RetryAfter != sluice.Never {
		when = "retry after " + (time.Duration(milliseconds(e.retryAfter())) * time.Millisecond).String()
	}
	return fmt.Sprintf("quota exceeded: %s; %s", strings.Join(named, ", "), when)
}

// passesLater reports whether the call was denied for something that time can mend.
func (d *Decision) passesLater() bool {
	return d.Code == codes.ResourceExhausted || d.Code == codes.Unavailable
}

// named returns the violated policies that clients are told of.
func (d *Decision) named() []string {
	room := maxNamedBytes
	for i, name := range d.Violated {
		if room -= trailerBytes(name); i == maxNamed || i > 0 && room < 0 {
			return d.Violated[:i]
		}
	}
	return d.Violated
}

// violation describes a policy.
func violation(name string) string { return "the policy " + name + " has no room for the call" }

// trailerBytes is the most that a name takes of the trailers: in the message, which is quoted, and where "%" is three
// bytes; and in base64, in the message again, as a subject and in a description, with the tags and lengths of all.
func trailerBytes(name string) int {
	quoted := len(strconv.Quote(name)) + len(", ")
	details := quoted + len(name) + len(violation(name)) + 8
	return quoted + 2*strings.Count(name, "%") + (details+2)/3*4
}

// GRPCStatus returns the status: RESOURCE_EXHAUSTED with a google.rpc.QuotaFailure that names the
// policies, up to 16 of them and as many as fit, so that the status and the Trailer take at most 6 KiB; and, if a wait
// helps, a google.rpc.RetryInfo with the time; UNAVAILABLE with a RetryInfo for one whose Remote has failed; or
// INVALID_ARGUMENT for a call without a key; or CANCELED for one whose client has gone while it waited.
func (e *DeniedError) GRPCStatus() *status.Status {
	d := &e.Decision
	s := status.New(d.Code, e.text())
	if !d.passesLater() {
		return s
	}
	var details []protoadapt.MessageV1
	if d.Code == codes.ResourceExhausted {
		failure := &errdetails.QuotaFailure{}
		for _, name := range d.named() {
			failure.Violations = append(failure.Violations, &errdetails.QuotaFailure_Violation{
				Subject: name, Description: violation(name),
			})
		}
		details = append(details, failure)
	}
	if d.RetryAfter != sluice.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retryAfter())})
	}
	detailed, err := s.WithDetails(details...)
	if err != nil { // names of Policies are ASCII, and a code of OK is no denial
		return s
	}
	return detailed
}

// Trailer returns the trailer that belongs to the status: grpc-retry-pushback-ms of gRFC A6, the
// milliseconds after which the call may be sent again, rounded up. It is -1, which says not to,
// where no wait helps or the wait is longer than its 32 bits can say (24 days); and where the
// handler has been called, as for a message of a stream: to send that call again might do twice
// what the handler has done. After a wait in the Queue it has server-timing, too.
func (e *DeniedError) Trailer() metadata.MD {
	d, pushback := &e.Decision, int64(-1)
	if ms := milliseconds(e.retryAfter()); d.passesLater() && !e.begun && ms <= math.MaxInt32 {
		pushback = ms
	}
	md := metadata.Pairs(pushbackKey, strconv.FormatInt(pushback, 10))
	if d.Waited > 0 {
		md.Set(timingKey, policies.ServerTiming(d.Waited))
	}
	return md
}

// timingKey is the trailer that tells for how long a call has waited.
const timingKey = "server-timing"

// tellWait sets the trailer of a call that passes after a wait.
func tellWait(ctx context.Context, d *Decision) {
	if d.Waited > 0 {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(timingKey, policies.ServerTiming(d.Waited))) // as in deny
	}
}

// milliseconds rounds up.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}
