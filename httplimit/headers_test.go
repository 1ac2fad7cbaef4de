package httplimit_test

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

var allHeaders = httplimit.Headers{
	RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11,
	XLimit: true, XRemaining: true, XReset: httplimit.ResetDelta, XRetryAfter: true,
}

// step is a request of a cost, some time after the one before.
type step struct {
	after time.Duration
	cost  int
}

const sec = time.Second

// quotaTests are computed by hand from the table in the package documentation. The clock
// begins 15 s after a full minute.
var quotaTests = []struct {
	name          string
	conf          sluice.Config
	steps         []step
	policy, limit string // parameters
	reset         string
}{
	{"gcra", sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10)},
		[]step{{0, 3}}, "q=10;w=10", "r=7;t=7", "3"},
	{"gcra, spent", sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10)},
		[]step{{0, 10}}, "q=10;w=10", "r=0;t=1", "10"},
	{"gcra, fresh", sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10)},
		[]step{{0, 0}}, "q=10;w=10", "r=10;t=10", "0"},
	{"gcra, interval 8.57 s", sluice.Config{Limit: sluice.PerMinute(7)},
		[]step{{0, 1}}, "q=7;w=60", "r=6;t=52", "9"},
	{"gcra, one a minute", sluice.Config{Limit: sluice.PerMinute(1)},
		[]step{{0, 1}}, "q=1;w=60", "r=0;t=60", "60"},
	{"gcra, half a unit", sluice.Config{Limit: sluice.PerHour(1).WithBurst(3)},
		[]step{{0, 3}, {time.Hour / 2, 0}}, "q=3;w=10800", "r=0;t=1800", "9000"},
	{"gcra, one and a half", sluice.Config{Limit: sluice.PerHour(1).WithBurst(3)},
		[]step{{0, 3}, {3 * time.Hour / 2, 0}}, "q=3;w=10800", "r=1;t=3600", "5400"},
	{"gcra, below a second", sluice.Config{Limit: sluice.PerSecond(100).WithBurst(20)},
		[]step{{0, 20}}, "q=20;w=1", "r=0;t=1", "1"},
	{"gcra, denied", sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10)},
		[]step{{0, 8}, {0, 5}}, "q=10;w=10", "r=2;t=2", "8"},
	{"soft", sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10), Soft: 5},
		[]step{{0, 3}}, "q=10;w=10", "r=7;t=7", "3"},
	{"soft, beyond the limit", sluice.Config{Limit: sluice.PerMinute(60).WithBurst(10), Soft: 5},
		[]step{{0, 12}}, "q=10;w=10", "r=0;t=3", "12"},
	{"token bucket", sluice.Config{Algorithm: sluice.TokenBucket, Limit: sluice.PerMinute(60).WithBurst(10)},
		[]step{{0, 3}, {sec, 0}}, "q=10;w=10", "r=8;t=8", "2"},
	{"leaky bucket", sluice.Config{Algorithm: sluice.LeakyBucket, Limit: sluice.PerMinute(60).WithBurst(10)},
		[]step{{0, 9}, {sec / 2, 0}}, "q=10;w=10", "r=1;t=1", "9"},
	{"refill at intervals", sluice.Config{Algorithm: sluice.TokenBucketInterval, Limit: sluice.PerMinute(10).WithBurst(25)},
		[]step{{0, 4}}, "q=25;w=150", "r=21;t=126", "45"},
	{"refill at intervals, spent", sluice.Config{Algorithm: sluice.TokenBucketInterval, Limit: sluice.PerMinute(10).WithBurst(25)},
		[]step{{0, 25}}, "q=25;w=150", "r=0;t=45", "165"},
	{"refill at intervals, nearly spent", sluice.Config{Algorithm: sluice.TokenBucketInterval, Limit: sluice.PerMinute(10).WithBurst(25)},
		[]step{{0, 24}}, "q=25;w=150", "r=1;t=45", "165"},
	{"refill at intervals, of more than fit", sluice.Config{Algorithm: sluice.TokenBucketInterval, Limit: sluice.PerMinute(10).WithBurst(5)},
		[]step{{0, 1}}, "q=5;w=60", "r=4;t=48", "45"},
	{"fixed window", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10)},
		[]step{{0, 3}, {5 * sec, 1}}, "q=10;w=60", "r=6;t=40", "40"},
	{"fixed window, fresh", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10)},
		[]step{{0, 0}}, "q=10;w=60", "r=10;t=45", "45"},
	{"fixed window, at its start", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10)},
		[]step{{45 * sec, 0}}, "q=10;w=60", "r=10;t=60", "60"},
	{"fixed window, a part of a second left", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10)},
		[]step{{44*sec + sec/2, 10}}, "q=10;w=60", "r=0;t=1", "1"},
	{"fixed window, offset, fresh", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10), Offset: 20 * sec},
		[]step{{0, 0}}, "q=10;w=60", "r=10;t=5", "5"},
	{"fixed window, offset, later", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10), Offset: 20 * sec},
		[]step{{10 * sec, 0}}, "q=10;w=60", "r=10;t=55", "55"},
	{"fixed window, offset, charged", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(10), Offset: 20 * sec},
		[]step{{0, 1}}, "q=10;w=60", "r=9;t=5", "5"},
	{"fixed window, by a calendar, charged", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(10, sluice.Calendar{Unit: sluice.CalendarDay, Zone: "Asia/Kolkata"})},
		[]step{{0, 1}}, "q=10", "r=9;t=67785", "67785"},
	{"fixed window, by a calendar, fresh", sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(10, sluice.Calendar{Unit: sluice.CalendarDay, Zone: "Asia/Kolkata"})},
		[]step{{0, 0}}, "q=10", "r=10;t=67785", "67785"},
	{"fixed window from the first charge", sluice.Config{Algorithm: sluice.FixedWindowFirstCharge, Limit: sluice.PerMinute(10)},
		[]step{{0, 3}, {10 * sec, 1}}, "q=10;w=60", "r=6;t=50", "50"},
	{"fixed window from the first charge, fresh", sluice.Config{Algorithm: sluice.FixedWindowFirstCharge, Limit: sluice.PerMinute(10)},
		[]step{{0, 0}}, "q=10;w=60", "r=10;t=60", "60"},
	// A fourth of the four leaves 15 s into the next window, in 45 s.
	{"sliding window", sluice.Config{Algorithm: sluice.SlidingWindow, Limit: sluice.PerMinute(10)},
		[]step{{0, 4}}, "q=10;w=60", "r=6;t=60", "105"},
	{"sliding window, in the next", sluice.Config{Algorithm: sluice.SlidingWindow, Limit: sluice.PerMinute(10)},
		[]step{{0, 4}, {50 * sec, 0}}, "q=10;w=60", "r=6;t=10", "55"},
	{"sliding window, fresh", sluice.Config{Algorithm: sluice.SlidingWindow, Limit: sluice.PerMinute(10)},
		[]step{{0, 0}}, "q=10;w=60", "r=10;t=60", "0"},
	{"sliding log", sluice.Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerMinute(10)},
		[]step{{0, 1}, {20 * sec, 3}}, "q=10;w=60", "r=6;t=40", "60"},
	{"sliding log, spent", sluice.Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerMinute(10)},
		[]step{{0, 1}, {20 * sec, 9}, {30*sec + sec/2, 1}}, "q=10;w=60", "r=0;t=10", "30"},
	{"sliding log, fresh", sluice.Config{Algorithm: sluice.SlidingLog, Limit: sluice.PerMinute(10)},
		[]step{{0, 0}}, "q=10;w=60", "r=10;t=60", "0"},
	{"all denied", sluice.Config{Limit: sluice.DenyAll},
		[]step{{0, 1}}, "q=0", "r=0", ""},
}

func TestHeaders_QuotasOfAllAlgorithms(t *testing.T) {
	for _, tt := range quotaTests {
		t.Run(tt.name, func(t *testing.T) {
			clock := newClock()
			tt.conf.Clock = clock
			cost := 0
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Limiter: newLimiter(t, tt.conf), Key: oneKey, Cost: func(*http.Request) int { return cost }}},
				Headers:  allHeaders,
			}, ok200)
			var got http.Header
			for _, st := range tt.steps {
				clock.Advance(st.after)
				cost = st.cost
				got = get(handler).Header()
			}
			assert.Equal(t, `"p";`+tt.policy, got.Get("RateLimit-Policy"))
			assert.Equal(t, `"p";`+tt.limit, got.Get("RateLimit"))
			items, err := parseSFList(got.Get("RateLimit"))
			require.NoError(t, err)
			assert.Equal(t, got.Get("X-RateLimit-Remaining"), fmt.Sprint(items[0].params["r"]))
			items, err = parseSFList(got.Get("RateLimit-Policy"))
			require.NoError(t, err)
			assert.Equal(t, got.Get("X-RateLimit-Limit"), fmt.Sprint(items[0].params["q"]))
			assert.Equal(t, tt.reset, got.Get("X-RateLimit-Reset"))
		})
	}
}

func TestHeaders_IntegersHaveAtMost15Digits(t *testing.T) {
	rate := math.MaxInt >> 9 // 16 digits on 64 bits
	year := 365 * 24 * time.Hour
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.Per(rate, year), newClock()), Key: oneKey}},
		Headers:  allHeaders,
	}, ok200)
	h := get(handler).Header()
	q := min(int64(rate), 999_999_999_999_999)
	r := min(int64(rate-1), 999_999_999_999_999)
	assert.Equal(t, fmt.Sprintf(`"p";q=%d;w=31536000`, q), h.Get("RateLimit-Policy"))
	assert.True(t, strings.HasPrefix(h.Get("RateLimit"), fmt.Sprintf(`"p";r=%d;t=`, r)), h.Get("RateLimit"))
	assert.Equal(t, fmt.Sprint(q), h.Get("X-RateLimit-Limit"))
	assert.Equal(t, fmt.Sprint(r), h.Get("X-RateLimit-Remaining"))
}

// Policies that limit nobody are in no header; the X fields speak of the policy with
// the least remaining.
func TestHeaders_SeveralPolicies(t *testing.T) {
	clock := newClock()
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "shadow", Limiter: newLimiter(t, sluice.Config{Limit: sluice.PerMinute(1), Shadow: true, Clock: clock}), Key: oneKey},
			{Name: `hour "h\`, Limiter: gcra(t, sluice.PerHour(3600), clock), Key: oneKey, Unit: "content-bytes"},
			{Name: "free", Limiter: gcra(t, sluice.Unlimited, clock), Key: oneKey},
			{Name: "minute", Limiter: gcra(t, sluice.PerMinute(2), clock), Key: oneKey},
			{Name: "two, too", Limiter: gcra(t, sluice.PerHour(2), clock), Key: oneKey},
		},
		Headers: allHeaders,
	}, ok200)
	h := get(handler).Header()
	policies, err := parseSFList(h.Get("RateLimit-Policy"))
	require.NoError(t, err)
	assert.Equal(t, []sfItem{
		{`hour "h\`, map[string]any{"q": int64(3600), "qu": "content-bytes", "w": int64(3600)}},
		{"minute", map[string]any{"q": int64(2), "w": int64(60)}},
		{"two, too", map[string]any{"q": int64(2), "w": int64(3600)}},
	}, policies)
	limits, err := parseSFList(h.Get("RateLimit"))
	require.NoError(t, err)
	assert.Equal(t, []sfItem{
		{`hour "h\`, map[string]any{"r": int64(3599), "t": int64(3599)}},
		{"minute", map[string]any{"r": int64(1), "t": int64(30)}},
		{"two, too", map[string]any{"r": int64(1), "t": int64(1800)}},
	}, limits)
	assert.Equal(t, "2", h.Get("X-RateLimit-Limit"), "the first of those with the least remaining")
	assert.Equal(t, "1", h.Get("X-RateLimit-Remaining"))
	assert.Equal(t, "30", h.Get("X-RateLimit-Reset"))
	assert.Empty(t, h.Get("Retry-After"))
	assert.Empty(t, h.Get("X-RateLimit-Retry-After"))
}

func TestHeaders_EachCanBeSwitched(t *testing.T) {
	all := map[string]string{
		"Ratelimit-Policy": `"p";q=1;w=60`, "Ratelimit": `"p";r=0;t=60`, "X-Ratelimit-Limit": "1", "X-Ratelimit-Remaining": "0",
		"X-Ratelimit-Reset": "60", "X-Ratelimit-Retry-After": "60", "Retry-After": "60",
	}
	onlyDenied := map[string]bool{"X-Ratelimit-Retry-After": true, "Retry-After": true}
	tests := map[string]httplimit.Headers{
		"":                        {OmitRetryAfter: true},
		"Retry-After":             {},
		"Ratelimit-Policy":        {OmitRetryAfter: true, RateLimitPolicy: httplimit.Draft11},
		"Ratelimit":               {OmitRetryAfter: true, RateLimit: httplimit.Draft11},
		"X-Ratelimit-Limit":       {OmitRetryAfter: true, XLimit: true},
		"X-Ratelimit-Remaining":   {OmitRetryAfter: true, XRemaining: true},
		"X-Ratelimit-Reset":       {OmitRetryAfter: true, XReset: httplimit.ResetDelta},
		"X-Ratelimit-Retry-After": {OmitRetryAfter: true, XRetryAfter: true},
	}
	for on, headers := range tests {
		t.Run("only="+on, func(t *testing.T) {
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(1), newClock()), Key: oneKey}},
				Headers:  headers,
				OnDenied: func(w http.ResponseWriter, _ *http.Request, d httplimit.Decision) { w.WriteHeader(d.Status) },
			}, ok200)
			for _, status := range []int{http.StatusOK, http.StatusTooManyRequests} {
				w := get(handler)
				require.Equal(t, status, w.Code)
				want := http.Header{}
				if on != "" && (status != http.StatusOK || !onlyDenied[on]) {
					want.Set(on, all[on])
				}
				assert.Equal(t, want, w.Header(), "status %d", status)
			}
		})
	}
}

func TestHeaders_ResetInUnixSecondsIsRoundedUp(t *testing.T) {
	clock := newClock()
	clock.Advance(time.Millisecond)
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(2), clock), Key: oneKey}},
		Headers:  httplimit.Headers{XReset: httplimit.ResetUnix},
	}, ok200)
	assert.Equal(t, strconv.FormatInt(start.Unix()+31, 10), get(handler).Header().Get("X-RateLimit-Reset"))
}

func TestHeaders_JitterIsAddedAndBounded(t *testing.T) {
	clock := newClock()
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(6), clock), Key: oneKey, Cost: func(*http.Request) int { return 6 }}},
		Headers:  httplimit.Headers{RetryJitter: 3 * time.Second, XRetryAfter: true},
	}, ok200)
	require.Equal(t, http.StatusOK, get(handler).Code)
	seen := map[string]int{}
	for range 400 {
		h := get(handler).Header()
		seen[h.Get("Retry-After")]++
		assert.Equal(t, h.Get("Retry-After"), h.Get("X-RateLimit-Retry-After"))
	}
	// Each is missed by all 400 with a chance of 0.75^400.
	assert.Len(t, seen, 4)
	for _, want := range []string{"60", "61", "62", "63"} {
		assert.Positive(t, seen[want], "%s of %v", want, seen)
	}
}

// Only Retry-After is cut: the decision and the other fields stay true, and who heeds the hint is denied again.
func TestHeaders_MaxRetryAfterCutsTheHintAlone(t *testing.T) {
	clock := newClock()
	var told httplimit.Decision
	handler := wrap(t, httplimit.Config{
		Policies:   []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.Per(1, 24*time.Hour), clock), Key: oneKey}},
		Headers:    httplimit.Headers{MaxRetryAfter: time.Minute, XRetryAfter: true, RateLimit: httplimit.Draft11, XReset: httplimit.ResetDelta},
		OnDecision: func(_ *http.Request, d httplimit.Decision) { told = d },
	}, ok200)
	require.Equal(t, http.StatusOK, get(handler).Code)
	h := get(handler).Header()
	assert.Equal(t, "60", h.Get("Retry-After"))
	assert.Equal(t, "60", h.Get("X-RateLimit-Retry-After"))
	assert.Equal(t, "86400", h.Get("X-RateLimit-Reset"))
	assert.Contains(t, h.Get("RateLimit"), ";t=86400")
	assert.Equal(t, 24*time.Hour, told.RetryAfter)
	clock.Advance(time.Minute)
	assert.Equal(t, http.StatusTooManyRequests, get(handler).Code)
	clock.Advance(24*time.Hour - 90*time.Second)
	assert.Equal(t, "30", get(handler).Header().Get("Retry-After"), "a wait below the bound is told as it is")
	clock.Advance(30 * time.Second)
	assert.Equal(t, http.StatusOK, get(handler).Code)
}

func TestHeaders_RetryAfter(t *testing.T) {
	costs := map[string]int{"/many": 6, "/never": 11, "/negative": -1, "/five": 5}
	tests := []struct {
		name  string
		limit sluice.Limit
		spent int
		path  string
		conf  httplimit.Headers
		want  string
	}{
		{"rounded up", sluice.PerMinute(40).WithBurst(10), 10, "/", httplimit.Headers{}, "2"},
		{"at least one", sluice.PerSecond(1000).WithBurst(10), 10, "/", httplimit.Headers{}, "1"},
		{"exact", sluice.PerMinute(60).WithBurst(10), 10, "/many", httplimit.Headers{}, "6"},
		{"no earlier than t", sluice.PerMinute(60).WithBurst(10), 6, "/five", httplimit.Headers{RateLimit: httplimit.Draft11}, "4"},
		{"without RateLimit as early as can be", sluice.PerMinute(60).WithBurst(10), 6, "/five", httplimit.Headers{}, "1"},
		{"a cost above the burst", sluice.PerMinute(60).WithBurst(10), 0, "/never", httplimit.Headers{}, ""},
		{"a negative cost", sluice.PerMinute(60).WithBurst(10), 0, "/negative", httplimit.Headers{}, ""},
		{"a limit of nothing", sluice.DenyAll, 0, "/", httplimit.Headers{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lim := gcra(t, tt.limit, newClock())
			if tt.spent > 0 {
				require.True(t, lim.AllowN("k", tt.spent))
			}
			cost := func(r *http.Request) int {
				if c, ok := costs[r.Header.Get("Path")]; ok {
					return c
				}
				return 1
			}
			tt.conf.XRetryAfter = true
			handler := wrap(t, httplimit.Config{
				Policies: []httplimit.Policy{{Name: "p", Limiter: lim, Key: oneKey, Cost: cost}}, Headers: tt.conf,
			}, ok200)
			w := get(handler, "Path", tt.path)
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, tt.want, w.Header().Get("Retry-After"))
			assert.Equal(t, tt.want, w.Header().Get("X-RateLimit-Retry-After"))
		})
	}
}

// Retry-After counts only what is violated: waiting for the others would help nobody.
func TestHeaders_RetryAfterIsThatOfTheViolated(t *testing.T) {
	clock := newClock()
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{
			{Name: "day", Limiter: newLimiter(t, sluice.Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerDay(100), Clock: clock}), Key: oneKey},
			{Name: "minute", Limiter: gcra(t, sluice.PerMinute(1), clock), Key: oneKey},
		},
		Headers: allHeaders,
	}, ok200)
	require.Equal(t, http.StatusOK, get(handler).Code)
	h := get(handler).Header()
	assert.Equal(t, "60", h.Get("Retry-After"))
	limits, err := parseSFList(h.Get("RateLimit"))
	require.NoError(t, err)
	assert.Equal(t, int64(99), limits[0].params["r"])
	assert.Equal(t, int64(1185), limits[0].params["t"], "the rest of the day")
}

func TestHeaders_PartitionKeys(t *testing.T) {
	clock := newClock()
	var pk []byte
	var asked []string
	handler := wrap(t, httplimit.Config{
		Policies: []httplimit.Policy{{Name: "p", Limiter: gcra(t, sluice.PerMinute(10), clock), Key: byHeader("User")}},
		Headers: httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11, PartitionKey: func(policy, key string) []byte {
			asked = append(asked, policy+" "+key)
			return pk
		}},
	}, ok200)
	for _, tt := range []struct {
		pk   string
		want any
	}{{"App-999", []byte("App-999")}, {"\x00\xff", []byte("\x00\xff")}, {"", nil}, {strings.Repeat("x", 64), bytes.Repeat([]byte("x"), 64)}, {strings.Repeat("x", 65), nil}} {
		pk = []byte(tt.pk)
		h := get(handler, "User", "ann").Header()
		for _, name := range []string{"RateLimit-Policy", "RateLimit"} {
			items, err := parseSFList(h.Get(name))
			require.NoError(t, err)
			assert.Equal(t, tt.want, items[0].params["pk"], "%s of %q", name, tt.pk)
		}
	}
	assert.Equal(t, "p ann", asked[0])
}

func TestHashedPartitionKey(t *testing.T) {
	secret := []byte("0123456789abcdef")
	pk, err := httplimit.HashedPartitionKey(secret)
	require.NoError(t, err)
	ann := pk("p", "ann")
	secret[0] = 'x' // the function has its own
	assert.Equal(t, ann, pk("p", "ann"))
	assert.Len(t, ann, 16)
	assert.NotContains(t, string(ann), "ann")
	other, err := httplimit.HashedPartitionKey(secret)
	require.NoError(t, err)
	for _, unlike := range [][]byte{pk("p", "bob"), pk("pa", "nn"), pk("", "pann"), other("p", "ann")} {
		assert.NotEqual(t, ann, unlike)
	}
	_, err = httplimit.HashedPartitionKey(secret[:15])
	assert.ErrorContains(t, err, "15 bytes can be guessed; want at least 16")
}

// Lists add up where middlewares are stacked. A value that a handler appends to a header goes
// to no other header.
func TestHeaders_OfStackedMiddlewares(t *testing.T) {
	clock := newClock()
	policy := func(name string, n int) httplimit.Config {
		return httplimit.Config{Policies: []httplimit.Policy{{Name: name, Limiter: gcra(t, sluice.PerMinute(n), clock), Key: oneKey}}, Headers: allHeaders}
	}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("RateLimit-Policy", `"theirs";q=1`)
		w.Header().Add("RateLimit", `"theirs";r=1`)
		w.Header().Add("X-RateLimit-Limit", "7")
	})
	h := get(wrap(t, policy("outer", 10), wrap(t, policy("inner", 5), next))).Header()
	assert.Equal(t, []string{`"outer";q=10;w=60`, `"inner";q=5;w=60`, `"theirs";q=1`}, h.Values("RateLimit-Policy"))
	assert.Equal(t, []string{`"outer";r=9;t=54`, `"inner";r=4;t=48`, `"theirs";r=1`}, h.Values("RateLimit"))
	assert.Equal(t, []string{"5", "7"}, h.Values("X-RateLimit-Limit"))
	assert.Equal(t, []string{"4"}, h.Values("X-RateLimit-Remaining"))
}

// TestHeaders_FieldsAreBounded: policies whose fields could take more than 8 KiB are refused, and those that are not take
// no more, with every byte that a name, a unit or a partition key can have.
func TestHeaders_FieldsAreBounded(t *testing.T) {
	rng := seeded.Rand(t)
	refused := 0
	for range 200 {
		text := func() string {
			const all = `"\%aaaaaaa `
			b := make([]byte, 1+rng.IntN(64))
			for i := range b {
				b[i] = all[rng.IntN(len(all))]
			}
			return string(b)
		}
		c := httplimit.Config{Headers: httplimit.Headers{RateLimitPolicy: httplimit.HeaderVersion(rng.IntN(2)), RateLimit: httplimit.Draft11}}
		if rng.IntN(2) == 0 {
			c.Headers.PartitionKey = func(string, string) []byte { return make([]byte, 64) }
		}
		for i := range 1 + rng.IntN(60) {
			p := httplimit.Policy{Name: fmt.Sprintf("%d%.60s", i, text()), Limiter: gcra(t, sluice.Per(1_000_000_000, 3_000_000*time.Second), newClock()), Key: oneKey}
			if rng.IntN(2) == 0 {
				p.Unit = text()
			}
			c.Policies = append(c.Policies, p)
		}
		limit, err := httplimit.New(c)
		if err != nil {
			require.ErrorContains(t, err, "Config.Headers: RateLimit-Policy and RateLimit of")
			require.ErrorContains(t, err, "want at most 8192")
			refused++
			continue
		}
		h := get(limit.Handler(ok200)).Header()
		require.NotEmpty(t, h.Get("RateLimit"))
		require.LessOrEqual(t, len(h.Get("RateLimit"))+len(h.Get("RateLimit-Policy")), 8<<10)
	}
	require.Positive(t, refused)
	c := httplimit.Config{Headers: httplimit.Headers{RateLimitPolicy: httplimit.Draft11, RateLimit: httplimit.Draft11}}
	for i := range 200 {
		c.Policies = append(c.Policies, httplimit.Policy{Name: fmt.Sprintf("policy-%03d", i), Limiter: gcra(t, sluice.PerSecond(1), newClock()), Key: oneKey})
	}
	_, err := httplimit.New(c)
	require.ErrorContains(t, err, "of 200 policies can take")
	c.Policies = c.Policies[:80]
	_, err = httplimit.New(c)
	require.NoError(t, err)
	c.Policies, c.Headers.PartitionKey = c.Policies[:25], func(string, string) []byte { return nil }
	_, err = httplimit.New(c)
	require.NoError(t, err)
}
