package httplimit_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// upgrade makes a connection to the server speak the protocol of its handler.
func upgrade(t *testing.T, conn net.Conn) *bufio.Reader {
	t.Helper()
	_, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	return from
}

// hijacking returns a handler that takes connections over and gives them to f.
func hijacking(t testing.TB, f func(net.Conn, *bufio.ReadWriter)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			f(conn, rw)
		}
	})
}

// TestInFlight_HalfClose: a ReverseProxy passes the end of one direction on, over TCP and TLS, and the other direction goes
// on: 20,000 bytes arrive at the backend after it has said all.
func TestInFlight_HalfClose(t *testing.T) {
	arrived := make(chan int, 1)
	backend := httptest.NewServer(hijacking(t, func(conn net.Conn, rw *bufio.ReadWriter) {
		defer conn.Close()
		assert.NoError(t, conn.(*net.TCPConn).CloseWrite())
		said, _ := io.ReadAll(rw)
		arrived <- len(said)
	}))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	for _, secure := range []bool{false, true} {
		atOnce, _, c := requestsAtOnce(t)
		proxy := httptest.NewUnstartedServer(wrap(t, c, httputil.NewSingleHostReverseProxy(target)))
		proxy.Config.ErrorLog = quiet
		if secure {
			proxy.StartTLS()
		} else {
			proxy.Start()
		}
		defer proxy.Close()
		client, err := net.Dial("tcp", proxy.Listener.Addr().String())
		require.NoError(t, err)
		if secure {
			client = tls.Client(client, &tls.Config{InsecureSkipVerify: true})
		}
		from := upgrade(t, client)
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
		rest, err := io.ReadAll(from)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
		_, err = client.Write(bytes.Repeat([]byte("x"), 20_000))
		require.NoError(t, err)
		require.NoError(t, client.(interface{ CloseWrite() error }).CloseWrite())
		require.Equal(t, 20_000, <-arrived, "secure: %v", secure)
		require.Eventually(t, func() bool { return atOnce.Key("k").Peek(0).Remaining == 2 }, 10*time.Second, time.Millisecond)
		_ = client.Close()
	}
}

// A halfConn is a connection of a type that nobody knows. rawConn is one with a descriptor.
type (
	halfConn struct {
		net.Conn
		half *bool
	}
	rawConn  struct{ net.Conn }
	bothConn struct {
		halfConn
		syscall.Conn
	}
)

func (c halfConn) CloseWrite() error                  { *c.half = true; return nil }
func (rawConn) SyscallConn() (syscall.RawConn, error) { return nil, io.ErrNoProgress }
func (c halfConn) Close() error                       { return io.ErrClosedPipe }

// A hijacker is a ResponseWriter with a connection.
type hijacker struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.conn, nil, nil }

// TestInFlight_ConnectionsKeepTheirMethods: those of TCP, of sockets in the file system and of TLS all, others the two that
// proxies look for, and none that the connection does not have.
func TestInFlight_ConnectionsKeepTheirMethods(t *testing.T) {
	type raw = interface {
		SyscallConn() (syscall.RawConn, error)
	}
	type half = interface{ CloseWrite() error }
	hijacked := func(conn net.Conn) net.Conn {
		atOnce, _, c := requestsAtOnce(t)
		w, held := hijacker{httptest.NewRecorder(), conn}, net.Conn(nil)
		wrap(t, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			held, _, _ = w.(http.Hijacker).Hijack()
		})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
		t.Cleanup(func() {
			_ = held.Close()
			assert.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
		})
		return held
	}
	listen := func(network, address string) net.Conn {
		l, err := net.Listen(network, address)
		require.NoError(t, err)
		defer l.Close()
		conn, err := net.Dial(network, l.Addr().String())
		require.NoError(t, err)
		return conn
	}
	tcp := listen("tcp", "127.0.0.1:0")
	held := hijacked(tcp)
	require.Implements(t, (*interface {
		raw
		half
		io.ReaderFrom
		io.WriterTo
		CloseRead() error
		SetNoDelay(bool) error
	})(nil), held)
	require.Same(t, tcp, held.(interface{ NetConn() net.Conn }).NetConn())

	unix := listen("unix", filepath.Join(t.TempDir(), "s"))
	held = hijacked(unix)
	require.Implements(t, (*interface {
		raw
		half
		CloseRead() error
	})(nil), held)
	require.Same(t, unix, held.(interface{ NetConn() net.Conn }).NetConn())

	inside, _ := net.Pipe()
	held = hijacked(tls.Server(inside, &tls.Config{}))
	require.Implements(t, (*interface {
		half
		ConnectionState() tls.ConnectionState
	})(nil), held)
	require.Equal(t, inside, held.(interface{ NetConn() net.Conn }).NetConn())

	halved := false
	for conn, want := range map[net.Conn][2]bool{
		inside: {}, halfConn{inside, &halved}: {true, false}, rawConn{inside}: {false, true}, bothConn{halfConn{inside, &halved}, rawConn{inside}}: {true, true},
	} {
		held = hijacked(conn)
		closer, halves := held.(half)
		_, raws := held.(raw)
		require.Equal(t, want, [2]bool{halves, raws}, "%T", conn)
		require.Equal(t, conn, held.(interface{ NetConn() net.Conn }).NetConn())
		if halves {
			halved = false
			require.NoError(t, closer.CloseWrite())
			require.True(t, halved)
			require.ErrorIs(t, held.Close(), io.ErrClosedPipe)
		}
	}
}

// TestInFlight_DroppedConnection: a connection that nobody has any more gives its units back, whether it was closed by
// other means or not at all.
func TestInFlight_DroppedConnection(t *testing.T) {
	atOnce, _, c := requestsAtOnce(t)
	server := httptest.NewServer(wrap(t, c, hijacking(t, func(conn net.Conn, rw *bufio.ReadWriter) {
		if line, _ := rw.ReadString('\n'); line == "close\n" {
			_ = conn.(interface{ NetConn() net.Conn }).NetConn().Close()
		}
	})))
	defer server.Close()
	for _, how := range []string{"close\n", "drop\n"} {
		client, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		upgrade(t, client)
		for range 3 {
			runtime.GC()
			require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining, "while the handler reads")
		}
		fmt.Fprint(client, how)
		require.Eventually(t, func() bool { runtime.GC(); return atOnce.Key("k").Peek(0).Remaining == 2 }, 10*time.Second, time.Millisecond)
		_ = client.Close()
	}
}

// TestInFlight_LongerThanThePeriod: two streams of many Periods are two, also where a connection has been taken over and
// its handler has returned.
func TestInFlight_LongerThanThePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, 400*time.Millisecond)})
		c := httplimit.Config{Policies: []httplimit.Policy{{Name: "at-once", Limiter: atOnce, Key: oneKey}}}
		streams := wrap(t, c, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(3 * time.Second) }))
		inside, _ := net.Pipe()
		var taken net.Conn
		takes := wrap(t, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { taken, _, _ = w.(http.Hijacker).Hijack() }))
		takes.ServeHTTP(hijacker{httptest.NewRecorder(), inside}, httptest.NewRequest("GET", "/", nil))
		go get(streams)
		for range 290 {
			time.Sleep(10 * time.Millisecond)
			w := get(streams)
			require.Equal(t, http.StatusTooManyRequests, w.Code)
			require.Equal(t, "1", w.Header().Get("Retry-After"))
		}
		time.Sleep(time.Second)
		require.Equal(t, 1, atOnce.Key("k").Peek(0).Remaining)
		require.NoError(t, taken.Close())
		require.Equal(t, 2, atOnce.Key("k").Peek(0).Remaining)
	})
}

// TestVerdict_HoldAndEnd: a hold outlives Settle and End, until it is closed or garbage; without one End and Settle give
// back, in any order.
func TestVerdict_HoldAndEnd(t *testing.T) {
	atOnce, _, c := requestsAtOnce(t)
	judge, err := httplimit.New(c)
	require.NoError(t, err)
	decide := func() *httplimit.Verdict { return judge.Decide(http.Header{}, httptest.NewRequest("GET", "/", nil)) }
	left := func() int { return atOnce.Key("k").Peek(0).Remaining }
	v := decide()
	v.End()
	require.Equal(t, 2, left())
	v.Settle(200)
	v.End()
	require.Equal(t, 2, left())

	v = decide()
	hold := v.Hold()
	v.Settle(200)
	v.End()
	runtime.GC()
	require.Equal(t, 1, left())
	require.NoError(t, hold.Close())
	require.NoError(t, hold.Close())
	require.Equal(t, 2, left())

	v = decide()
	_ = v.Hold()
	v.Settle(200)
	require.Eventually(t, func() bool { runtime.GC(); return left() == 2 }, 10*time.Second, time.Millisecond)

	first, second, denied := decide(), decide(), decide()
	require.False(t, denied.Allowed)
	w := httptest.NewRecorder()
	require.Same(t, w, denied.Writer(w))
	require.NotEqual(t, http.ResponseWriter(w), first.Writer(w))
	require.NoError(t, denied.Hold().Close())
	denied.End()
	require.Zero(t, left())
	first.End()
	second.Settle(0)
	require.Equal(t, 2, left())

	c.Policies, c.Skip = c.Policies[:1], func(*http.Request) bool { return true }
	judge, err = httplimit.New(c)
	require.NoError(t, err)
	v = decide()
	require.Same(t, w, v.Writer(w))
	require.NoError(t, v.Hold().Close())
	v.End()
}
