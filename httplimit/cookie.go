package httplimit

import (
	"fmt"
	"net/http"
	"strings"
)

// maxCookieBytes is what ByCookie is willing to parse, in bytes of header. Browsers and the
// usual front servers send and accept less.
const maxCookieBytes = 64 << 10

// ByCookie returns a function that takes the value of a cookie as the key, without the
// white space and the quotes around it. The error is a *ConfigError if name is no cookie
// name. It does not allocate.
//
// A cookie that is missing or empty is ErrNoKey. One that is there more than once is
// ErrBadKey, since the application might take another one of them, and so is one that is
// malformed, or that could be one of this name to some other parser: one whose name differs
// by case, by bytes that are no part of a name, or that comes after a comma (nginx and old
// Java servers take these for the cookie). A value above MaxKeyLen, or more than 64 KiB of
// cookies, is ErrKeyTooLong.
//
// A client chooses its cookies: what is said at ByHeader holds here, too.
func ByCookie(name string) (KeyFunc, error) {
	if !isToken(name) {
		return nil, notAToken("ByCookie", name, "session")
	}
	none := fmt.Errorf("%w: no cookie %s", ErrNoKey, name)
	malformed := fmt.Errorf("%w: cookie %s is malformed", ErrBadKey, name)
	twice := fmt.Errorf("%w: more than one cookie %s, want one", ErrBadKey, name)
	long := fmt.Errorf("%w: cookie %s is above %d bytes, or all cookies above %d", ErrKeyTooLong, name, MaxKeyLen, maxCookieBytes)
	return func(r *http.Request) (string, error) {
		lines := r.Header["Cookie"]
		size := 0
		for _, line := range lines {
			size += len(line)
		}
		if size > maxCookieBytes {
			return "", long
		}
		cookie, count := findCookie(lines, name)
		switch {
		case count > 1:
			return "", twice
		case count == 0:
			return "", none
		}
		value, ok := cookieValue(cookie, name)
		if !ok {
			return "", malformed
		}
		return bounded(value, none, long)
	}, nil
}

// findCookie returns how many cookies in the lines some parser could take for one of that
// name, and the last of them, as far as the next semicolon.
func findCookie(lines []string, name string) (cookie string, count int) {
	for _, line := range lines {
		for rest, more := line, true; more; {
			var part string
			part, rest, more = strings.Cut(rest, ";")
			for at, commas := part, true; commas; {
				first, after, found := strings.Cut(at, ",")
				if before, _, ok := strings.Cut(first, "="); ok && couldBe(before, name) {
					cookie = part
					count++
				}
				at, commas = after, found
			}
		}
	}
	return cookie, count
}

// couldBe reports whether some parser could take what comes before an equals sign for the
// name of a cookie.
func couldBe(before, name string) bool {
	start, end := 0, len(before)
	for start < end && !tokenByte(before[start]) {
		start++
	}
	for start < end && !tokenByte(before[end-1]) {
		end--
	}
	return strings.EqualFold(before[start:end], name)
}

// cookieValue returns the value of a cookie, name and all, if every parser reads the same.
func cookieValue(cookie, name string) (value string, ok bool) {
	before, value, _ := strings.Cut(cookie, "=")
	if trimSpace(before) != name {
		return "", false
	}
	value = trimSpace(value)
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return "", false
		}
	}
	return value, true
}
