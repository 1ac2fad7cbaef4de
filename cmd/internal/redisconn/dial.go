package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// defaultTimeout bounds the making of a connection if Config.Timeout is 0. A store's calls last for a second at least, so that they have the
// error of a dial that takes as long; and a store that is there again is dialled as soon.
const defaultTimeout = 900 * time.Millisecond

func (c *Config) timeout() time.Duration { return cmp.Or(c.Timeout, defaultTimeout) }

// dialer makes a client's connections. The client's own dialer would not end with the context of a call while it speaks TLS, and its
// errors do not say TLS.
func (c *Config) dialer(secure *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, c.timeout())
		defer cancel()
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil || secure == nil {
			return conn, err
		}
		own := secure.Clone()
		if own.ServerName == "" {
			own.ServerName, _, _ = net.SplitHostPort(addr)
		}
		secured := tls.Client(conn, own)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("no answer to the handshake: is it a port without TLS? %w", err)
			}
			return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: fmt.Errorf("TLS: %w", err)}
		}
		return secured, nil
	}
}
