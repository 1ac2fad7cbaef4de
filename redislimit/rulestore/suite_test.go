package rulestore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
	"github.com/sluice-go/sluice/rules/countertest"
)

// TestSuite runs the suite of counts on Redis: three processes, of which none counts by itself while Redis does not answer.
func TestSuite(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servers.Redis) {
		var prefix atomic.Int64
		countertest.Run(t, func(t *testing.T) countertest.Counts {
			c := Config{StoreConfig: redislimit.StoreConfig{Prefix: fmt.Sprint("suite", prefix.Add(1)), Replicas: 1, Budget: patientBudget, OnUnavailable: redislimit.FailClosed}}
			wire := &wire{}
			client := redis.NewClient(&redis.Options{Addr: s.Addr, Dialer: wire.dial, MaxRetries: -1, DialerRetries: 1})
			t.Cleanup(func() { client.Close() })
			return countertest.Counts{
				Processes: 3,
				Config: func() rules.Config {
					store := storeOn(t, client, c)
					store.sentRefunds(t, "d", "a")
					return rules.Config{Store: store}
				},
				Without: map[countertest.Operation]error{countertest.HoldsOfThen: rules.ErrNoHolds, countertest.HoldsOfLog: rules.ErrNoHolds},
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

// TestSuite_WithoutRedis runs the suite on the share of one process, which is all of the limit.
func TestSuite_WithoutRedis(t *testing.T) {
	alone := errors.New("only Redis knows")
	countertest.Run(t, func(t *testing.T) countertest.Counts {
		client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("there is no Redis") }, MaxRetries: -1, DialerRetries: 1})
		t.Cleanup(func() { client.Close() })
		return countertest.Counts{
			Processes: 1,
			Config: func() rules.Config {
				return rules.Config{Store: storeOn(t, client, Config{StoreConfig: redislimit.StoreConfig{Replicas: 1, Budget: time.Millisecond}})}
			},
			Without: map[countertest.Operation]error{
				countertest.HoldsOfThen: rules.ErrNoHolds, countertest.HoldsOfLog: rules.ErrNoHolds,
				countertest.Refunds:    errors.New("who does not know what was denied gives nothing back"),
				countertest.DeniedHits: errors.New("a share counts what it admits"),
				countertest.Lapses:     errors.New("a timer ends the holds of a share, a moment later"),
				countertest.Resets:     alone, countertest.Extensions: alone, countertest.OtherHolds: alone,
			},
		}
	})
}
