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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

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
