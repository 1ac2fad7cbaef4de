package fiberlimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/httplimit/fiberlimit"
	"github.com/sluice-go/sluice/internal/test/logins"
)

var (
	errWrongPassword = errors.New("wrong password")
	errForeign       = errors.New("an error of some other package")
)

// failures are the ways in which a login can fail under fiber, and what the client sees.
var failures = map[string]logins.Failure[fiber.Handler]{
	"a response":          {func(c fiber.Ctx) error { return c.Status(401).SendString("no") }, 401},
	"a status":            {func(c fiber.Ctx) error { return c.SendStatus(401) }, 401},
	"an error of fiber's": {func(fiber.Ctx) error { return fiber.ErrUnauthorized }, 401},
	"any error":           {func(fiber.Ctx) error { return io.EOF }, 500},
	"the application's":   {func(fiber.Ctx) error { return errWrongPassword }, 401},
	"a broken answer":     {func(fiber.Ctx) error { return errForeign }, 500},
	"a panic":             {func(fiber.Ctx) error { panic("oops") }, 500},
}

// newApp returns an app that knows its own error.
func newApp() *fiber.App {
	return fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
		switch {
		case errors.Is(err, errForeign):
			return err
		case errors.Is(err, errWrongPassword):
			err = fiber.ErrUnauthorized
		}
		return fiber.DefaultErrorHandler(c, err)
	}})
}

// serve starts a server, and returns its address.
func serve(t *testing.T, app *fiber.App) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, app, listener)
}

func serveOn(t *testing.T, app *fiber.App, listener net.Listener) string {
	ended := make(chan error, 1)
	go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		assert.NoError(t, app.Shutdown())
		assert.NoError(t, <-ended)
	})
	return listener.Addr().String()
}

// newServer starts a server with a login, behind the middlewares.
func newServer(t *testing.T, fail fiber.Handler, middlewares ...any) string {
	app := newApp()
	app.Get("/login", func(c fiber.Ctx) error {
		if !logins.Limited(c.Context()) {
			return c.SendStatus(http.StatusTeapot)
		}
		if c.Get("Authorization") != logins.Right {
			return fail(c)
		}
		return c.SendString("welcome")
	})
	outer := newApp()
	for _, m := range middlewares {
		outer.Use(m)
	}
	outer.Use(app)
	return "http://" + serve(t, outer) + "/login"
}

// takesOver switches to a protocol that ends when the client has nothing more to say.
func takesOver(c fiber.Ctx) error {
	c.RequestCtx().HijackSetNoResponse(true)
	c.RequestCtx().Hijack(func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, conn)
	})
	return nil
}

func TestFiber(t *testing.T) {
	logins.Framework[fiber.Handler, any]{
		New:   func(c httplimit.Config) (any, error) { return fiberlimit.New(c) },
		Serve: newServer, Failures: failures,
		Outer: [][]any{{}}, Recovers: recover.New(),
		Silent:  func(fiber.Ctx) error { return nil },
		Pattern: "/",
	}.Test(t)
}

// raw sends the lines of a request without a body, and returns the response.
func raw(t *testing.T, address string, lines ...string) *http.Response {
	return send(t, address, slices.Concat(lines, []string{"Connection: close"}))
}

// send sends the lines of a request, and returns the response.
func send(t *testing.T, address string, lines []string) *http.Response {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	conn, err := net.Dial(network, address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp
}

// A client that sends two keys is not counted under one and served by the other.
func TestFiber_FieldsThatAreThereTwice(t *testing.T) {
	for _, adapted := range []bool{false, true} {
		t.Run(fmt.Sprint("adaptor=", adapted), func(t *testing.T) {
			c := httplimit.Config{Policies: []httplimit.Policy{{
				Name: "key", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(2)})),
				Key: sluice.Must(httplimit.ByHeader("API-Key")),
			}}}
			var limit fiber.Handler
			if adapted {
				middleware, err := httplimit.New(c)
				require.NoError(t, err)
				limit = adaptor.HTTPMiddleware(middleware.Handler)
			} else {
				var err error
				limit, err = fiberlimit.New(c)
				require.NoError(t, err)
			}
			app := newApp()
			app.Get("/", limit, func(c fiber.Ctx) error { return c.SendString(c.Get("API-Key")) })
			address := serve(t, app)
			served := 0
			for i := range 5 {
				resp := raw(t, address, "GET / HTTP/1.1", "Host: x", "API-Key: mine", fmt.Sprint("API-Key: ", i))
				if resp.StatusCode == http.StatusOK {
					served++
				}
			}
			if adapted {
				assert.Equal(t, 5, served, "why there is this package: the adaptor no longer lets them through")
			} else {
				assert.Zero(t, served)
			}
		})
	}
}

// The client writes the trailer behind the body, and no proxy has looked at it.
func TestFiber_TheTrailerNamesNoClient(t *testing.T) {
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Real-IP", "CF-Connecting-IP"} {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/streamed=%v", header, streamed), func(t *testing.T) {
				byIP := sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{
					TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Header: header,
				}))
				var keys []string
				limit, err := fiberlimit.New(httplimit.Config{Policies: []httplimit.Policy{{
					Name: "client", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)})),
					Key: func(r *http.Request) (string, error) {
						key, err := byIP(r)
						if err == nil {
							keys = append(keys, key)
						}
						return key, err
					},
				}}})
				require.NoError(t, err)
				app := fiber.New(fiber.Config{StreamRequestBody: streamed})
				app.Post("/", func(c fiber.Ctx) error { _ = c.Body(); return c.Next() }, limit, func(c fiber.Ctx) error { return c.Send(c.Body()) })
				address := serve(t, app)
				proxys, clients := "192.0.2.1", "6.6.6.6"
				if header == "Forwarded" {
					proxys, clients = "for="+proxys, "for="+clients
				}
				start := []string{"POST / HTTP/1.1", "Host: x", "Transfer-Encoding: chunked"}
				end := []string{"Connection: close", "", "3", "abc", "0", header + ": " + clients}
				send(t, address, slices.Concat(start, []string{header + ": " + proxys}, end))
				send(t, address, slices.Concat(start, []string{header + ": " + clients, header + ": " + proxys}, end))
				for _, key := range keys {
					assert.Equal(t, "192.0.2.1", key)
				}
				if header == "Forwarded" {
					assert.Len(t, keys, 2)
				}
			})
		}
	}
}

// A proxy on a Unix socket can be trusted here, too.
func TestFiber_UnixSocket(t *testing.T) {
	limit, err := fiberlimit.New(httplimit.Config{Policies: []httplimit.Policy{{
		Name: "client", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1)})),
		Key: sluice.Must(httplimit.ByRemoteIP(httplimit.IPConfig{TrustUnix: true, Header: "X-Forwarded-For"})),
	}}})
	require.NoError(t, err)
	app := newApp()
	app.Get("/", limit, func(c fiber.Ctx) error { return c.SendString("hello") })
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	address := serveOn(t, app, listener)
	for _, tt := range []struct {
		client string
		status int
	}{{"192.0.2.1", 200}, {"192.0.2.2", 200}, {"192.0.2.1", 429}, {"", 400}} {
		assert.Equal(t, tt.status, raw(t, address, "GET / HTTP/1.1", "Host: x", "X-Forwarded-For: "+tt.client).StatusCode, tt.client)
	}
}

// Functions of the Config see what a server of net/http would have shown them.
func TestFiber_TheRequestIsThatOfNetHTTP(t *testing.T) {
	type key struct{}
	var got *http.Request
	limit, err := fiberlimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{
			Name: "all", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)})),
			Key: func(r *http.Request) (string, error) { got = r; return "k", nil },
		}},
	})
	require.NoError(t, err)
	app := newApp()
	app.Use(func(c fiber.Ctx) error { c.SetContext(context.WithValue(c.Context(), key{}, "v")); return c.Next() })
	app.Use(limit, func(c fiber.Ctx) error { return c.Send(c.Body()) })
	address := serve(t, app)
	for _, lines := range [][]string{
		{"GET /a%2Fb/c?d=e&d HTTP/1.1", "Host: example.com:80", "X-Forwarded-For: 1.1.1.1", "x-forwarded-for: 2.2.2.2, 3.3.3.3", "Cookie: a=b; c=d"},
		{"POST /a HTTP/1.1", "Host: x", "Content-Type: text/plain", "Content-Length: 0", "User-Agent: me"},
		{"GET http://real.example/a HTTP/1.1", "Host: ignored.example"},
	} {
		resp := raw(t, address, lines...)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%q", lines)
		want, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.Join(lines, "\r\n") + "\r\nConnection: close\r\n\r\n")))
		require.NoError(t, err)
		assert.Equal(t, want.Method, got.Method)
		assert.Equal(t, want.URL, got.URL)
		assert.Equal(t, want.Host, got.Host)
		assert.Equal(t, want.RequestURI, got.RequestURI)
		assert.Equal(t, want.Proto, got.Proto)
		assert.Equal(t, []int{1, 1}, []int{got.ProtoMajor, got.ProtoMinor})
		want.Header.Set("Connection", "close") // which net/http takes out
		assert.Equal(t, want.Header, got.Header, "%q", lines)
		host, _, err := net.SplitHostPort(got.RemoteAddr)
		require.NoError(t, err)
		assert.Equal(t, "127.0.0.1", host)
		assert.Equal(t, "v", got.Context().Value(key{}))
	}
	resp := raw(t, address, "GET /%zz HTTP/1.1", "Host: x")
	assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
}

// No handler is found by another path than the one that functions of the Config see.
func TestFiber_ThePathIsThatOfTheHandler(t *testing.T) {
	var seen string
	limit, err := fiberlimit.New(httplimit.Config{Policies: []httplimit.Policy{{
		Name: "all", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(100)})),
		Key: func(r *http.Request) (string, error) { seen = r.URL.Path; return "k", nil },
	}}})
	require.NoError(t, err)
	app := newApp()
	app.Use(limit)
	app.Get("/login", func(c fiber.Ctx) error { return c.SendString("welcome") })
	address := serve(t, app)
	for target, want := range map[string]int{
		"/login": 200, "/login?u=http://x/y#z": 400, "/login?u=http://x/y": 200, "http://x/login": 200, "http://x/login?u=http://y//": 200,
		"/login#1": 400, "//1/login?u=://": 400, "//1/login": 404, "x:/login": 404, "http:/login": 404, "/x/../login": 404, "/%6cogin": 404, "http://x//login": 404,
	} {
		seen = ""
		resp := raw(t, address, "GET "+target+" HTTP/1.1", "Host: x")
		assert.Equal(t, want, resp.StatusCode, target)
		if resp.StatusCode == http.StatusOK {
			assert.Equal(t, "/login", seen, target)
		}
	}
}

// Fields of others stay, lists are added to, and a denial has a body of its own.
func TestFiber_Headers(t *testing.T) {
	headers := httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11, XLimit: true}
	limit, err := fiberlimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{
			Name: "p", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1)})),
			Key: func(*http.Request) (string, error) { return "k", nil },
		}},
		Headers: headers,
		OnDenied: func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			w.Header().Del("Server-Timing")
			w.Header().Add("Vary", "API-Key")
			w.WriteHeader(http.StatusEarlyHints)
			httplimit.WriteProblem(w, r, d)
			w.WriteHeader(http.StatusOK) // too late
		},
	})
	require.NoError(t, err)
	app := newApp()
	app.Use(func(c fiber.Ctx) error {
		c.Set("Vary", "Origin")
		c.Set("Server-Timing", "x")
		c.Set("X-RateLimit-Limit", "theirs")
		c.Set("RateLimit-Policy", `"theirs";q=1`)
		c.Cookie(&fiber.Cookie{Name: "session", Value: "s"})
		if err := c.SendString("in mind"); err != nil {
			return err
		}
		return c.Next()
	})
	app.Get("/", limit, func(c fiber.Ctx) error { return c.SendString("hello") })
	address := serve(t, app)

	resp := raw(t, address, "GET / HTTP/1.1", "Host: x")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, []string{`"theirs";q=1`, `"p";q=1;w=3600`}, resp.Header.Values("RateLimit-Policy"))
	assert.Equal(t, []string{"1"}, resp.Header.Values("X-RateLimit-Limit"))
	assert.Equal(t, []string{"Origin"}, resp.Header.Values("Vary"))
	assert.Equal(t, []string{"x"}, resp.Header.Values("Server-Timing"))
	assert.Len(t, resp.Cookies(), 1)

	resp = raw(t, address, "GET / HTTP/1.1", "Host: x")
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	assert.Equal(t, []string{"Origin", "API-Key"}, resp.Header.Values("Vary"))
	assert.Empty(t, resp.Header.Values("Server-Timing"))
	assert.Equal(t, []string{"application/problem+json"}, resp.Header.Values("Content-Type"))
	assert.Len(t, resp.Cookies(), 1)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",
		"status":429,"violated-policies":["p"]}`, string(body))
}

func TestFiber_APathWithoutARoute(t *testing.T) {
	c, told := logins.Config(t)
	limit, err := fiberlimit.New(c)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, logins.Fail(t, newServer(t, nil, limit)+"/no"))
	assert.Equal(t, []int{404}, *told)
}

// TestFiber_ConnectionsThatAreToBeClosed: fasthttp drops the takeover of one, and with it the request's hold, which is garbage
// then; but not if there is no response.
func TestFiber_ConnectionsThatAreToBeClosed(t *testing.T) {
	atOnce, err := sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Clock: sluice.NewManualClock(time.Now())})
	require.NoError(t, err)
	left := func() int { return atOnce.Key("k").Peek(0).Remaining }
	limit := sluice.Must(fiberlimit.New(httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Limiter: atOnce, Key: func(*http.Request) (string, error) { return "k", nil }}}}))
	for _, silent := range []bool{false, true} {
		app := fiber.New()
		app.Get("/", limit, func(c fiber.Ctx) error {
			err := takesOver(c)
			c.RequestCtx().HijackSetNoResponse(silent)
			return err
		})
		conn, err := net.Dial("tcp", serve(t, app))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		if silent {
			require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
			for range 3 {
				runtime.GC()
				require.Equal(t, 1, left(), "it goes on")
			}
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		}
		require.Eventually(t, func() bool { runtime.GC(); return left() == 2 }, 10*time.Second, time.Millisecond)
		_ = conn.Close()
	}
}

// TestFiber_TwoLimits: each of two limits counts a stream until its end.
func TestFiber_TwoLimits(t *testing.T) {
	var limiters [2]*sluice.Limiter
	handlers := make([]any, 2)
	for i := range limiters {
		var err error
		limiters[i], err = sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Clock: sluice.NewManualClock(time.Now())})
		require.NoError(t, err)
		handlers[i], err = fiberlimit.New(httplimit.Config{Policies: []httplimit.Policy{{Name: "p", Limiter: limiters[i], Key: func(*http.Request) (string, error) { return "k", nil }}}})
		require.NoError(t, err)
	}
	app := fiber.New()
	app.Get("/", handlers[0], handlers[1], func(c fiber.Ctx) error {
		return c.SendStreamWriter(func(w *bufio.Writer) {
			for w.Flush() == nil {
				_, _ = w.WriteString("more\n")
				time.Sleep(time.Millisecond)
			}
		})
	})
	conn, err := net.Dial("tcp", serve(t, app))
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	_, err = http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	left := func() [2]int {
		return [2]int{limiters[0].Key("k").Peek(0).Remaining, limiters[1].Key("k").Peek(0).Remaining}
	}
	for range 3 {
		runtime.GC()
		require.Equal(t, [2]int{1, 1}, left())
	}
	_ = conn.Close()
	require.Eventually(t, func() bool { return left() == [2]int{2, 2} }, 10*time.Second, time.Millisecond)
}

// TestFiber_Pattern: that of the route, where the middleware is on it.
func TestFiber_Pattern(t *testing.T) {
	keys := make(chan string, 2)
	limiter, err := sluice.New(sluice.Config{Limit: sluice.PerHour(2)})
	require.NoError(t, err)
	limit := sluice.Must(fiberlimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: limiter, Key: httplimit.ByPattern()}}, Explain: true,
		OnDecision: func(_ *http.Request, d httplimit.Decision) { keys <- fmt.Sprint(d.Charges) },
	}))
	app := fiber.New()
	app.Get("/items/:id", limit, func(c fiber.Ctx) error { return nil })
	app.Use("/all", limit)
	address := serve(t, app)
	send(t, address, []string{"GET /items/1 HTTP/1.1", "Host: h", "Connection: close"})
	send(t, address, []string{"GET /all/2 HTTP/1.1", "Host: h", "Connection: close"})
	require.Equal(t, []string{"[{p /items/:id 1}]", "[{p /all 1}]"}, []string{<-keys, <-keys})
}
