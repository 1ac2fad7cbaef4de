package httplimit

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// The errors of key functions, which wrap one of them and name the mistake. They are
// three so that a handler of key errors can let a request without a key through, as
// anonymous say, and still refuse one that was made up to look as if it had none.
var (
	// ErrNoKey: the request lacks a part of the key.
	ErrNoKey = errors.New("httplimit: no key")
	// ErrBadKey says that it is there, but malformed, or there twice, so that the
	// limiter and the application might not read the same.
	ErrBadKey = errors.New("httplimit: bad key")
	// ErrKeyTooLong says that the key, or the header that it is read from, is longer
	// than the function accepts.
	ErrKeyTooLong = errors.New("httplimit: key too long")
)

// MaxKeyLen is the length in bytes of the longest key that a function of this package
// returns. A longer one is ErrKeyTooLong: it is neither cut, which would make two
// clients one, nor hashed, which would let a client choose how much work it is.
const MaxKeyLen = 4096

// ByHeader returns a function that takes the value of a header as the key, as it was
// sent, without the spaces and tabs around it. It does not allocate. The error is a
// *ConfigError if name is no header name, or one whose value is no key: Host (which
// net/http keeps elsewhere), X-Forwarded-For and Forwarded (for ByRemoteIP), Authorization
// (for ByBearerToken and ByBasicAuthUser) and Cookie (for ByCookie), where one credential or
// cookie can be written in many ways.
//
// A header that is missing or empty is ErrNoKey, one that is there more than once
// ErrBadKey, a value above MaxKeyLen ErrKeyTooLong.
//
// A client chooses its headers, and one that the server has not verified by then can be
// another for each request: it limits nobody. Put the limit behind the authentication,
// or add a policy with ByRemoteIP. In front of applications that take X_Api_Key for X-Api-Key, as by CGI,
// drop names with an underscore.
func ByHeader(name string) (KeyFunc, error) {
	const field = "ByHeader"
	if !isToken(name) {
		return nil, notAToken(field, name, "X-Api-Key")
	}
	name = http.CanonicalHeaderKey(name)
	switch name {
	case "Host":
		return nil, configErrorf(field, "Host is not among the headers of a http.Request; want a function that returns Request.Host")
	case headerXFF, headerForwarded:
		return nil, configErrorf(field, "%s is written by the client as well as by proxies; want ByRemoteIP with TrustedProxies", name)
	case "Authorization":
		return nil, configErrorf(field, "Authorization has many spellings of the same credentials; want ByBearerToken or ByBasicAuthUser")
	case "Cookie":
		return nil, configErrorf(field, "Cookie has all cookies, to which a client can add any; want ByCookie")
	}
	none := fmt.Errorf("%w: no header %s", ErrNoKey, name)
	twice := fmt.Errorf("%w: more than one header %s, want one", ErrBadKey, name)
	long := fmt.Errorf("%w: header %s is above %d bytes", ErrKeyTooLong, name, MaxKeyLen)
	return func(r *http.Request) (string, error) {
		values := r.Header[name]
		if len(values) > 1 {
			return "", twice
		}
		if len(values) == 0 {
			return "", none
		}
		// HTTP/2 does not trim values, and whoever verifies this one may: it must not
		// become another key by a space.
		return bounded(trimSpace(values[0]), none, long)
	}, nil
}

// ByPattern returns a function that takes the pattern of http.ServeMux that matched the
// request as the key, such as "GET /items/{id}": one budget for all that the pattern
// serves, however the path is spelled. It does not allocate.
//
// The mux sets http.Request.Pattern when it calls the handler. In a middleware around
// the mux there is none yet, and every request is ErrNoKey: put the middleware around the
// handlers, inside the mux. Under chi and echo it is the path of the route, without a method, as
// the router sets it; under gin and fiber, and echo v4, the adapters do that.
func ByPattern() KeyFunc {
	none := fmt.Errorf("%w: no pattern; it is known to handlers of a http.ServeMux, not to what is around the mux", ErrNoKey)
	long := fmt.Errorf("%w: pattern is above %d bytes", ErrKeyTooLong, MaxKeyLen)
	return func(r *http.Request) (string, error) { return bounded(r.Pattern, none, long) }
}

// Join returns a function that joins the keys of all funcs to one: a budget for each
// user and pattern, say. Two requests have the same key only if they have the same one
// by each of funcs: the key is the parts in order, each with its length in bytes and a
// colon before it, such as "3:ann6:/login", which is also the name in TopDenied, and the name
// for Limiter.Key. The error of the first one that fails is returned as it is; a key
// above MaxKeyLen is ErrKeyTooLong.
//
// The error is a *ConfigError if there are no funcs, or a nil one.
func Join(funcs ...KeyFunc) (KeyFunc, error) {
	if len(funcs) == 0 {
		return nil, configErrorf("Join", "no functions, so all requests would have one key; want at least one")
	}
	for i, f := range funcs {
		if f == nil {
			return nil, configErrorf("Join", "function %d of %d is nil; want a KeyFunc", i+1, len(funcs))
		}
	}
	funcs = append([]KeyFunc(nil), funcs...)
	long := fmt.Errorf("%w: joined key is above %d bytes", ErrKeyTooLong, MaxKeyLen)
	return func(r *http.Request) (string, error) {
		var space [128]byte
		joined := space[:0]
		for _, f := range funcs {
			key, err := f(r)
			if err != nil {
				return "", err
			}
			// A separator could be part of a key. A length in front cannot be mistaken.
			joined = strconv.AppendInt(joined, int64(len(key)), 10)
			joined = append(joined, ':')
			if len(joined)+len(key) > MaxKeyLen {
				return "", long
			}
			joined = append(joined, key...)
		}
		return string(joined), nil
	}, nil
}

// bounded returns key, or an error if it is empty or too long.
func bounded(key string, none, long error) (string, error) {
	switch {
	case key == "":
		return "", none
	case len(key) > MaxKeyLen:
		return "", long
	}
	return key, nil
}

func notAToken(field, name, example string) *ConfigError {
	return configErrorf(field, "%.64q is no name; want letters, digits and any of %s, as in %s", name, tokenMarks, example)
}

// tokenMarks are the characters of a token other than letters and digits: RFC 9110,
// section 5.6.2.
const tokenMarks = "!#$%&'*+-.^_`|~"

func isToken(s string) bool { return s != "" && allBytes(s, tokenByte) }

// allBytes reports whether all bytes of s are of a class. It is small enough to be inlined, and
// the class with it.
func allBytes(s string, class func(byte) bool) bool {
	for i := range len(s) {
		if !class(s[i]) {
			return false
		}
	}
	return true
}

func digitByte(c byte) bool   { return c >= '0' && c <= '9' }
func lowerByte(c byte) bool   { return c >= 'a' && c <= 'z' }
func letterByte(c byte) bool  { return lowerByte(c | 0x20) }
func visibleByte(c byte) bool { return c > ' ' && c < 0x7f }
func tokenByte(c byte) bool {
	return letterByte(c) || digitByte(c) || strings.IndexByte(tokenMarks, c) >= 0
}

// trimSpace removes optional white space in the sense of HTTP, and no more.
func trimSpace(s string) string { return strings.Trim(s, " \t") }

// maxAuthorizationBytes bounds the header that ByBasicAuthUser and ByBearerToken look at.
// The usual front servers accept less.
const maxAuthorizationBytes = 2 * MaxKeyLen

// ByBasicAuthUser returns a function that takes the user name of HTTP Basic
// authentication (RFC 7617) as the key, whatever the password is.
//
// A request without it, or with an empty name, is ErrNoKey. One with two Authorization
// headers, or with credentials that cannot be read or that somebody else could read as
// Basic, is ErrBadKey, and a name above MaxKeyLen or a header above twice that
// ErrKeyTooLong. White space around the credentials, which HTTP/2 keeps and a server
// behind this one drops, makes no difference.
//
// Names are compared byte by byte: where the application takes "Bob" and "bob" for one
// user, each is a key of its own. The name is the client's claim, before anybody has
// looked at the password. To limit guesses, use it in a policy beside one with
// ByRemoteIP, and mind that strangers can use up the budget of a name.
func ByBasicAuthUser() KeyFunc {
	s := newScheme("Basic", "user name of Basic authentication")
	return func(r *http.Request) (string, error) {
		credentials, err := s.credentials(r)
		if err != nil {
			return "", err
		}
		pair, err := base64.StdEncoding.DecodeString(credentials)
		user, _, ok := strings.Cut(string(pair), ":")
		if err != nil || !ok {
			return "", s.malformed
		}
		return bounded(user, s.none, s.long)
	}
}

// ByBearerToken returns a function that takes the token of an Authorization with the
// scheme Bearer (RFC 6750) as the key, in whatever case the scheme is spelled. It does
// not allocate.
//
// A request without it is ErrNoKey. One with two Authorization headers, or with a token
// that is empty or has anything but visible ASCII in it, or that somebody else could read
// as Bearer, is ErrBadKey, and a token above MaxKeyLen ErrKeyTooLong. A JWT whose signature is
// not in the one encoding that it has by RFC 7515, which many libraries verify all the same, is
// ErrBadKey, too. Of other tokens that are encodings of something, each text is a key.
//
// A client chooses its token: the warning of ByHeader holds here, too.
func ByBearerToken() KeyFunc {
	s := newScheme("Bearer", "Bearer token")
	return func(r *http.Request) (string, error) {
		token, err := s.credentials(r)
		if err != nil {
			return "", err
		}
		if !allBytes(token, visibleByte) || isJWT(token) && !encodedOnce(token) {
			return "", s.malformed
		}
		return bounded(token, s.malformed, s.long)
	}
}

// isJWT reports whether a token begins like a JWT: with the encoding of a brace, and of a character that may follow it.
func isJWT(token string) bool {
	return strings.HasPrefix(token, "ey") || strings.HasPrefix(token, "ew")
}

// encodedOnce reports whether those parts of a JWT are base64url in its one form that are not
// signed as they are written: the signature, or all parts but the first of one that is
// encrypted. Anybody who has one could otherwise make more of it that verify.
func encodedOnce(token string) bool {
	parts := 1 + strings.Count(token, ".")
	if parts != 3 && parts != 5 {
		return true
	}
	for i := range parts {
		part, rest, _ := strings.Cut(token, ".")
		if token = rest; (i == 2 || i > 0 && parts == 5) && !isBase64URL(part) {
			return false
		}
	}
	return true
}

// base64URL takes no unused bits that are set.
var base64URL = base64.RawURLEncoding.Strict()

// isBase64URL reports whether base64.RawURLEncoding makes s of some bytes. It has no line
// breaks, which a decoder passes over.
func isBase64URL(s string) bool {
	var from [256]byte // decoded in parts, in place of an allocation
	var to [192]byte
	for s != "" {
		n := copy(from[:], s)
		if _, err := base64URL.Decode(to[:], from[:n]); err != nil {
			return false
		}
		s = s[n:]
	}
	return true
}

// A scheme is a way to authenticate in the header Authorization, with the errors for
// requests that do it wrong.
type scheme struct {
	name                         string
	none, twice, malformed, long error
}

func newScheme(name, what string) *scheme {
	return &scheme{
		name:      name,
		none:      fmt.Errorf("%w: no %s", ErrNoKey, what),
		twice:     fmt.Errorf("%w: more than one header Authorization, want one", ErrBadKey),
		malformed: fmt.Errorf("%w: malformed %s authentication", ErrBadKey, name),
		long:      fmt.Errorf("%w: %s is above %d bytes, or header Authorization above %d", ErrKeyTooLong, what, MaxKeyLen, maxAuthorizationBytes),
	}
}

// credentials returns the part after the scheme.
//
// Only a text that is plainly of another scheme counts as no credentials. A server behind this one
// may drop or split at more than HTTP's white space (Python takes 0x85 and 0xa0 for it), so
// a text that does not begin with a token and a space or tab is refused.
func (s *scheme) credentials(r *http.Request) (string, error) {
	values := r.Header["Authorization"]
	switch {
	case len(values) > 1:
		return "", s.twice
	case len(values) == 0:
		return "", s.none
	case len(values[0]) > maxAuthorizationBytes:
		return "", s.long
	}
	value := trimSpace(values[0])
	if value == "" {
		return "", s.none
	}
	end := 0
	for end < len(value) && tokenByte(value[end]) {
		end++
	}
	name, rest := value[:end], value[end:]
	switch {
	case rest != "" && rest[0] != ' ' && rest[0] != '\t':
		return "", s.malformed
	case !strings.EqualFold(name, s.name):
		return "", s.none
	}
	return trimSpace(rest), nil
}

// maxCookieBytes bounds the header that ByCookie parses. Browsers and the
// usual front servers send and accept less.
const maxCookieBytes = 64 << 10

// ByCookie returns a function that takes the value of a cookie as the key, without the
// white space and the quotes around it. The error is a *ConfigError if name is no cookie
// name. It does not allocate.
//
// A cookie that is missing or empty is ErrNoKey. One that is there more than once is
// ErrBadKey, since the application might take another one of them, and so is one that is
// malformed, has a space in it and no quotes around it, or could be one of this name to some
// other parser: one whose name differs by case, by bytes that are no part of a name, or by a
// dot, bracket or space for an underscore, or that comes after a comma or white space (nginx, old
// Java servers, PHP or Python take these for the cookie). A value above MaxKeyLen, or more than 64 KiB of
// cookies, is ErrKeyTooLong.
//
// A client chooses its cookies: the warning of ByHeader holds here, too.
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
				if n := namesIn(first, name); n > 0 {
					cookie = part
					count += n
				}
				at, commas = after, found
			}
		}
	}
	return cookie, count
}

// namesIn returns how many of the equals signs in s are behind the name, to some parser: the text that comes
// before the first one is a name, and so is the last word before each, for Python ends a
// cookie at white space, too.
func namesIn(s, name string) (count int) {
	before, _, ok := strings.Cut(s, "=")
	whole := ok && couldBe(before, name)
	if whole {
		count++
	}
	if s = trimSpace(s); !ok || strings.IndexByte(s, ' ') < 0 && strings.IndexByte(s, '\t') < 0 {
		return count
	}
	from, to := 0, 0               // of the last word, as couldBe would cut it, found in one pass
	between, named := false, false // a word ends, and has been behind a sign
	for i := range len(s) {
		c := s[i]
		if c == '=' && !named {
			if !whole && sameName(s[from:to], name) {
				count++
			}
			whole, named = false, from < to
		}
		switch {
		case c == ' ' || c == '\t':
			between = true
			continue
		case between:
			from, to, between, named = i, i, false, c == '=' && named
		}
		if tokenByte(c) {
			if from == to {
				from = i
			}
			to = i + 1
		}
	}
	return count
}

// couldBe reports whether some parser could take the text before an equals sign for the
// name of a cookie.
func couldBe(before, name string) bool {
	start, end := 0, len(before)
	for start < end && !tokenByte(before[start]) {
		start++
	}
	for start < end && !tokenByte(before[end-1]) {
		end--
	}
	return sameName(before[start:end], name)
}

// sameName reports whether some parser takes s for the name.
func sameName(s, name string) bool {
	if len(s) != len(name) {
		return false
	}
	for i := range len(name) {
		if c := s[i]; c != name[i] && !(letterByte(c) && c|0x20 == name[i]|0x20) && !(name[i] == '_' && underscoreInPHP(c)) {
			return false
		}
	}
	return true
}

// underscoreInPHP reports whether PHP makes an underscore of c in the name of a cookie.
func underscoreInPHP(c byte) bool { return c == '.' || c == ' ' || c == '[' }

// cookieValue returns the value of a cookie, name and all, if every parser reads the same.
func cookieValue(cookie, name string) (value string, ok bool) {
	before, value, _ := strings.Cut(cookie, "=")
	if trimSpace(before) != name {
		return "", false
	}
	value = trimSpace(value)
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	} else if strings.IndexByte(value, ' ') >= 0 { // where Python ends it
		return "", false
	}
	return value, allBytes(value, fieldStringByte)
}
