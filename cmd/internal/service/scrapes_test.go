package service

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestScrapes: clients that do not read keep no other one out, and the answer to who reads is whole.
func TestScrapes(t *testing.T) {
	const size = 16 << 20 // more than sockets take
	entered := make(chan bool, 100)
	ended := make(chan error, 100)
	h := http.Server{Handler: newScrapes(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- true
		_, err := io.WriteString(w, strings.Repeat("x", size))
		ended <- err
	}))}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = h.Serve(l) }()
	t.Cleanup(func() { _ = h.Close() })
	ask := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		<-entered
		return conn
	}
	for range maxScrapes {
		ask()
	}
	require.Empty(t, ended)
	for range 3 {
		resp, err := http.ReadResponse(bufio.NewReader(ask()), nil)
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.EqualValues(t, size, n)
	}
	one, another := <-ended, <-ended
	require.True(t, one != nil || another != nil, "the oldest has ended")
}

// TestScrapes_Bound: no more than maxScrapes are gathered at a time, also while those that are ended gather on. Who waits too long
// is told so. Time is the bubble's.
func TestScrapes_Bound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		free := make(chan bool)
		h := newScrapes(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			<-free
			now.Add(-1)
		}))
		codes := make(chan int, 4*maxScrapes)
		ask := func(n int) {
			for range n {
				go func() {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
					if w.Code == http.StatusServiceUnavailable {
						assert.Equal(t, "1", w.Header().Get("Retry-After"))
					}
					codes <- w.Code
				}()
			}
			synctest.Wait()
		}
		ask(3 * maxScrapes)
		require.EqualValues(t, maxScrapes, most.Load())
		time.Sleep(scrapeTime)
		synctest.Wait()
		require.Len(t, codes, 2*maxScrapes)
		for range 2 * maxScrapes {
			require.Equal(t, http.StatusServiceUnavailable, <-codes)
		}
		ask(1)
		close(free)
		for range maxScrapes + 1 {
			require.Equal(t, http.StatusOK, <-codes)
		}
		require.EqualValues(t, maxScrapes, most.Load())
		require.Empty(t, h.now)
	})
}
