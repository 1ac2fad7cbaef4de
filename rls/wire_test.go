package rls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rls/holdpb"
	"github.com/sluice-go/sluice/rules"
)

// ask is a request for any domain.
func ask(domain string, ds ...*common.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: domain, Descriptors: ds}
}

// textOf is what has been read, in words.
func textOf(req *rules.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %d", req.Domain, req.Hits)
	for _, d := range req.Descriptors {
		fmt.Fprintf(&b, " [%q", d.Entries)
		if d.Hits != nil {
			fmt.Fprintf(&b, " hits=%d", *d.Hits)
		}
		if d.Override != nil {
			fmt.Fprintf(&b, " limit=%+v", *d.Override)
		}
		if d.Refund {
			b.WriteString(" refund")
		}
		b.WriteString("]")
	}
	return b.String()
}

// readBoth reads a message directly, and by package proto: both must say the same.
func readBoth(t *testing.T, s *Service, data []byte) error {
	t.Helper()
	var direct, byProto scratch
	err := s.readWire(&direct, string(data))
	req := new(pb.RateLimitRequest)
	if protoErr := proto.Unmarshal(withValidTexts(data), req); protoErr != nil {
		require.True(t, errors.Is(err, errWire) || errors.Is(err, errUTF8), "%x: %v, and proto %v", data, err, protoErr)
		return err
	}
	want := s.read(&byProto, req)
	if want != nil {
		require.EqualError(t, err, want.Error(), "%x", data)
		return err
	}
	require.NoError(t, err, "%x", data)
	require.Equal(t, textOf(&byProto.req), textOf(&direct.req), "%x", data)
	return nil
}

// someRequests has each field, absent, once and several times.
func someRequests(t testing.TB) (out [][]byte) {
	add := func(req *pb.RateLimitRequest, more ...byte) {
		data, err := proto.Marshal(req)
		require.NoError(t, err)
		out = append(out, append(data, more...))
	}
	full := one("two", "a", "path", "")
	full.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1 << 31, Unit: 3}
	full.HitsAddend = wrapperspb.UInt64(1 << 40)
	full.IsNegativeHits = true
	empty := &common.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(0), Limit: &common.RateLimitDescriptor_RateLimitOverride{Unit: -1}}
	add(ask("d", full, empty, one("ä", "\u2028")))
	add(&pb.RateLimitRequest{Domain: "d", HitsAddend: 7})
	add(ask("d", &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{}}}))
	group := protowire.AppendGroup(protowire.AppendTag(nil, 9, protowire.StartGroupType), 9, []byte{8, 1})
	add(ask("d", full), group...)
	add(ask("d", full), 0x12, 13, 0x0a, 11, 0x0a, 4, 'a', 0xff, 0xfe, 'b', 0x12, 1, 0xc3, 0x1a, 0) // texts that are not UTF-8
	add(ask("d", full), 0x0a, 1, 'e', 0x18, 0x80, 0x80, 0x80, 0x80, 0x10)                          // another domain, and hits of 2^32
	// A limit and hits in two parts each; a domain that is a number; an entry's key twice.
	add(ask("d"), 0x12, 16, 0x12, 2, 8, 5, 0x12, 2, 16, 2, 0x1a, 2, 8, 9, 0x1a, 0, 0x20, 1, 8, 1, 0x12, 8, 0x0a, 6, 0x0a, 1, 'a', 0x0a, 1, 'b')
	out = append(out, nil, []byte{0x0a, 1, 0xff}, []byte{0}, []byte{0x0b}, []byte{0x0c}, []byte{0x0a, 2, 'x'}, []byte{0x12, 1, 0x0a},
		[]byte{0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, []byte{0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2},
		[]byte{0xfa, 0xff, 0xff, 0xff, 0x0f, 0}, []byte{0xfa, 0xff, 0xff, 0xff, 0x1f, 0}, []byte{0x3d, 1, 2, 3, 4, 0x39, 1, 2, 3, 4, 5, 6, 7}, []byte{0x3f})
	return out
}

// small has bounds that short messages can exceed.
var small = Options{MaxDescriptors: 3, MaxEntries: 2, MaxValue: 5, MaxText: 12}

func TestWire_Reads(t *testing.T) {
	failures := 0
	for _, o := range []Options{{}, small} {
		s := New(newWorld(t, rules.Config{}, Options{}).engine, o)
		for _, data := range someRequests(t) {
			for n := range len(data) + 1 { // also those that end too early
				if readBoth(t, s, data[:n]) != nil {
					failures++
				}
			}
		}
	}
	require.Greater(t, failures, 100)
	s := New(newWorld(t, rules.Config{}, Options{}).engine, small)
	long, many := strings.Repeat("x", 6), one("a", "b", "c", "d", "e", "f")
	for _, req := range []*pb.RateLimitRequest{
		ask("d", one(), one(), one(), one(), many), ask("d", one("a", "b"), many, one(long, "")),
		ask("d", one("a", long)), ask("d", one("abcd", "efgh"), one("abcd", "efgh")), ask("abcdefghijklmno", one("a", "b")),
	} {
		data, err := proto.Marshal(req)
		require.NoError(t, err)
		require.Equal(t, codes.InvalidArgument, status.Code(readBoth(t, s, data)), req)
	}
}

// TestWire_AnyBytes: whatever bytes a client has sent to the proxy, its request is counted, and as one of the same length
// at most. A proxy passes on what is refused.
func TestWire_AnyBytes(t *testing.T) {
	for name, o := range map[string]Options{"direct": {}, "generated": {DynamicMetadata: true}} {
		conn := connect(t, New(newWorld(t, rules.Config{}, Options{}).engine, o).NewServer())
		for i, value := range []string{"a\xff\xfe", "a\xc3", "a?"} {
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "two")
			entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), value)
			descriptor := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
			request := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "d")
			request = protowire.AppendBytes(protowire.AppendTag(request, 2, protowire.BytesType), descriptor)
			answer := new(pb.RateLimitResponse)
			err := conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, request, answer, grpc.ForceCodec(rawRequests{}))
			require.NoError(t, err, name)
			require.Equal(t, pb.RateLimitResponse_Code(1+i/2), answer.OverallCode, "%s: the third of two", name)
		}
	}
}

// rawRequests is a codec of calls whose request is bytes.
type rawRequests struct{}

func (rawRequests) Name() string                  { return "proto" }
func (rawRequests) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawRequests) Unmarshal(data []byte, v any) error {
	return proto.Unmarshal(data, v.(proto.Message))
}

// TestWire_Bounded: what is beyond the bounds is counted, and not kept.
func TestWire_Bounded(t *testing.T) {
	s := New(newWorld(t, rules.Config{}, Options{}).engine, Options{})
	for name, data := range map[string][]byte{
		"descriptors": []byte(strings.Repeat("\x12\x00", 400_000)),
		"entries":     protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte(strings.Repeat("\x0a\x00", 400_000))),
	} {
		var w scratch
		require.ErrorContains(t, s.readWire(&w, string(data)), "400000", name)
		require.LessOrEqual(t, cap(w.described)+cap(w.entries), 1000, name)
	}
}

func FuzzWire(f *testing.F) {
	for _, data := range someRequests(f) {
		f.Add(data)
	}
	engine := newWorld(f, rules.Config{}, Options{}).engine
	wide, narrow := New(engine, Options{}), New(engine, small)
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = readBoth(t, wide, data)
		_ = readBoth(t, narrow, data)
	})
}

// TestWire_Writes: answers are the bytes that package proto makes of them.
func TestWire_Writes(t *testing.T) {
	r := seeded.Rand(t)
	set, err := rules.Load([]rules.File{{Name: "f", Data: []byte(`
domain: d
descriptors:
- {key: named, rate_limit: {unit: day, requests_per_unit: 9, name: ` + strings.Repeat("long", 40) + `}}
- {key: plain, rate_limit: {period: 30s, requests_per_unit: 3}}
- {key: ` + strings.Repeat("ü", 200) + `, rate_limit: {unit: day, requests_per_unit: 3}}
`)}}, rules.Options{})
	require.NoError(t, err)
	named, plain := set.Match("d", []rules.Entry{{Key: "named"}}), set.Match("d", []rules.Entry{{Key: "plain"}})
	long := set.Match("d", []rules.Entry{{Key: strings.Repeat("ü", 200)}})
	numbers := []uint32{0, 1, 127, 128, 1 << 14, 1<<32 - 1}
	pick := func() uint32 { return numbers[r.IntN(len(numbers))] }
	for range 5000 {
		s := New(newWorld(t, rules.Config{}, Options{}).engine, Options{Headers: r.IntN(2) == 0, RuleHeader: []string{"", "X-Rule"}[r.IntN(2)]})
		resp := &rules.Response{Code: rules.Code(1 + r.IntN(2)), Tightest: -1}
		for i := range r.IntN(4) {
			st := rules.Status{Code: rules.Code(1 + r.IntN(2)), Remaining: pick(), Rule: []*rules.Rule{nil, named, plain, long}[r.IntN(4)]}
			if st.Limited = r.IntN(3) > 0; st.Limited {
				st.Requests, st.Unit, st.ResetAfter = pick(), rules.Unit(r.IntN(8)), time.Duration(pick())*time.Second
				resp.Tightest = i
			}
			resp.Statuses = append(resp.Statuses, st)
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.answer(nil, resp))
		require.NoError(t, err)
		require.Equal(t, want, s.appendWire(nil, resp), "%+v", resp)
	}
}

// TestNewServer: the direct handler and the generated one answer alike, over connections.
func TestNewServer(t *testing.T) {
	for name, o := range map[string]Options{"plain": {}, "headers": {Headers: true, RuleHeader: "X-Rule"}, "metadata": {DynamicMetadata: true}} {
		t.Run(name, func(t *testing.T) {
			took := 0
			counted := o
			counted.Took = func(time.Duration) { took++ }
			direct := New(newWorld(t, rules.Config{}, Options{}).engine, counted)
			registered := New(newWorld(t, rules.Config{}, Options{}).engine, o)
			server := grpc.NewServer()
			registered.Register(server)
			a, b := connect(t, direct.NewServer()), connect(t, server)
			calls := 0
			for _, req := range []*pb.RateLimitRequest{
				ask("d", one("two", "a")), ask("d", one("two", "a"), one("unknown", "x")),
				ask("d", one("two", "a")), ask("d", one("two", "a")), ask("", one("two", "a")), ask("d"),
				ask("d", one("two", strings.Repeat("x", 9000))), ask("d", one("two", strings.Repeat("x", 8000), "a", strings.Repeat("y", 8000))),
			} {
				calls++
				got, err := pb.NewRateLimitServiceClient(a).ShouldRateLimit(t.Context(), req)
				want, wantErr := pb.NewRateLimitServiceClient(b).ShouldRateLimit(t.Context(), req)
				if wantErr != nil {
					require.EqualError(t, err, wantErr.Error())
					continue
				}
				require.NoError(t, err)
				require.True(t, proto.Equal(want, got), "%v\n%v", want, got)
			}
			require.Equal(t, calls, took)
			require.Equal(t, registered.Counts(), direct.Counts())
		})
	}
}

// TestRetryAfter: rules that say how to tell the wait have denials tell it, over gRPC, as JSON and for holds. The reset stays exact.
func TestRetryAfter(t *testing.T) {
	set, err := rules.Load([]rules.File{{Name: "f", Data: []byte("domain: d\nsluice: {max_retry_after: 1m}\ndescriptors:\n" +
		"- {key: k, rate_limit: {period: 240h, requests_per_unit: 1, algorithm: gcra}}\n- {key: none, rate_limit: {unit: day, requests_per_unit: 0}}\n")}}, rules.Options{})
	require.NoError(t, err)
	for _, o := range []Options{{Headers: true}, {DynamicMetadata: true}} { // by wire and by the generated code
		engine, err := rules.New(set, rules.Config{Clock: sluice.NewManualClock(start)})
		require.NoError(t, err)
		s := New(engine, o)
		conn := dial(t, s, NewHealth())
		headers := func(key string) map[string]string {
			resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), ask("d", one(key, "a")))
			require.NoError(t, err)
			all := map[string]string{}
			for _, h := range resp.ResponseHeadersToAdd {
				all[h.Key] = h.Value
			}
			return all
		}
		require.NotContains(t, headers("k"), "Retry-After", "the call is admitted")
		denied := headers("k")
		require.Equal(t, "60", denied["Retry-After"])
		if o.Headers {
			require.Equal(t, "864000", denied["RateLimit-Reset"])
		}
		require.NotContains(t, headers("none"), "Retry-After", "no wait helps")
		var held holdpb.ReserveResponse
		require.NoError(t, conn.Invoke(t.Context(), "/"+holdService+"/Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: []*holdpb.Descriptor{held1(0, "k", "a")}, Amount: 1}, &held))
		require.Equal(t, holdpb.Code_OVER_LIMIT, held.Code)
		require.Equal(t, time.Minute, held.RetryAfter.AsDuration())
	}
}

// TestNewServer_Interceptor: interceptors see the messages of the protocol.
func TestNewServer_Interceptor(t *testing.T) {
	s := New(newWorld(t, rules.Config{}, Options{}).engine, Options{})
	var seen any
	conn := connect(t, s.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		seen = req
		return next(ctx, req)
	})))
	req := ask("d", one("two", "a"))
	_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	require.True(t, proto.Equal(req, seen.(*pb.RateLimitRequest)))
}

// TestNewServer_Panic: a panic is the call's, and the next one is answered.
func TestNewServer_Panic(t *testing.T) {
	told := 0
	s := New(newWorld(t, rules.Config{}, Options{}).engine, Options{Panicked: func(any, []byte) { told++ }})
	engine := s.engine
	conn := connect(t, s.NewServer())
	call := func() error {
		_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), ask("d", one("two", "a")))
		return err
	}
	require.NoError(t, call())
	s.engine = nil
	require.Equal(t, codes.Internal, status.Code(call()))
	require.Equal(t, codes.Internal, status.Code(call()))
	s.engine = engine
	require.NoError(t, call())
	assert.Equal(t, 1, told)
	assert.EqualValues(t, 2, s.Counts().Panics)
}
