package main

import (
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	gorilla "github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// dial returns a client of a server, and what ends both.
func dial(t *testing.T, s *server, path string) *gorilla.Conn {
	t.Helper()
	srv := httptest.NewServer(s.handler())
	t.Cleanup(srv.Close)
	conn, _, err := gorilla.DefaultDialer.Dial("ws"+strings.TrimPrefix(srv.URL, "http")+path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func echoes(t *testing.T, conn *gorilla.Conn, message string) {
	t.Helper()
	require.NoError(t, conn.WriteMessage(gorilla.TextMessage, []byte(message)))
	_, echo, err := conn.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, message, string(echo))
}

func TestGorilla_EndsTheConnection(t *testing.T) {
	s := newServer(sluice.NewManualClock(time.Unix(1, 0)))
	conn := dial(t, s, "/gorilla/ann")
	for i := range 5 {
		echoes(t, conn, fmt.Sprint(i))
	}
	require.NoError(t, conn.WriteMessage(gorilla.TextMessage, []byte("too many")))
	_, _, err := conn.ReadMessage()
	require.True(t, gorilla.IsCloseError(err, gorilla.CloseTryAgainLater), err)
	require.ErrorContains(t, err, "retry after 200ms")

	second := dial(t, s, "/gorilla/ann")
	for i := range 5 {
		echoes(t, second, fmt.Sprint(i))
	}
	third := dial(t, s, "/gorilla/ann") // the user has no room left, and another user has
	require.NoError(t, third.WriteMessage(gorilla.TextMessage, []byte("too many")))
	_, _, err = third.ReadMessage()
	require.True(t, gorilla.IsCloseError(err, gorilla.CloseTryAgainLater), err)
	echoes(t, dial(t, s, "/gorilla/bob"), "hello")
}

func TestGorilla_LimitsPings(t *testing.T) {
	conn := dial(t, newServer(sluice.NewManualClock(time.Unix(1, 0))), "/gorilla/ann")
	for range 6 {
		require.NoError(t, conn.WriteControl(gorilla.PingMessage, nil, time.Now().Add(time.Minute)))
	}
	_, _, err := conn.ReadMessage()
	require.True(t, gorilla.IsCloseError(err, gorilla.CloseTryAgainLater), err)
}

// TestCoder_Waits: a message waits until its turn, for which it is charged when it comes.
func TestCoder_Waits(t *testing.T) {
	clock := sluice.NewManualClock(time.Unix(1, 0))
	s := newServer(clock)
	conn := dial(t, s, "/coder/ann")
	for i := range 5 {
		echoes(t, conn, fmt.Sprint(i))
	}
	require.NoError(t, conn.WriteMessage(gorilla.TextMessage, []byte("later")))
	for s.perUser.Key("ann").Peek(0).Remaining != 4 {
		runtime.Gosched()
	}
	clock.Advance(199 * time.Millisecond)
	require.Equal(t, 5, s.perUser.Key("ann").Peek(0).Remaining, "of the 5 messages, 1.99 have come back; the sixth is charged")
	clock.Advance(time.Millisecond)
	_, message, err := conn.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, "later", string(message))
}

func TestCoder_LimitsPings(t *testing.T) {
	conn := dial(t, newServer(sluice.NewManualClock(time.Unix(1, 0))), "/coder/ann")
	pongs := 0
	conn.SetPongHandler(func(string) error { pongs++; return nil })
	for range 9 {
		require.NoError(t, conn.WriteControl(gorilla.PingMessage, nil, time.Now().Add(time.Minute)))
	}
	require.NoError(t, conn.WriteControl(gorilla.CloseMessage, gorilla.FormatCloseMessage(gorilla.CloseNormalClosure, ""), time.Now().Add(time.Minute)))
	_, _, err := conn.ReadMessage()
	require.Error(t, err)
	require.Equal(t, 5, pongs)
}
