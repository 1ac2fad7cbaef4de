// Command websocket echoes messages: every connection may send 5 a second, and every user 10 over all of his connections.
//
//	go run ./examples/websocket -addr localhost:8080
//
// ws://localhost:8080/coder/ann is served with github.com/coder/websocket: messages above the limits wait, and the client is slowed down.
// ws://localhost:8080/gorilla/ann is served with github.com/gorilla/websocket: they end the connection.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"sync/atomic"
	"time"

	coder "github.com/coder/websocket"
	gorilla "github.com/gorilla/websocket"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/messagelimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	flag.Parse()
	log.Printf("listening: ws://%[1]s/coder/ann, ws://%[1]s/gorilla/ann", *addr)
	srv := &http.Server{Addr: *addr, Handler: newServer(nil).handler(), ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(srv.ListenAndServe())
}

const (
	maxMessage = 1 << 12 // bytes
	maxWait    = time.Minute
)

type server struct {
	perConnection, perUser *sluice.Limiter
	connections            atomic.Uint64
}

func newServer(clock sluice.Clock) *server {
	return &server{
		perConnection: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(5), Clock: clock})),
		perUser:       sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(10), Clock: clock})),
	}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/coder/{user}", s.coder)
	mux.HandleFunc("/gorilla/{user}", s.gorilla)
	return mux
}

// connect returns the key of a new connection, and the limit of its messages. A real server knows the user from what it has
// authenticated, and not from the path.
func (s *server) connect(user string, maxWait time.Duration) (sluice.Key, *messagelimit.Limit, error) {
	key := s.perConnection.Key(fmt.Sprint(s.connections.Add(1)))
	limit, err := messagelimit.New(messagelimit.Config{Keys: []sluice.Key{key, s.perUser.Key(user)}, MaxWait: maxWait})
	return key, limit, err
}

// coder echoes with github.com/coder/websocket.
func (s *server) coder(w http.ResponseWriter, r *http.Request) {
	key, limit, err := s.connect(r.PathValue("user"), maxWait)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	conn, err := coder.Accept(w, r, &coder.AcceptOptions{
		OnPingReceived: func(context.Context, []byte) bool { return key.Allow() }, // the ones above the limit have no answer
	})
	if err != nil {
		return // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxMessage)
	read := messagelimit.Reader(limit, conn.Read)
	for {
		kind, message, err := read(r.Context())
		if err == nil {
			err = conn.Write(r.Context(), kind, message)
		}
		var denied *messagelimit.DeniedError
		if errors.As(err, &denied) {
			conn.Close(coder.StatusTryAgainLater, denied.Error())
		}
		if err != nil {
			return
		}
	}
}

var upgrader = gorilla.Upgrader{HandshakeTimeout: 5 * time.Second}

// gorilla echoes with github.com/gorilla/websocket.
func (s *server) gorilla(w http.ResponseWriter, r *http.Request) {
	key, limit, err := s.connect(r.PathValue("user"), 0)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	conn.SetReadLimit(maxMessage)
	pong := conn.PingHandler()
	conn.SetPingHandler(func(payload string) error {
		if d := key.Take(1); !d.Allowed {
			return &messagelimit.DeniedError{RetryAfter: d.RetryAfter, Err: sluice.ErrDenied}
		}
		return pong(payload)
	})
	read := messagelimit.Reader(limit, func(context.Context) (int, []byte, error) { return conn.ReadMessage() })
	for {
		kind, message, err := read(r.Context())
		if err == nil {
			err = conn.WriteMessage(kind, message)
		}
		var denied *messagelimit.DeniedError
		if errors.As(err, &denied) {
			bye := gorilla.FormatCloseMessage(gorilla.CloseTryAgainLater, denied.Error())
			_ = conn.WriteControl(gorilla.CloseMessage, bye, time.Now().Add(time.Second)) // the connection ends in any case
		}
		if err != nil {
			return
		}
	}
}
