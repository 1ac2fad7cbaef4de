package service

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// watch opens the stream of a service. It ends with ctx.
func watch(ctx context.Context, t *testing.T, r *running, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addresses["debug"].String()+"/live/events", nil)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// nextState reads an event.
func nextState(t *testing.T, in *bufio.Reader) (s liveState) {
	t.Helper()
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	data, ok := strings.CutPrefix(line, "data: ")
	require.True(t, ok, line)
	require.NoError(t, json.Unmarshal([]byte(data), &s))
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	return s
}

// TestLive_States: rules, keys and the store are told, and keys are hashes unless asked for.
func TestLive_States(t *testing.T) {
	for _, args := range [][]string{{}, {"--live-keys"}} {
		r := start(t, append(args, "--rules", rulesFile(t, someRules), "--manual-clock")...)
		conn := r.dial()
		resp := watch(t.Context(), t, r)
		assert.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
		in := bufio.NewReader(resp.Body)
		first := nextState(t, in)
		assert.Equal(t, []liveStore{{Name: "memory", Mode: "this process counts, for itself"}}, first.Store)
		assert.Empty(t, first.Keys)
		for range 5 {
			ask(t, conn, one("two", "se cret"))
		}
		_, _ = r.send("POST", "http", "/json", `{"domain": "d", "descriptors": [{"entries": [{"key": "two", "value": "se cret"}]}]}`)
		var s liveState
		for len(s.Keys) == 0 || s.Keys[0].Denied < 4 {
			s = nextState(t, in)
		}
		assert.Equal(t, liveRule{"d.two", "2 per minute", 2, 4}, s.Rules[0])
		require.Len(t, s.Keys, 1)
		assert.Equal(t, "d.two", s.Keys[0].Rule)
		if len(args) > 0 {
			assert.Equal(t, `"two"="se cret"`, s.Keys[0].Key)
		} else {
			assert.Regexp(t, "^[0-9a-f]{16}$", s.Keys[0].Key)
		}
		r.end()
		_, err := io.Copy(io.Discard, in)
		assert.NoError(t, err, "the stream ends with the service, as it should")
	}
}

// TestLive_NobodyWatches: nothing is counted, before and after, and no goroutine stays. A bubble with one would not end.
func TestLive_NobodyWatches(t *testing.T) {
	l := newLive(newTestServer(t))
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			assert.Nil(t, l.keys.Load())
			a, b := l.join(), l.join()
			assert.NotNil(t, l.keys.Load())
			assert.NotEmpty(t, <-a, "after a second")
			l.leave(a)
			l.leave(a)
			assert.NotNil(t, l.keys.Load())
			l.leave(b)
		}
		assert.Nil(t, l.keys.Load())
		assert.Nil(t, l.stop)
	})
}

// TestLive_Bounds: there are so many watchers, and one that does not read gives its place up.
func TestLive_Bounds(t *testing.T) {
	l := newLive(newTestServer(t))
	synctest.Test(t, func(t *testing.T) { requireBounds(t, l) }) // so that no tick comes between
}

func requireBounds(t *testing.T, l *live) {
	t.Helper()
	var all []chan []byte
	for range maxWatchers {
		all = append(all, l.join())
	}
	assert.Nil(t, l.join())
	slow, quick := all[0], all[1]
	for range liveUnread + 1 {
		l.tell([]byte("x"))
		<-quick
	}
	n := 0
	for range slow {
		n++
	}
	assert.Equal(t, liveUnread, n, "what it has, and the end")
	assert.True(t, l.watchers[quick])
	for _, c := range append(all, l.join()) {
		l.leave(c)
	}
}

// TestLive_HTTP: the page and its files, who is refused, and that a service ends with watchers.
func TestLive_HTTP(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, someRules))
	for path, kind := range map[string]string{"/live": "text/html", "/live/live.js": "text/javascript", "/live/live.css": "text/css", "/live/uplot.js": "text/javascript", "/live/uplot.css": "text/css", "/live/history": "application/json"} {
		resp, err := client.Get("http://" + r.addresses["debug"].String() + path)
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode, path)
		assert.True(t, strings.HasPrefix(resp.Header.Get("Content-Type"), kind), path)
		if kind != "application/json" {
			assert.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:")
		}
		require.NoError(t, resp.Body.Close())
	}
	for _, path := range []string{"/live/live.go", "/live/..%2flive.go", "/live/"} {
		code, _ := r.get("debug", path)
		assert.Equal(t, 404, code, path)
	}
	code, _ := r.send("POST", "debug", "/live/events", "")
	assert.Equal(t, 405, code)
	code, _ = r.get("http", "/live")
	assert.Equal(t, 404, code, "it is on the debug port alone")
	assert.Equal(t, 403, watch(t.Context(), t, r, "Sec-Fetch-Site", "cross-site").StatusCode)
	assert.Equal(t, 403, watch(t.Context(), t, r, "Sec-Fetch-Site", "same-site").StatusCode)

	ctx, cancel := context.WithCancel(t.Context())
	for i := range maxWatchers {
		resp := watch(ctx, t, r, "Sec-Fetch-Site", "same-origin")
		require.Equal(t, 200, resp.StatusCode, i)
		nextState(t, bufio.NewReader(resp.Body))
	}
	more := watch(t.Context(), t, r)
	assert.Equal(t, 503, more.StatusCode)
	assert.Equal(t, "10", more.Header.Get("Retry-After"))
	cancel()
	for left := time.Now().Add(servetest.Patience); watch(t.Context(), t, r).StatusCode != 200; {
		require.True(t, time.Now().Before(left), "their places are not free")
	}
	r.end()
}

// newTestServer is a server that listens nowhere.
func newTestServer(t *testing.T) *server {
	t.Helper()
	c := configure(t, "--rules", rulesFile(t, someRules))
	require.NoError(t, c.Check())
	s, err := newServer(c, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	return s
}
