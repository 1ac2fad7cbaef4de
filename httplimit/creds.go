package httplimit

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// maxAuthorizationBytes is what ByBasicAuthUser and ByBearerToken are willing to look at.
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
// user, each is a key of its own. The name is what the client says, before anybody has
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
// as Bearer, is ErrBadKey, and a token above MaxKeyLen ErrKeyTooLong.
//
// A client chooses its token: what is said at ByHeader holds here, too.
func ByBearerToken() KeyFunc {
	s := newScheme("Bearer", "Bearer token")
	return func(r *http.Request) (string, error) {
		token, err := s.credentials(r)
		if err != nil {
			return "", err
		}
		for i := range len(token) {
			if token[i] <= ' ' || token[i] >= 0x7f {
				return "", s.malformed
			}
		}
		return bounded(token, s.malformed, s.long)
	}
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

// credentials returns what comes after the scheme.
//
// Only what is plainly another scheme counts as no credentials. A server behind this one
// may drop or split at more than HTTP's white space (Python takes 0x85 and 0xa0 for it), so
// what does not begin with a token and a space or tab is refused.
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
