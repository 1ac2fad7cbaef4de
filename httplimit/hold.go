package httplimit

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// maxHostBytes is twice the longest name in the DNS (RFC 1035, 2.3.4).
const maxHostBytes = 512

// canonicalHost returns one text for all spellings of a URL's host and port: lower case,
// no default port, no final dot, no leading zeros in the port, the shortest form of an
// address. It refuses a host that could be another spelling of one.
func canonicalHost(u *url.URL) (string, error) {
	if len(u.Host) > maxHostBytes {
		return "", fmt.Errorf("httplimit: the URL's host is %d bytes long; want at most %d", len(u.Host), maxHostBytes)
	}
	plain := !strings.HasSuffix(u.Host, ".")
	for i := range len(u.Host) {
		switch c := u.Host[i]; {
		case c >= 0x80:
			return "", fmt.Errorf("httplimit: the URL's host %q is not ASCII; want its xn-- form", u.Host)
		case letterByte(c) && !lowerByte(c), c == ':', c == '[', c == ']':
			plain = false
		}
	}
	if plain {
		return u.Host, nil
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	name := strings.TrimSuffix(host, ".")
	addr, err := netip.ParseAddr(name)
	switch {
	case strings.HasSuffix(name, "."), name == "" && host != "", err != nil && (strings.ContainsAny(name, ":[]") || u.Host[0] == '['):
		return "", fmt.Errorf("httplimit: the URL's host %q is neither a name nor an address; want one, and a port behind it at most", u.Host)
	case err == nil:
		name = addr.Unmap().String()
	}
	for len(port) > 1 && port[0] == '0' {
		port = port[1:]
	}
	switch {
	case port != "" && !(port == "80" && u.Scheme == "http") && !(port == "443" && u.Scheme == "https"):
		return net.JoinHostPort(name, port), nil
	case strings.Contains(name, ":"):
		return "[" + name + "]", nil
	}
	return name, nil
}

// heed holds the host back for as long as resp asks for, at most MaxRetryAfter, and
// returns the wait that it asks for.
func (t *Transport) heed(host string, resp *http.Response) time.Duration {
	now := time.Now()
	asked := askedPause(resp, now)
	if asked > 0 {
		// The caller's string may be a small part of a large one.
		t.holds.Hold(strings.Clone(host), now.Add(min(asked, t.config.MaxRetryAfter)), now)
	}
	return asked
}

// askedPause returns for how long resp asks for no requests, 0 if it does not. If there
// are both fields, Retry-After takes precedence (draft 11, section 7).
func askedPause(resp *http.Response, now time.Time) time.Duration {
	if retryAfterHolds(resp.StatusCode) {
		if sent, err := http.ParseTime(trimSpace(resp.Header.Get("Date"))); err == nil {
			now = sent // by the server's clock, so that it need not agree with ours
		}
		if d, ok := longestRetryAfter(resp.Header["Retry-After"], now); ok {
			return d
		}
	}
	if age, ok := parseSeconds(trimSpace(resp.Header.Get("Age"))); ok && age > 0 {
		return 0
	}
	d, _ := parseRateLimit(resp.Header["Ratelimit"])
	return d
}

// retryAfterHolds reports whether a Retry-After with this status asks to leave the
// server alone. 429 is RFC 6585, section 4, and 503 RFC 9110, 10.2.3; GitHub, for one,
// denies too many requests with 403.
func retryAfterHolds(status int) bool {
	switch status {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	}
	return false
}

// longestRetryAfter returns the longest time that the lines of a Retry-After ask for. There
// should be one, but a proxy can have added its own.
func longestRetryAfter(lines []string, now time.Time) (longest time.Duration, ok bool) {
	for _, line := range lines {
		if d, valid := parseRetryAfter(trimSpace(line), now); valid {
			longest, ok = max(longest, d), true
		}
	}
	return longest, ok
}

// maxRetryAfterBytes is more than any date, and any number of seconds that makes sense.
const maxRetryAfterBytes = 64

// parseRetryAfter returns the time to wait for that a Retry-After (RFC 9110, 10.2.3)
// means at now: 0 for a date that has passed. ok is false if it is malformed.
func parseRetryAfter(value string, now time.Time) (d time.Duration, ok bool) {
	if d, ok := parseSeconds(value); ok {
		return d, true
	}
	if len(value) > maxRetryAfterBytes {
		return 0, false
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return max(0, at.Sub(now)), true
}

// parseSeconds reads delay-seconds, 1*DIGIT. A number that is too large for a Duration
// is the largest one.
func parseSeconds(value string) (d time.Duration, ok bool) {
	if value == "" || len(value) > maxRetryAfterBytes {
		return 0, false
	}
	n := int64(0)
	for i := range len(value) {
		if !digitByte(value[i]) {
			return 0, false
		}
		if n <= math.MaxInt64/100 {
			n = n*10 + int64(value[i]-'0')
		}
	}
	return saturatedSeconds(n), true
}
