package httprules

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/rules"
)

// action makes one entry of a request's descriptor.
type action struct {
	key   string
	value httplimit.KeyFunc // ErrNoKey if the request has none
	skip  bool
}

// defaultActions are the actions of a domain without actions.
var defaultActions = [][]rules.Action{{{Kind: rules.RemoteAddress, Key: "remote_address"}}}

// A Describer makes descriptors of requests by lists of actions. It is safe for concurrent use.
type Describer struct{ lists [][]action }

// NewDescriber returns a Describer for lists of actions, as rules.Set.Actions returns them. lists is nil for a
// domain without actions: the descriptor is then remote_address. client names the client of a request for it.
func NewDescriber(lists [][]rules.Action, client httplimit.KeyFunc) *Describer {
	if lists == nil {
		lists = defaultActions
	}
	d := &Describer{lists: make([][]action, len(lists))}
	for i, list := range lists {
		for _, a := range list {
			d.lists[i] = append(d.lists[i], action{a.Key, value(a, client), a.SkipIfAbsent})
		}
	}
	return d
}

// Describe sets req.Descriptors to the descriptors of r, and returns the entries that they are made of, appended
// to entries. A list whose actions find no value makes no descriptor. An error means that an action has found
// a value that it cannot use: it matches httplimit.ErrBadKey or httplimit.ErrKeyTooLong.
func (d *Describer) Describe(r *http.Request, req *rules.Request, entries []rules.Entry) ([]rules.Entry, error) {
	req.Descriptors = req.Descriptors[:0]
	for _, list := range d.lists {
		first := len(entries)
		whole := true
		for _, a := range list {
			value, err := a.value(r)
			switch {
			case err == nil:
				entries = append(entries, rules.Entry{Key: a.key, Value: value})
			case !errors.Is(err, httplimit.ErrNoKey):
				return entries, err
			case !a.skip:
				whole = false
			}
		}
		if whole && len(entries) > first {
			req.Descriptors = append(req.Descriptors, rules.Descriptor{Entries: entries[first:len(entries):len(entries)]})
		}
	}
	return entries, nil
}

func value(a rules.Action, client httplimit.KeyFunc) httplimit.KeyFunc {
	switch a.Kind {
	case rules.RemoteAddress:
		return client
	case rules.GenericKey:
		return func(*http.Request) (string, error) { return a.Value, nil }
	case rules.RequestHeaders:
		return header(a.Name)
	case rules.QueryParameter:
		return query(a.Name)
	case rules.MaskedRemoteAddress:
		return masked(client, a.Bits)
	case rules.HeaderValueMatch:
		return headerMatch(a)
	default: // rules.Path
		return plainPath()
	}
}

// bounded makes a function that refuses values: an empty value is ErrNoKey, a value beyond httplimit.MaxKeyLen
// is ErrKeyTooLong.
func bounded(what string) func(v string) (string, error) {
	none := fmt.Errorf("%w: %s is missing", httplimit.ErrNoKey, what)
	long := fmt.Errorf("%w: %s is above %d bytes", httplimit.ErrKeyTooLong, what, httplimit.MaxKeyLen)
	return func(v string) (string, error) {
		switch {
		case v == "":
			return "", none
		case len(v) > httplimit.MaxKeyLen:
			return "", long
		}
		return v, nil
	}
}

// masked makes a network of the client's address. client may have made a network of it, too: then no more bits are kept than it has.
func masked(client httplimit.KeyFunc, bits [2]int) httplimit.KeyFunc {
	return func(r *http.Request) (string, error) {
		text, err := client(r)
		if err != nil {
			return "", err
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return "", fmt.Errorf("%w: masked_remote_address of a client that is no address", httplimit.ErrBadKey)
			}
			network = netip.PrefixFrom(a.WithZone(""), a.BitLen())
		}
		most := bits[0]
		if network.Addr().Is6() {
			most = bits[1]
		}
		return netip.PrefixFrom(network.Addr(), min(most, network.Bits())).Masked().String(), nil
	}
}

// headerMatch finds its value in requests whose headers fit.
func headerMatch(a rules.Action) httplimit.KeyFunc {
	none := fmt.Errorf("%w: the headers do not fit %s", httplimit.ErrNoKey, a.Value)
	values := make([]func(r *http.Request) (string, bool), len(a.Headers))
	for i := range a.Headers {
		values[i] = allOf(a.Headers[i].Name)
	}
	return func(r *http.Request) (string, error) {
		fits := true
		for i := range a.Headers {
			value, there := values[i](r)
			fits = fits && a.Headers[i].Matches(value, there)
		}
		if fits == a.ExpectMismatch {
			return "", none
		}
		return a.Value, nil
	}
}

// allOf reads all values of a header, joined by commas, or a pseudo-header; there is false without one.
func allOf(name string) func(r *http.Request) (value string, there bool) {
	if one := pseudoHeader(name); one != nil {
		return func(r *http.Request) (string, bool) {
			value := one(r)
			return value, value != ""
		}
	}
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, bool) {
		values := r.Header[name]
		return strings.Join(values, ","), len(values) > 0
	}
}

// pseudoHeader returns the reader of a pseudo-header of HTTP/2, or the header Host, which is one there; nil for other headers.
func pseudoHeader(name string) func(r *http.Request) string {
	switch strings.ToLower(name) {
	case ":method":
		return func(r *http.Request) string { return r.Method }
	case ":path":
		return func(r *http.Request) string {
			if r.URL.Path == "" && r.URL.RawQuery == "" {
				return "" // RequestURI would make it /
			}
			return r.URL.RequestURI()
		}
	case ":authority", "host":
		return func(r *http.Request) string { return r.Host }
	}
	return nil
}

// header reads a header, or a pseudo-header of HTTP/2. A header that is there more than once is
// ErrBadKey: the handler might use another one of them.
func header(name string) httplimit.KeyFunc {
	if read := pseudoHeader(name); read != nil {
		one := bounded(name)
		return func(r *http.Request) (string, error) { return one(read(r)) }
	}
	name = http.CanonicalHeaderKey(name)
	twice := fmt.Errorf("%w: more than one header %s, want one", httplimit.ErrBadKey, name)
	one := bounded("header " + name)
	return func(r *http.Request) (string, error) {
		if len(r.Header[name]) > 1 {
			return "", twice
		}
		return one(strings.Trim(r.Header.Get(name), " \t"))
	}
}

// query reads a parameter. A parameter that is there more than once is ErrBadKey. So is a query that cannot
// be read as a whole, and a "#" before or in the query, since the query ends there for some handlers.
func query(name string) httplimit.KeyFunc {
	bad := fmt.Errorf("%w: more than one query parameter %q, or a query that cannot be read", httplimit.ErrBadKey, name)
	one := bounded("query parameter " + name)
	return func(r *http.Request) (string, error) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil || len(values[name]) > 1 || strings.Contains(r.RequestURI, "#") {
			return "", bad
		}
		return one(values.Get(name))
	}
}

// plainPath reads the path in one spelling. A path with a ".." part, and an escaped slash or a "#", is ErrBadKey: for
// some handlers, such as those of http.ServeMux, "/a/..%2Fb" is below /a, and for others it is /b.
func plainPath() httplimit.KeyFunc {
	bad := fmt.Errorf("%w: the path has both \"..\" and an escaped slash or \"#\"", httplimit.ErrBadKey)
	plain := bounded("the path")
	return func(r *http.Request) (string, error) {
		switch {
		case leadsTwoWays(r):
			return "", bad
		case r.URL.Path == "":
			return plain("")
		}
		return plain(path.Clean("/" + r.URL.Path))
	}
}

// leadsTwoWays reports whether the path, as the client has sent it, has a part that is "..", and also an escaped
// slash or a "#".
func leadsTwoWays(r *http.Request) bool {
	sent, _, _ := strings.Cut(r.RequestURI, "?")
	if sent == "" {
		sent = r.URL.EscapedPath()
	}
	if !strings.Contains(sent, "%2f") && !strings.Contains(sent, "%2F") && !strings.Contains(sent, "#") {
		return false
	}
	unescaped, _ := url.PathUnescape(sent) // empty if it cannot be unescaped: then handlers cannot do so either
	return slices.Contains(strings.Split(unescaped, "/"), "..")
}
