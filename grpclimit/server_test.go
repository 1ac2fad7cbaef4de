package grpclimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

func TestUnary_ADenialSaysWhoAndWhen(t *testing.T) {
	clock := newClock()
	s := &service{}
	client := limited(t, onePolicy(t, sluice.Per(1, 1500*time.Millisecond), clock), s)
	_, trailer, err := empty(t, client)
	require.NoError(t, err)
	assert.Empty(t, trailer)

	clock.Advance(time.Nanosecond)
	header, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, 1500*time.Millisecond-1, "1500", "p")
	assert.Equal(t, `quota exceeded: "p"; retry after 1.5s`, status.Convert(err).Message())
	assert.Empty(t, header)
	assert.EqualValues(t, 1, s.calls.Load(), "the handler of a denied call is not called")

	clock.Advance(1500 * time.Millisecond)
	_, _, err = empty(t, client)
	assert.NoError(t, err, "after the wait")
}

// frame is a message of gRPC.
func frame(message []byte) []byte {
	return append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
}

// overHTTP2 makes a call by net/http, which shows what comes in headers and what in trailers.
func overHTTP2(t *testing.T, address, method string, header http.Header) *http.Response {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(timeout(t), http.MethodPost, "http://"+address+method, bytes.NewReader(frame(nil)))
	require.NoError(t, err)
	req.Header = header.Clone()
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// On the wire: a denied call, unary or stream, is answered by one frame with headers, and no trailers.
func TestServer_ADenialIsTrailersOnly(t *testing.T) {
	clock := newClock()
	address := serve(t, &service{}, newJudge(t, onePolicy(t, sluice.Per(2, 2*time.Second), clock)).ServerOptions()...)
	for _, method := range []string{testpb.TestService_EmptyCall_FullMethodName, testpb.TestService_FullDuplexCall_FullMethodName} {
		resp := overHTTP2(t, address, method, http.Header{})
		assert.Equal(t, "0", resp.Trailer.Get("Grpc-Status"), "an answer has trailers behind its headers")
	}
	for _, method := range []string{testpb.TestService_EmptyCall_FullMethodName, testpb.TestService_FullDuplexCall_FullMethodName} {
		resp := overHTTP2(t, address, method, http.Header{})
		assert.Empty(t, resp.Trailer)
		assert.Equal(t, "8", resp.Header.Get("Grpc-Status"))
		assert.Equal(t, "1000", resp.Header.Get("Grpc-Retry-Pushback-Ms"))
		assert.NotEmpty(t, resp.Header.Get("Grpc-Status-Details-Bin"))
	}
}

func TestServer_ClientsAtOnceGetWhatTheLimitSays(t *testing.T) {
	const limit, clients, each = 100, 8, 25
	s := &service{}
	c := onePolicy(t, sluice.PerHour(limit), newClock())
	c.Policies = append(c.Policies, grpclimit.Policy{Name: "q", Limiter: gcra(t, sluice.PerHour(2*limit), newClock()), Key: oneKey})
	address := serve(t, s, newJudge(t, c).ServerOptions()...)
	var admitted atomic.Int64
	var group sync.WaitGroup
	for range clients {
		client := dial(t, address)
		group.Go(func() {
			for range each {
				switch _, err := client.EmptyCall(timeout(t), &testpb.Empty{}); status.Code(err) {
				case codes.OK:
					admitted.Add(1)
				case codes.ResourceExhausted:
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	group.Wait()
	assert.EqualValues(t, limit, admitted.Load())
	assert.EqualValues(t, limit, s.calls.Load())
	assert.Equal(t, limit, c.Policies[1].Limiter.Key("k").Peek(0).Remaining, "a call that one policy denies is charged to none")
}

func TestServer_AllPoliciesOrNone(t *testing.T) {
	clock := newClock()
	wide, narrow := gcra(t, sluice.PerMinute(10), clock), gcra(t, sluice.PerMinute(2), clock)
	c := grpclimit.Config{Policies: []grpclimit.Policy{
		{Name: "wide", Limiter: wide, Key: oneKey},
		{Name: "narrow", Limiter: narrow, Key: oneKey, Cost: func(_ context.Context, call grpclimit.Call) int {
			return int(call.Message.(*testpb.SimpleRequest).GetResponseSize())
		}},
		{Name: "per method", Limiter: gcra(t, sluice.PerHour(2), clock), Key: grpclimit.ByMethod()},
	}}
	client := limited(t, c, &service{})
	call := func(cost int32) (metadata.MD, error) {
		var trailer metadata.MD
		_, err := client.UnaryCall(timeout(t), &testpb.SimpleRequest{ResponseSize: cost}, grpc.Trailer(&trailer))
		return trailer, err
	}
	_, err := call(2)
	require.NoError(t, err)
	trailer, err := call(1)
	requireDenied(t, err, trailer, 30*time.Second, "30000", "narrow")
	trailer, err = call(3)
	requireDenied(t, err, trailer, never, "-1", "narrow")
	assert.Contains(t, status.Convert(err).Message(), "no wait helps")
	trailer, err = call(-1)
	requireDenied(t, err, trailer, never, "-1", "narrow")
	assert.Equal(t, 9, wide.Key("k").Peek(0).Remaining, "of four calls, one has been charged")
	_, err = call(0)
	assert.Error(t, err, "with a cost of 0 one unit must be there")
	clock.Advance(30 * time.Second)
	_, err = call(0)
	require.NoError(t, err)
	assert.Equal(t, 1, narrow.Key("k").Peek(0).Remaining)
	trailer, err = call(2)
	requireDenied(t, err, trailer, 1770*time.Second, "1770000", "narrow", "per method")
}

// A wait that does not fit into the 32 bits of the pushback is one that no client should begin.
func TestDeniedError_Pushback(t *testing.T) {
	const most = (1<<31 - 1) * time.Millisecond
	for wait, want := range map[time.Duration]string{
		1: "1", time.Millisecond: "1", time.Millisecond + 1: "2",
		most - 1: "2147483647", most: "2147483647", most + 1: "-1", sluice.Never: "-1",
	} {
		e := &grpclimit.DeniedError{Decision: grpclimit.Decision{Code: codes.ResourceExhausted, Violated: []string{"p"}, RetryAfter: wait}}
		retry := wait
		if wait == sluice.Never {
			retry = never
		}
		requireDenied(t, e.GRPCStatus().Err(), e.Trailer(), retry, want, "p")
	}
}

// C core takes no more than 8 KiB of trailers: see TestForeign.
func TestDeniedError_NamesAreBounded(t *testing.T) {
	d := grpclimit.Decision{Code: codes.ResourceExhausted, RetryAfter: time.Hour}
	for i := range 40 {
		d.Violated = append(d.Violated, fmt.Sprintf("%048d", i))
	}
	e := &grpclimit.DeniedError{Decision: d}
	requireDenied(t, e.GRPCStatus().Err(), e.Trailer(), time.Hour, "3600000", d.Violated[:16]...)
}

func TestServer_HealthAndReflectionAreExempt(t *testing.T) {
	c := onePolicy(t, sluice.DenyAll, newClock())
	for name, tt := range map[string]struct {
		skip func(context.Context, grpclimit.Call) bool
		want codes.Code
	}{
		"by default":                 {nil, codes.OK},
		"unless Skip says otherwise": {func(context.Context, grpclimit.Call) bool { return false }, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			c.Skip = tt.skip
			server := grpc.NewServer(newJudge(t, c).ServerOptions()...)
			testpb.RegisterTestServiceServer(server, &service{})
			healthpb.RegisterHealthServer(server, health.NewServer())
			reflection.Register(server) // v1 and v1alpha
			address := listen(t, server)
			_, _, err := empty(t, dial(t, address))
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))

			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			ctx := timeout(t)
			_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			assert.Equal(t, tt.want, status.Code(err))
			watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
			require.NoError(t, err)
			_, err = watch.Recv()
			assert.Equal(t, tt.want, status.Code(err))
			v1, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			require.NoError(t, err)
			_ = v1.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			_, err = v1.Recv()
			assert.Equal(t, tt.want, status.Code(err))
			alpha, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
			require.NoError(t, err)
			_ = alpha.SendMsg(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			assert.Equal(t, tt.want, status.Code(alpha.RecvMsg(&reflectionpb.ServerReflectionResponse{})))
		})
	}
}

func TestSkipHealthAndReflection_NoOtherService(t *testing.T) {
	for method, want := range map[string]bool{
		"/grpc.health.v1.Health/Check": true, "/grpc.health.v1.Health/Watch": true, "/grpc.health.v1.Health/": true,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      true,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
		"/grpc.health.v1.Health": false, "/grpc.health.v1.Healthy/Check": false, "/grpc.health.v1.Health/x/y": true,
		"/my.grpc.health.v1.Health/Check": false, "/grpc.testing.TestService/EmptyCall": false,
		"grpc.health.v1.Health/Check": false, "//grpc.health.v1.Health/Check": false, "/grpc.": false, "": false,
	} {
		assert.Equal(t, want, grpclimit.SkipHealthAndReflection(t.Context(), grpclimit.Call{FullMethod: method}), method)
	}
}

func TestServer_KeyErrors(t *testing.T) {
	lim := gcra(t, sluice.PerMinute(100), newClock())
	var told []grpclimit.Decision
	c := grpclimit.Config{
		Policies: []grpclimit.Policy{
			{Name: "all", Limiter: lim, Key: oneKey},
			{Name: "per key", Limiter: lim, Key: sluice.Must(grpclimit.ByMetadata("x-api-key"))},
			{Name: "per tenant", Limiter: lim, Key: func(ctx context.Context, call grpclimit.Call) (string, error) {
				return "", fmt.Errorf("%w: no tenant", grpclimit.ErrNoKey)
			}},
		},
		OnDecision: func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) { told = append(told, d) },
	}
	strict := limited(t, c, &service{})
	c.OnKeyError = grpclimit.KeyErrorSkip
	lax := limited(t, c, &service{})

	_, trailer, err := empty(t, strict)
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.NotContains(t, err.Error(), "x-api-key")
	assert.Equal(t, []string{"-1"}, trailer.Get("grpc-retry-pushback-ms"))
	assert.ErrorIs(t, told[0].KeyError, grpclimit.ErrNoKey)
	assert.Equal(t, []grpclimit.PolicyCharge{{Policy: "all", Key: "k", Cost: 1}}, told[0].Charges)
	assert.Equal(t, 100, lim.Key("k").Peek(0).Remaining, "no limiter is asked")

	_, _, err = empty(t, lax)
	assert.NoError(t, err)
	assert.True(t, told[1].Allowed)
	assert.EqualError(t, told[1].KeyError, "httplimit: no key: no metadata x-api-key", "the first one")
	assert.Equal(t, 99, lim.Key("k").Peek(0).Remaining, "the other policies judge")

	for _, client := range []testpb.TestServiceClient{strict, lax} {
		_, _, err = empty(t, client, "x-api-key", "a", "x-api-key", "b")
		assert.Equal(t, codes.InvalidArgument, status.Code(err), "a key that is there twice is no missing key")
	}
	_, _, err = empty(t, lax, "x-api-key", "a")
	assert.NoError(t, err)
	assert.Equal(t, 99, lim.Key("a").Peek(0).Remaining)
}

func TestServer_OnDecisionIsToldOnce(t *testing.T) {
	type decided struct {
		call grpclimit.Call
		d    grpclimit.Decision
	}
	var told []decided
	c := onePolicy(t, sluice.PerMinute(1), newClock())
	c.Policies = append(c.Policies,
		grpclimit.Policy{Name: "in", Limiter: gcra(t, sluice.PerMinute(9), newClock()), Key: oneKey, Per: grpclimit.PerReceived},
		grpclimit.Policy{Name: "out", Limiter: gcra(t, sluice.PerMinute(8), newClock()), Key: oneKey, Per: grpclimit.PerSent})
	c.OnDecision = func(_ context.Context, call grpclimit.Call, d grpclimit.Decision) {
		told = append(told, decided{call, d})
	}
	client := limited(t, c, &service{})
	stream, err := client.FullDuplexCall(timeout(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&testpb.StreamingOutputCallRequest{}))
	_, err = stream.Recv()
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	_, _, err = empty(t, client)
	require.Error(t, err)

	require.Len(t, told, 4)
	for i, want := range []struct {
		call      grpclimit.Call
		remaining int
	}{
		{grpclimit.Call{Stream: true}, 0},
		{grpclimit.Call{Stream: true, Per: grpclimit.PerReceived}, 8},
		{grpclimit.Call{Stream: true, Per: grpclimit.PerSent}, 7},
	} {
		got := told[i]
		assert.Equal(t, i > 0, got.call.Message != nil)
		got.call.Message = nil
		want.call.FullMethod = testpb.TestService_FullDuplexCall_FullMethodName
		assert.Equal(t, want.call, got.call)
		assert.Equal(t, grpclimit.Decision{Allowed: true, Remaining: want.remaining}, got.d)
	}
	last := told[3]
	assert.IsType(t, &testpb.Empty{}, last.call.Message)
	assert.Equal(t, grpclimit.Decision{
		Code: codes.ResourceExhausted, Violated: []string{"p"}, RetryAfter: time.Minute,
		Charges: []grpclimit.PolicyCharge{{Policy: "p", Key: "k", Cost: 1}, {Policy: "in", Key: "k", Cost: 1}},
	}, last.d)
}

func TestServer_ShadowDeniesNobody(t *testing.T) {
	clock := newClock()
	var told []grpclimit.Decision
	shadow := newLimiter(t, sluice.Config{Limit: sluice.PerMinute(1), Clock: clock, Shadow: true})
	c := onePolicy(t, sluice.PerMinute(3), clock)
	c.Policies = append([]grpclimit.Policy{
		{Name: "trial", Limiter: shadow, Key: oneKey},
		{Name: "keyless trial", Limiter: shadow, Key: func(context.Context, grpclimit.Call) (string, error) { return "", grpclimit.ErrBadKey }},
	}, c.Policies...)
	c.OnDecision = func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) { told = append(told, d) }
	s := &service{}
	client := limited(t, c, s)
	for range 4 {
		_, _, _ = empty(t, client)
	}
	assert.EqualValues(t, 3, s.calls.Load())
	for i, want := range [][]string{{"keyless trial"}, {"keyless trial", "trial"}, {"keyless trial", "trial"}, nil} {
		assert.Equal(t, want, told[i].WouldDeny)
		assert.ErrorIs(t, told[i].KeyError, grpclimit.ErrBadKey)
	}
	assert.Equal(t, []string{"p"}, told[3].Violated)
	assert.Equal(t, []string{"p", "trial"}, []string{told[3].Charges[0].Policy, told[3].Charges[1].Policy})
}

func TestServer_SoftUnitsAreFlagged(t *testing.T) {
	var told []bool
	c := grpclimit.Config{
		Policies:   []grpclimit.Policy{{Name: "p", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(1), Soft: 1, Clock: newClock()}), Key: oneKey}},
		OnDecision: func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) { told = append(told, d.OverSoft) },
	}
	client := limited(t, c, &service{})
	for range 2 {
		_, _, err := empty(t, client)
		require.NoError(t, err)
	}
	assert.Equal(t, []bool{false, true}, told)
}

// Where a clock can be behind, the wait is longer by twice that.
func TestServer_WaitsAreInRealTime(t *testing.T) {
	lim := newLimiter(t, sluice.Config{Limit: sluice.PerHour(1), Clock: coarse{newClock()}})
	client := limited(t, grpclimit.Config{Policies: []grpclimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}}}, &service{})
	_, _, err := empty(t, client)
	require.NoError(t, err)
	_, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, time.Hour+20*time.Millisecond, "3600020", "p")
}

type coarse struct{ *sluice.ManualClock }

func (coarse) Resolution() time.Duration { return 10 * time.Millisecond }

func TestUnary_SettleByStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		fail func() error
		want codes.Code
	}{
		"success":             {func() error { return nil }, codes.OK},
		"a status":            {func() error { return status.Error(codes.Unauthenticated, "no") }, codes.Unauthenticated},
		"a status in another": {func() error { return fmt.Errorf("login: %w", status.Error(codes.Unauthenticated, "no")) }, codes.Unauthenticated},
		"an error":            {func() error { return errors.New("no") }, codes.Unknown},
		"a deadline":          {func() error { return context.DeadlineExceeded }, codes.DeadlineExceeded},
		"a panic":             {func() error { panic("oops") }, codes.Internal},
	} {
		for _, final := range []int{0, 1, 3, 5, -1} {
			t.Run(fmt.Sprint(name, "/", final), func(t *testing.T) {
				var told []codes.Code
				c := onePolicy(t, sluice.PerMinute(10), newClock())
				c.Policies[0].Cost = func(context.Context, grpclimit.Call) int { return 3 }
				c.Policies = append(c.Policies, grpclimit.Policy{Name: "q", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey,
					Cost: func(context.Context, grpclimit.Call) int { return 2 }})
				c.Settle = func(_ context.Context, call grpclimit.Call, code codes.Code) int {
					assert.Equal(t, testpb.TestService_EmptyCall_FullMethodName, call.FullMethod)
					told = append(told, code)
					return final
				}
				recovered := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
					defer func() {
						if recover() != nil {
							err = status.Error(codes.Internal, "panic")
						}
					}()
					return handler(ctx, req)
				})
				s := &service{empty: func(context.Context) error { return tt.fail() }}
				client := dial(t, serve(t, s, append([]grpc.ServerOption{recovered}, newJudge(t, c).ServerOptions()...)...))
				_, _, err := empty(t, client)
				assert.Equal(t, tt.want, status.Code(err), "as the client sees it")
				assert.Equal(t, []codes.Code{tt.want}, told)
				costs := []int{final, final}
				if final < 0 {
					costs = []int{3, 2}
				}
				for i, cost := range costs {
					assert.Equal(t, 10-cost, c.Policies[i].Limiter.Key("k").Peek(0).Remaining)
				}
			})
		}
	}
}

// More policies than there is space for are judged and settled alike.
func TestUnary_ManyPolicies(t *testing.T) {
	clock := newClock()
	var c grpclimit.Config
	for i := range 20 {
		c.Policies = append(c.Policies, grpclimit.Policy{Name: fmt.Sprint(i), Limiter: gcra(t, sluice.PerMinute(i+1), clock), Key: oneKey})
	}
	settled := 0
	c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { settled++; return 0 }
	client := limited(t, c, &service{})
	for range 3 {
		_, _, err := empty(t, client)
		require.NoError(t, err)
	}
	assert.Equal(t, 3, settled)
	c.Settle = nil
	client = limited(t, c, &service{})
	_, _, err := empty(t, client)
	require.NoError(t, err)
	_, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, time.Minute, "60000", "0")
}
