package redistier

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A Client is a redis.Client with which a lone caller of a Tier leads: it makes the round trip
// itself, instead of handing the call over to another goroutine. See NewClient.
type Client struct {
	*redis.Client
	options redis.Options // of the connections that callers lead on
	alone   atomic.Bool   // nobody leads any more
}

// NewClient returns a client of a single server, for New. It is used and closed as one of
// redis.NewClient, and does not connect yet.
//
// A caller of a Tier leads if nobody else's call is under way. It uses a connection that only the
// Tier has, beside the client's pool and until Tier.Close. All promises of a Tier hold for it:
//
//   - The connection has been dialled in the background, by opt with its Dialer, credentials and
//     OnConnect. It has no hooks, and sends nothing again.
//   - The end of the budget, or of the caller's context, ends its read or write at once.
//   - A connection on which a call has failed is closed. Another one is dialled in the background,
//     once a second at most; until it is there, calls go through the pool.
//
// A caller that leaves before the answer has come takes it along: a lease that it has asked for
// counts as spent.
//
// Nobody leads after AddHook or Close, nor if Dialer returns anything but connections of package
// net, or TLS on top of them: others may not end in time. Nor does anybody with any other client: those of
// clusters, of Sentinel, and those that WithTimeout returns.
//
// The error is a *ConfigError. opt must have no Limiter, which would run in callers, and no
// StreamingCredentialsProvider, which renews the connections of a pool only.
func NewClient(opt *redis.Options) (c *Client, err error) {
	switch {
	case opt == nil:
		return nil, configErrorf("opt", "it is nil; want options, such as &redis.Options{Addr: \"localhost:6379\"}")
	case opt.Limiter != nil:
		return nil, configErrorf("opt.Limiter", "%T would run in callers of a Tier; want none, as a Tier has a breaker, or redis.NewClient", opt.Limiter)
	case opt.StreamingCredentialsProvider != nil:
		return nil, configErrorf("opt.StreamingCredentialsProvider", "%T renews the connections of a pool only; want CredentialsProviderContext, or redis.NewClient", opt.StreamingCredentialsProvider)
	}
	defer func() {
		if cause := recover(); cause != nil {
			c, err = nil, configErrorf("opt", "redis.NewClient refuses it: %v", cause)
		}
	}()
	c = &Client{Client: redis.NewClient(opt)}
	c.options = *c.Client.Options()
	o := &c.options
	o.ReadTimeout, o.WriteTimeout = -2, -2 // the socket's deadline is that of the call
	o.MaxRetries, o.DialerRetries = -1, 1
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1, 0, 0, 0
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = 0, 0
	// Nothing comes that has not been asked for.
	o.Protocol, o.PushNotificationProcessor, o.ClientSideCache, o.ClientSideCacheConfig = 2, nil, nil, nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return c, nil
}

// AddHook adds a hook, which sees all calls: callers no longer lead.
func (c *Client) AddHook(hook redis.Hook) {
	c.alone.Store(true)
	c.Client.AddHook(hook)
}

// Close closes the client: callers no longer lead.
func (c *Client) Close() error {
	c.alone.Store(true)
	return c.Client.Close()
}

// A direct is a connection on which callers lead, one at a time. Whoever has taken it from its
// lane has it alone. One on which a call has failed is closed: a reply may be left in it.
type direct struct {
	*redis.Conn               // never dials again
	client      *redis.Client // has this connection only
	socket      socket        // beneath TLS
	cancel      func()        // ends what is read or written, from any goroutine
	dialled     time.Time
	used        time.Time // the last time

	raw   syscall.RawConn
	look  func(fd uintptr) // sets quiet
	quiet bool
}

// A socket is a connection that is known to honour deadlines.
type socket interface {
	net.Conn
	syscall.Conn
}

// socketOf returns what a connection is on top of, or nil if that is no socket.
func socketOf(c net.Conn) socket {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	switch s := c.(type) {
	case *net.TCPConn:
		return s
	case *net.UnixConn:
		return s
	}
	return nil
}

// dial returns a connection that is ready for calls, or nil. Dialling takes up to DialTimeout, and so does
// all that is said then.
func (c *Client) dial() *direct {
	o := c.options
	ctx, cancel := context.WithTimeout(context.Background(), o.DialTimeout)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil
	}
	s := socketOf(conn)
	if s == nil {
		c.alone.Store(true)
		conn.Close()
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		conn.Close()
		return nil
	}
	d := &direct{socket: s, raw: raw, dialled: time.Now()}
	d.used = d.dialled
	d.cancel = func() { _ = s.SetDeadline(time.Unix(1, 0)) }
	d.look = func(fd uintptr) { d.quiet = quiet(fd) }
	var once atomic.Bool
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if once.Swap(true) {
			return nil, errors.New("redistier: the connection has been closed")
		}
		return conn, nil
	}
	d.client = redis.NewClient(&o)
	d.Conn = d.client.Conn()
	_ = s.SetDeadline(d.dialled.Add(o.DialTimeout))
	if d.Ping(ctx).Err() != nil {
		d.close()
		return nil
	}
	return d
}

// usable reports whether d is one that the client's pool would use, too: not too old, and neither ended
// by the other side nor with something to read in it.
func (c *Client) usable(d *direct, now time.Time) bool {
	o := &c.options
	if o.ConnMaxIdleTime > 0 && now.Sub(d.used) >= o.ConnMaxIdleTime || o.ConnMaxLifetime > 0 && now.Sub(d.dialled) >= o.ConnMaxLifetime {
		return false
	}
	return d.raw.Control(d.look) == nil && d.quiet
}

// close does not wait: TLS has nobody left to say goodbye to.
func (d *direct) close() {
	d.socket.Close()
	d.Conn.Close()
	d.client.Close()
}
