package redistier

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A Client is a redis.Client with which a lone caller of a Tier leads: it makes the round trip
// itself, instead of handing the call over to another goroutine. It has all methods of a
// redis.Client. See NewClient.
type Client struct {
	*base
	options redis.Options // of the connections that callers lead on
	alone   atomic.Bool   // nobody leads any more
}

// A base has no exported name in a Client, past which hooks could be added.
type base = redis.Client

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
// The first call has the connection dialled; until it is there, calls go through the pool, too.
//
// Nobody leads after AddHook, Unwrap or Close, nor if Dialer returns anything but connections of package
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
	c = &Client{base: redis.NewClient(opt)}
	c.options = *c.base.Options()
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
	c.base.AddHook(hook)
}

// Unwrap returns the redis.Client that c is, for libraries that want one, as those that trace calls by
// hooks: callers no longer lead.
func (c *Client) Unwrap() *redis.Client {
	c.alone.Store(true)
	return c.base
}

// Close closes the client: callers no longer lead.
func (c *Client) Close() error {
	c.alone.Store(true)
	return c.base.Close()
}

// A direct is a connection on which callers lead, one at a time. Whoever has taken it from its
// lane has it alone. One on which a call has failed is closed: a reply may be left in it.
//
// Invariant: what has been read from one at rest are the replies to its calls, and nothing beyond them that
// could pass for the reply to the next. A byte too many or too few makes it off, for good.
type direct struct {
	conn    *redis.Conn   // never dials again. No embedded one: the compiler would write all its 600 methods twice
	client  *redis.Client // has this connection only
	heard   *heard        // on top of TLS
	off     bool
	socket  socket // beneath TLS
	cancel  func() // ends what is read or written, from any goroutine
	dialled time.Time
	used    time.Time // the last time

	raw   syscall.RawConn
	look  func(fd uintptr) // sets quiet
	quiet bool
}

// A heard counts the bytes that have been read from a connection. Only go-redis knows which of them it has
// in its buffer, and does not tell.
type heard struct {
	net.Conn
	bytes int
}

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	h.bytes += n
	return n, err
}

var errOff = errors.New("redistier: more than its replies, or less, has been read from the connection")

// Process makes a call whose reply is a string or an error. The connection is off unless just that
// reply has been read.
func (d *direct) Process(ctx context.Context, cmd redis.Cmder) error {
	if d.off {
		cmd.SetErr(errOff)
		return errOff
	}
	d.off = true // if go-redis panics
	before := d.heard.bytes
	err := d.conn.Process(ctx, cmd)
	d.off = d.heard.bytes-before != replySize(cmd)
	return err
}

// replySize returns the number of bytes of the reply to a command, or -1 if it has none, or none of those that
// scripts have: "-text\r\n", or "$7\r\na reply\r\n".
func replySize(cmd redis.Cmder) int {
	var refused redis.Error
	if err := cmd.Err(); errors.As(err, &refused) {
		return 1 + len(refused.Error()) + 2
	} else if err != nil {
		return -1
	}
	c, ok := cmd.(command)
	if !ok {
		return -1
	}
	s, ok := c.Val().(string)
	if !ok {
		return -1
	}
	return 1 + len(strconv.Itoa(len(s))) + 2 + len(s) + 2
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
	d := &direct{heard: &heard{Conn: conn}, socket: s, raw: raw, dialled: time.Now()}
	d.used = d.dialled
	d.cancel = func() { _ = s.SetDeadline(time.Unix(1, 0)) }
	d.look = func(fd uintptr) { d.quiet = quiet(fd) }
	var once atomic.Bool
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if once.Swap(true) {
			return nil, errors.New("redistier: the connection has been closed")
		}
		return d.heard, nil
	}
	d.client = redis.NewClient(&o)
	d.conn = d.client.Conn()
	_ = s.SetDeadline(d.dialled.Add(o.DialTimeout))
	// The first one says all that belongs to dialling, too; the second one finds what that has left unread:
	// what is there before its answer is another. Nobody who may run scripts is refused EVAL, as some are PING.
	// A refusal is a reply, to both: the call will tell.
	first, second := command{redis.NewCmd(ctx, "eval", "return '1'", 0)}, command{redis.NewCmd(ctx, "eval", "return '2'", 0)}
	_ = d.conn.Process(ctx, first)
	_ = d.Process(ctx, second)
	refused := first.Err() != nil && second.Err() != nil && first.Err().Error() == second.Err().Error()
	if d.off || second.Val() != any("2") && !refused {
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
	d.conn.Close()
	d.client.Close()
}
