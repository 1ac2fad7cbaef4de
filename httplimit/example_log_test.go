package httplimit_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
)

// Denials in a log. A limiter samples them, so that clients cannot flood it: two lines at once for each policy, and then one
// a minute, which says how many were left out. Keys of clients, such as addresses and names of users, do not get into the log: a
// code tells clients apart, and who does not know its secret cannot try out which key it stands for.
func ExampleConfig_log() {
	clock := sluice.NewManualClock(time.Unix(1_700_000_000, 0)) // a server leaves it out
	lines := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerMinute(1).WithBurst(2), Clock: clock}))
	secret := []byte("a server has some from crypto/rand")
	code := func(key string) string {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(key))
		return fmt.Sprintf("%x", mac.Sum(nil)[:4])
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{} // for the example's output
		}
		return a
	}}))
	var leftOut atomic.Int64
	limit := sluice.Must(httplimit.New(httplimit.Config{
		Policies: []httplimit.Policy{{Name: "api", Limiter: sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerHour(1), Clock: clock})), Key: byUser}},
		OnDenied: func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			httplimit.WriteProblem(w, r, d)
			for _, c := range d.Charges {
				switch {
				case !slices.Contains(d.Violated, c.Policy):
					continue
				case !lines.Allow(c.Policy):
					leftOut.Add(1)
					continue
				}
				logger.Warn("denied", "policy", c.Policy, "client", code(c.Key), "status", d.Status, "retry_after", d.RetryAfter, "left_out", leftOut.Swap(0))
			}
		},
	}))
	handler := limit.Handler(http.NotFoundHandler())
	for _, user := range []string{"ann", "bob", "ann", "bob", "ann", "bob", "bob"} {
		asUser(handler, user, "secret")
	}
	clock.Advance(time.Minute)
	asUser(handler, "ann", "secret")
	// Output:
	// level=WARN msg=denied policy=api client=b9fca6fc status=429 retry_after=1h0m0s left_out=0
	// level=WARN msg=denied policy=api client=1f79ccb7 status=429 retry_after=1h0m0s left_out=0
	// level=WARN msg=denied policy=api client=b9fca6fc status=429 retry_after=59m0s left_out=3
}
