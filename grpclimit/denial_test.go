package grpclimit_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

// TestServer_ADenialFitsIntoTrailers: whatever the policies are called, a client that takes 8 KiB of trailers, which
// is the default of gRPC in C, sees the denial, and at least one name.
func TestServer_ADenialFitsIntoTrailers(t *testing.T) {
	for _, fill := range []string{"%", `"`, `\`, "a", " ", "~"} {
		for _, length := range []int{1, 20, 60} {
			var c grpclimit.Config
			c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { return 0 }
			for i := range 40 {
				name := strings.Repeat(fill, length) + fmt.Sprintf("%04d", i)
				c.Policies = append(c.Policies, grpclimit.Policy{Name: name, Limiter: gcra(t, sluice.Per(1, 140*365*24*time.Hour), newClock()), Key: oneKey})
			}
			j := newJudge(t, c)
			for range 2 {
				j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"})
			}
			address := serve(t, &service{}, j.ServerOptions()...)
			_, trailer, err := empty(t, dial(t, address, grpc.WithMaxHeaderListSize(8<<10)))
			require.Equal(t, codes.ResourceExhausted, status.Code(err), "%d times %s: %v", length, fill, err)

			named := status.Convert(err).Details()[0].(*errdetails.QuotaFailure).GetViolations()
			want := 16
			if length == 60 {
				want = 1
			}
			require.GreaterOrEqual(t, len(named), want, "%d times %s", length, fill)
			require.LessOrEqual(t, len(named), 16)
			for i, v := range named {
				require.Equal(t, c.Policies[i].Name, v.GetSubject())
				require.Contains(t, status.Convert(err).Message(), strconv.Quote(v.GetSubject()))
			}
			resp := overHTTP2(t, address, testpb.TestService_EmptyCall_FullMethodName, http.Header{})
			size := 0
			for name, values := range resp.Header { // an answer of trailers only
				for _, v := range values {
					size += len(name) + len(v) + 32 // RFC 9113, section 6.5.2
				}
			}
			require.LessOrEqual(t, size, 6<<10, "%d times %s", length, fill)
			require.NotEmpty(t, trailer.Get("grpc-retry-pushback-ms"))
			if fill == "%" && length == 60 {
				require.Greater(t, size, 5<<10, "and as many names as fit")
			}
		}
	}
}

// TestDeniedError_SaysWhetherToComeBack: a wait helps where units are lacking, or a Remote does not answer, and nowhere else.
// TestServer_MaxRetryAfterCutsTheHintAlone: details, trailer and text tell the same wait, which is cut and has jitter. The
// decision stays true.
func TestServer_MaxRetryAfterCutsTheHintAlone(t *testing.T) {
	var told grpclimit.Decision
	j := newJudge(t, grpclimit.Config{
		Policies:    []grpclimit.Policy{{Name: "p", Limiter: gcra(t, sluice.Per(1, 24*time.Hour), newClock()), Key: oneKey}},
		RetryJitter: 5 * time.Millisecond, MaxRetryAfter: time.Minute,
		OnDecision: func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) { told = d },
	})
	client := dial(t, serve(t, &service{}, j.ServerOptions()...))
	_, _, err := empty(t, client)
	require.NoError(t, err)
	seen := map[time.Duration]bool{}
	for range 300 { // each of the six is missed with a chance of (5/6)^300
		_, trailer, err := empty(t, client)
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		wait := status.Convert(err).Details()[1].(*errdetails.RetryInfo).GetRetryDelay().AsDuration()
		require.Equal(t, []string{strconv.FormatInt(wait.Milliseconds(), 10)}, trailer.Get("grpc-retry-pushback-ms"))
		require.Contains(t, status.Convert(err).Message(), "retry after "+wait.String())
		seen[wait] = true
	}
	require.Len(t, seen, 6)
	for extra := range 6 {
		require.Contains(t, seen, time.Minute+time.Duration(extra)*time.Millisecond)
	}
	require.Equal(t, 24*time.Hour, told.RetryAfter)
	v := j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"})
	require.Same(t, v.Err(), v.Err(), "one verdict tells one wait")
}

func TestDeniedError_SaysWhetherToComeBack(t *testing.T) {
	for _, c := range []struct {
		code     codes.Code
		details  int
		pushback string
	}{
		{codes.ResourceExhausted, 2, "1000"},
		{codes.Unavailable, 1, "1000"},
		{codes.InvalidArgument, 0, "-1"},
		{codes.OK, 0, "-1"}, // of a Decision that nobody has made
	} {
		e := &grpclimit.DeniedError{Decision: grpclimit.Decision{Code: c.code, RetryAfter: time.Second}}
		require.Len(t, e.GRPCStatus().Details(), c.details, "%v", c.code)
		require.Equal(t, []string{c.pushback}, e.Trailer().Get("grpc-retry-pushback-ms"), "%v", c.code)
	}
}
