package redislimit

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestFailover_OtherClock: a replica whose clock is ten minutes off takes the place of its primary. One that is behind gives nothing
// back until it is where the primary was; one that is ahead gives back what would have come back by then, the burst at most. That is so for limiters that
// have seen the key, and for those that have not. The scripts are told the time.
func TestFailover_OtherClock(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(off.String(), func(t *testing.T) { otherClock(t, off) })
	}
}

func otherClock(t *testing.T, off time.Duration) {
	primary := start(t, anyServer(t).binary)
	defer primary.kill()
	replica := start(t, anyServer(t).binary)
	defer replica.kill()
	var now atomic.Int64 // of the server that is asked
	now.Store(startMicros)
	host, port, err := net.SplitHostPort(primary.addr)
	require.NoError(t, err)
	require.NoError(t, replica.client.ReplicaOf(ctx, host, port).Err())
	var addr atomic.Value
	addr.Store(primary.addr)
	client := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr.Load().(string))
	}})
	defer client.Close()
	await(t, "the replica follows", func() bool { return replicated(primary.client) })
	limiters := map[string]*Limiter{}
	for _, c := range variants {
		c.Limit, c.Offset = sluice.PerHour(60), 0
		l := frozen(newLimiter(t, client, c), &now)
		limiters[variantName(c)] = l
		for range 60 {
			require.True(t, take(t, l, "a", 1).Allowed)
		}
		require.False(t, take(t, l, "a", 1).Allowed)
	}
	await(t, "the replica has all", func() bool { return replicated(primary.client) })
	primary.kill()
	require.NoError(t, replica.client.ReplicaOf(ctx, "no", "one").Err())
	addr.Store(replica.addr)
	now.Add(off.Microseconds())
	for name, l := range limiters {
		for who, l := range map[string]*Limiter{"who has seen it": l, "who has not": frozen(replicaOf(t, client, l), &now)} {
			admitted := 0
			await(t, "it answers", func() bool { _, err := l.Peek(ctx, "a", 0); return err == nil })
			for take(t, l, "a", 1).Allowed {
				admitted++
			}
			most := 0
			if off > 0 {
				most = l.WorstCase(off) - 60
			}
			require.LessOrEqual(t, admitted, most, "%s, %s", name, who)
		}
	}
}

// replicated reports whether a replica has all that a server has been told so far. WAIT is about the writes of its own
// connection, so one goes before it.
func replicated(client *redis.Client) bool {
	conn := client.Conn()
	defer conn.Close()
	if conn.Set(ctx, "replicated", 1, time.Minute).Err() != nil {
		return false
	}
	n, err := conn.Wait(ctx, 1, time.Second).Result()
	return err == nil && n == 1
}
