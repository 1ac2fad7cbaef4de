package rls

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-go/sluice/rules"
)

// same compares a message with its JSON form.
func same(t *testing.T, want string, got proto.Message) {
	t.Helper()
	m := got.ProtoReflect().New().Interface()
	require.NoError(t, protojson.Unmarshal([]byte(want), m))
	require.True(t, proto.Equal(m, got), "want %v\n got %v", m, got)
}

func TestShouldRateLimit_OverTheWire(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	client := pb.NewRateLimitServiceClient(dial(t, w.Service, NewHealth()))
	req := request(one("two", "a"), one("free", "a"), one("none", "a"), one("odd", "a"))
	for _, want := range []string{
		`{"overallCode": "OK", "statuses": [
			{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE", "name": "pair"}, "limitRemaining": 1, "durationUntilReset": "37s"},
			{"code": "OK", "limitRemaining": 4294967295}, {"code": "OK"},
			{"code": "OK", "currentLimit": {"requestsPerUnit": 3}, "limitRemaining": 2, "durationUntilReset": "67s"}]}`,
		`{"overallCode": "OK", "statuses": [
			{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE", "name": "pair"}, "durationUntilReset": "37s"},
			{"code": "OK", "limitRemaining": 4294967295}, {"code": "OK"},
			{"code": "OK", "currentLimit": {"requestsPerUnit": 3}, "limitRemaining": 1, "durationUntilReset": "67s"}]}`,
		`{"overallCode": "OVER_LIMIT", "statuses": [
			{"code": "OVER_LIMIT", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE", "name": "pair"}, "durationUntilReset": "37s"},
			{"code": "OK", "limitRemaining": 4294967295}, {"code": "OK"},
			{"code": "OK", "currentLimit": {"requestsPerUnit": 3}, "durationUntilReset": "67s"}], "dynamicMetadata": {"sluice": {"rule": "d.two"}}}`,
	} {
		resp, err := client.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		same(t, want, resp)
	}
	require.Equal(t, Counts{OK: 2, OverLimit: 1}, w.Counts())
}

// TestShouldRateLimit_EndlessBlock by both ways to the wire: the seconds are as many as there can be, and not below 0.
func TestShouldRateLimit_EndlessBlock(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{Headers: true})
	set, err := rules.Load([]rules.File{{Data: []byte("domain: d\ndescriptors:\n- {key: banned, rate_limit: {unit: day, requests_per_unit: 1, block_for: 2562047h}}\n")}}, rules.Options{})
	require.NoError(t, err)
	require.NoError(t, w.engine.Swap(set))
	client := pb.NewRateLimitServiceClient(dial(t, w.Service, NewHealth()))
	w.ask(t, one("banned", "a"))
	resp, err := client.ShouldRateLimit(t.Context(), request(one("banned", "a")))
	require.NoError(t, err)
	for _, resp := range []*pb.RateLimitResponse{resp, w.ask(t, one("banned", "a"))} {
		require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, resp.OverallCode)
		same(t, `"9223372036s"`, resp.Statuses[0].DurationUntilReset)
		require.Equal(t, "9223372036", resp.ResponseHeadersToAdd[2].Value)
	}
}

func TestShouldRateLimit_Hits(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	req := request(one("ten", "a"), hits(one("ten", "b"), 7), hits(one("ten", "c"), 0))
	req.HitsAddend = 3
	resp, err := w.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	for i, want := range []uint32{7, 3, 10} {
		require.Equal(t, want, resp.Statuses[i].LimitRemaining)
	}
	require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, w.ask(t, hits(one("ten", "b"), math.MaxUint64)).OverallCode)
}

// TestShouldRateLimit_NegativeHits by each way to the engine.
func TestShouldRateLimit_NegativeHits(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	client := pb.NewRateLimitServiceClient(dial(t, w.Service, NewHealth()))
	refund := hits(one("ten", "a"), 2)
	refund.IsNegativeHits = true
	w.ask(t, hits(one("ten", "a"), 9))
	require.EqualValues(t, 3, w.ask(t, refund).Statuses[0].LimitRemaining)
	resp, err := client.ShouldRateLimit(t.Context(), request(refund))
	require.NoError(t, err)
	same(t, `{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 10, "unit": "HOUR"},
		"limitRemaining": 5, "durationUntilReset": "`+strconv.Itoa(int(resp.Statuses[0].DurationUntilReset.Seconds))+`s"}]}`, resp)
	body, err := protojson.Marshal(request(refund))
	require.NoError(t, err)
	answer := httptest.NewRecorder()
	w.JSON().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/json", bytes.NewReader(body)))
	require.Contains(t, strings.ReplaceAll(answer.Body.String(), " ", ""), `"limitRemaining":7`)
}

func TestShouldRateLimit_Override(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	for unit := range 7 {
		resp, err := w.ShouldRateLimit(t.Context(), request(one("five", "a"), override(one("any", "a"), 4, 0+typeUnit(unit))))
		if unit == 0 {
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, unit, resp.Statuses[1].CurrentLimit.Unit)
		require.EqualValues(t, 3, resp.Statuses[1].LimitRemaining)
		require.Empty(t, resp.Statuses[1].CurrentLimit.Name)
	}
	for _, unit := range []int{7, 99, -1} {
		_, err := w.ShouldRateLimit(t.Context(), request(override(one("any", "a"), 4, typeUnit(unit))))
		require.Equal(t, codes.InvalidArgument, status.Code(err), unit)
	}
}

func TestShouldRateLimit_Refused(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	many := request()
	for range 257 {
		many.Descriptors = append(many.Descriptors, one("two", "a"))
	}
	long := request()
	for range 16 {
		long.Descriptors = append(long.Descriptors, one("two", strings.Repeat("x", 8<<10)))
	}
	for name, c := range map[string]struct {
		req  *pb.RateLimitRequest
		code codes.Code
		text string
	}{
		"nothing":        {&pb.RateLimitRequest{}, codes.Unknown, "rate limit domain must not be empty"},
		"no descriptors": {request(), codes.Unknown, "rate limit descriptor list must not be empty"},
		"descriptors":    {many, codes.InvalidArgument, "the request has 257 descriptors; want at most 256"},
		"entries":        {request(one("two", "a"), one(make([]string, 130)...)), codes.InvalidArgument, "the request has a descriptor, 1, of 65 entries; want at most 64"},
		"a value":        {request(one("two", strings.Repeat("x", 65537))), codes.InvalidArgument, "the request has a descriptor, 0, with a key or value of 65537 bytes; want at most 65536"},
		"text":           {long, codes.InvalidArgument, "the request has 131121 bytes of text; want at most 65536"},
	} {
		_, err := w.ShouldRateLimit(t.Context(), c.req)
		require.Equal(t, c.code, status.Code(err), name)
		require.Equal(t, c.text, status.Convert(err).Message(), name)
	}
	require.Equal(t, Counts{Refused: 6}, w.Counts())
	require.EqualValues(t, 1, w.ask(t, one("two", "a")).Statuses[0].LimitRemaining, "what is refused counts nothing")

	// Descriptors and entries that are missing altogether are taken for empty ones.
	resp := w.ask(t, nil, one("two", "a"))
	require.Equal(t, pb.RateLimitResponse_OK, resp.Statuses[0].Code)
	req := request(one("two", "a"))
	req.Descriptors[0].Entries = append(req.Descriptors[0].Entries, nil)
	_, err := w.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
}

// TestShouldRateLimit_Panic: a panic is the call's own matter.
func TestShouldRateLimit_Panic(t *testing.T) {
	told := 0
	w := newWorld(t, rules.Config{}, Options{Panicked: func(v any, stack []byte) {
		told++
		require.NotEmpty(t, stack)
	}})
	good := w.Service.engine
	w.Service.engine = nil
	for range 3 {
		_, err := w.ShouldRateLimit(t.Context(), request(one("two", "a")))
		require.Equal(t, codes.Internal, status.Code(err))
	}
	require.Equal(t, 1, told)
	w.Service.engine = good
	require.EqualValues(t, 1, w.ask(t, one("two", "a")).Statuses[0].LimitRemaining)
	require.Equal(t, Counts{OK: 1, Panics: 3}, w.Counts())
}

func TestHeaders(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{Headers: true, ResetHeader: "X-Reset"})
	same(t, `{"overallCode": "OK", "statuses": [
		{"code": "OK", "currentLimit": {"requestsPerUnit": 10, "unit": "HOUR"}, "limitRemaining": 9, "durationUntilReset": "2677s"},
		{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE", "name": "pair"}, "limitRemaining": 1, "durationUntilReset": "37s"}],
		"responseHeadersToAdd": [{"key": "RateLimit-Limit", "value": "2"}, {"key": "RateLimit-Remaining", "value": "1"}, {"key": "X-Reset", "value": "37"}]}`,
		w.ask(t, one("ten", "a"), one("two", "a")))
	require.Empty(t, w.ask(t, one("free", "a"), one("none", "a")).ResponseHeadersToAdd)
	w.ask(t, hits(one("two", "b"), 3))
	resp := w.ask(t, one("two", "b"), one("ten", "b"))
	require.Equal(t, "0", resp.ResponseHeadersToAdd[1].Value)
}

func TestDynamicMetadata(t *testing.T) {
	w := newWorld(t, rules.Config{Shadow: true}, Options{DynamicMetadata: true})
	req := request(hits(one("ten", "a", "x", ""), 2), override(one("any", "a"), 4, 2), one("ten", "b"), one("five", "a"), override(one("any", "b"), 1, 3))
	req.HitsAddend = 1
	resp, err := w.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	same(t, `{"domain": "d", "hitsAddend": 1, "descriptors": [
		{"entries": ["ten=a", "x="], "hitsAddend": 2}, {"entries": ["any=a"], "limit": "requests_per_unit:4 unit:MINUTE"},
		{"entries": ["ten=b"]}, {"entries": ["five=a"]}, {"entries": ["any=b"], "limit": "requests_per_unit:1 unit:HOUR"}],
		"metadata": {"tier": {"a": 1, "b": "x", "c": [2]}, "from": "ten"}}`, resp.DynamicMetadata)

	resp = w.ask(t, override(one("any", "c"), 0, 3))
	require.Equal(t, "unit:HOUR", resp.DynamicMetadata.Fields["descriptors"].GetListValue().Values[0].GetStructValue().Fields["limit"].GetStringValue(), "protobuf writes no zeros")

	require.Nil(t, w.ask(t, one("free", "a")).DynamicMetadata.Fields["metadata"], "nor has an unlimited rule any, as upstream has it")

	// One rule's metadata never becomes part of another's.
	same(t, `{"tier": {"a": 1, "b": "x"}, "from": "ten"}`, w.ask(t, one("ten", "c")).DynamicMetadata.Fields["metadata"].GetStructValue())

	w.ask(t, hits(one("two", "a"), 3))
	resp = w.ask(t, one("two", "a"), one("ten", "b"))
	require.Equal(t, pb.RateLimitResponse_OK, resp.OverallCode)
	same(t, `{"would_deny": true, "rule": "d.two"}`, resp.DynamicMetadata.Fields["sluice"].GetStructValue())
	over := w.ask(t, hits(one("five", "x"), 9))
	require.Nil(t, over.DynamicMetadata.Fields["metadata"], "what is over its limit adds nothing")
}

// TestDenial names the rule that denied, and no value of the request, in the metadata of every call that is
// denied, and in a header where one is asked for.
func TestDenial(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{RuleHeader: "X-Rule"})
	for _, c := range []struct {
		rule string
		ask  *pb.RateLimitRequest
	}{
		{"d.two", request(one("ten", "a"), hits(one("two", "secret"), 3))},
		{"d.two", request(hits(one("ten", "b"), 11), hits(one("two", "b"), 3))},
		{"override", request(hits(override(one("ten", "secret"), 1, 2), 2))},
	} {
		resp, err := w.ShouldRateLimit(t.Context(), c.ask)
		require.NoError(t, err)
		require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, resp.OverallCode)
		same(t, `{"sluice": {"rule": "`+c.rule+`"}}`, resp.DynamicMetadata)
		same(t, `{"key": "X-Rule", "value": "`+c.rule+`"}`, resp.ResponseHeadersToAdd[0])
	}
	passed := w.ask(t, one("ten", "c"))
	require.Nil(t, passed.DynamicMetadata)
	require.Empty(t, passed.ResponseHeadersToAdd)

	shadow := newWorld(t, rules.Config{Shadow: true}, Options{RuleHeader: "X-Rule"})
	passed = shadow.ask(t, hits(one("two", "a"), 3))
	require.Nil(t, passed.DynamicMetadata, "nobody is denied")
	require.Empty(t, passed.ResponseHeadersToAdd)

	quota := newWorld(t, rules.Config{Quota: true}, Options{DynamicMetadata: true})
	over := quota.ask(t, hits(one("two", "a"), 3))
	same(t, `{"rule": "d.two"}`, over.DynamicMetadata.Fields["sluice"].GetStructValue())
	require.NotNil(t, over.DynamicMetadata.Fields["descriptors"])
}

func TestHeaderOf(t *testing.T) {
	for path, want := range map[string]string{
		"web.path_/login": "web.path_/login", "d.k_a b": "d.k_a%20b", "d.k_\r\nX: y": "d.k_%0D%0AX:%20y", "d.k_ü%": "d.k_%C3%BC%25", "": "",
		strings.Repeat("x", 1025): strings.Repeat("x", 1022), strings.Repeat("x", 1024): strings.Repeat("x", 1024),
		strings.Repeat("é", 1024): strings.Repeat("%C3%A9", 170) + "%C3",
	} {
		got := HeaderOf(path)
		require.Equal(t, want, got)
		require.LessOrEqual(t, len(got), 1024)
	}
}

// TestShouldRateLimit_Concurrent: calls share nothing but counts.
func TestShouldRateLimit_Concurrent(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{Headers: true, DynamicMetadata: true})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := string(rune('a' + i))
			for n := range 50 {
				resp, err := w.ShouldRateLimit(t.Context(), request(one("none", name), one("ten", name)))
				if err != nil || resp.Statuses[1].LimitRemaining != uint32(max(0, 9-n)) || resp.DynamicMetadata.Fields["descriptors"].GetListValue().Values[1].GetStructValue().Fields["entries"].GetListValue().Values[0].GetStringValue() != "ten="+name {
					t.Errorf("%v %v", resp, err)
				}
			}
		}()
	}
	wg.Wait()
}

func TestHealth(t *testing.T) {
	h := NewHealth()
	w := newWorld(t, rules.Config{}, Options{})
	client := healthpb.NewHealthClient(dial(t, w.Service, h))
	for _, serving := range []bool{false, true, false} {
		h.Set(serving)
		for _, service := range []string{"", "ratelimit"} {
			resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			require.NoError(t, err)
			require.Equal(t, serving, resp.Status == healthpb.HealthCheckResponse_SERVING)
		}
	}
	_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestWindowsMoveOn(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	w.ask(t, hits(one("two", "a"), 2))
	w.clock.Advance(37 * time.Second)
	require.EqualValues(t, 1, w.ask(t, one("two", "a")).Statuses[0].LimitRemaining)
}

// deafStore does not answer.
type deafStore struct{}

func (deafStore) Open(rules.StoreLimit) (rules.StoreCounter, error)   { return deafStore{}, nil }
func (deafStore) Close()                                              {}
func (deafStore) Decide([]rules.StoreCall) error                      { return errors.New("deaf") }
func (deafStore) DecideAll([]rules.StoreCall) (denied int, err error) { return -1, errors.New("deaf") }

// TestService_Store: what a Store does not answer is UNAVAILABLE, and counted as refused; Envoy then does as its
// failure_mode_deny says.
func TestService_Store(t *testing.T) {
	var told []string
	w := newWorld(t, rules.Config{Store: deafStore{}}, Options{StoreFailed: func(err error) { told = append(told, err.Error()) }})
	for range 2 {
		_, err := w.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{
			{Entries: []*common.RateLimitDescriptor_Entry{{Key: "two", Value: "x"}}},
		}})
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.Equal(t, "rules: the store does not answer", status.Convert(err).Message(), "and nothing of the store's")
	}
	require.EqualValues(t, 2, w.Counts().Refused)
	require.Equal(t, []string{"rules: the store does not answer: deaf"}, told, "once a minute")
}
