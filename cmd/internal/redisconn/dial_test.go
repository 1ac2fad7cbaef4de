package redisconn

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/redislimit"
)

// listen accepts connections, says something on each, and then keeps it. It counts them.
func listen(t *testing.T, says string) (addr string, accepted *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	accepted = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_, _ = c.Write([]byte(says))
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return l.Addr().String(), accepted
}

// TestClient_Dial: a client dials once, so that a call has the error of its dial, which says TLS where it is about that.
func TestClient_Dial(t *testing.T) {
	for _, c := range []struct{ says, want string }{
		{"", "TLS: no answer to the handshake: is it a port without TLS?"},
		{"-ERR Protocol error\r\n", "TLS: tls: first record does not look like a TLS handshake"},
	} {
		addr, accepted := listen(t, c.says)
		for _, kind := range []string{Single, Cluster} {
			accepted.Store(0)
			config := Config{URLs: []string{"rediss://" + addr}, Type: kind, Timeout: 50 * time.Millisecond}
			client, err := config.Client()
			require.NoError(t, err)
			err = client.Get(context.Background(), "a").Err()
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "dial tcp "+addr)
			require.True(t, redislimit.Unreached(err))
			require.Equal(t, int64(1), accepted.Load(), kind)
			require.NoError(t, client.Close())
		}
	}
}

// TestClient_Reply: a node that hangs is waited for as long as Reply says, without a context that ends sooner.
func TestClient_Reply(t *testing.T) {
	addr, _ := listen(t, "")
	config := Config{URLs: []string{"redis://" + addr}, Reply: 50 * time.Millisecond}
	client, err := config.Client()
	require.NoError(t, err)
	defer client.Close()
	var timeout net.Error
	require.ErrorAs(t, client.Get(context.Background(), "a").Err(), &timeout)
	require.True(t, timeout.Timeout())
}
