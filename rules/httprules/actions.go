package httprules

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/rules"
)

// action makes an entry of a request.
type action struct {
	key   string
	value httplimit.KeyFunc // ErrNoKey if the request has none
	skip  bool
}

// defaultActions are those of a domain without any.
var defaultActions = [][]rules.Action{{{Kind: rules.RemoteAddress, Key: "remote_address"}}}

// compile makes functions of lists of actions.
func (m *middleware) compile(all [][]rules.Action) [][]action {
	if all == nil {
		all = defaultActions
	}
	out := make([][]action, len(all))
	for i, list := range all {
		for _, a := range list {
			out[i] = append(out[i], action{a.Key, m.value(a), a.SkipIfAbsent})
		}
	}
	return out
}

func (m *middleware) value(a rules.Action) httplimit.KeyFunc {
	switch a.Kind {
	case rules.RemoteAddress:
		return m.Client
	case rules.GenericKey:
		return func(*http.Request) (string, error) { return a.Value, nil }
	case rules.RequestHeaders:
		return header(a.Name)
	case rules.QueryParameter:
		return query(a.Name)
	default: // rules.Path
		return bounded("the path", plainPath)
	}
}

// bounded makes a KeyFunc of a function without errors: an empty value is ErrNoKey, one beyond
// httplimit.MaxKeyLen ErrKeyTooLong.
func bounded(what string, value func(*http.Request) string) httplimit.KeyFunc {
	none := fmt.Errorf("%w: %s is missing", httplimit.ErrNoKey, what)
	long := fmt.Errorf("%w: %s is above %d bytes", httplimit.ErrKeyTooLong, what, httplimit.MaxKeyLen)
	return func(r *http.Request) (string, error) {
		v := value(r)
		switch {
		case v == "":
			return "", none
		case len(v) > httplimit.MaxKeyLen:
			return "", long
		}
		return v, nil
	}
}

// header reads a header, or what HTTP/2 has among its headers. One that is there more than once is
// ErrBadKey: the handler might take another one of them.
func header(name string) httplimit.KeyFunc {
	switch strings.ToLower(name) {
	case ":method":
		return bounded(name, func(r *http.Request) string { return r.Method })
	case ":path":
		return bounded(name, func(r *http.Request) string { return r.URL.RequestURI() })
	case ":authority", "host":
		return bounded(name, func(r *http.Request) string { return r.Host })
	}
	name = http.CanonicalHeaderKey(name)
	twice := fmt.Errorf("%w: more than one header %s, want one", httplimit.ErrBadKey, name)
	one := bounded("header "+name, func(r *http.Request) string { return strings.Trim(r.Header.Get(name), " \t") })
	return func(r *http.Request) (string, error) {
		if len(r.Header[name]) > 1 {
			return "", twice
		}
		return one(r)
	}
}

// query reads a parameter. One that is there more than once is ErrBadKey, and so is a query that
// cannot be read as a whole.
func query(name string) httplimit.KeyFunc {
	bad := fmt.Errorf("%w: more than one query parameter %q, or a query that cannot be read", httplimit.ErrBadKey, name)
	return func(r *http.Request) (string, error) {
		values, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil || len(values[name]) > 1 {
			return "", bad
		}
		return bounded("query parameter "+name, func(*http.Request) string { return values.Get(name) })(r)
	}
}

// plainPath is the path in one spelling.
func plainPath(r *http.Request) string { return path.Clean("/" + r.URL.Path) }
