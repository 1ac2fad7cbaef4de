package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestClient_AtOnce: so many calls run at once, however long and however they end, and the next one waits for an end.
func TestClient_AtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		var calls sync.WaitGroup
		var mu sync.Mutex
		running, most := 0, 0
		invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			mu.Lock()
			running++
			most = max(most, running)
			n := running
			mu.Unlock()
			time.Sleep(5 * time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			if n == 2 {
				return status.Error(codes.Internal, "x")
			}
			return nil
		}
		for range 10 {
			calls.Go(func() { _ = w.Unary(t.Context(), "/s/m", nil, nil, w.conn, invoke) })
		}
		calls.Wait()
		assert.Equal(t, 2, most)
		assert.Equal(t, 25*time.Second, time.Since(w.begun))
	}, grpclimit.ClientConfig{}, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Second)})
}

// TestClient_AtOnce_BoundedWaits: a wait for a unit ends with MaxWait or the context, and a limit error asks for no more than
// a second.
func TestClient_AtOnce_BoundedWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		end := make(chan struct{})
		go func() {
			_ = w.Unary(t.Context(), "/s/m", nil, nil, w.conn, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				<-end
				return nil
			})
		}()
		synctest.Wait()
		begin := time.Now()
		requireLimited(t, w.call(t.Context(), "/s/m"), false, time.Second, errors.New("MaxWait"))
		require.InDelta(t, 5*time.Second, time.Since(begin), float64(time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin = time.Now()
		require.Equal(t, codes.DeadlineExceeded, status.Code(w.call(ctx, "/s/m")))
		require.Equal(t, 2*time.Second, time.Since(begin))
		close(end)
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.NoError(t, w.call(t.Context(), "/s/m"))
	}, grpclimit.ClientConfig{MaxWait: 5 * time.Second}, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
}

// TestClient_AtOnce_RetriesAndPanics: an attempt is over when it returns or panics, also before a retry of it, and before
// Idempotent is asked.
func TestClient_AtOnce_RetriesAndPanics(t *testing.T) {
	panics := false
	idempotent := func(string) bool {
		if panics {
			panic("x")
		}
		return true
	}
	inBubble(t, func(t *testing.T, w *wire) {
		w.answers = []answer{refusal(codes.Unavailable, time.Second)}
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.GreaterOrEqual(t, time.Since(w.begun), time.Second)
		panics = true
		w.answers = []answer{refusal(codes.Unavailable, time.Second)}
		require.Panics(t, func() { _ = w.call(t.Context(), "/s/m") })
		require.Panics(t, func() {
			_ = w.Unary(t.Context(), "/s/m", nil, nil, w.conn, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { panic("x") })
		})
		opened := func(err error) grpc.Streamer {
			return func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				if err == nil {
					panic("x")
				}
				return nil, err
			}
		}
		for range 3 {
			_, err := w.Stream(t.Context(), &grpc.StreamDesc{}, w.conn, "/s/m", opened(io.ErrUnexpectedEOF))
			require.Equal(t, io.ErrUnexpectedEOF, err)
			require.Panics(t, func() { _, _ = w.Stream(t.Context(), &grpc.StreamDesc{}, w.conn, "/s/m", opened(nil)) })
		}
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.Less(t, time.Since(w.begun), 10*time.Second)
	}, grpclimit.ClientConfig{MaxRetries: 1, Idempotent: idempotent, MaxWait: 10 * time.Second}, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
}

// TestClient_AtOnce_LongStreams: a stream counts for longer than the limit's Period.
func TestClient_AtOnce_LongStreams(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		stream, err := w.Stream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, w.conn, "/s/m", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return ending{}, nil
		})
		require.NoError(t, err)
		for range 50 {
			time.Sleep(400 * time.Millisecond)
			require.ErrorIs(t, w.call(t.Context(), "/s/m"), grpclimit.ErrLimited)
		}
		require.Equal(t, io.EOF, stream.RecvMsg(nil))
		require.NoError(t, w.call(t.Context(), "/s/m"))
	}, grpclimit.ClientConfig{FailFast: true}, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Second)})
}

// ending is a stream whose first message is the end.
type ending struct{ grpc.ClientStream }

func (ending) RecvMsg(any) error { return io.EOF }

// TestClient_AtOnce_Streams: a stream is open until it has ended, in each way in which a stream of gRPC ends.
func TestClient_AtOnce_Streams(t *testing.T) {
	leave := make(chan struct{})
	defer close(leave)
	s := &service{duplex: func(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		for {
			in, err := stream.Recv()
			switch {
			case err == io.EOF:
				return nil
			case err != nil:
				return err
			case in.GetResponseStatus() != nil:
				return status.Error(codes.Aborted, "x")
			}
			if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
				return err
			}
		}
	}}
	address := serve(t, s)
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
	client := sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{
		Limiter: atOnce, FailFast: true, Key: func(context.Context, grpclimit.Call) (string, error) { return "k", nil },
	}))
	type stream = grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
	for name, end := range map[string]func(stream, context.CancelFunc, *grpc.ClientConn){
		"CloseSend and EOF": func(s stream, _ context.CancelFunc, _ *grpc.ClientConn) {
			require.NoError(t, s.CloseSend())
			require.Equal(t, 0, atOnce.Key("k").Peek(0).Remaining)
			_, err := s.Recv()
			require.Equal(t, io.EOF, err)
		},
		"error": func(s stream, _ context.CancelFunc, _ *grpc.ClientConn) {
			require.NoError(t, s.Send(&testpb.StreamingOutputCallRequest{ResponseStatus: &testpb.EchoStatus{}}))
			_, err := s.Recv()
			require.Equal(t, codes.Aborted, status.Code(err))
		},
		"context":    func(_ stream, cancel context.CancelFunc, _ *grpc.ClientConn) { cancel() },
		"connection": func(_ stream, _ context.CancelFunc, conn *grpc.ClientConn) { require.NoError(t, conn.Close()) },
		"misuse": func(s stream, _ context.CancelFunc, _ *grpc.ClientConn) {
			require.NoError(t, s.CloseSend())
			require.Error(t, s.Send(&testpb.StreamingOutputCallRequest{}))
		},
	} {
		conn, err := grpc.NewClient(address, append(client.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(timeout(t))
		open, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
		require.NoError(t, err, name)
		require.NoError(t, open.Send(&testpb.StreamingOutputCallRequest{}))
		_, err = open.Recv()
		require.NoError(t, err)
		_, err = testpb.NewTestServiceClient(conn).EmptyCall(ctx, &testpb.Empty{})
		require.ErrorIs(t, err, grpclimit.ErrLimited, name)
		end(open, cancel, conn)
		require.Eventually(t, func() bool { return atOnce.Key("k").Peek(0).Remaining == 1 }, patience, time.Millisecond, name)
		cancel()
		_ = conn.Close()
	}
}

// TestClient_AtOnce_OneResponse: a stream with one response is over when that has come.
func TestClient_AtOnce_OneResponse(t *testing.T) {
	atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(1, time.Hour)})
	client := sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{Limiter: atOnce, FailFast: true}))
	conn := dial(t, serve(t, &service{}), client.DialOptions()...)
	for range 3 {
		stream, err := conn.StreamingInputCall(timeout(t))
		require.NoError(t, err)
		_, err = conn.StreamingInputCall(timeout(t))
		require.ErrorIs(t, err, grpclimit.ErrLimited)
		require.NoError(t, stream.Send(&testpb.StreamingInputCallRequest{}))
		_, err = stream.CloseAndRecv()
		require.NoError(t, err)
	}
}

// TestClient_QueuesSayWhen: a limit error of a queue that has room asks for the wait until the turn, and not for none.
func TestClient_QueuesSayWhen(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wire) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond*2)
		defer cancel()
		require.NoError(t, w.call(ctx, "/s/m"))
		requireLimited(t, w.call(ctx, "/s/m"), false, time.Second, context.DeadlineExceeded)
		time.Sleep(time.Second)
		require.NoError(t, w.call(t.Context(), "/s/m"))
		require.Equal(t, time.Second, time.Since(w.begun))
	}, grpclimit.ClientConfig{}, sluice.Config{Algorithm: sluice.LeakyBucket, Limit: sluice.PerSecond(1).WithBurst(5)})
}

// TestClient_ResultsAreCharges: as many calls are sent as units are charged, whatever ends while they wait; and those that are
// not sent have the status of their context, or of the limit.
func TestClient_ResultsAreCharges(t *testing.T) {
	rng := seeded.Rand(t)
	const burst = 1000
	for _, algorithm := range []sluice.Algorithm{
		sluice.GCRA, sluice.TokenBucket, sluice.TokenBucketInterval, sluice.LeakyBucket, sluice.FixedWindow, sluice.FixedWindowFirstCharge,
		sluice.SlidingWindow, sluice.SlidingLog, sluice.InFlight,
	} {
		for round := range 20 {
			inBubble(t, func(t *testing.T, w *wire) {
				lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerHour(burst)})
				w.Client = sluice.Must(grpclimit.NewClient(grpclimit.ClientConfig{Limiter: lim, Key: oneKey}))
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
				lim.Key("k").Block(10 * time.Millisecond)
				leave := make(chan struct{})
				var mu sync.Mutex
				sent, over := 0, 0
				var all sync.WaitGroup
				for range 20 {
					deadline := time.Duration(8+rng.IntN(5)) * time.Millisecond
					cancels := rng.IntN(2) == 0
					all.Go(func() {
						ctx, cancel := context.WithCancel(t.Context())
						if cancels {
							time.AfterFunc(deadline, cancel)
						} else {
							ctx, cancel = context.WithTimeout(t.Context(), deadline)
						}
						defer cancel()
						err := w.Unary(ctx, "/s/m", nil, nil, w.conn, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
							mu.Lock()
							sent++
							mu.Unlock()
							<-leave
							return nil
						})
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							over++
						case errors.Is(err, grpclimit.ErrLimited):
							assert.ErrorIs(t, err, context.DeadlineExceeded)
						default:
							assert.Equal(t, status.FromContextError(ctx.Err()).Err(), err)
						}
					})
				}
				time.Sleep(20 * time.Millisecond)
				mu.Lock()
				now := sent
				mu.Unlock()
				require.Equal(t, burst-now, lim.Key("k").Peek(0).Remaining, "%v, round %d", algorithm, round)
				close(leave)
				all.Wait()
				require.Equal(t, sent, over)
				if algorithm == sluice.InFlight {
					require.Equal(t, burst, lim.Key("k").Peek(0).Remaining)
				}
			}, grpclimit.ClientConfig{}, sluice.Config{})
		}
	}
}
