package httprules

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

const twoAtOnce = `
domain: d
http:
- actions: [{request_headers: {header_name: x-api-key, descriptor_key: client}}]
- actions: [{generic_key: {descriptor_value: all}}]
descriptors:
- {key: client, rate_limit: {unit: UNIT, requests_per_unit: 2, algorithm: in-flight}}
- {key: generic_key, value: all, rate_limit: {unit: year, requests_per_unit: 50}}
`

// newAtOnce returns the middleware around a handler, with a unit of time, and what remains to rules.
func newAtOnce(t *testing.T, unit string, clock sluice.Clock, c Config, handler http.HandlerFunc) (h http.Handler, left func(key, value string) int) {
	engine, err := rules.New(load(t, strings.Replace(twoAtOnce, "UNIT", unit, 1)), rules.Config{Clock: clock})
	require.NoError(t, err)
	c.Engine, c.Domain = engine, "d"
	limit, err := New(c)
	require.NoError(t, err)
	return limit(handler), func(key, value string) int {
		var resp rules.Response
		none := uint64(0)
		require.NoError(t, engine.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: key, Value: value}}, Hits: &none}}}, &resp))
		return int(resp.Statuses[0].Remaining)
	}
}

func ask(h http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", "ann")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestInFlight: requests that have ended are not in flight, whether their handlers have returned or panicked, or the callback
// has; and what they cost otherwise stays charged.
func TestInFlight(t *testing.T) {
	panics := ""
	h, left := newAtOnce(t, "hour", nil, Config{OnDecision: func(http.ResponseWriter, *http.Request, *rules.Response) {
		if panics == "OnDecision" {
			panic("x")
		}
	}}, func(http.ResponseWriter, *http.Request) {
		if panics == "handler" {
			panic("x")
		}
	})
	for range 5 {
		require.Equal(t, 200, ask(h).Code)
	}
	require.Equal(t, []int{2, 45}, []int{left("client", "ann"), left("generic_key", "all")})
	for _, panics = range []string{"handler", "OnDecision"} {
		for range 5 {
			require.Panics(t, func() { ask(h) })
		}
	}
	require.Equal(t, []int{2, 35}, []int{left("client", "ann"), left("generic_key", "all")})
}

// TestInFlight_LongRequests: requests count for as long as they run, and denials cost nothing.
func TestInFlight_LongRequests(t *testing.T) {
	for _, unit := range []string{"second", "year"} {
		synctest.Test(t, func(t *testing.T) {
			leave := make(chan struct{})
			h, left := newAtOnce(t, unit, nil, Config{}, func(http.ResponseWriter, *http.Request) { <-leave })
			for range 2 {
				go ask(h)
			}
			for range 100 {
				time.Sleep(time.Duration(1+len(unit)) * time.Minute / 200)
				if unit == "year" {
					time.Sleep(time.Hour) // beyond Config.MaxHoldTTL
				}
				w := ask(h)
				require.Equal(t, 429, w.Code)
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				require.Contains(t, w.Body.String(), "d.client")
			}
			require.Equal(t, 48, left("generic_key", "all"))
			leave <- struct{}{}
			synctest.Wait()
			require.Equal(t, 1, left("client", "ann"))
			leave <- struct{}{}
			synctest.Wait()
			require.Equal(t, 2, left("client", "ann"))
			time.Sleep(time.Hour)
			require.Equal(t, 48, left("generic_key", "all"))
		})
	}
}

// TestInFlight_Weights: counts for weights, which a client can write, keep no request from being held, and counts that are no
// numbers are refused as such.
func TestInFlight_Weights(t *testing.T) {
	const weights = `
domain: d
http:
- actions: [{request_headers: {header_name: x-api-key, descriptor_key: client}}]
- actions: [{generic_key: {descriptor_value: all}}, {request_headers: {header_name: x-tokens, descriptor_key: input, skip_if_absent: true}}]
descriptors:
- {key: client, rate_limit: {unit: second, requests_per_unit: 1, algorithm: in-flight}}
- {key: generic_key, value: all, rate_limit: {unit: year, requests_per_unit: 1000, weights: {input: 1}}}
`
	synctest.Test(t, func(t *testing.T) {
		engine, err := rules.New(load(t, weights), rules.Config{})
		require.NoError(t, err)
		limit, err := New(Config{Engine: engine, Domain: "d"})
		require.NoError(t, err)
		leave := make(chan struct{})
		h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-leave }))
		ask := func(tokens string) int {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Api-Key", "ann")
			r.Header.Set("X-Tokens", tokens)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		require.Equal(t, http.StatusBadRequest, ask("abc"))
		go ask("5")
		for range 10 {
			time.Sleep(time.Second)
			require.Equal(t, http.StatusTooManyRequests, ask("5"))
		}
		close(leave)
		synctest.Wait()
		require.Equal(t, http.StatusOK, ask("5"))
	})
}

// TestInFlight_Hijacked: a connection that a handler has taken over is in flight until it is closed.
func TestInFlight_Hijacked(t *testing.T) {
	conns := make(chan net.Conn, 1)
	h, left := newAtOnce(t, "hour", nil, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_, _ = rw.WriteString("hello")
		_ = rw.Flush()
		conns <- conn
	})
	returned := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		returned <- struct{}{}
	}))
	defer server.Close()
	client, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	_, _ = fmt.Fprint(client, "GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: ann\r\n\r\n")
	_, err = io.ReadFull(bufio.NewReader(client), make([]byte, 5))
	require.NoError(t, err)
	conn := <-conns
	<-returned
	require.Equal(t, 1, left("client", "ann"))
	require.NoError(t, conn.Close())
	require.Equal(t, 2, left("client", "ann"))
}

// noHolds is a Store that counts nothing, and keeps no holds.
type noHolds struct{ rules.Store }

func (noHolds) Open(rules.StoreLimit) (rules.StoreCounter, error) { return counter{}, nil }

type counter struct{}

func (counter) Close() {}

// TestInFlight_StoreWithoutHolds: what cannot be given back is refused.
func TestInFlight_StoreWithoutHolds(t *testing.T) {
	engine, err := rules.New(load(t, strings.Replace(twoAtOnce, "UNIT", "hour", 1)), rules.Config{Store: noHolds{}})
	require.NoError(t, err)
	_, err = New(Config{Engine: engine, Domain: "d"})
	require.ErrorContains(t, err, "the rule d.client of units in flight")
	_, err = New(Config{Engine: engine, Domain: "other"})
	require.NoError(t, err)
}
