package grpclimit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice"
)

// pushbackKey is the trailer by which a server tells clients when to retry, or not to: gRFC A6.
const pushbackKey = "grpc-retry-pushback-ms"

// maxNamed is the most policies that a denial names: clients accept 8 KiB of trailers.
const maxNamed = 16

// DeniedError is the error of a call, or message, that was denied. As the error of a handler it is
// the status that clients see: see GRPCStatus.
type DeniedError struct {
	Decision Decision

	begun bool // the handler has been called
}

// Error says which policies have denied the call, and when to come back.
func (e *DeniedError) Error() string { return "grpclimit: " + e.text() }

// text is the message that clients see. It has nothing of the key, or of its error: they may
// come from others than the client, such as a proxy.
func (e *DeniedError) text() string {
	d := &e.Decision
	if d.Code != codes.ResourceExhausted {
		return "the call lacks something that it has to be counted by, or has it in a form that cannot be used"
	}
	named := make([]string, 0, maxNamed)
	for _, name := range d.named() {
		named = append(named, strconv.Quote(name))
	}
	when := "no wait helps"
	if d.RetryAfter != sluice.Never {
		when = "retry after " + (time.Duration(milliseconds(d.RetryAfter)) * time.Millisecond).String()
	}
	return fmt.Sprintf("quota exceeded: %s; %s", strings.Join(named, ", "), when)
}

// named returns the violated policies that clients are told of.
func (d *Decision) named() []string { return d.Violated[:min(len(d.Violated), maxNamed)] }

// GRPCStatus returns the status: RESOURCE_EXHAUSTED with a google.rpc.QuotaFailure that names the
// policies, up to 16 of them, and, if a wait helps, a google.rpc.RetryInfo with the time; or
// INVALID_ARGUMENT for a call without a key.
func (e *DeniedError) GRPCStatus() *status.Status {
	d := &e.Decision
	s := status.New(d.Code, e.text())
	if d.Code != codes.ResourceExhausted {
		return s
	}
	failure := &errdetails.QuotaFailure{}
	for _, name := range d.named() {
		failure.Violations = append(failure.Violations, &errdetails.QuotaFailure_Violation{
			Subject: name, Description: "the policy " + name + " has no room for the call",
		})
	}
	details := []protoadapt.MessageV1{failure}
	if d.RetryAfter != sluice.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)})
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
// what the handler has done.
func (e *DeniedError) Trailer() metadata.MD {
	d, pushback := &e.Decision, int64(-1)
	if ms := milliseconds(d.RetryAfter); d.Code == codes.ResourceExhausted && !e.begun && ms <= math.MaxInt32 {
		pushback = ms
	}
	return metadata.Pairs(pushbackKey, strconv.FormatInt(pushback, 10))
}

// milliseconds rounds up.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}
