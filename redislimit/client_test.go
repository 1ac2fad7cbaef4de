package redislimit

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A connector makes a client that is closed at the test's end.
type connector func(tb testing.TB, opt *redis.Options) redis.UniversalClient

// eachClient runs f with a client of go-redis, and with one by which callers lead.
func eachClient(t *testing.T, f func(t *testing.T, connect connector)) {
	t.Run("client=redis", func(t *testing.T) {
		f(t, func(tb testing.TB, opt *redis.Options) redis.UniversalClient {
			c := redis.NewClient(opt)
			tb.Cleanup(func() { c.Close() })
			return c
		})
	})
	t.Run("client=leading", func(t *testing.T) {
		f(t, func(tb testing.TB, opt *redis.Options) redis.UniversalClient { return newLeading(tb, opt) })
	})
}

// eachClientBeside is eachClient for what mostly waits: it runs with both at once, beside other tests.
func eachClientBeside(t *testing.T, f func(t *testing.T, connect connector)) {
	t.Parallel()
	eachClient(t, func(t *testing.T, connect connector) {
		t.Parallel()
		f(t, connect)
	})
}

// eachServerClient runs f with both for each kind of server.
func eachServerClient(t *testing.T, f func(t *testing.T, client redis.UniversalClient)) {
	eachServer(t, func(t *testing.T, s *server) {
		eachClient(t, func(t *testing.T, connect connector) { f(t, connect(t, &redis.Options{Addr: s.addr, MaxRetries: -1})) })
	})
}

func newLeading(tb testing.TB, opt *redis.Options) *Client {
	c, err := NewClient(opt)
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c
}

// callersLead waits until the next caller leads, if the client is one for it.
func callersLead(tb testing.TB, t *Tier) {
	l := t.router.first
	if l.client == nil {
		return
	}
	await(tb, "a connection is there", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.direct == nil {
			l.dialFrom = time.Time{}
			require.Nil(tb, l.leads(time.Now()))
		}
		return l.direct != nil && l.senders == 0
	})
}

// leading returns a tier whose next caller leads, and its connection.
func leading(t *testing.T, addr string, cfg TierConfig) (*Tier, *direct) {
	return leadingBy(t, newLeading(t, &redis.Options{Addr: addr}), cfg)
}

func leadingBy(t *testing.T, client *Client, cfg TierConfig) (*Tier, *direct) {
	if cfg.Budget == 0 {
		cfg.Budget = patient
	}
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), cfg)
	callersLead(t, tier)
	return tier, directOf(tier)
}

func directOf(t *Tier) *direct {
	l := t.router.first
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.direct
}

// awaitClosed waits until a connection that its lane no longer has is closed, which a goroutine does.
func awaitClosed(tb testing.TB, d *direct) {
	tb.Helper()
	await(tb, "the connection is closed", func() bool { return errors.Is(d.socket.SetDeadline(time.Time{}), net.ErrClosed) })
}

// TestLead_Stale: a connection that the server has ended, that has something to read in it, or that is
// too old, is not used but replaced. In the meantime the senders are there, so that Redis answers all calls.
func TestLead_Stale(t *testing.T) {
	s := anyServer(t)
	p := newProxy(t, s.addr)
	tier, d := leading(t, p.addr(), TierConfig{})
	options := &tier.router.first.client.options
	demand := func(led uint64) {
		t.Helper()
		before := tier.Stats().Led
		_, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, led, tier.Stats().Led-before)
	}
	for _, fault := range []func(){
		func() {
			p.cut(false)
			await(t, "the end is known here", func() bool { return d.raw.Control(d.look) == nil && !d.quiet })
		},
		func() {
			p.say("PING\r\n") // the server answers, too
			await(t, "something is there to read", func() bool { return d.raw.Control(d.look) == nil && !d.quiet })
		},
		func() { d.used = time.Now().Add(-options.ConnMaxIdleTime) },
		func() { options.ConnMaxLifetime = time.Hour; d.dialled = time.Now().Add(-time.Hour) },
	} {
		demand(1)
		demand(1)
		require.Same(t, d, directOf(tier))
		fault()
		demand(0)
		callersLead(t, tier)
		require.NotSame(t, d, directOf(tier))
		awaitClosed(t, d)
		d = directOf(tier)
	}
	demand(1)
}

// TestLead_Glued: what comes in one piece with a reply, and behind it, is not the reply to another call,
// nor is it to the second half of one.
func TestLead_Glued(t *testing.T) {
	s := start(t, anyServer(t).binary)
	t.Cleanup(s.kill)
	for _, behind := range []string{"", "-ERR bye\r\n", "$1\r\nx\r\n", "\r\n"} {
		p := newProxy(t, s.addr)
		p.behind.Store(&behind) // the reply to a greeting
		tier, d := leading(t, p.addr(), TierConfig{MaxStale: 1})
		require.Nil(t, p.behind.Load())
		demand := func(from Source, key string, cost, remaining int) {
			t.Helper()
			got, source := takeFrom(t, tier, key, cost)
			require.Equal(t, from, source, behind)
			if from == FromRedis {
				require.Equal(t, remaining, got.Remaining, behind)
			}
		}
		replaced := func() {
			t.Helper()
			require.Nil(t, directOf(tier), behind)
			awaitClosed(t, d)
			callersLead(t, tier)
			d = directOf(tier)
		}
		demand(FromRedis, "warm", 1, 99)
		p.behind.Store(&behind)
		demand(FromRedis, "rich", 1, 99)
		replaced()
		for i := range 6 {
			demand(FromRedis, []string{"x", "y"}[i%2], 10*(i%2+1), 100-10*(i%2+1)*(i/2+1))
		}
		require.NoError(t, s.client.ScriptFlush(ctx).Err())
		p.behind.Store(&behind)
		demand(FromFallback, "z", 1, 0) // behind NOSCRIPT, so that the text is not sent
		await(t, "Redis is told", func() bool {
			at, err := replicaOf(t, s.client, tier.shared).Peek(ctx, "z", 0)
			return err == nil && at.Remaining == 99
		})
		replaced()
		demand(FromRedis, "z", 1, 98)
		at, err := replicaOf(t, s.client, tier.shared).Peek(ctx, "x", 0)
		require.NoError(t, err)
		require.Equal(t, 70, at.Remaining)
		st := tier.Stats()
		require.Equal(t, []uint64{10, 11, 1}, []uint64{st.Led, st.Scripts, st.Failed})
	}
}

// TestLead_Behind: a connection whose replies are each to the call before is not led on, even if none is
// there to be read until the next call. One whose user may not call is, and the call tells.
func TestLead_Behind(t *testing.T) {
	for _, c := range []struct {
		behind, refusal string
		want            bool
	}{
		{"", "", true},
		{"", "-NOPERM no\r\n", true},
		{"-ERR bye\r\n", "", false},
		{"$1\r\n1\r\n", "", false},
		{"$1\r\nx\r\n", "", false},
		{"-ERR bye\r\n", "-NOPERM no\r\n", false},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() {
			defer l.Close()
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			reply, calls := c.behind, 0
			for in := bufio.NewReader(conn); ; {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				switch strings.TrimSpace(line) {
				case "hello", "client", "select":
					_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
				case "eval":
					calls++
					answer := cmp.Or(c.refusal, fmt.Sprintf("$1\r\n%d\r\n", calls))
					if c.behind == "" {
						reply = answer
					}
					_, _ = conn.Write([]byte(reply))
					reply = answer
				}
			}
		}()
		d := newLeading(t, &redis.Options{Addr: l.Addr().String()}).dial()
		require.Equal(t, c.want, d != nil, "%+v", c)
		if d != nil {
			d.close()
		}
	}
}

// TestLead_Dials: a server that cannot be dialled, or takes its time, is dialled once a second at most, and
// holds nobody who calls.
func TestLead_Dials(t *testing.T) {
	s := anyServer(t)
	for _, hangs := range []bool{false, true} {
		client := newLeading(t, &redis.Options{Addr: s.addr})
		var dials, over atomic.Int64
		client.options.DialTimeout = 300 * time.Millisecond
		client.options.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			defer over.Add(1)
			if hangs {
				<-ctx.Done()
			}
			return nil, errors.New("no")
		}
		begin := time.Now()
		tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), TierConfig{Budget: patient})
		for range 100 {
			_, from := takeFrom(t, tier, "a", 1)
			require.NotEqual(t, FromFallback, from)
		}
		require.NoError(t, tier.Close(ctx))
		require.Positive(t, dials.Load())
		require.Equal(t, dials.Load(), over.Load(), "nothing is left under way")
		require.LessOrEqual(t, dials.Load(), 1+int64(time.Since(begin)/dialPause))
		require.Zero(t, tier.Stats().Led)
	}
}

// TestLead_Background: credentials and OnConnect are asked for in no caller, and the connection has
// the options of the client.
func TestLead_Background(t *testing.T) {
	s := start(t, anyServer(t).binary)
	t.Cleanup(s.kill)
	require.NoError(t, s.client.Do(ctx, "acl", "setuser", "app", "on", ">x", "~*", "+@all").Err())
	var asked atomic.Int64
	inBackground := func() {
		asked.Add(1)
		stack := make([]byte, 1<<16)
		stack = stack[:runtime.Stack(stack, false)]
		assert.NotContains(t, string(stack), "(*Tier)")
		assert.NotContains(t, string(stack), ").lead(")
	}
	client := newLeading(t, &redis.Options{
		Addr: s.addr, DB: 3, ClientName: "leader",
		OnConnect: func(ctx context.Context, c *redis.Conn) error { inBackground(); return c.Ping(ctx).Err() },
		CredentialsProviderContext: func(context.Context) (string, string, error) {
			inBackground()
			return "app", "x", nil
		},
	})
	tier, d := leadingBy(t, client, TierConfig{})
	require.Equal(t, int64(2), asked.Load())
	takeFrom(t, tier, "a", 1)
	require.Equal(t, uint64(1), tier.Stats().Led)
	info, err := s.client.ClientList(ctx).Result()
	require.NoError(t, err)
	found := false
	for line := range strings.Lines(info) {
		found = found || strings.Contains(line, "name=leader") && strings.Contains(line, "db=3") && strings.Contains(line, "user=app")
	}
	require.True(t, found, info)
	require.Equal(t, int64(1), s.client.Do(ctx, "client", "kill", "user", "app").Val())
	await(t, "the end is known here", func() bool { return d.raw.Control(d.look) == nil && !d.quiet })
	_, from := takeFrom(t, tier, "a", 1)
	require.Equal(t, FromRedis, from)
}

// TestLead_TLS: a deadline ends what TLS reads.
func TestLead_TLS(t *testing.T) {
	s := anyServer(t)
	site := httptest.NewTLSServer(nil)
	site.Close()
	roots := x509.NewCertPool()
	roots.AddCert(site.Certificate())
	p := newProxy(t, s.addr)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: site.TLS.Certificates})
	require.NoError(t, err)
	secure := &proxy{listener: l, server: p.addr(), conns: map[net.Conn]bool{}}
	t.Cleanup(func() { secure.cut(true) })
	go secure.accept()
	client := newLeading(t, &redis.Options{Addr: secure.addr(), TLSConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}})
	tier, _ := leadingBy(t, client, TierConfig{})
	_, from := takeFrom(t, tier, "a", 1)
	require.Equal(t, FromRedis, from)
	p.hole.Store(true)
	leaving, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		_, err := tier.Take(leaving, "a", 1)
		done <- err
	}()
	await(t, "it leads", func() bool { return tier.Stats().Led == 2 })
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	p.hole.Store(false)
	_, from = takeFrom(t, tier, "a", 1)
	require.Equal(t, FromRedis, from)
}

// TestLead_Alone: hooks see all calls, and a closed client makes none.
func TestLead_Alone(t *testing.T) {
	s := anyServer(t)
	tier, d := leading(t, s.addr, TierConfig{})
	takeFrom(t, tier, "a", 1)
	client := tier.shared.client.(*Client)
	var calls atomic.Int64
	client.AddHook(processHook(func(next redis.ProcessHook) redis.ProcessHook {
		return func(ctx context.Context, cmd redis.Cmder) error {
			if strings.HasPrefix(cmd.Name(), "eval") {
				calls.Add(1)
			}
			return next(ctx, cmd)
		}
	}))
	for i := range 5 {
		got, from := takeFrom(t, tier, "a", 1)
		require.Equal(t, FromRedis, from)
		require.Equal(t, 98-i, got.Remaining)
	}
	require.Equal(t, int64(5), calls.Load())
	require.Equal(t, uint64(1), tier.Stats().Led)
	awaitClosed(t, d)

	tier, _ = leading(t, s.addr, TierConfig{})
	tier.shared.client.(*Client).Unwrap().AddHook(processHook(func(next redis.ProcessHook) redis.ProcessHook {
		return func(ctx context.Context, cmd redis.Cmder) error {
			calls.Add(1)
			return next(ctx, cmd)
		}
	}))
	calls.Store(0)
	takeFrom(t, tier, "a", 1)
	require.Positive(t, calls.Load())
	require.Zero(t, tier.Stats().Led)
	embedded := reflect.TypeOf((*Client)(nil)).Elem().Field(0) // TypeFor would compile its methods twice more
	require.True(t, embedded.Anonymous)
	require.False(t, embedded.IsExported(), "nobody gets past the methods of Client")

	tier, _ = leading(t, s.addr, TierConfig{OnUnavailable: FailClosed})
	require.NoError(t, tier.shared.client.Close())
	_, err := tier.Take(ctx, "a", 1)
	require.ErrorIs(t, err, redis.ErrClosed)
}

// A processHook is a hook of single commands.
type processHook func(next redis.ProcessHook) redis.ProcessHook

func (h processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return h(next) }

func (h processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestLead_UnknownConn: nobody leads on a connection that may not honour deadlines.
func TestLead_UnknownConn(t *testing.T) {
	s := anyServer(t)
	client := newLeading(t, &redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return struct{ net.Conn }{c}, err
	}})
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(100)}), TierConfig{Budget: patient})
	await(t, "it is found out", func() bool {
		_, from := takeFrom(t, tier, "a", 1)
		require.NotEqual(t, FromFallback, from)
		return client.alone.Load()
	})
	takeFrom(t, tier, "a", 1)
	require.Zero(t, tier.Stats().Led)
	require.Nil(t, directOf(tier))
}

// TestNewClient_BadOptions: each has an error that names it.
func TestNewClient_BadOptions(t *testing.T) {
	for _, c := range []struct {
		opt   *redis.Options
		field string
	}{
		{nil, "opt"},
		{&redis.Options{Limiter: noLimiter{}}, "opt.Limiter"},
		{&redis.Options{StreamingCredentialsProvider: noProvider{}}, "opt.StreamingCredentialsProvider"},
		{&redis.Options{PoolSize: -1}, "opt"},
	} {
		client, err := NewClient(c.opt)
		require.Nil(t, client)
		var bad *ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, c.field, bad.Field)
	}
	for _, c := range []*Client{{}, {base: redis.NewClient(&redis.Options{})}} {
		_, err := New(c, Config{Limit: sluice.PerHour(1), Prefix: "x"})
		var bad *ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "client", bad.Field)
		require.ErrorContains(t, err, "NewClient")
	}
}

type noLimiter struct{}

func (noLimiter) Allow() error         { return nil }
func (noLimiter) ReportResult(_ error) {}

type noProvider struct{}

func (noProvider) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return nil, nil, errors.New("no")
}
