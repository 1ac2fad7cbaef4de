package httplimit_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// start is 15 s after a full minute, and 6015 s after a full hour.
var start = time.Unix(1_699_999_200+6015, 0)

func newClock() *sluice.ManualClock { return sluice.NewManualClock(start) }

func newLimiter(t testing.TB, c sluice.Config) *sluice.Limiter {
	t.Helper()
	l, err := sluice.New(c)
	require.NoError(t, err)
	return l
}

// gcra returns a limiter on a clock that stands still until it is moved.
func gcra(t testing.TB, l sluice.Limit, clock sluice.Clock) *sluice.Limiter {
	t.Helper()
	return newLimiter(t, sluice.Config{Limit: l, Clock: clock})
}

func byHeader(name string) httplimit.KeyFunc { return sluice.Must(httplimit.ByHeader(name)) }

func oneKey(*http.Request) (string, error) { return "k", nil }

var ok200 = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func wrap(t testing.TB, c httplimit.Config, next http.Handler) http.Handler {
	t.Helper()
	limit, err := httplimit.New(c)
	require.NoError(t, err)
	return limit.Handler(next)
}

// get sends a request with headers given as name, value, ... to h.
func get(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// quiet takes what a server logs about handlers that panic on purpose.
var quiet = log.New(io.Discard, "", 0)
