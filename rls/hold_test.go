package rls

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/rls/holdpb"
	"github.com/sluice-go/sluice/rules"
)

func held1(hits uint64, pairs ...string) *holdpb.Descriptor {
	d := &holdpb.Descriptor{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &holdpb.Descriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	if hits > 0 {
		d.HitsAddend = wrapperspb.UInt64(hits)
	}
	return d
}

// TestHolds_GRPC: a hold over gRPC is made once, extended, cut, and settled; every error has its code.
func TestHolds_GRPC(t *testing.T) {
	calls, took := 0, 0
	w := newWorld(t, rules.Config{MaxHolds: 3}, Options{Took: func(time.Duration) { took++ }})
	conn := dial(t, w.Service, NewHealth())
	call := func(name string, in, out proto.Message) codes.Code {
		calls++
		return status.Code(conn.Invoke(t.Context(), "/"+name, in, out))
	}
	ten := []*holdpb.Descriptor{held1(0, "ten", "x")}
	reserve := &holdpb.ReserveRequest{Domain: "d", Descriptors: ten, Amount: 6, Ttl: durationpb.New(time.Minute), IdempotencyKey: "a"}
	var out holdpb.ReserveResponse
	for _, replayed := range []bool{false, true} {
		require.Equal(t, codes.OK, call(holdService+"/Reserve", reserve, &out))
		require.Equal(t, holdpb.Code_OK, out.Code)
		require.Equal(t, replayed, out.Replayed)
		require.Equal(t, "a", out.ReservationId)
	}
	require.Equal(t, codes.OK, call(holdService+"/Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: ten, Amount: 5}, &out))
	require.Equal(t, holdpb.Code_OVER_LIMIT, out.Code)
	require.Empty(t, out.ReservationId)
	require.Equal(t, "d.ten", out.DeniedBy)
	require.Positive(t, out.RetryAfter.AsDuration())
	reserve.Amount = 1
	require.Equal(t, codes.AlreadyExists, call(holdService+"/Reserve", reserve, &out))

	var more holdpb.ExtendResponse
	require.Equal(t, codes.OK, call(holdService+"/Extend", &holdpb.ExtendRequest{Domain: "d", Descriptors: ten, ReservationId: "a", Amount: 4}, &more))
	require.Equal(t, holdpb.Code_OK, more.Code)
	require.Equal(t, codes.OK, call(holdService+"/Extend", &holdpb.ExtendRequest{Domain: "d", Descriptors: ten, ReservationId: "a", Amount: 1}, &more))
	require.Equal(t, holdpb.Code_OVER_LIMIT, more.Code)
	require.Equal(t, codes.NotFound, call(holdService+"/Extend", &holdpb.ExtendRequest{Domain: "d", Descriptors: ten, ReservationId: "b", Amount: 1}, &more))

	var done holdpb.CommitResponse
	commit := &holdpb.CommitRequest{Domain: "d", Descriptors: ten, ReservationId: "a", ActualAmount: 3}
	for _, replayed := range []bool{false, true} {
		require.Equal(t, codes.OK, call(holdService+"/Commit", commit, &done))
		require.True(t, done.ReservationReleased)
		require.Equal(t, replayed, done.Replayed)
	}
	require.Equal(t, codes.AlreadyExists, call(holdService+"/Reserve", reserve, &out), "the hold has ended")
	commit.ActualAmount = 4
	require.Equal(t, codes.OK, call(holdService+"/Commit", commit, &done))
	require.False(t, done.ReservationReleased)

	// As a gateway of Kuadrant speaks, with the messages of Envoy for descriptors.
	theirs := func(hits uint64) []byte {
		d := one("ten", "x")
		b, err := proto.Marshal(&pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{d}})
		require.NoError(t, err)
		return append(b, 0x18, byte(hits)) // amount, 3
	}
	var in holdpb.ReserveRequest
	require.NoError(t, proto.Unmarshal(theirs(7), &in))
	require.Equal(t, codes.OK, call(kuadrantService+"/Reserve", &in, &out))
	require.Len(t, out.ReservationId, 26, "7 of the 7 that are left")
	require.Equal(t, codes.OK, call(kuadrantService+"/Commit", &holdpb.CommitRequest{Domain: "d", Descriptors: ten, ReservationId: out.ReservationId}, &done))
	require.True(t, done.ReservationReleased)
	require.Equal(t, codes.OK, call(kuadrantService+"/Commit", &holdpb.CommitRequest{Domain: "d", Descriptors: ten, ActualAmount: 2}, &done))
	require.False(t, done.ReservationReleased)
	require.Equal(t, codes.OK, call(holdService+"/Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: ten, Amount: 5, IdempotencyKey: "c"}, &out))
	require.Equal(t, holdpb.Code_OK, out.Code, "3 and 2 are counted")
	require.Equal(t, codes.OK, call(holdService+"/Release", &holdpb.ReleaseRequest{Domain: "d", Descriptors: ten, ReservationId: "c"}, &holdpb.ReleaseResponse{}))
	require.Equal(t, codes.NotFound, call(holdService+"/Release", &holdpb.ReleaseRequest{Domain: "d", Descriptors: ten, ReservationId: "no"}, &holdpb.ReleaseResponse{}))

	for _, bad := range []*holdpb.ReserveRequest{
		{}, {Domain: "d"}, {Domain: "d", Descriptors: ten, IdempotencyKey: "\n"}, {Domain: "d", Descriptors: ten, Ttl: durationpb.New(-1)},
		{Domain: "d", Descriptors: []*holdpb.Descriptor{{Entries: ten[0].Entries, IsNegativeHits: true}}}, {Domain: "d", Descriptors: make([]*holdpb.Descriptor, 257)},
	} {
		require.Equal(t, codes.InvalidArgument, call(holdService+"/Reserve", bad, &out))
	}
	for _, id := range []string{"1", "2", "3"} {
		require.Equal(t, codes.OK, call(holdService+"/Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: ten, Amount: 1, IdempotencyKey: id}, &out))
	}
	require.Equal(t, codes.ResourceExhausted, call(holdService+"/Reserve", &holdpb.ReserveRequest{Domain: "d", Descriptors: ten, Amount: 1}, &out))
	require.Equal(t, calls, took, "Options.Took is told of every call")
}

// post sends a body, and perhaps the header of an id.
func post(t testing.TB, h http.Handler, path, body string, key ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	if len(key) > 0 {
		r.Header["Idempotency-Key"] = key
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHolds_HTTP(t *testing.T) {
	w := newWorld(t, rules.Config{MaxHolds: 3}, Options{})
	h := w.Holds()
	const ten = `"domain":"d","descriptors":[{"entries":[{"key":"ten","value":"x"}]}]`
	for _, c := range []struct {
		path, body string
		key        []string
		code       int
		want       string
	}{
		{"/hold", `{` + ten + `,"hits":6,"ttl":"1m"}`, []string{"a"}, 200, `{"id":"a","code":"OK","statuses":[{"code":"OK","rule":"d.ten","limit":10,"remaining":4}]}`},
		{"/hold", `{` + ten + `,"hits":6,"id":"a"}`, nil, 200, `{"id":"a","code":"OK","replayed":true,"statuses":[{"code":"OK","rule":"d.ten","limit":10,"remaining":4}]}`},
		{"/hold", `{` + ten + `,"hits":5,"id":"a"}`, nil, 409, "the id of the hold is that of another request"},
		{"/hold", `{` + ten + `,"hits":5,"id":"a"}`, []string{"b"}, 400, "id and the header Idempotency-Key differ"},
		{"/hold", `{` + ten + `,"hits":5}`, []string{"b", "c"}, 400, "2 headers Idempotency-Key"},
		{"/hold", `{` + ten + `,"hits":5,"id":"b"}`, nil, 429, `{"id":"b","code":"OVER_LIMIT","denied_by":"d.ten","retry_after":`},
		{"/extend", `{` + ten + `,"hits":3,"id":"a","step":"1","ttl":"2m"}`, nil, 200, `"remaining":1`},
		{"/extend", `{` + ten + `,"hits":3,"id":"a","step":"1","ttl":"2m"}`, nil, 200, `"replayed":true`},
		{"/extend", `{` + ten + `,"hits":2,"id":"a"}`, nil, 429, `"OVER_LIMIT"`},
		{"/extend", `{` + ten + `,"id":"a"}`, nil, 400, "descriptor 0 has no hits"},
		{"/extend", `{` + ten + `,"hits":1}`, nil, 400, "there is no id"},
		{"/settle", `{` + ten + `,"id":"a"}`, nil, 400, "descriptor 0 has no hits"},
		{"/settle", `{` + ten + `,"hits":2,"id":"a","ttl":"1m"}`, nil, 400, "ttl is not of this call"},
		{"/settle", `{` + ten + `,"hits":2,"id":"b"}`, nil, 404, "there is no such hold"},
		{"/settle", `{` + ten + `,"hits":0,"id":"a"}`, nil, 200, `{"id":"a","code":"OK","statuses":[]}`},
		{"/settle", `{` + ten + `,"hits":0}`, []string{"a"}, 200, `{"id":"a","code":"OK","replayed":true,"statuses":[]}`},
		{"/hold", `{` + ten + `,"hits":6,"id":"a"}`, nil, 409, "the hold of this id has ended"},
		{"/settle", `{"domain":"d","descriptors":[{"entries":[{"key":"no","value":"x"}]}],"hits":0,"id":"a"}`, nil, 404, "there is no such hold"},
		{"/extend", `{"domain":"no","descriptors":[{"entries":[{"key":"ten","value":"x"}]}],"hits":0,"id":"a"}`, nil, 404, "there is no such hold"},
		{"/release", `{` + ten + `,"id":"b","hits":1}`, nil, 400, "hits are not of this call"},
		{"/hold", `{` + ten + `,"hits":10,"id":"b"}`, nil, 200, `"remaining":0`},
		{"/release", `{` + ten + `,"id":"b"}`, nil, 200, `"OK"`},
		{"/release", `{` + ten + `,"id":"b"}`, nil, 200, `"replayed":true`},
		{"/hold", `{` + ten + `,"hits":11,"id":"c"}`, nil, 429, `"denied_by":"d.ten","statuses"`},
		{"/hold", `{` + ten + `,"id":"1"}`, nil, 200, `"remaining":9`},
		{"/hold", `{` + ten + `,"id":"2"}`, nil, 200, `"remaining":8`},
		{"/hold", `{` + ten + `,"id":"3"}`, nil, 200, `"remaining":7`},
		{"/hold", `{` + ten + `,"id":"4"}`, nil, 503, "no room for another hold"},
		{"/hold", `{` + ten + `,"ttl":"soon"}`, nil, 400, `ttl is "soon"`},
		{"/hold", `{` + ten + `,"hits":-1}`, nil, 400, "the body: "},
		{"/hold", `{` + ten + `,"hit":1}`, nil, 400, `unknown field "hit"`},
		{"/hold", `{` + ten + `} {}`, nil, 400, "there is more"},
		{"/hold", `{"domain":"d"}`, nil, 400, "descriptor list must not be empty"},
		{"/hold", `{"domain":"d","descriptors":[{"limit":{"requests_per_unit":1,"unit":"fortnight"}}]}`, nil, 400, "limit.unit is"},
		{"/hold", `{"domain":"d","descriptors":[{"entries":[{"key":"k"}],"limit":{"requests_per_unit":1,"unit":"hour"}}],"hits":2}`, nil, 503, ""},
		{"/hold", strings.Repeat(" ", w.options.bodyBytes()+1), nil, 413, "the body: "},
		{"/other", `{}`, nil, 404, ""},
	} {
		got := post(t, h, c.path, c.body, c.key...)
		require.Equal(t, c.code, got.Code, "%s %s: %s", c.path, c.body, got.Body)
		require.Contains(t, got.Body.String(), c.want)
	}
	denied := post(t, h, "/hold", `{`+ten+`,"hits":9,"id":"1"}`)
	require.Equal(t, 409, denied.Code)
	get := httptest.NewRecorder()
	h.ServeHTTP(get, httptest.NewRequest("GET", "/hold", nil))
	require.Equal(t, http.StatusMethodNotAllowed, get.Code)
}

// FuzzHolds: no body makes a call panic or mint: what is held and then released leaves the limit as it was.
func FuzzHolds(f *testing.F) {
	f.Add("/hold", `{"domain":"d","id":"a","descriptors":[{"entries":[{"key":"ten","value":"x"}],"hits":3}],"ttl":"1m"}`)
	f.Add("/settle", `{"domain":"d","id":"held","hits":3,"descriptors":[{"entries":[{"key":"ten","value":"x"}]}]}`)
	f.Add("/extend", `{"domain":"d","id":"held","hits":1,"step":"s","descriptors":[{"limit":{"requests_per_unit":3,"unit":"DAY"},"hits":0}]}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		if path != "/hold" && path != "/extend" && path != "/settle" && path != "/release" {
			return
		}
		w := newWorld(t, rules.Config{}, Options{})
		h := w.Holds()
		const own = `{"domain":"d","id":"held","descriptors":[{"entries":[{"key":"ten","value":"x"}]}]`
		require.Equal(t, 200, post(t, h, "/hold", own+`,"hits":4}`).Code)
		got := post(t, h, path, body)
		require.Contains(t, []int{200, 400, 404, 409, 429}, got.Code, got.Body.String())
		require.Zero(t, w.Counts().Panics)
		if strings.HasPrefix(got.Body.String(), "{") {
			require.True(t, json.Valid(got.Body.Bytes()))
		}
		after := post(t, h, "/hold", `{"domain":"d","id":"after","hits":11,"descriptors":[{"entries":[{"key":"ten","value":"x"}]}]}`)
		require.Equal(t, 429, after.Code, "no body makes room for more than the limit")
	})
}
