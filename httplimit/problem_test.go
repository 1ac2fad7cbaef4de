package httplimit_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

func TestWriteProblem(t *testing.T) {
	clock := newClock()
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
		{Name: `<b> "x\`, Limiter: gcra(t, sluice.PerMinute(1), clock), Key: oneKey},
		{Name: "fine", Limiter: gcra(t, sluice.PerMinute(2), clock), Key: oneKey},
	}}, ok200)
	get(handler)
	w := get(handler)
	assert.Equal(t, 429, w.Code)
	assert.Equal(t, http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"60"}}, w.Header())
	assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",
		"status":429,"violated-policies":["<b> \"x\\"]}`, w.Body.String())

	head := httptest.NewRecorder()
	handler.ServeHTTP(head, httptest.NewRequest(http.MethodHead, "/", nil))
	assert.Equal(t, 429, head.Code)
	assert.Equal(t, w.Header(), head.Header())
	assert.Empty(t, head.Body)

	// By a handler of one's own.
	zero := httptest.NewRecorder()
	httplimit.WriteProblem(zero, httptest.NewRequest(http.MethodGet, "/", nil), httplimit.Decision{})
	assert.Equal(t, 429, zero.Code)
	other := httptest.NewRecorder()
	httplimit.WriteProblem(other, httptest.NewRequest(http.MethodGet, "/", nil), httplimit.Decision{Status: 503})
	assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503}`, other.Body.String())
}

// A length that a middleware has announced before is not that of the denial.
func TestWriteProblem_LengthIsItsOwn(t *testing.T) {
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.DenyAll, newClock()), Key: oneKey}},
	}, ok200)
	client, url := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		handler.ServeHTTP(w, r)
	}))
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	var doc map[string]any
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&doc))
	assert.EqualValues(t, 429, doc["status"])
}
