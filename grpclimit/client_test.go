package grpclimit_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

// connTo is a connection that nothing is sent by.
func connTo(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A wire is where the calls of a Client go in a synctest bubble: it notes when, and answers.
type wire struct {
	*grpclimit.Client
	conn    *grpc.ClientConn
	begun   time.Time
	sent    []time.Duration // since then
	answers []answer        // of one call after another, and then success
}

type answer struct {
	err     error
	trailer metadata.MD
}

// inBubble runs a test of a Client whose time is the bubble's.
func inBubble(t *testing.T, test func(t *testing.T, w *wire), c grpclimit.ClientConfig, limit sluice.Config) {
	t.Helper()
	conn := connTo(t, "a")
	synctest.Test(t, func(t *testing.T) {
		if limit.Limit != (sluice.Limit{}) {
			c.Limiter = newLimiter(t, limit)
		}
		client, err := grpclimit.NewClient(c)
		require.NoError(t, err)
		test(t, &wire{Client: client, conn: conn, begun: time.Now()})
	})
}

func (w *wire) call(ctx context.Context, method string) error {
	return w.Unary(ctx, method, nil, nil, w.conn, func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		w.sent = append(w.sent, time.Since(w.begun))
		if len(w.answers) == 0 {
			return nil
		}
		a := w.answers[0]
		w.answers = w.answers[1:]
		for _, opt := range opts {
			if to, ok := opt.(grpc.TrailerCallOption); ok {
				*to.TrailerAddr = a.trailer
			}
		}
		return a.err
	})
}

// refusal is an answer with a RetryInfo, unless that is negative, and pushbacks.
func refusal(code codes.Code, retry time.Duration, pushbacks ...string) answer {
	s := status.New(code, "no")
	if retry >= 0 {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	md := metadata.MD{}
	md.Append("grpc-retry-pushback-ms", pushbacks...)
	return answer{s.Err(), md}
}

func seconds(n ...int) (all []time.Duration) {
	for _, s := range n {
		all = append(all, time.Duration(s)*time.Second)
	}
	return all
}

func TestClient_WaitsForTheLimiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		for range 4 {
			require.NoError(t, w.call(t.Context(), "/s/m"))
		}
		assert.Equal(t, seconds(0, 0, 1, 2), w.sent)
	}, grpclimit.ClientConfig{}, sluice.Config{Limit: sluice.PerSecond(1).WithBurst(2)})
}

func TestClient_KeyAndCost(t *testing.T) {
	var told []grpclimit.Call
	c := grpclimit.ClientConfig{
		Key: func(_ context.Context, call grpclimit.Call) (string, error) {
			told = append(told, call)
			return call.FullMethod, nil
		},
		Cost: func(_ context.Context, call grpclimit.Call) int { return len(call.FullMethod) - 3 },
	}
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))  // 1 of 2
		require.NoError(t, w.call(t.Context(), "/s/mn")) // 2 of 2
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.NoError(t, w.call(t.Context(), "/s/mn"))
		assert.Equal(t, seconds(0, 0, 0, 2), w.sent)
		err := w.call(t.Context(), "/s/mno")
		assert.ErrorIs(t, err, sluice.ErrCostExceedsBurst)
		assert.Equal(t, grpclimit.Call{FullMethod: "/s/m", Target: "passthrough:///a"}, told[0])
		assert.Len(t, told, 5)
	}, c, sluice.Config{Limit: sluice.PerSecond(1).WithBurst(2)})

	c.Cost = nil
	c.Key = func(context.Context, grpclimit.Call) (string, error) { return "", grpclimit.ErrNoKey }
	inBubble(t, func(t *testing.T, w *wire) {
		assert.ErrorIs(t, w.call(t.Context(), "/s/m"), grpclimit.ErrNoKey)
		assert.Empty(t, w.sent)
	}, c, sluice.Config{Limit: sluice.PerSecond(1)})
}

// By default each target has a budget.
func TestClient_OneBudgetForEachTarget(t *testing.T) {
	client := sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{Limiter: gcra(t, sluice.PerHour(1), newClock()), FailFast: true}))
	for _, tt := range []struct {
		target string
		ok     bool
	}{{"a", true}, {"b", true}, {"a", false}} {
		w := &wire{Client: client, conn: connTo(t, tt.target)}
		assert.Equal(t, tt.ok, w.call(t.Context(), "/s/m") == nil)
	}
}

// A hold is that of a method at one target.
func TestClient_OneHoldForEachTarget(t *testing.T) {
	client := sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{FailFast: true}))
	a, b := &wire{Client: client, conn: connTo(t, "a")}, &wire{Client: client, conn: connTo(t, "b")}
	a.answers = []answer{refusal(codes.ResourceExhausted, time.Minute)}
	require.Error(t, a.call(t.Context(), "/s/m"))
	assert.ErrorIs(t, a.call(t.Context(), "/s/m"), grpclimit.ErrLimited)
	assert.NoError(t, b.call(t.Context(), "/s/m"))
}

func requireLimited(t *testing.T, err error, held bool, after time.Duration, why error) {
	t.Helper()
	var e *grpclimit.LimitError
	require.ErrorAs(t, err, &e)
	assert.ErrorIs(t, err, grpclimit.ErrLimited)
	assert.Equal(t, held, e.Held)
	assert.Equal(t, after, e.RetryAfter)
	assert.Equal(t, "/s/m", e.FullMethod)
	if why == nil {
		assert.NoError(t, e.Err)
	} else {
		assert.ErrorContains(t, err, why.Error())
	}
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, e.Error(), status.Convert(err).Message())
}

func TestClient_FailFast(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		requireLimited(t, w.call(t.Context(), "/s/m"), false, time.Second, nil)
		time.Sleep(time.Second) // of the bubble
		w.answers = []answer{refusal(codes.ResourceExhausted, time.Minute)}
		require.Error(t, w.call(t.Context(), "/s/m"))
		time.Sleep(time.Second)
		requireLimited(t, w.call(t.Context(), "/s/m"), true, 59*time.Second, nil)
		assert.Equal(t, seconds(0, 1), w.sent)
	}, grpclimit.ClientConfig{FailFast: true}, sluice.Config{Limit: sluice.PerSecond(1)})
}

func TestClient_Patience(t *testing.T) {
	long, limit := errors.New("MaxWait"), sluice.Config{Limit: sluice.Per(1, 40*time.Second)}
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.NoError(t, w.call(t.Context(), "/s/m"))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		err := w.call(ctx, "/s/m")
		requireLimited(t, err, false, 40*time.Second, context.DeadlineExceeded)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, seconds(0, 40), w.sent)
		assert.Equal(t, 40*time.Second, time.Since(w.begun), "it fails at once")
		w.answers = []answer{refusal(codes.Unavailable, 30*time.Second)}
		require.Error(t, w.call(t.Context(), "/s/m"))
		ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		requireLimited(t, w.call(ctx, "/s/m"), true, 30*time.Second, context.DeadlineExceeded)
	}, grpclimit.ClientConfig{}, limit)
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		requireLimited(t, w.call(t.Context(), "/s/m"), false, 40*time.Second, long)
	}, grpclimit.ClientConfig{MaxWait: 39 * time.Second}, limit)
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		requireLimited(t, w.call(t.Context(), "/s/m"), false, time.Hour, long)
	}, grpclimit.ClientConfig{}, sluice.Config{Limit: sluice.PerHour(1)})
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.NoError(t, w.call(t.Context(), "/s/m"))
		assert.Equal(t, seconds(0, 3600), w.sent)
	}, grpclimit.ClientConfig{MaxWait: sluice.Never}, sluice.Config{Limit: sluice.PerHour(1)})
}

// A call whose context ends while it waits has the status of that, and is charged nothing.
func TestClient_ContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		assert.Equal(t, codes.Canceled, status.Code(w.call(ctx, "/s/m")))
		assert.Equal(t, codes.Canceled, status.Code(w.call(ctx, "/s/m")))
		require.NoError(t, w.call(t.Context(), "/s/m"))
		assert.Equal(t, seconds(0, 10), w.sent)
	}, grpclimit.ClientConfig{}, sluice.Config{Limit: sluice.Per(1, 10*time.Second)})
}

func TestClient_HoldsBackTheMethod(t *testing.T) {
	for name, tt := range map[string]struct {
		answer answer
		want   time.Duration
	}{
		"RetryInfo":                   {refusal(codes.ResourceExhausted, 5*time.Second), 5 * time.Second},
		"pushback":                    {refusal(codes.ResourceExhausted, -1, "5000"), 5 * time.Second},
		"the longer one":              {refusal(codes.ResourceExhausted, 5*time.Second, "4999"), 5 * time.Second},
		"the longer pushback":         {refusal(codes.Unavailable, time.Second, "5000"), 5 * time.Second},
		"do not retry":                {refusal(codes.ResourceExhausted, 5*time.Second, "-1"), 5 * time.Second},
		"a malformed pushback":        {refusal(codes.ResourceExhausted, -1, "5s"), 0},
		"a pushback above 32 bits":    {refusal(codes.ResourceExhausted, -1, "2147483648"), 0},
		"two pushbacks":               {refusal(codes.ResourceExhausted, -1, "5000", "5000"), 0},
		"neither":                     {refusal(codes.ResourceExhausted, -1), 0},
		"another code":                {refusal(codes.Aborted, 5*time.Second, "5000"), 0},
		"no longer than is tolerated": {refusal(codes.ResourceExhausted, time.Hour), 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wire) {
				w.answers = []answer{tt.answer, {}, refusal(codes.ResourceExhausted, time.Second)}
				assert.Equal(t, tt.answer.err, w.call(t.Context(), "/s/m"))
				require.NoError(t, w.call(t.Context(), "/s/other"), "which is not held back")
				w.answers = nil
				require.NoError(t, w.call(t.Context(), "/s/m"))
				assert.Equal(t, []time.Duration{0, 0, tt.want}, w.sent)
			}, grpclimit.ClientConfig{MaxRetryAfter: 30 * time.Second}, sluice.Config{})
		})
	}
}

// A call that waits for the limiter is not sent into a hold that begins meanwhile, nor charged for it.
func TestClient_AHoldThatBegins(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		require.NoError(t, w.call(t.Context(), "/s/m"))
		w.answers = []answer{refusal(codes.ResourceExhausted, 150*time.Second)}
		done := make(chan error)
		for range 2 {
			go func() { done <- w.call(t.Context(), "/s/m") }()
		}
		assert.Error(t, <-done)
		assert.NoError(t, <-done)
		assert.Equal(t, seconds(0, 100, 250), w.sent, "had it been charged for 200, it would have to wait until 300")
		require.NoError(t, w.call(t.Context(), "/s/m"))
		assert.Equal(t, seconds(0, 100, 250, 350), w.sent)
	}, grpclimit.ClientConfig{MaxWait: time.Hour}, sluice.Config{Limit: sluice.Per(1, 100*time.Second)})
}

func TestClient_Retries(t *testing.T) {
	again := func(method string) bool { return method != "/s/unsafe" }
	soon := refusal(codes.ResourceExhausted, 5*time.Second, "5000")
	for name, tt := range map[string]struct {
		method  string
		answers []answer
		want    int // attempts
	}{
		"denied once":                {"/s/m", []answer{soon}, 2},
		"denied twice":               {"/s/m", []answer{soon, soon}, 3},
		"denied too often":           {"/s/m", []answer{soon, soon, soon}, 3},
		"of a server that is away":   {"/s/m", []answer{refusal(codes.Unavailable, 5*time.Second)}, 2},
		"what may not be sent twice": {"/s/unsafe", []answer{soon}, 1},
		"a no":                       {"/s/m", []answer{refusal(codes.ResourceExhausted, 5*time.Second, "-1")}, 1},
		"a malformed pushback":       {"/s/m", []answer{refusal(codes.ResourceExhausted, 5*time.Second, "soon")}, 1},
		"two pushbacks":              {"/s/m", []answer{refusal(codes.ResourceExhausted, 5*time.Second, "1", "1")}, 1},
		"a server that says nothing": {"/s/m", []answer{refusal(codes.ResourceExhausted, -1)}, 1},
		"another error":              {"/s/m", []answer{refusal(codes.Internal, 5*time.Second, "5000")}, 1},
		"too long a wait":            {"/s/m", []answer{refusal(codes.ResourceExhausted, 6*time.Minute)}, 1},
		"more than MaxWait":          {"/s/m", []answer{refusal(codes.ResourceExhausted, 2*time.Minute)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wire) {
				w.answers = tt.answers
				err := w.call(t.Context(), tt.method)
				assert.Len(t, w.sent, tt.want)
				if len(tt.answers) < tt.want {
					assert.NoError(t, err)
				} else {
					assert.Equal(t, tt.answers[tt.want-1].err, err, "the answer, as it is")
				}
				for i := 1; i < len(w.sent); i++ {
					pause := w.sent[i] - w.sent[i-1]
					assert.Greater(t, pause, 5*time.Second, "what the server asks for")
					assert.Less(t, pause, 5*time.Second+100*time.Millisecond<<(i-1), "and a random time")
				}
			}, grpclimit.ClientConfig{MaxRetries: 2, Idempotent: again, MaxWait: time.Minute}, sluice.Config{})
		})
	}
}

// A server that asks for more than is tolerated has said that a retry would come too early.
func TestClient_NoRetryBeforeTheServerWantsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		w.answers = []answer{refusal(codes.ResourceExhausted, time.Minute)}
		require.Error(t, w.call(t.Context(), "/s/m"))
		assert.Equal(t, seconds(0), w.sent)
	}, grpclimit.ClientConfig{MaxRetries: 1, Idempotent: func(string) bool { return true }, MaxRetryAfter: 30 * time.Second, MaxWait: time.Hour}, sluice.Config{})
}

// MaxWait is for all waits of a call together.
func TestClient_MaxWaitIsForAllWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		soon := refusal(codes.ResourceExhausted, 5*time.Second)
		w.answers = []answer{soon, soon, soon, soon}
		require.Error(t, w.call(t.Context(), "/s/m"))
		assert.Len(t, w.sent, 3)
	}, grpclimit.ClientConfig{MaxRetries: 5, Idempotent: func(string) bool { return true }, MaxWait: 12 * time.Second}, sluice.Config{})
}

// Retries are charged, and wait within the deadline only.
func TestClient_RetriesAreCharged(t *testing.T) {
	c := grpclimit.ClientConfig{MaxRetries: 5, Idempotent: func(string) bool { return true }}
	denial := refusal(codes.ResourceExhausted, 0, "0")
	inBubble(t, func(t *testing.T, w *wire) {
		w.answers = []answer{denial, denial}
		require.NoError(t, w.call(t.Context(), "/s/m"))
		assert.Equal(t, seconds(0, 10, 20), w.sent)
		w.answers = []answer{denial, denial}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		assert.Equal(t, denial.err, w.call(ctx, "/s/m"))
		assert.Equal(t, seconds(0, 10, 20, 30), w.sent, "there is no time for another")
		assert.NoError(t, ctx.Err())
	}, c, sluice.Config{Limit: sluice.Per(1, 10*time.Second)})
}

func TestClient_ShadowIsNotWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		for range 3 {
			require.NoError(t, w.call(t.Context(), "/s/m"))
		}
		assert.Equal(t, seconds(0, 0, 0), w.sent)
	}, grpclimit.ClientConfig{}, sluice.Config{Limit: sluice.PerHour(1), Shadow: true})
}

// Holds are bounded: what a method too many asks for is not kept, until others have ended.
func TestClient_HoldsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		hold := func(method string) {
			w.answers = []answer{refusal(codes.ResourceExhausted, time.Minute)}
			require.Equal(t, codes.ResourceExhausted, status.Code(w.call(t.Context(), method)))
		}
		held := func(method string) bool {
			n := len(w.sent)
			_ = w.call(t.Context(), method)
			return len(w.sent) == n
		}
		for i := range 4096 {
			hold("/s/m" + strconv.Itoa(i))
		}
		hold("/s/n")
		assert.True(t, held("/s/m0"))
		assert.True(t, held("/s/m4095"))
		assert.False(t, held("/s/n"))
		time.Sleep(time.Minute)
		hold("/s/n")
		assert.True(t, held("/s/n"))
		assert.False(t, held("/s/m0"))
	}, grpclimit.ClientConfig{FailFast: true}, sluice.Config{})
}

// Client and server, over loopback: a denial holds the method back, whether it was a unary call or
// a stream, and the call comes again where that is safe.
func TestClient_OverLoopback(t *testing.T) {
	c, told := comesBack(t)
	s := &service{}
	client, err := grpclimit.NewClient(grpclimit.ClientConfig{MaxRetries: 3, Idempotent: func(string) bool { return true }})
	require.NoError(t, err)
	conn := dial(t, serve(t, s, newJudge(t, c).ServerOptions()...), client.DialOptions()...)
	for range 3 {
		_, _, err := empty(t, conn)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 3, s.calls.Load())
	assert.EqualValues(t, 5, told.Load())
}

func TestClient_Streams(t *testing.T) {
	clock := newClock()
	c := onePolicy(t, sluice.PerHour(1), clock)
	var asked atomic.Int64
	c.OnDecision = func(context.Context, grpclimit.Call, grpclimit.Decision) { asked.Add(1) }
	own := gcra(t, sluice.PerHour(3), clock)
	client := sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{Limiter: own, FailFast: true, MaxRetryAfter: 365 * 24 * time.Hour}))
	conn := dial(t, serve(t, &service{}, newJudge(t, c).ServerOptions()...), client.DialOptions()...)
	got, _, err := echo(t, conn, 3)
	assert.Equal(t, "EOF", err.Error())
	assert.Equal(t, 3, got)
	_, _, err = echo(t, conn, 3)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.NotErrorIs(t, err, grpclimit.ErrLimited, "the server's denial")
	_, err = conn.FullDuplexCall(timeout(t))
	require.ErrorIs(t, err, grpclimit.ErrLimited)
	var e *grpclimit.LimitError
	require.ErrorAs(t, err, &e)
	assert.True(t, e.Held)
	assert.EqualValues(t, 2, asked.Load(), "the third one has not been sent")

	_, err = conn.StreamingInputCall(timeout(t)) // another method
	require.NoError(t, err)
	_, err = conn.StreamingInputCall(timeout(t))
	require.ErrorAs(t, err, &e)
	assert.False(t, e.Held, "the limiter, which counts openings")
	assert.Equal(t, testpb.TestService_StreamingInputCall_FullMethodName, e.FullMethod)
}
