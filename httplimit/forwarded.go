package httplimit

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// How much of a list is looked at, from the right: more than proxies in a row write. Not
// tuned.
const (
	maxHops           = 32
	maxForwardedBytes = 4096
)

// client returns the address that r comes from.
func (k *ipKeyer) client(r *http.Request) (node, error) {
	peer, ok := parseNode(r.RemoteAddr)
	if !ok && !(k.trustUnix && overUnixSocket(r)) {
		return node{}, fmt.Errorf("%w: RemoteAddr %.64q has no IP address", ErrNoKey, r.RemoteAddr)
	}
	if ok && !k.trusts(peer.addr) {
		k.unnamed.look(r)
		return peer, nil
	}
	lines := r.Header[k.header]
	switch {
	case !blank(lines):
		return k.forwarded(lines)
	case ok && !k.required:
		k.missing.tell(r, k.header)
		return peer, nil
	}
	return node{}, k.noHeader
}

// blank reports whether the header is missing, or empty.
func blank(lines []string) bool {
	return len(lines) == 0 || len(lines) == 1 && len(lines[0]) <= maxForwardedBytes && trimSpace(lines[0]) == ""
}

func (k *ipKeyer) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(k.trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// overUnixSocket reports whether the server got r from a Unix socket. RemoteAddr does
// not say: it is "@", or empty, as it is in requests that no server has made.
func overUnixSocket(r *http.Request) bool {
	_, ok := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr)
	return ok
}

// A node is an address, without zone and unmapped, and the text that it was read from.
type node struct {
	addr netip.Addr
	text string
}

// parseNode reads an address, with or without a port: "192.0.2.1", "192.0.2.1:80",
// "2001:db8::1", "[2001:db8::1]", "[fe80::1%eth0]:80". After the port's colon
// comes a port or an obfuscated one by RFC 7239, section 6.3.
func parseNode(s string) (n node, ok bool) {
	host, port, brackets := s, "", strings.HasPrefix(s, "[")
	if brackets {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return node{}, false
		}
		host, port = s[1:end], s[end+1:]
	} else if i := strings.IndexByte(s, ':'); i >= 0 && strings.LastIndexByte(s, ':') == i {
		host, port = s[:i], s[i:]
	}
	if port != "" && !isPort(port) || brackets && strings.IndexByte(host, ':') < 0 {
		return node{}, false
	}
	// netip would keep a table of zones, which are of a stranger's choice. One with a
	// quote in it would let lists of them be read in two ways.
	host, zone, zoned := strings.Cut(host, "%")
	addr, err := netip.ParseAddr(host)
	if err != nil || zoned && (!isToken(zone) || addr.Is4()) {
		return node{}, false
	}
	return node{addr.Unmap(), host}, true
}

// isPort reports whether s is a colon and a port.
func isPort(s string) bool {
	if len(s) < 2 || s[0] != ':' {
		return false
	}
	s = s[1:]
	if s[0] == '_' {
		return len(s) > 1 && isToken(s)
	}
	return len(s) <= 5 && allBytes(s, digitByte)
}

// forwarded returns the client that a trusted peer speaks for, by the lines of the
// header, which are not blank.
func (k *ipKeyer) forwarded(lines []string) (node, error) {
	switch k.header {
	case headerXFF:
		return k.walk(&list{lines: lines}, parseNode)
	case headerForwarded:
		return k.walk(&list{lines: lines}, parseForwarded)
	}
	// The proxies replace the clients' fields. If there are two, one proxy has not.
	if len(lines) > 1 {
		return node{}, k.badHeader("is there more than once", "")
	}
	if len(lines[0]) > maxForwardedBytes {
		return node{}, k.badHeader("is too long", "")
	}
	n, ok := parseNode(trimSpace(lines[0]))
	if !ok {
		return node{}, k.badHeader("is not an IP address", lines[0])
	}
	return n, nil
}

// walk goes from the right through the words of each hop about the hop before it, for as
// long as the hop that says it is trusted.
func (k *ipKeyer) walk(l *list, parse func(string) (node, bool)) (node, error) {
	var hop node
	for range maxHops + 1 {
		element, more, err := l.next()
		if err != nil {
			return node{}, k.badHeader(err.Error(), "")
		}
		if !more {
			return hop, nil
		}
		var ok bool
		if hop, ok = parse(element); !ok {
			return node{}, k.badHeader("has an element without an IP address", element)
		}
		if !k.trusts(hop.addr) {
			return hop, nil
		}
	}
	return node{}, k.badHeader("lists too many trusted proxies", "")
}

func (k *ipKeyer) badHeader(what, value string) error {
	if value == "" {
		return fmt.Errorf("%w: header %s %s", ErrBadKey, k.header, what)
	}
	return fmt.Errorf("%w: header %s %s: %.64q", ErrBadKey, k.header, what, value)
}

// A list reads the elements of a header from the right: the last line first. Empty
// elements are elements, though RFC 9110, section 5.6.1.2, would have them ignored: a
// proxy that did not know its peer may have left one, and the rest of it is the
// client's.
type list struct {
	lines []string // those not begun
	rest  string   // of the line that has been begun
	begun bool
	read  int // bytes looked at, at most maxForwardedBytes
}

var errTooLong = errors.New("is too long")

// next returns the next element to the left, without white space, or false if there is
// none.
func (l *list) next() (element string, more bool, err error) {
	if !l.begun {
		if len(l.lines) == 0 {
			return "", false, nil
		}
		last := len(l.lines) - 1
		l.rest, l.lines, l.begun = l.lines[last], l.lines[:last], true
	}
	room := maxForwardedBytes - l.read
	start := max(0, len(l.rest)-room)
	comma := lastComma(l.rest[start:])
	// The beginning of the line counts as a byte, as a comma would: text that a
	// client puts in front must not make an element too long.
	if comma < 0 && len(l.rest) >= room {
		return "", false, errTooLong
	}
	element = l.rest[start+comma+1:]
	if comma < 0 {
		l.begun = false
	} else {
		l.rest = l.rest[:start+comma]
	}
	l.read += len(element) + 1
	return trimSpace(element), true, nil
}

// lastComma returns the place of the last comma in s that is in no quoted string, or -1.
//
// Quoted strings are found from their ends. So text that a client has put on the left, an
// opening quote without an end say, does not change the text that the proxies have put on the
// right. X-Forwarded-For has no quoted strings; there, an element with a quote is no
// address wherever it begins.
func lastComma(s string) int {
	for {
		i := strings.LastIndexAny(s, `,"`)
		if i < 0 || s[i] == ',' {
			return i
		}
		if i = openingQuote(s[:i]); i < 0 {
			return -1 // no parser takes the rest
		}
		s = s[:i]
	}
}

// openingQuote returns the place of the quote that begins the quoted string which goes
// to the end of s, or -1. It comes after an equals sign; one in the string comes after a
// backslash.
func openingQuote(s string) int {
	for {
		i := strings.LastIndexByte(s, '"')
		if i <= 0 || s[i-1] != '\\' {
			return i
		}
		s = s[:i]
	}
}

// parseForwarded reads the address in the "for" of a forwarded-element of RFC 7239,
// section 4. White space around the semicolons is accepted. An element with two "for",
// one without an address, or one with IPv6 not in brackets, where a port could not be
// told from the address, is refused.
func parseForwarded(element string) (n node, ok bool) {
	found := ""
	for rest := element; ; {
		var name, value string
		if name, value, rest, ok = cutPair(trimSpace(rest)); !ok {
			return node{}, false
		}
		if strings.EqualFold(name, "for") {
			if found != "" || value == "" {
				return node{}, false
			}
			found = value
		}
		if rest == "" {
			break
		}
		rest = rest[1:] // the semicolon
	}
	if strings.Count(found, ":") > 1 && found[0] != '[' {
		return node{}, false
	}
	return parseNode(found)
}

// cutPair cuts a forwarded-pair, which may be missing, off the front of s. The rest is
// empty or begins with a semicolon.
func cutPair(s string) (name, value, rest string, ok bool) {
	if s == "" || s[0] == ';' {
		return "", "", s, true
	}
	name, s, ok = strings.Cut(s, "=")
	if !ok || !isToken(name) {
		return "", "", "", false
	}
	if strings.HasPrefix(s, `"`) {
		value, rest, ok = cutQuoted(s[1:])
	} else {
		end := strings.IndexAny(s, "; \t")
		if end < 0 {
			end = len(s)
		}
		value, rest = s[:end], s[end:]
		ok = isToken(value)
	}
	rest = trimSpace(rest)
	return name, value, rest, ok && (rest == "" || rest[0] == ';')
}

// cutQuoted cuts the rest of a quoted string off the front of s. It leaves backslashes
// in the value: an address has none, and is not accepted with one.
func cutQuoted(s string) (value, rest string, ok bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], s[i+1:], true
		}
	}
	return "", "", false
}
