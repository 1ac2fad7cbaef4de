package httplimit_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSettle_Hijacked(t *testing.T) {
	settled := make(chan int, 1)
	lim := gcra(t, sluice.PerMinute(10), newClock())
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey}},
		Settle:   func(_ *http.Request, status int) int { settled <- status; return 0 },
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var conn net.Conn
		var err error
		if r.URL.Path == "/controlled" {
			conn, _, err = http.NewResponseController(w).Hijack()
		} else {
			conn, _, err = w.(http.Hijacker).Hijack()
		}
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello")
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
	}))
	done := make(chan struct{}, 1) // no server waits for a connection that was taken over
	_, url := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { done <- struct{}{} }()
		handler.ServeHTTP(w, r)
	}))
	for _, path := range []string{"/", "/controlled", "/panic"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		assert.Equal(t, 101, resp.StatusCode)
		conn.Close()
		assert.Equal(t, 101, <-settled, path)
		<-done
	}
	assert.Equal(t, 10, lim.Key("k").Peek(0).Remaining)
}

// A handler finds the same abilities in its ResponseWriter with Settle and without.
func TestSettle_ResponseWriterKeepsItsAbilities(t *testing.T) {
	type abilities struct{ flush, hijack, push, deadline bool }
	find := func(w http.ResponseWriter) (a abilities) {
		_, a.flush = w.(http.Flusher)
		_, a.hijack = w.(http.Hijacker)
		_, a.push = w.(http.Pusher)
		a.deadline = http.NewResponseController(w).SetWriteDeadline(time.Time{}) == nil
		return a
	}
	for _, h2 := range []bool{false, true} {
		var bare, wrapped abilities
		mux := http.NewServeMux()
		mux.HandleFunc("/bare", func(w http.ResponseWriter, _ *http.Request) { bare = find(w) })
		mux.Handle("/wrapped", wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
			Settle:   func(*http.Request, int) int { return 0 },
		}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { wrapped = find(w) })))
		client, url := serve(t, h2, mux)
		for _, path := range []string{"/bare", "/wrapped"} {
			resp, err := client.Get(url + path)
			require.NoError(t, err)
			resp.Body.Close()
		}
		assert.Equal(t, bare, wrapped, "http2=%v", h2)
		assert.Equal(t, abilities{flush: true, hijack: !h2, push: h2, deadline: true}, wrapped, "http2=%v", h2)
	}
}

// A part of a ResponseWriter, to build ones with every set of abilities of.
type (
	bareWriter  struct{ http.ResponseWriter }
	fakeFlush   struct{ flushed *int }
	fakeHijack  struct{}
	fakePush    struct{}
	errorFlush  struct{ err error }
	fakeUnwraps struct{ inner http.ResponseWriter }
)

func (f fakeFlush) Flush()                                      { *f.flushed++ }
func (fakeHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, io.EOF }
func (fakePush) Push(string, *http.PushOptions) error           { return io.EOF }
func (f errorFlush) FlushError() error                          { return f.err }
func (f fakeUnwraps) Unwrap() http.ResponseWriter               { return f.inner }

// withAbilities returns a ResponseWriter that can flush if bit 0 of set is set, be hijacked
// for bit 1, and push for bit 2.
func withAbilities(set int, flushed *int) http.ResponseWriter {
	base := bareWriter{httptest.NewRecorder()}
	f, h, p := fakeFlush{flushed}, fakeHijack{}, fakePush{}
	return [8]http.ResponseWriter{
		base,
		struct {
			bareWriter
			fakeFlush
		}{base, f},
		struct {
			bareWriter
			fakeHijack
		}{base, h},
		struct {
			bareWriter
			fakeFlush
			fakeHijack
		}{base, f, h},
		struct {
			bareWriter
			fakePush
		}{base, p},
		struct {
			bareWriter
			fakeFlush
			fakePush
		}{base, f, p},
		struct {
			bareWriter
			fakeHijack
			fakePush
		}{base, h, p},
		struct {
			bareWriter
			fakeFlush
			fakeHijack
			fakePush
		}{base, f, h, p},
	}[set]
}

func TestSettle_EverySetOfAbilities(t *testing.T) {
	for set := range 8 {
		var flushed int
		w := withAbilities(set, &flushed)
		var status int
		wrap(t, httplimit.Config{
			Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
			Settle:   func(_ *http.Request, s int) int { status = s; return 0 },
		}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			flusher, flushes := w.(http.Flusher)
			hijacker, hijacks := w.(http.Hijacker)
			pusher, pushes := w.(http.Pusher)
			assert.Equal(t, set&1 != 0, flushes, "set %b", set)
			assert.Equal(t, set&2 != 0, hijacks, "set %b", set)
			assert.Equal(t, set&4 != 0, pushes, "set %b", set)
			if hijacks {
				_, _, err := hijacker.Hijack()
				assert.ErrorIs(t, err, io.EOF)
			}
			if pushes {
				assert.ErrorIs(t, pusher.Push("/", nil), io.EOF)
			}
			if flushes {
				flusher.Flush()
			} else {
				assert.ErrorIs(t, http.NewResponseController(w).Flush(), http.ErrNotSupported)
			}
			w.WriteHeader(401)
		})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		assert.Equal(t, set&1, flushed)
		assert.Equal(t, map[bool]int{true: 200, false: 401}[set&1 != 0], status, "a hijacking that fails is none")
	}
}

// Abilities that only a wrapped ResponseWriter has are found, as by
// http.ResponseController, and so is the error of a flush.
func TestSettle_AbilitiesOfWrappedResponseWriters(t *testing.T) {
	base := bareWriter{httptest.NewRecorder()}
	inner := struct {
		bareWriter
		errorFlush
		fakeHijack
	}{base, errorFlush{io.ErrClosedPipe}, fakeHijack{}}
	w := struct {
		bareWriter
		fakeUnwraps
	}{base, fakeUnwraps{inner}}
	var status int
	wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
		Settle:   func(_ *http.Request, s int) int { status = s; return 0 },
	}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, hijacks := w.(http.Hijacker)
		assert.True(t, hijacks)
		_, flushes := w.(http.Flusher)
		assert.True(t, flushes)
		assert.ErrorIs(t, http.NewResponseController(w).Flush(), io.ErrClosedPipe)
		w.WriteHeader(401)
	})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, 200, status, "the header has been sent, if not received")
}

// countingWriter counts the calls of ReadFrom, by which net/http sends files.
type countingWriter struct {
	http.ResponseWriter
	sources []io.Reader
}

func (w *countingWriter) ReadFrom(src io.Reader) (int64, error) {
	w.sources = append(w.sources, src)
	return io.Copy(struct{ io.Writer }{w.ResponseWriter}, src)
}

func TestSettle_FilesGoToReadFrom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.txt")
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))
	for name, send := range map[string]http.HandlerFunc{
		"served": func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) },
		"copied": func(w http.ResponseWriter, _ *http.Request) {
			file, err := os.Open(path)
			if assert.NoError(t, err) {
				defer file.Close()
				_, err = io.Copy(w, file)
				assert.NoError(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), newClock()), Key: oneKey}},
				Settle:   func(*http.Request, int) int { return 0 },
			}, send)
			body := httptest.NewRecorder()
			w := &countingWriter{ResponseWriter: body}
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Len(t, w.sources, 1)
			source := w.sources[0]
			if limited, ok := source.(*io.LimitedReader); ok {
				source = limited.R
			}
			assert.Implements(t, (*syscall.Conn)(nil), source, "what package net looks for")
			assert.Equal(t, "content", body.Body.String())
		})
	}
}

func TestWriteProblem(t *testing.T) {
	clock := newClock()
	handler := wrap(t, httplimit.Config{Policies: []httplimit.Policy{
		{Name: `<b> "x\`, Limiter: gcra(t, sluice.PerMinute(1), clock), Key: oneKey},
		{Name: "fine", Limiter: gcra(t, sluice.PerMinute(2), clock), Key: oneKey},
	}}, ok200)
	get(handler)
	w := get(handler)
	assert.Equal(t, 429, w.Code)
	assert.Equal(t, http.Header{"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "Retry-After": {"60"}}, w.Header())
	assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",
		"status":429,"violated-policies":["<b> \"x\\"]}`, w.Body.String())

	head := httptest.NewRecorder()
	handler.ServeHTTP(head, httptest.NewRequest(http.MethodHead, "/", nil))
	assert.Equal(t, 429, head.Code)
	assert.Equal(t, w.Header(), head.Header())
	assert.Empty(t, head.Body)

	// By a handler of one's own.
	zero := httptest.NewRecorder()
	httplimit.WriteProblem(zero, httptest.NewRequest(http.MethodGet, "/", nil), httplimit.Decision{})
	assert.Equal(t, 429, zero.Code)
	other := httptest.NewRecorder()
	httplimit.WriteProblem(other, httptest.NewRequest(http.MethodGet, "/", nil), httplimit.Decision{Status: 503})
	assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503}`, other.Body.String())
}

// A length that a middleware has announced before is not that of the denial.
func TestWriteProblem_LengthIsItsOwn(t *testing.T) {
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.DenyAll, newClock()), Key: oneKey}},
	}, ok200)
	client, url := serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		handler.ServeHTTP(w, r)
	}))
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	var doc map[string]any
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&doc))
	assert.EqualValues(t, 429, doc["status"])
}
