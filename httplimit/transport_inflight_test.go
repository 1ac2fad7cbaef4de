package httplimit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/fare"
)

func atOnce(t *testing.T, limit sluice.Limit) *sluice.Limiter {
	return limiterOf(t, sluice.Config{Algorithm: sluice.InFlight, Limit: limit})
}

func freeUnits(lim *sluice.Limiter) int { return lim.Key("a.test").Peek(0).Remaining }

// TestTransport_AtOnce: so many requests to a host are open at once, until their bodies end, in whatever way, and the
// next one waits for that, and no longer.
func TestTransport_AtOnce(t *testing.T) {
	broken := errors.New("broken")
	for name, end := range map[string]func(*http.Response, context.CancelFunc){
		"closed":  func(resp *http.Response, _ context.CancelFunc) { resp.Body.Close() },
		"read":    func(resp *http.Response, _ context.CancelFunc) { _, _ = io.Copy(io.Discard, resp.Body) },
		"context": func(_ *http.Response, cancel context.CancelFunc) { cancel() },
		"all": func(resp *http.Response, cancel context.CancelFunc) {
			cancel()
			_, _ = io.ReadAll(resp.Body)
			resp.Body.Close()
			resp.Body.Close()
		},
		"broken": func(resp *http.Response, _ context.CancelFunc) {
			_, err := resp.Body.Read(make([]byte, 100))
			assert.Equal(t, broken, err)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			base := newFakeBase(func(int, *http.Request) *http.Response {
				resp := respond(http.StatusOK)
				if name == "broken" {
					resp.Body = io.NopCloser(io.MultiReader(errReader{broken}))
				}
				return resp
			})
			lim := atOnce(t, sluice.PerHour(2))
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim})
			open := func() (*http.Response, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				resp, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
				require.NoError(t, err)
				return resp, cancel
			}
			for range 3 {
				first, cancel := open()
				second, cancelSecond := open()
				require.Zero(t, freeUnits(lim))
				begin := time.Now()
				time.AfterFunc(7*time.Second, func() { end(first, cancel) })
				third, cancelThird := open()
				require.Equal(t, 7*time.Second, time.Since(begin), name)
				end(second, cancelSecond)
				end(third, cancelThird)
				synctest.Wait()
				require.Equal(t, 2, freeUnits(lim), name)
			}
		})
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestTransport_AtOnce_BoundedWaits: a wait for a unit ends with MaxWait or the context, and a limit error asks for no more
// than a second.
func TestTransport_AtOnce_BoundedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := atOnce(t, sluice.PerHour(1))
		tr := newTestTransport(t, newFakeBase(always(http.StatusOK)), TransportConfig{Limiter: lim, MaxWait: 5 * time.Second})
		held, err := tr.RoundTrip(get(t, "http://a.test/"))
		require.NoError(t, err)
		waits := func(want time.Duration, f func()) {
			t.Helper()
			begin := time.Now()
			f()
			require.InDelta(t, want, time.Since(begin), float64(time.Millisecond))
			require.Zero(t, lim.Stats().Waiting)
		}
		waits(5*time.Second, func() {
			assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: time.Second, Err: fare.ErrMaxWait}, limitError(t, sendIn(t, tr, "", 0)))
		})
		waits(2*time.Second, func() { assert.Equal(t, context.DeadlineExceeded, sendIn(t, tr, "", 2*time.Second)) })
		waits(3*time.Second, func() {
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("gone")
			time.AfterFunc(3*time.Second, func() { cancel(cause) })
			_, err := tr.RoundTrip(get(t, "http://a.test/").WithContext(ctx))
			assert.Equal(t, cause, err)
		})
		tr.config.MaxWait = 0
		waits(time.Minute, func() { assert.ErrorIs(t, sendIn(t, tr, "", 0), fare.ErrMaxWait) })
		tr.config.MaxWait = sluice.Never
		time.AfterFunc(time.Hour, func() { held.Body.Close() })
		waits(time.Hour, func() { assert.NoError(t, sendIn(t, tr, "", 0)) })

		held, err = tr.RoundTrip(get(t, "http://a.test/"))
		require.NoError(t, err)
		tr.config.MaxWait, tr.config.FailFast = 0, true
		waits(0, func() {
			assert.Equal(t, &LimitError{Host: "a.test", RetryAfter: time.Second}, limitError(t, sendIn(t, tr, "", 0)))
		})
		held.Body.Close()
		require.NoError(t, sendIn(t, tr, "", 0))
		require.Equal(t, 1, freeUnits(lim))
	})
}

// TestTransport_AtOnce_Failures: a request that was not sent, or had no response to close, holds nothing.
func TestTransport_AtOnce_Failures(t *testing.T) {
	var answer func() (*http.Response, error)
	lim, rate := atOnce(t, sluice.PerHour(2)), newLimiter(t, sluice.PerHour(100))
	c := TransportConfig{Charges: func(*http.Request) ([]sluice.Charge, error) {
		return []sluice.Charge{{Key: lim.Key("a.test"), Cost: 1}, {Key: rate.Key("a.test"), Cost: 1}, {Key: lim.Key("a.test"), Cost: 1}}, nil
	}, FailFast: true}
	tr := newTestTransport(t, roundTripFunc(func(*http.Request) (*http.Response, error) {
		assert.Zero(t, freeUnits(lim))
		return answer()
	}), c)
	failed := errors.New("failed")
	for i, f := range []func() (*http.Response, error){
		func() (*http.Response, error) { return nil, failed },
		func() (*http.Response, error) { panic("x") },
		func() (*http.Response, error) { return nil, nil },
		func() (*http.Response, error) { return &http.Response{StatusCode: 204, Body: http.NoBody}, nil },
		func() (*http.Response, error) { return &http.Response{StatusCode: 204}, nil },
		func() (*http.Response, error) { return respond(200), failed },
	} {
		answer = f
		for range 3 {
			func() {
				defer func() { assert.Equal(t, i == 1, recover() != nil) }()
				_, _ = tr.RoundTrip(get(t, "http://a.test/"))
			}()
			require.Equal(t, 2, freeUnits(lim), i)
		}
	}
	require.Equal(t, 100-6*3, rate.Key("a.test").Peek(0).Remaining)
	answer = func() (*http.Response, error) { return respond(200), nil }
	held, err := tr.RoundTrip(get(t, "http://a.test/"))
	require.NoError(t, err)
	require.ErrorIs(t, sendIn(t, tr, "", 0), ErrLimited)
	require.Equal(t, 100-6*3-1, rate.Key("a.test").Peek(0).Remaining, "all or none")
	held.Body.Close()
	require.Equal(t, 2, freeUnits(lim))
}

// TestTransport_AtOnce_LongResponses: a response that takes longer than the limit's Period counts until it ends.
func TestTransport_AtOnce_LongResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim := atOnce(t, sluice.PerSecond(1))
		tr := newTestTransport(t, newFakeBase(always(http.StatusOK)), TransportConfig{Limiter: lim, FailFast: true})
		resp, err := tr.RoundTrip(get(t, "http://a.test/"))
		require.NoError(t, err)
		for range 100 {
			time.Sleep(400 * time.Millisecond)
			require.ErrorIs(t, sendIn(t, tr, "", 0), ErrLimited)
		}
		resp.Body.Close()
		require.NoError(t, sendIn(t, tr, "", 0))
	})
}

// TestTransport_AtOnce_Retries: a retry has a unit of its own, or that of the response before it, if that has not ended: no
// more requests are open than the limit says, and a request does not wait for itself.
func TestTransport_AtOnce_Retries(t *testing.T) {
	long := func(status int) *http.Response {
		resp := respond(status, "Retry-After", "3")
		resp.Body = newTrackedBody(strings.Repeat("x", 3*maxParked))
		return resp
	}
	for name, first := range map[string]func() *http.Response{
		"short": func() *http.Response { return respond(http.StatusServiceUnavailable, "Retry-After", "3") },
		"long":  func() *http.Response { return long(http.StatusServiceUnavailable) },
	} {
		synctest.Test(t, func(t *testing.T) {
			lim := atOnce(t, sluice.PerHour(1))
			base := newFakeBase(func(n int, _ *http.Request) *http.Response {
				assert.Zero(t, freeUnits(lim))
				if n%2 == 0 {
					return first()
				}
				return respond(http.StatusOK)
			})
			tr := newTestTransport(t, base, TransportConfig{Limiter: lim, MaxRetries: 2, MaxWait: time.Minute})
			for range 3 {
				begin := time.Now()
				resp, err := tr.RoundTrip(get(t, "http://a.test/"))
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, resp.StatusCode)
				require.Equal(t, 3*time.Second, time.Since(begin), name)
				require.Zero(t, freeUnits(lim))
				resp.Body.Close()
				require.Equal(t, 1, freeUnits(lim))
			}

			// The body cannot be had again: the response is returned, and counts while it is read.
			for _, panics := range []bool{false, true} {
				req := get(t, "http://a.test/")
				req.Body = io.NopCloser(strings.NewReader("x"))
				req.GetBody = func() (io.ReadCloser, error) {
					if panics {
						panic("x")
					}
					return nil, io.ErrUnexpectedEOF
				}
				func() {
					defer func() { assert.Equal(t, panics, recover() != nil) }()
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
					require.Equal(t, name == "short", freeUnits(lim) == 1, name)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					require.Equal(t, 1, freeUnits(lim))
				}()
				base.mu.Lock()
				base.sent = nil
				base.mu.Unlock()
			}
			require.Equal(t, 1, freeUnits(lim), "of the response that nobody has")
		})
	}
}

// TestTransport_AtOnce_RetryThatCannotBeSent: the response that is returned instead keeps its unit.
func TestTransport_AtOnce_RetryThatCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lim, rate := atOnce(t, sluice.PerHour(2)), newLimiter(t, sluice.PerHour(1))
		base := newFakeBase(func(int, *http.Request) *http.Response {
			resp := respond(http.StatusServiceUnavailable, "Retry-After", "3")
			resp.Body = newTrackedBody(strings.Repeat("x", 3*maxParked))
			return resp
		})
		tr := newTestTransport(t, base, TransportConfig{Charges: func(*http.Request) ([]sluice.Charge, error) {
			return []sluice.Charge{{Key: lim.Key("a.test"), Cost: 1}, {Key: rate.Key("a.test"), Cost: 1}}, nil
		}, MaxRetries: 1, MaxWait: time.Minute})
		resp, err := tr.RoundTrip(get(t, "http://a.test/"))
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Equal(t, 1, freeUnits(lim))
		resp.Body.Close()
		require.Equal(t, 2, freeUnits(lim))
	})
}

// TestTransport_AtOnce_UpgradedConnections: a connection that switches protocols is open until it is closed, and can be
// written to, also when nothing more can be read; and half of it can be closed.
func TestTransport_AtOnce_UpgradedConnections(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
		_ = rw.Flush()
		_ = conn.(*net.TCPConn).CloseWrite()
		all, err := io.ReadAll(rw)
		assert.NoError(t, err)
		assert.Equal(t, "more", string(all))
	}))
	defer server.Close()
	lim := atOnce(t, sluice.PerHour(1))
	tr := newTestTransport(t, nil, TransportConfig{Limiter: lim, FailFast: true, Key: func(*http.Request) (string, error) { return "a.test", nil }})
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := get(t, server.URL).WithContext(ctx)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	conn, ok := resp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(conn, "more")
	require.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	require.Zero(t, freeUnits(lim))
	require.ErrorIs(t, sendIn(t, tr, "", 0), ErrLimited)
	require.NoError(t, conn.Close())
	require.Equal(t, 1, freeUnits(lim))
}

// TestHeldBody_EndsMeanwhile: a body that ends while its units are elsewhere gives them back when it gets them again.
func TestHeldBody_EndsMeanwhile(t *testing.T) {
	lim, base := atOnce(t, sluice.PerHour(1)), newFakeBase(always(http.StatusOK))
	resp, err := newTestTransport(t, base, TransportConfig{Limiter: lim}).RoundTrip(get(t, "http://a.test/"))
	require.NoError(t, err)
	body := resp.Body.(*heldBody)
	held := body.takeOut()
	require.NotNil(t, held)
	require.Nil(t, body.takeOut())
	require.NoError(t, body.Close())
	require.Zero(t, freeUnits(lim))
	body.putBack(held)
	require.Equal(t, 1, freeUnits(lim))
}
