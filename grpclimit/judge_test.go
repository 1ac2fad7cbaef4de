package grpclimit_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

// Decide is what the interceptors do, for servers of other frameworks.
func TestDecide(t *testing.T) {
	c := onePolicy(t, sluice.Per(2, 2*time.Second), newClock())
	settled := 0
	c.Settle = func(_ context.Context, call grpclimit.Call, code codes.Code) int {
		assert.Equal(t, "/s/m", call.FullMethod)
		assert.Equal(t, codes.Aborted, code)
		settled++
		return 0
	}
	j, lim, call := newJudge(t, c), c.Policies[0].Limiter, grpclimit.Call{FullMethod: "/s/m"}
	first, second, third := j.Decide(t.Context(), call), j.Decide(t.Context(), call), j.Decide(t.Context(), call)
	assert.NoError(t, first.Err())
	assert.NoError(t, second.Err())
	var e *grpclimit.DeniedError
	require.ErrorAs(t, third.Err(), &e)
	requireDenied(t, e, e.Trailer(), time.Second, "1000", "p")
	assert.Equal(t, `grpclimit: quota exceeded: "p"; retry after 1s`, e.Error())

	third.Settle(codes.Aborted)
	assert.Zero(t, settled, "a call that was denied")
	first.Settle(codes.Aborted)
	first.Settle(codes.Aborted)
	assert.Equal(t, 1, settled)
	assert.Equal(t, 1, lim.Key("k").Peek(0).Remaining)

	skipped := j.Decide(t.Context(), grpclimit.Call{FullMethod: "/grpc.health.v1.Health/Check"})
	assert.Equal(t, grpclimit.Decision{Allowed: true, Remaining: math.MaxInt}, skipped.Decision)
	skipped.Settle(codes.Aborted)
	assert.Equal(t, 1, settled)
	assert.Equal(t, 1, lim.Key("k").Peek(0).Remaining)
}

// Charges of messages are final, and a denial says not to send the call again.
func TestDecide_Messages(t *testing.T) {
	for _, per := range []grpclimit.Per{grpclimit.PerReceived, grpclimit.PerSent} {
		c := onePolicy(t, sluice.PerSecond(1), newClock())
		c.Policies[0].Per = per
		c.Settle = func(context.Context, grpclimit.Call, codes.Code) int { panic("not asked") }
		j := newJudge(t, c)
		opened := j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m", Stream: true})
		message := j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m", Stream: true, Per: per})
		require.True(t, opened.Allowed)
		require.True(t, message.Allowed)
		message.Settle(codes.OK)
		opened.Settle(codes.OK)
		var e *grpclimit.DeniedError
		require.ErrorAs(t, j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m", Stream: true, Per: per}).Err(), &e)
		requireDenied(t, e, e.Trailer(), time.Second, "-1", "p")
	}
}

// A Limiter that a handler asks itself tells the client all that the interceptors do.
func TestLimiter(t *testing.T) {
	c := onePolicy(t, sluice.Per(1, time.Second), newClock())
	c.Policies[0].Key = grpclimit.ByMethod()
	limiter, err := grpclimit.NewLimiter(c)
	require.NoError(t, err)
	client := dial(t, serve(t, &service{empty: limiter.Limit}))
	_, _, err = empty(t, client)
	require.NoError(t, err)
	_, trailer, err := empty(t, client)
	requireDenied(t, err, trailer, time.Second, "1000", "p")
	assert.Zero(t, c.Policies[0].Limiter.Key(testpb.TestService_EmptyCall_FullMethodName).Peek(0).Remaining)

	assert.Equal(t, codes.InvalidArgument, status.Code(limiter.Limit(t.Context())), "where there is no call there is no method")
}

// A counted is a Remote that counts what it is told.
type counted struct{ taken, refunded int }

func (c *counted) Take(_ context.Context, _ string, cost int) (sluice.Decision, error) {
	c.taken += cost
	return sluice.Decision{Allowed: true, Limit: 100, Remaining: 100 - c.taken, ResetAfter: time.Hour}, nil
}

func (c *counted) Refund(_ context.Context, _ string, cost int) error {
	c.refunded += cost
	return nil
}

// A call whose Key panics has been charged nothing, so nothing is given back, of it or of a call before it.
func TestJudge_KeyPanicsBeforeAnythingIsCharged(t *testing.T) {
	first, second, settled, panics := &counted{}, &counted{}, 0, false
	key := func(context.Context, grpclimit.Call) (string, error) { return "k", nil }
	j := newJudge(t, grpclimit.Config{
		Policies: []grpclimit.Policy{
			{Name: "first", Remote: first, Key: key},
			{Name: "second", Remote: second, Key: func(context.Context, grpclimit.Call) (string, error) {
				if panics {
					panic("on purpose")
				}
				return "k", nil
			}},
		},
		Settle: func(context.Context, grpclimit.Call, codes.Code) int { settled++; return 0 },
	})
	for range 100 {
		v := j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"})
		require.True(t, v.Allowed)
		v.Settle(codes.OK)
		panics = true
		require.Panics(t, func() { j.Decide(t.Context(), grpclimit.Call{FullMethod: "/s/m"}) })
		panics = false
	}
	require.Equal(t, 100, settled)
	require.Equal(t, counted{100, 100}, *first)
	require.Equal(t, counted{100, 100}, *second)
}
