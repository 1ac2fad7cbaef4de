package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestLoad_StaysWithinTheLimits: whoever dies, no key uses more than its limit, and no stream stays open.
func TestLoad_StaysWithinTheLimits(t *testing.T) {
	model := httptest.NewServer(backend(0))
	defer model.Close()
	p := newProxy(model.URL)
	server := httptest.NewServer(p)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	load{clients: 40, keys: 2}.run(ctx, server.URL)
	p.wait()
	var out strings.Builder
	require.Zero(t, p.report(&out, 2, time.Since(begin)), out.String())
	require.Positive(t, p.count.get("key-0").used)
	require.Positive(t, p.count.get("key-0").denied["tokens"], "the load is too light to tell")
}

// TestStream_IsCutExactlyAtTheBudget, and a stream that is not cut gives back what it has not used.
func TestStream_IsCutExactlyAtTheBudget(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("data: {\"choices\":[{\"delta\":{\"content\":\"word \"}}]}\n\n", 5000))
	}))
	defer model.Close()
	p := newProxy(model.URL)
	require.NoError(t, p.tokens.SetLimit(p.tokens.Config().Limit.WithBurst(777)))
	rate := p.tokens.Config().Limit
	rate.Rate, rate.Period = 1, time.Hour // nothing comes back meanwhile
	require.NoError(t, p.tokens.SetLimit(rate))
	body := ask(t, p, "ann", http.StatusOK)
	assert.Equal(t, 777-3, strings.Count(body, "word "), "three words of prompt")
	assert.Contains(t, body, `"finish_reason":"length"`)
	assert.Zero(t, p.tokens.Key("ann").Peek(0).Remaining)
	assert.Equal(t, 5, p.streams.Key("ann").Peek(0).Remaining)

	before := p.requests.Key("ann").Peek(0).Remaining
	ask(t, p, "ann", http.StatusTooManyRequests)
	assert.GreaterOrEqual(t, p.requests.Key("ann").Peek(0).Remaining, before, "a denial for tokens takes no request")

	short := httptest.NewServer(backend(0))
	defer short.Close()
	p.backend = short.URL
	words := strings.Count(ask(t, p, "bob", http.StatusOK), "word ")
	assert.Equal(t, 777-3-words, p.tokens.Key("bob").Peek(0).Remaining)
}

func ask(t *testing.T, p *proxy, key string, status int) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(
		`{"stream": true, "max_tokens": 20, "messages": [{"role": "user", "content": "one two three"}]}`))
	r.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	require.Equal(t, status, w.Code)
	body, err := io.ReadAll(bufio.NewReader(w.Body))
	require.NoError(t, err)
	return string(body)
}

// TestProxy_RefusesWhatItCannotLimit.
func TestProxy_RefusesWhatItCannotLimit(t *testing.T) {
	p := newProxy("http://127.0.0.1:1")
	for body, key := range map[string]string{`{"stream": false}`: "Bearer k", `x`: "Bearer k", `{"stream": true}`: ""} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Authorization", key)
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		require.Contains(t, []int{http.StatusBadRequest, http.StatusUnauthorized}, w.Code)
	}
	require.Zero(t, p.tokens.Len())
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"stream": true}`))
	r.Header.Set("Authorization", "Bearer k")
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	require.Equal(t, http.StatusBadGateway, w.Code)
	require.Equal(t, 1000, p.tokens.Key("k").Peek(0).Remaining, "a call that has not been made costs nothing")
	require.Equal(t, 5, p.streams.Key("k").Peek(0).Remaining)
}

// TestKeepPlace: a stream that is open for ten minutes is one of the five at once all the time.
func TestKeepPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy("")
		var reservations [1]*sluice.Reservation
		sluice.TakeAllReservations(reservations[:], nil, sluice.Charge{Key: p.streams.Key("k"), Cost: 1})
		giveBack := keepPlace(reservations[0], p.streams.Key("k").Limit().Period/3)
		for range 600 {
			time.Sleep(time.Second)
			if left := p.streams.Key("k").Peek(0).Remaining; left != 4 {
				t.Fatalf("%d places are left beside one stream; want 4", left)
			}
		}
		giveBack()
		if left := p.streams.Key("k").Peek(0).Remaining; left != 5 {
			t.Errorf("%d places are left; want 5", left)
		}
	})
}
