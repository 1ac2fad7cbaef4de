package logins

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// SwitchesProtocols is what a handler says on a connection that it takes over.
const SwitchesProtocols = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"

// Echo closes a connection once the client has closed it.
func Echo(conn net.Conn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.Close()
}

// atOnce returns a middleware for two logins at once.
func (f Framework[H, M]) atOnce(t *testing.T, change func(*httplimit.Config)) (limit M, left func() int) {
	atOnce, err := sluice.New(sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.PerHour(2)})
	require.NoError(t, err)
	c := httplimit.Config{Explain: true, Policies: []httplimit.Policy{{Name: "at-once", Limiter: atOnce, Key: httplimit.ByBasicAuthUser()}}}
	change(&c)
	limit, err = f.New(c)
	require.NoError(t, err)
	return limit, func() int { return atOnce.Peek("bob", 0).Remaining }
}

func unchanged(*httplimit.Config) {}

// ends: whatever becomes of a login, it is no longer counted then.
func (f Framework[H, M]) ends(t *testing.T) {
	handlers := []H{f.Silent}
	for _, failure := range f.Failures {
		handlers = append(handlers, failure.Fail)
	}
	if f.Unanswered.Status != 0 {
		handlers = append(handlers, f.Unanswered.Fail)
	}
	boom := func(c *httplimit.Config) { c.OnDecision = func(*http.Request, httplimit.Decision) { panic("boom") } }
	for _, change := range []func(*httplimit.Config){unchanged, boom} {
		for _, handler := range handlers {
			for _, outer := range append(f.Outer, f.Swallows) {
				limit, left := f.atOnce(t, change)
				url := f.Serve(t, handler, slices.Concat([]M{f.Recovers}, outer, []M{limit})...)
				for range 3 {
					require.NotEqual(t, http.StatusTooManyRequests, Fail(t, url))
				}
				require.Eventually(t, func() bool { return left() == 2 }, 10*time.Second, time.Millisecond)
			}
		}
	}
}

// goOn: a connection that is taken over counts, and a response that streams, until it ends.
func (f Framework[H, M]) goOn(t *testing.T) {
	for _, handler := range []H{f.TakesOver, f.Streams} {
		for _, outer := range f.Outer {
			limit, left := f.atOnce(t, unchanged)
			url := f.Serve(t, handler, slices.Concat(outer, []M{limit})...)
			open := func() (int, net.Conn) {
				conn, status := dial(t, url)
				return status, conn
			}
			_, first := open()
			status, second := open()
			require.NotEqual(t, http.StatusTooManyRequests, status)
			for range 3 {
				status, denied := open()
				require.Equal(t, http.StatusTooManyRequests, status)
				_ = denied.Close()
			}
			_ = first.Close()
			require.Eventually(t, func() bool { return left() == 1 }, 10*time.Second, time.Millisecond)
			status, third := open()
			require.NotEqual(t, http.StatusTooManyRequests, status)
			_ = second.Close()
			_ = third.Close()
			require.Eventually(t, func() bool { return left() == 2 }, 10*time.Second, time.Millisecond)
		}
	}
}

// dial makes a login that asks for another protocol, and returns the connection once the response has begun.
func dial(t *testing.T, url string) (net.Conn, int) {
	u, err := neturl.Parse(url)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\nAuthorization: Basic Ym9iOmd1ZXNz\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", u.Path)
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	if resp.StatusCode == http.StatusOK {
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "begun\n", line)
	}
	return conn, resp.StatusCode
}

// patterns: the request has the pattern of its route.
func (f Framework[H, M]) patterns(t *testing.T) {
	seen := make(chan string, 1)
	limit, _ := f.atOnce(t, func(c *httplimit.Config) {
		c.Policies = append(c.Policies, httplimit.Policy{Name: "pattern", Limiter: c.Policies[0].Limiter, Key: httplimit.ByPattern()})
		c.OnDecision = func(_ *http.Request, d httplimit.Decision) { seen <- fmt.Sprint(d.Charges, d.KeyError) }
	})
	Fail(t, f.Serve(t, f.Silent, limit))
	assert.Contains(t, <-seen, "{pattern "+f.Pattern+" 1}")
}
