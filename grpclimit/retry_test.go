package grpclimit_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

// slowRetries is a service config by which grpc retries what is denied, after hours: with the
// pushback of the server it does not take them.
const slowRetries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
	"initialBackoff": "36000s", "maxBackoff": "36000s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"]}}]}`

// eagerRetries has grpc retry soon, unless the server says not to. (The C core waits for ever for
// backoffs of less than a millisecond.)
const eagerRetries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5,
	"initialBackoff": "0.1s", "maxBackoff": "0.1s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"]}}]}`

// comesBack is a Config whose clock goes on as soon as it has denied: by the wait that it tells. told is the number of decisions.
func comesBack(t *testing.T) (c grpclimit.Config, told *atomic.Int64) {
	t.Helper()
	clock := newClock()
	told = new(atomic.Int64)
	c = onePolicy(t, sluice.Per(1, 20*time.Millisecond), clock)
	c.OnDecision = func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) {
		told.Add(1)
		clock.Advance(d.RetryAfter)
	}
	return c, told
}

// grpc-go's own retries wait for as long as the pushback says, in place of the backoff of their policy.
func TestRetryPolicy_ObeysThePushback(t *testing.T) {
	c, told := comesBack(t)
	s := &service{}
	client := dial(t, serve(t, s, newJudge(t, c).ServerOptions()...), grpc.WithDefaultServiceConfig(slowRetries))
	for range 3 {
		_, _, err := empty(t, client)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 3, s.calls.Load())
	assert.EqualValues(t, 5, told.Load(), "all calls but the first one have been denied once")
	_, _, err := echo(t, client, 2)
	assert.Equal(t, "EOF", err.Error(), "so do streams")
	assert.EqualValues(t, 7, told.Load())
}

// Where no wait helps, or a call has been processed in part, they do not try again.
func TestRetryPolicy_ObeysANo(t *testing.T) {
	for name, change := range map[string]func(*grpclimit.Policy){
		"too expensive": func(p *grpclimit.Policy) { p.Cost = func(context.Context, grpclimit.Call) int { return 2 } },
		"no key":        func(p *grpclimit.Policy) { p.Key = sluice.Must(grpclimit.ByMetadata("x-api-key")) },
		"a message":     func(p *grpclimit.Policy) { p.Per, p.Limiter = grpclimit.PerSent, gcra(t, sluice.DenyAll, newClock()) },
		"a message received": func(p *grpclimit.Policy) {
			p.Per, p.Limiter = grpclimit.PerReceived, gcra(t, sluice.Per(1, time.Hour), newClock())
		},
		"after a month": func(p *grpclimit.Policy) {
			p.Limiter = gcra(t, sluice.Per(1, 30*24*time.Hour), newClock())
			p.Limiter.Key("k").Debit(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := comesBack(t)
			change(&c.Policies[0])
			s := &service{}
			denied := 0
			c.OnDecision = func(_ context.Context, _ grpclimit.Call, d grpclimit.Decision) {
				if !d.Allowed {
					denied++
				}
			}
			client := dial(t, serve(t, s, newJudge(t, c).ServerOptions()...), grpc.WithDefaultServiceConfig(eagerRetries))
			_, stream, err := echo(t, client, 2)
			assert.Contains(t, []codes.Code{codes.ResourceExhausted, codes.InvalidArgument}, status.Code(err))
			assert.Equal(t, metadata.Pairs("grpc-retry-pushback-ms", "-1"), onlyPushback(stream.Trailer()))
			assert.Equal(t, 1, denied)
			if c.Policies[0].Per == grpclimit.PerCall {
				assert.Zero(t, s.calls.Load())
			} else {
				assert.EqualValues(t, 1, s.calls.Load(), "the handler has been called once")
			}
		})
	}
}

func onlyPushback(md metadata.MD) metadata.MD {
	return metadata.MD{"grpc-retry-pushback-ms": md.Get("grpc-retry-pushback-ms")}
}

// The control: without a pushback grpc does retry what such a server says.
func TestRetryPolicy_WouldRetry(t *testing.T) {
	s := &service{empty: func(context.Context) error { return status.Error(codes.ResourceExhausted, "no") }}
	_, _, err := empty(t, dial(t, serve(t, s), grpc.WithDefaultServiceConfig(eagerRetries)))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.EqualValues(t, 5, s.calls.Load())
}
