package httplimit_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Of two requests that overlap, the second one's unit has come back by itself as soon as that of
// the first has been given back.
func TestSettle_OfTwoThatOverlap(t *testing.T) {
	for _, algorithm := range []sluice.Algorithm{sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket} {
		clock := newClock()
		lim := newLimiter(t, sluice.Config{Algorithm: algorithm, Limit: sluice.PerMinute(10), Clock: clock})
		judge := freeJudge(t, lim, func() int { return 1 })
		first := decide(judge)
		clock.Advance(3 * time.Second)
		second := decide(judge)
		clock.Advance(2400 * time.Millisecond)
		first.Settle(200)
		clock.Advance(2600 * time.Millisecond) // 8 s
		require.True(t, lim.AllowN("k", 9))
		clock.Advance(500 * time.Millisecond)
		second.Settle(200)
		assert.Equal(t, 1, lim.Key("k").Peek(0).Remaining, "%v: 9 units, of which half a one has come back", algorithm)
	}
}

// However many requests of a key are open at once, and whenever they end: those that turn out to
// cost nothing leave no more than there would be without them. Under the window algorithms it is
// the same to the unit.
func TestSettle_OfManyThatOverlap(t *testing.T) {
	limit := sluice.PerMinute(200)
	for _, c := range []sluice.Config{
		{Limit: limit}, {Algorithm: sluice.TokenBucket, Limit: limit}, {Algorithm: sluice.LeakyBucket, Limit: limit},
		{Algorithm: sluice.TokenBucketInterval, Limit: sluice.PerSecond(5).WithBurst(200)},
		{Algorithm: sluice.FixedWindow, Limit: limit}, {Algorithm: sluice.SlidingWindow, Limit: limit}, {Algorithm: sluice.SlidingLog, Limit: limit},
	} {
		t.Run(c.Algorithm.String(), func(t *testing.T) {
			rng := seeded.Rand(t)
			for range 100 {
				clock := newClock()
				c.Clock = clock
				lim, without := newLimiter(t, c), newLimiter(t, c)
				judge := freeJudge(t, lim, func() int { return 1 + rng.IntN(5) })
				var open []*httplimit.Verdict
				for range 60 {
					switch rng.IntN(4) {
					case 0:
						open = append(open, decide(judge))
					case 1:
						if n := 1 + rng.IntN(20); lim.AllowN("k", n) {
							without.Key("k").Debit(n)
						}
					case 2:
						clock.Advance(time.Duration(rng.Int64N(int64(8 * time.Second))))
					case 3:
						if len(open) > 0 {
							i := rng.IntN(len(open))
							open[i].Settle(200)
							open = append(open[:i], open[i+1:]...)
						}
					}
				}
				for _, v := range open {
					v.Settle(200)
				}
				got, want := lim.Key("k").Peek(0), without.Key("k").Peek(0)
				switch c.Algorithm {
				case sluice.FixedWindow, sluice.SlidingWindow, sluice.SlidingLog:
					require.Equal(t, want, got)
				default:
					require.LessOrEqual(t, got.Remaining, want.Remaining)
					require.GreaterOrEqual(t, got.ResetAfter, want.ResetAfter)
				}
			}
		})
	}
}

// freeJudge judges requests that cost nothing in the end.
func freeJudge(t *testing.T, lim *sluice.Limiter, cost func() int) *httplimit.Judge {
	t.Helper()
	return sluice.Must(httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: func(*http.Request) int { return cost() }}},
		Settle:   func(*http.Request, int) int { return 0 },
	}))
}

func decide(judge *httplimit.Judge) *httplimit.Verdict {
	return judge.Decide(http.Header{}, httptest.NewRequest(http.MethodGet, "/", nil))
}

// settled puts a middleware that notes what Settle is told in front of a handler.
func settled(t *testing.T, next http.Handler) (handler http.Handler, statuses chan int) {
	statuses = make(chan int, 1)
	return wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
		Settle:   func(_ *http.Request, status int) int { statuses <- status; return 0 },
	}, next), statuses
}

// A handler that returns because its client has gone has not succeeded.
func TestSettle_AClientThatHasGone(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for answer, want := range map[int]int{0: httplimit.StatusClientGone, 200: 200, 401: 401} {
			begun := make(chan struct{})
			handler, statuses := settled(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(begun)
				<-r.Context().Done()
				if answer != 0 {
					w.WriteHeader(answer)
				}
			}))
			client, url := serve(t, h2, handler)
			ctx, cancel := context.WithCancel(context.Background())
			go func() { <-begun; cancel() }()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			require.NoError(t, err)
			_, err = client.Do(req)
			require.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, want, <-statuses, "http2=%v answer=%d", h2, answer)
		}
	}
}

// Settle gets the request, so that it can tell why.
func TestSettle_GetsTheRequest(t *testing.T) {
	type key struct{}
	var got *http.Request
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
		Settle:   func(r *http.Request, _ int) int { got = r; return 0 },
	}, ok200)
	mux := http.NewServeMux()
	mux.Handle("/items/{id}", handler)
	r := httptest.NewRequest(http.MethodGet, "/items/7", nil).WithContext(context.WithValue(context.Background(), key{}, "v"))
	mux.ServeHTTP(httptest.NewRecorder(), r)
	assert.Equal(t, "7", got.PathValue("id"))
	assert.Equal(t, "v", got.Context().Value(key{}))
}

// Around the middleware, http.TimeoutHandler answers for the handler; in it, it is one.
func TestSettle_TimeoutHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve := func(handler http.Handler, statuses chan int) (client, told int) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Code, <-statuses
		}
		slow := func(answer int) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				if answer != 0 {
					w.WriteHeader(answer)
				}
			})
		}
		for answer, want := range map[int]int{0: httplimit.StatusClientGone, 401: 401} {
			inner, statuses := settled(t, slow(answer))
			client, told := serve(http.TimeoutHandler(inner, time.Second, "late"), statuses)
			assert.Equal(t, 503, client)
			assert.Equal(t, want, told)
		}
		outer, statuses := settled(t, http.TimeoutHandler(slow(0), time.Second, "late"))
		client, told := serve(outer, statuses)
		assert.Equal(t, 503, client)
		assert.Equal(t, 503, told)
	})
}

// http.MaxBytesReader closes the connection only with the server's own ResponseWriter,
// which http.MaxBytesHandler has if it is in front.
func TestSettle_MaxBytes(t *testing.T) {
	reads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 10))
		assert.ErrorAs(t, err, new(*http.MaxBytesError))
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	inside, _ := settled(t, reads)
	handlerInFront, _ := settled(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.ErrorAs(t, err, new(*http.MaxBytesError))
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))
	for _, tt := range []struct {
		name    string
		handler http.Handler
		closes  bool
	}{{"without the middleware", reads, true}, {"inside", inside, false}, {"in front", http.MaxBytesHandler(handlerInFront, 10), true}} {
		t.Run(tt.name, func(t *testing.T) {
			_, url := serve(t, false, tt.handler)
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"+strings.Repeat("x", 100))
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
			assert.Equal(t, tt.closes, resp.Close)
		})
	}
}

// panicking is a source of so many bytes.
type panicking struct{ after int }

func (p *panicking) Read(b []byte) (int, error) {
	if p.after == 0 {
		panic("oops")
	}
	n := min(len(b), p.after)
	p.after -= n
	return n, nil
}

// panickingWriterTo is a source that does the copying.
type panickingWriterTo struct{ io.Reader }

func (panickingWriterTo) WriteTo(w io.Writer) (int64, error) {
	_, _ = io.WriteString(w, "x")
	panic("oops")
}
