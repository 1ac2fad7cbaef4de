package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/redistier"
	"github.com/sluice-go/sluice/rules"
	"github.com/sluice-go/sluice/rules/countertest"
)

// TestSuite runs the suite of counts on Redis: three processes, of which none counts by itself while Redis does not answer.
func TestSuite(t *testing.T) {
	eachServer(t, func(t *testing.T, s *redistest.Server) {
		var prefix atomic.Int64
		countertest.Run(t, func(t *testing.T) countertest.Counts {
			c := Config{StoreConfig: redistier.StoreConfig{Prefix: fmt.Sprint("suite", prefix.Add(1)), Replicas: 1, Budget: patientBudget, OnUnavailable: redistier.Closed}}
			wire := &wire{}
			client := redis.NewClient(&redis.Options{Addr: s.Addr, Dialer: wire.dial, MaxRetries: -1})
			t.Cleanup(func() { client.Close() })
			return countertest.Counts{
				Processes: 3,
				Config: func() rules.Config {
					store := storeOn(t, client, c)
					store.sentRefunds(t, "d", "a")
					return rules.Config{Store: store}
				},
				Without: map[string]error{countertest.HoldsOfThen: rules.ErrNoHolds, countertest.HoldsOfLog: rules.ErrNoHolds},
				Cut:     wire.cut,
			}
		})
	})
}

// wire makes connections that can be cut.
type wire struct {
	mutex sync.Mutex
	conns []net.Conn
	isCut bool
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.isCut {
		return nil, errors.New("the wire is cut")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		w.conns = append(w.conns, conn)
	}
	return conn, err
}

func (w *wire) cut() (mend func()) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.isCut = true
	for _, conn := range w.conns {
		conn.Close()
	}
	w.conns = nil
	return func() {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.isCut = false
	}
}
