package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestResponse_RetryAfter: the wait that is told is that of the rules that deny, cut and with jitter; the statuses are exact.
func TestResponse_RetryAfter(t *testing.T) {
	const limits = "descriptors:\n" +
		"- {key: day, rate_limit: {period: 24h, requests_per_unit: 1, algorithm: gcra}}\n" +
		"- {key: hour, rate_limit: {period: 1h, requests_per_unit: 1, algorithm: gcra}}\n" +
		"- {key: shadow, shadow_mode: true, rate_limit: {period: 240h, requests_per_unit: 1, algorithm: gcra}}\n" +
		"- {key: none, rate_limit: {unit: day, requests_per_unit: 0}}\n"
	for _, tt := range []struct {
		options   string
		day, hour time.Duration
		asked     bool
	}{
		{"", 24 * time.Hour, time.Hour, false},
		{"sluice: {max_retry_after: 2h}\n", 2 * time.Hour, time.Hour, true},
		{"sluice: {retry_jitter: 9s}\n", 24*time.Hour + 9*time.Second, time.Hour + 9*time.Second, true},
		{"sluice: {max_retry_after: 2h, retry_jitter: 9s}\n", 2*time.Hour + 9*time.Second, time.Hour + 9*time.Second, true},
	} {
		w := newWorld(t, Config{}, "domain: d\n"+tt.options+limits)
		w.now.Load().domains["d"].hint.Draw = func(n uint64) uint64 { return n - 1 }
		want := func(wait time.Duration, asked bool, ds ...Descriptor) {
			t.Helper()
			resp := w.ask(ds...)
			got, said := resp.RetryAfter()
			require.Equal(t, wait, got, tt.options)
			require.Equal(t, asked, said)
		}
		want(0, false, describe("day=a"), describe("hour=a"), describe("shadow=a"))
		want(tt.hour, tt.asked, describe("hour=a"), describe("shadow=a"))
		want(tt.day, tt.asked, describe("hour=a"), describe("day=a"))
		want(sluice.Never, tt.asked, describe("none=a"))
		require.Equal(t, 24*time.Hour, w.ask(describe("day=a")).Statuses[0].RetryAfter)
	}
}
