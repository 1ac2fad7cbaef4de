// Package original makes a request of the words of a proxy or a log, in the one
// spelling that rules compare.
package original

import (
	"net/http"
	"net/url"
	"path"
	"strings"
)

// Request is a request with a method, a host and a target; each can be empty, for one that nobody has
// told.
func Request(method, host, target string, header http.Header) *http.Request {
	r := &http.Request{Method: method, Host: Host(host), URL: &url.URL{Path: Path(target)}, RequestURI: target, Header: header}
	_, query, _ := strings.Cut(target, "?")
	r.URL.RawQuery, _, _ = strings.Cut(query, "#")
	return r
}

// Host is a host in small letters, without a port.
func Host(s string) string {
	u := url.URL{Host: s}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// Path is the path of a target in one spelling: unescaped, without a query, double slashes and dots. A
// client that spells it in another way is still limited by the same rule.
func Path(target string) string {
	if target == "" {
		return ""
	}
	target, _, _ = strings.Cut(target, "?") // first: a query can look like a scheme and a host
	target, _, _ = strings.Cut(target, "#")
	if scheme, rest, _ := strings.Cut(target, ":"); scheme != "" && !strings.Contains(scheme, "/") && strings.HasPrefix(rest, "/") {
		target = rest // the absolute form, which need not name a host
		if rest, ok := strings.CutPrefix(rest, "//"); ok {
			target = rest[min(len(rest), strings.IndexByte(rest+"/", '/')):]
		}
	}
	if plain, err := url.PathUnescape(target); err == nil {
		target = plain
	}
	return path.Clean("/" + target)
}
