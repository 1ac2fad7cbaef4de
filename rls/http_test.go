package rls

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-go/sluice/rules"
)

func typeUnit(n int) typev3.RateLimitUnit { return typev3.RateLimitUnit(n) }

func serve(h http.Handler, method, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/json", strings.NewReader(body)))
	return w
}

func TestJSON(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "two", "value": "a"}]}]}`
	for _, method := range []string{"POST", "GET"} {
		r := serve(w.JSON(), method, body)
		require.Equal(t, 200, r.Code)
		require.Equal(t, "application/json", r.Header().Get("Content-Type"))
		require.Contains(t, strings.ReplaceAll(r.Body.String(), " ", ""), `"requestsPerUnit":2,"unit":"MINUTE"`)
	}
	r := serve(w.JSON(), "POST", body)
	require.Equal(t, 429, r.Code)
	require.Contains(t, r.Body.String(), "OVER_LIMIT")
	require.NotContains(t, r.Body.String(), "limitRemaining", "zero values are left out")
	for _, bad := range []string{"", "x", "{}", `{"domain": "d"}`, `{"domain": "d", "colour": "red"}`, strings.Repeat(" ", w.options.bodyBytes()+1),
		`{"domain": "d", "descriptors": [{"limit": {"requestsPerUnit": 1}}]}`} {
		r := serve(w.JSON(), "POST", bad)
		require.Equal(t, 400, r.Code, "%.20q", bad)
		require.Equal(t, "Bad Request\n", r.Body.String())
	}
	require.EqualValues(t, 3, w.Counts().OK+w.Counts().OverLimit)
}

func TestRules(t *testing.T) {
	w := newWorld(t, rules.Config{}, Options{})
	load := Load{At: start}
	h := w.Rules(func() Load { return load })
	text := serve(h, "GET", "").Body.String()
	require.True(t, strings.HasPrefix(text, "d.five: unit=WEEK requests_per_unit=5, shadow_mode: false, quota_mode: false\nd.free: "), text)
	require.Contains(t, text, "\n# generation 1, digest ")
	require.True(t, strings.HasSuffix(text, ", 5 rules, loaded at 2026-09-21T14:15:23Z\n"), text)
	load.Err = errors.New("f:1:1: bad\nf:2:2: worse")
	text = serve(h, "GET", "").Body.String()
	require.True(t, strings.HasSuffix(text, "# the last load was refused: f:1:1: bad\n# the last load was refused: f:2:2: worse\n"), text)

	set, err := rules.Load([]rules.File{{Name: "f", Data: []byte("domain: d\ndescriptors:\n- {key: \"k\\nd.forged: unit=DAY\\u202e\\u009b\", rate_limit: {unit: day, requests_per_unit: 1}}\n")}}, rules.Options{})
	require.NoError(t, err)
	engine, err := rules.New(set, rules.Config{})
	require.NoError(t, err)
	text = serve(New(engine, Options{}).Rules(func() Load { return Load{} }), "GET", "").Body.String()
	require.Equal(t, 2, strings.Count(text, "\n"), text)
	require.Contains(t, text, `d.k\nd.forged: unit=DAY\u202e\u009b: unit=DAY`)

	r := httptest.NewRecorder()
	h.ServeHTTP(r, httptest.NewRequest("GET", "/rlconfig?format=json", nil))
	var out rulesJSON
	require.NoError(t, json.Unmarshal(r.Body.Bytes(), &out))
	require.EqualValues(t, 1, out.Generation)
	require.Len(t, out.Rules, 5)
	require.Equal(t, load.Err.Error(), out.LastError)
}

func TestHealth_HTTP(t *testing.T) {
	h := NewHealth()
	r := serve(h, "GET", "")
	require.Equal(t, 500, r.Code)
	require.Empty(t, r.Body.String())
	h.Set(true)
	r = serve(h, "GET", "")
	require.Equal(t, 200, r.Code)
	require.Equal(t, "OK", r.Body.String())
	h.Shutdown()
	require.Equal(t, 500, serve(h, "GET", "").Code)
	h.Set(true)
	require.Equal(t, 500, serve(h, "GET", "").Code, "for good")
}

// FuzzShouldRateLimit: no bytes that are a request make the service panic, or answer with less than a
// status for each descriptor.
func FuzzShouldRateLimit(f *testing.F) {
	for _, req := range []*pb.RateLimitRequest{
		request(one("two", "a"), hits(one("ten", "b"), 7)), request(override(one("any", "a"), 4, 2)), {},
	} {
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		f.Add(b)
	}
	w := newWorld(f, rules.Config{MaxKeys: 100}, Options{Headers: true, DynamicMetadata: true})
	f.Fuzz(func(t *testing.T, b []byte) {
		var req pb.RateLimitRequest
		if proto.Unmarshal(b, &req) != nil {
			serve(w.JSON(), "POST", string(b))
			return
		}
		resp, err := w.ShouldRateLimit(t.Context(), &req)
		switch status.Code(err) {
		case codes.OK:
			if len(resp.Statuses) != len(req.Descriptors) || resp.OverallCode == pb.RateLimitResponse_UNKNOWN {
				t.Fatal(resp)
			}
			if _, err := proto.Marshal(resp); err != nil {
				t.Fatal(err)
			}
		case codes.Unknown, codes.InvalidArgument:
		default:
			t.Fatal(err)
		}
	})
}
