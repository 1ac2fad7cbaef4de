package redislimit

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A Client is a redis.Client with which a lone caller of a Tier leads: the caller makes the round trip
// itself, instead of handing the call over to another goroutine. A Client has all methods of a
// redis.Client. See NewClient.
type Client struct {
	*base
	options redis.Options // of the connections that callers lead on
	alone   atomic.Bool   // callers no longer lead
}

// base gives the embedded client an unexported name, so that hooks cannot be added past Client.AddHook.
type base = redis.Client

// NewClient returns a client of a single server, for New. Use it and close it like a client of
// redis.NewClient. It does not connect yet.
//
// A caller of a Tier leads if no other caller's call is under way. It uses a connection that belongs to
// the Tier alone, beside the client's pool and until Tier.Close. All promises of a Tier hold for such calls:
//
//   - The connection has been dialled in the background, with the Dialer, credentials and OnConnect of
//     opt. It has no hooks, and never sends a command twice.
//   - The end of the budget, or of the caller's context, ends its read or write at once.
//   - A connection is closed after a failed call. Another one is dialled in the background,
//     once a second at most; until it is ready, calls go through the pool.
//
// If a caller leaves before the answer has come, the answer is lost: a lease that the call has asked for
// counts as spent.
//
// The first call starts the dial; until the connection is ready, calls go through the pool, too.
//
// Callers do not lead after AddHook, Unwrap or Close. They do not lead if Dialer returns anything but connections
// of package net, or TLS on top of these: other connections may not end in time. Nor do they lead with any other
// client, such as clients of clusters or of Sentinel, and the clients that WithTimeout returns.
//
// The error is a *ConfigError. opt must have no Limiter, which would run in callers, and no
// StreamingCredentialsProvider, which renews only the connections of a pool.
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
	o.ReadTimeout, o.WriteTimeout = -2, -2 // the socket has the deadline of the call
	o.MaxRetries, o.DialerRetries = -1, 1
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1, 0, 0, 0
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = 0, 0
	// The server must send nothing that was not asked for.
	o.Protocol, o.PushNotificationProcessor, o.ClientSideCache, o.ClientSideCacheConfig = 2, nil, nil, nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return c, nil
}

// AddHook adds a hook, which sees all calls: callers no longer lead.
func (c *Client) AddHook(hook redis.Hook) {
	c.alone.Store(true)
	c.base.AddHook(hook)
}

// Unwrap returns the redis.Client inside of c, for libraries that need one, such as those that trace calls by
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

// A direct is a connection on which callers lead, one at a time. A caller that has taken it from its
// lane has it alone. It is closed after a failed call: a reply may be left in it.
//
// Invariant: exactly the replies to its calls have been read from a direct at rest, and no further bytes that
// could pass for the reply to the next call. A byte too many or too few turns it off, for good.
type direct struct {
	conn    *redis.Conn   // never dials again. Not embedded: the compiler would write all its 600 methods twice
	client  *redis.Client // its pool has only this connection
	heard   *heard        // on top of TLS
	off     bool
	socket  socket // beneath TLS
	dialled time.Time
	used    time.Time // when it was last used

	raw   syscall.RawConn
	look  func(fd uintptr) // sets quiet
	quiet bool
}

// A heard counts the bytes that have been read from a connection. Only go-redis knows which of these bytes are
// in its buffer, and it does not tell. It reads on after a deadline that has come late.
type heard struct {
	net.Conn
	bytes int

	socket   net.Conn    // beneath TLS
	ready    func() bool // there is something to read in the socket
	patience *patience   // of the call, or nil
	looked   bool        // at ready, in this call
	canceled atomic.Bool // the call's context has ended
}

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && h.extend() {
		n, err = h.Conn.Read(b)
	}
	h.bytes += n
	return n, err
}

// extend puts the deadline off if it has come late, or before an answer that is in the socket has been read. It reports whether to read on.
// A cancel at the same time ends the next read: of the two that set the deadline, who is later sets it into the past.
func (h *heard) extend() bool {
	if h.patience == nil {
		return false
	}
	now := time.Now()
	var until time.Time
	switch {
	case h.patience.extend(now):
		until = h.patience.deadline
	case !h.looked && h.ready():
		h.looked, until = true, now.Add(usualDelay)
	default:
		return false
	}
	_ = h.socket.SetReadDeadline(until)
	if h.canceled.Load() {
		_ = h.socket.SetDeadline(past)
	}
	return true
}

// past is a time whose deadline has come.
var past = time.Unix(1, 0)

// cancel ends a read or a write, from any goroutine.
func (d *direct) cancel() {
	d.heard.canceled.Store(true)
	_ = d.socket.SetDeadline(past)
}

// await begins a call with a patience.
func (d *direct) await(p *patience) {
	d.heard.patience, d.heard.looked = p, false
	_ = d.socket.SetDeadline(p.deadline)
}

var errOff = errors.New("redislimit: more than its replies, or less, has been read from the connection")

// Process makes a call whose reply is a string or an error. Unless exactly that reply has been read, the
// connection is off.
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

// replySize returns the number of bytes of the reply to a command. It is -1 without a reply, and for a reply that
// no script gives. Scripts reply "-text\r\n", or "$7\r\na reply\r\n".
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

// socketOf returns the socket beneath a connection, or nil if it is no socket.
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

// dial returns a connection that is ready for calls, or nil. The dial takes up to DialTimeout, and so does
// the exchange that follows it.
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
	d := &direct{heard: &heard{Conn: conn, socket: s}, socket: s, raw: raw, dialled: time.Now()}
	d.used = d.dialled
	d.look = func(fd uintptr) { d.quiet = quiet(fd) }
	d.heard.ready = func() bool { return raw.Control(d.look) == nil && !d.quiet }
	var once atomic.Bool
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if once.Swap(true) {
			return nil, errors.New("redislimit: the connection has been closed")
		}
		return d.heard, nil
	}
	d.client = redis.NewClient(&o)
	d.conn = d.client.Conn()
	_ = s.SetDeadline(d.dialled.Add(o.DialTimeout))
	// The first call also makes the handshake. The second call finds replies that the first has left unread: its
	// answer would then be a different one. Both use EVAL, since users who may run scripts may call EVAL, but not
	// always PING. If both are refused that counts as a reply: the caller's call will report the refusal.
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

// usable reports whether the client's pool would use d, too: it is not too old, the other side has not ended
// it, and there is nothing to read in it.
func (c *Client) usable(d *direct, now time.Time) bool {
	o := &c.options
	if o.ConnMaxIdleTime > 0 && now.Sub(d.used) >= o.ConnMaxIdleTime || o.ConnMaxLifetime > 0 && now.Sub(d.dialled) >= o.ConnMaxLifetime {
		return false
	}
	return d.raw.Control(d.look) == nil && d.quiet
}

// close does not wait for TLS to say goodbye: the socket is closed first.
func (d *direct) close() {
	d.socket.Close()
	d.conn.Close()
	d.client.Close()
}
