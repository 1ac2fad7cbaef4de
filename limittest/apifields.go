package limittest

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
)

// maxField is the largest integer of a structured field: RFC 9651, section 3.3.1.
const maxField = 999_999_999_999_999

// fields tells about the limit, in the words of the generation.
func (a *API) fields(h http.Header, e Exchange, d sluice.Decision) {
	if a.config.Generation == FieldsOff {
		return
	}
	key := a.config.Limiter.Key(e.Key)
	policy := key.Limit()
	limit, remaining, reset := min(int64(d.Limit), maxField), min(int64(d.Remaining), maxField), seconds(d.ResetAfter)
	quota, window := min(int64(policy.Rate), maxField), seconds(policy.Period)
	set := func(name, format string, values ...any) { h.Set(name, fmt.Sprintf(format, values...)) }
	switch a.config.Generation {
	case XRateLimit, XRateLimitUnix:
		set("X-Ratelimit-Limit", "%d", limit)
		set("X-Ratelimit-Remaining", "%d", remaining)
		if a.config.Generation == XRateLimitUnix {
			reset = unixSeconds(e.At, d.ResetAfter)
		}
		set("X-Ratelimit-Reset", "%d", reset)
	case Draft03:
		set("Ratelimit-Limit", "%d, %d;w=%d", limit, quota, window)
		set("Ratelimit-Remaining", "%d", remaining)
		set("Ratelimit-Reset", "%d", reset)
	case Draft06:
		set("Ratelimit-Limit", "%d", limit)
		set("Ratelimit-Remaining", "%d", remaining)
		set("Ratelimit-Reset", "%d", reset)
		set("Ratelimit-Policy", "%d;w=%d", quota, window)
	case Draft07:
		set("Ratelimit", "limit=%d, remaining=%d, reset=%d", limit, remaining, reset)
		set("Ratelimit-Policy", "%d;w=%d", quota, window)
	case Draft11:
		if d.Remaining == 0 { // t is when there is more
			reset = seconds(key.PeekAt(e.At, 1).RetryAfter)
		}
		set("Ratelimit", `"default";r=%d;t=%d`, remaining, reset)
		set("Ratelimit-Policy", `"default";q=%d;w=%d`, quota, window)
	}
}

// pushBack tells a client of gRPC when to come back.
func (a *API) pushBack(h http.Header, wait time.Duration) {
	if !a.config.Pushback {
		return
	}
	ms := int64(-1)
	if wait != sluice.Never {
		ms = ceil(int64(wait), int64(time.Millisecond))
	}
	h.Set("Grpc-Retry-Pushback-Ms", strconv.FormatInt(ms, 10))
}

// value is the value of Retry-After at a time, and the time that it names; "" if no wait helps, or there is none.
func (f RetryAfterForm) value(now int64, wait time.Duration) (value string, until int64) {
	if f == RetryAfterOff || wait <= 0 || wait == sluice.Never {
		return "", 0
	}
	if f == RetryAfterSeconds {
		s := seconds(wait)
		return strconv.FormatInt(s, 10), after(now, times(time.Second, s))
	}
	s := unixSeconds(now, wait)
	return httpDate(s * int64(time.Second)), s * int64(time.Second)
}

// httpDate is a time as an HTTP-date, rounded down.
func httpDate(now int64) string { return time.Unix(0, now).UTC().Format(http.TimeFormat) }

// seconds is a wait in seconds, rounded up.
func seconds(d time.Duration) int64 { return ceil(int64(d), int64(time.Second)) }

// unixSeconds is the time after a wait, in seconds rounded up that are still a time in nanoseconds.
func unixSeconds(now int64, d time.Duration) int64 {
	return min(ceil(after(now, d), int64(time.Second)), math.MaxInt64/int64(time.Second))
}

func ceil(n, unit int64) int64 {
	if n%unit > 0 {
		return n/unit + 1
	}
	return n / unit
}
