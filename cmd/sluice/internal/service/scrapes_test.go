package service

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

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
