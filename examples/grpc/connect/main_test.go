package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice"
)

// newServer serves on a clock that stands still, and counts the requests.
func newServer(t *testing.T) (server *httptest.Server, clock *sluice.ManualClock, requests *atomic.Int64) {
	t.Helper()
	clock, requests = sluice.NewManualClock(time.Unix(1_790_000_123, 0)), new(atomic.Int64)
	handler, err := newHandler(clock)
	require.NoError(t, err)
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		handler.ServeHTTP(w, r)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server, clock, requests
}

// overHTTP2 is a client without TLS.
func overHTTP2(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Clients of all three protocols are limited together, and told when to come back.
func TestConnect_EveryProtocolIsToldWhen(t *testing.T) {
	server, clock, _ := newServer(t)
	clients := []*connect.Client[wrapperspb.StringValue, wrapperspb.StringValue]{}
	for _, opts := range [][]connect.ClientOption{{}, {connect.WithGRPC()}, {connect.WithGRPCWeb()}} {
		clients = append(clients, connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](overHTTP2(t), server.URL+greet, opts...))
	}
	call := func(i int, name string) error {
		req := connect.NewRequest(wrapperspb.String(name))
		req.Header().Set("X-Forwarded-For", "203.0.113.9")
		_, err := clients[i%3].CallUnary(t.Context(), req)
		return err
	}
	for i := range 12 {
		assert.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(call(i, "")), "which costs nothing")
	}
	for i := range 5 {
		require.NoError(t, call(i, "ann"))
	}
	for i := range 6 {
		err := call(i, "ann")
		var e *connect.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, connect.CodeResourceExhausted, e.Code())
		require.Len(t, e.Details(), 2)
		quota, err := e.Details()[0].Value()
		require.NoError(t, err)
		assert.Equal(t, "per-client", quota.(*errdetails.QuotaFailure).GetViolations()[0].GetSubject())
		retry, err := e.Details()[1].Value()
		require.NoError(t, err)
		assert.Equal(t, time.Second, retry.(*errdetails.RetryInfo).GetRetryDelay().AsDuration())
		assert.Equal(t, "1000", e.Meta().Get("grpc-retry-pushback-ms"))
	}
	clock.Advance(time.Second)
	assert.NoError(t, call(0, "ann"))
}

// grpc-go's client is told as well. Its own retries do not come back, whatever their policy: net/http
// cannot send the trailers alone that they want to see.
func TestConnect_ToGRPC(t *testing.T) {
	server, clock, requests := newServer(t)
	conn, err := grpc.NewClient(server.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 2,
			"initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	invoke := func() (answer string, trailer metadata.MD, err error) {
		var resp wrapperspb.StringValue
		err = conn.Invoke(ctx, greet, wrapperspb.String("ann"), &resp, grpc.Trailer(&trailer))
		return resp.GetValue(), trailer, err
	}
	for range 5 {
		answer, _, err := invoke()
		require.NoError(t, err)
		assert.Equal(t, "Hello, ann!", answer)
	}
	_, trailer, err := invoke()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, []string{"1000"}, trailer.Get("grpc-retry-pushback-ms"))
	assert.EqualValues(t, 6, requests.Load())
	clock.Advance(time.Second)
	_, _, err = invoke()
	assert.NoError(t, err)
}

// As the comment of the command says, by HTTP/1.1 and JSON.
func TestConnect_JSON(t *testing.T) {
	server, _, _ := newServer(t)
	post := func() (int, string) {
		resp, err := http.Post(server.URL+greet, "application/json", bytes.NewReader([]byte(`"ann"`)))
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode, string(body)
	}
	for range 5 {
		code, body := post()
		assert.Equal(t, http.StatusOK, code)
		assert.Equal(t, `"Hello, ann!"`, body)
	}
	code, body := post()
	assert.Equal(t, http.StatusTooManyRequests, code)
	assert.Contains(t, body, "RetryInfo")
}
