package httplimit

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A fakeBase is a base transport that answers from memory, notes what it was sent and
// when, and closes request bodies as a RoundTripper must.
type fakeBase struct {
	answer func(n int, req *http.Request) *http.Response // n counts from 0

	mu     sync.Mutex
	sent   []*http.Request
	bodies []string
	at     []time.Duration // since start
	start  time.Time
}

func newFakeBase(answer func(n int, req *http.Request) *http.Response) *fakeBase {
	return &fakeBase{answer: answer, start: time.Now()}
}

func (b *fakeBase) RoundTrip(req *http.Request) (*http.Response, error) {
	body := ""
	if req.Body != nil {
		read, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = string(read)
		req.Body.Close()
	}
	b.mu.Lock()
	n := len(b.sent)
	b.sent = append(b.sent, req)
	b.bodies = append(b.bodies, body)
	b.at = append(b.at, time.Since(b.start))
	b.mu.Unlock()
	resp := b.answer(n, req)
	if resp != nil {
		resp.Request = req
	}
	return resp, nil
}

func (b *fakeBase) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent)
}

// respond makes a response with the given header lines, in pairs.
func respond(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: newTrackedBody("answer"), ContentLength: -1}
}

func always(status int, header ...string) func(int, *http.Request) *http.Response {
	return func(int, *http.Request) *http.Response { return respond(status, header...) }
}

// denyFirst denies the first n requests.
func denyFirst(n, status int, header ...string) func(int, *http.Request) *http.Response {
	return func(i int, _ *http.Request) *http.Response {
		if i < n {
			return respond(status, header...)
		}
		return respond(http.StatusOK)
	}
}

type trackedBody struct {
	io.Reader
	mu     sync.Mutex
	read   int
	closed int
	eof    bool
}

func newTrackedBody(s string) *trackedBody { return &trackedBody{Reader: strings.NewReader(s)} }

func (b *trackedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read += n
	b.eof = b.eof || errors.Is(err, io.EOF)
	if b.closed > 0 {
		return 0, errors.New("read after close")
	}
	return n, err
}

// released reports whether the body has been read to its end and closed.
func (b *trackedBody) released() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.eof && b.closed == 1
}

func (b *trackedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed++
	return nil
}

func newTestTransport(t *testing.T, base http.RoundTripper, c TransportConfig) *Transport {
	t.Helper()
	tr, err := NewTransport(base, c)
	require.NoError(t, err)
	tr.jitter = func(time.Duration) time.Duration { return 0 }
	return tr
}

func newLimiter(t *testing.T, l sluice.Limit) *sluice.Limiter {
	t.Helper()
	lim, err := sluice.New(sluice.Config{Limit: l})
	require.NoError(t, err)
	return lim
}

func get(t *testing.T, target string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	require.NoError(t, err)
	return req
}

// send sends a GET and returns the status.
func send(t *testing.T, tr *Transport, target string) int {
	t.Helper()
	resp, err := tr.RoundTrip(get(t, target))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func limitError(t *testing.T, err error) *LimitError {
	t.Helper()
	var e *LimitError
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrLimited)
	return e
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
