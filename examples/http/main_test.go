package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

func get(t *testing.T, srv *httptest.Server, path, apiKey string) *http.Response {
	req, err := http.NewRequest(http.MethodGet, srv.URL+path, nil)
	if !assert.NoError(t, err) {
		return &http.Response{}
	}
	if apiKey != "" {
		req.Header.Set("API-Key", apiKey)
	}
	resp, err := srv.Client().Do(req)
	if !assert.NoError(t, err) {
		return &http.Response{}
	}
	_, err = io.Copy(io.Discard, resp.Body)
	assert.NoError(t, err)
	assert.NoError(t, resp.Body.Close())
	return resp
}

// Through a real listener and chi: both limits hold, to the request, however many
// clients there are at once.
func TestServer_BothLimitsHold(t *testing.T) {
	log.SetOutput(io.Discard)
	clock := sluice.NewManualClock(time.Now())
	handler, err := newHandler(clock)
	require.NoError(t, err)
	srv := httptest.NewServer(handler)
	defer srv.Close()

	count := func(requests int, apiKey string) int64 {
		var served atomic.Int64
		var group sync.WaitGroup
		for range requests {
			group.Go(func() {
				if get(t, srv, "/hello", apiKey).StatusCode == http.StatusOK {
					served.Add(1)
				}
			})
		}
		group.Wait()
		return served.Load()
	}
	assert.EqualValues(t, 20, count(30, "ann"), "the burst of the address")
	clock.Advance(4 * time.Second)
	assert.EqualValues(t, 20, count(30, "ann"))
	clock.Advance(4 * time.Second)
	assert.EqualValues(t, 20, count(30, "ann"))
	clock.Advance(4 * time.Second)
	assert.EqualValues(t, 12, count(30, "ann"), "60 of the key, and 12 that have come back in 12 s")
	assert.EqualValues(t, 8, count(30, "bob"), "what is left to the address")

	resp := get(t, srv, "/hello", "bob")
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	require.NoError(t, err)
	clock.Advance(time.Duration(after) * time.Second)
	assert.Equal(t, http.StatusOK, get(t, srv, "/hello", "bob").StatusCode)

	assert.Equal(t, http.StatusBadRequest, get(t, srv, "/hello", "").StatusCode)
	for range 30 {
		require.Equal(t, http.StatusOK, get(t, srv, "/health", "").StatusCode)
	}
}
