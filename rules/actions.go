package rules

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ActionKind is the way in which an Action makes an entry.
type ActionKind uint8

// The kinds of actions, by their names in files.
const (
	RemoteAddress       ActionKind = iota // remote_address
	RequestHeaders                        // request_headers
	QueryParameter                        // query_parameters
	GenericKey                            // generic_key
	Path                                  // path
	MaskedRemoteAddress                   // masked_remote_address
	HeaderValueMatch                      // header_value_match
)

// actionNames are the names in files, by kind.
var actionNames = [...]string{"remote_address", "request_headers", "query_parameters", "generic_key", "path", "masked_remote_address", "header_value_match"}

// String returns the name of the kind in files.
func (k ActionKind) String() string { return actionNames[k] }

// An Action makes an entry of a descriptor from a request over HTTP, in Envoy's words.
type Action struct {
	Kind ActionKind
	// Key is the entry's key.
	Key string
	// Name is the header, one of :method, :authority and :path among them, or the query parameter.
	Name string
	// Value is the entry's value for GenericKey and HeaderValueMatch.
	Value string
	// Bits are how many bits of an address in IPv4, and of one in IPv6, MaskedRemoteAddress keeps.
	Bits [2]int
	// Headers are the conditions of HeaderValueMatch: the request has the entry if all of them hold, or, with ExpectMismatch,
	// if one does not.
	Headers        []HeaderMatcher
	ExpectMismatch bool
	// SkipIfAbsent leaves the entry out if the request has no value for it. Otherwise a request without a value
	// has no descriptor by this list of actions.
	SkipIfAbsent bool
}

// Actions returns the lists of "http" in a domain's files. Each list makes one descriptor of a request. The
// result is nil for a domain without them, and must not be changed.
func (s *Set) Actions(domain string) [][]Action {
	if d := s.domains[domain]; d != nil {
		return d.actions
	}
	return nil
}

// httpLists reads "http".
func (l *loader) httpLists(f field, d *domain, path string) {
	for n := range l.maps(f, path, "actions: [...]") {
		list, given := []Action(nil), false
		for _, f := range last(l.fields(n, path)) {
			if f.name != "actions" {
				l.unknown(f, path, inHTTP)
				continue
			}
			list, given = l.actions(f, path), true
		}
		if !given {
			l.errorAt(n, path, "http holds a map without actions; want actions: [...]")
			continue
		}
		d.actions = append(d.actions, list)
	}
}

// actions reads one list of actions.
func (l *loader) actions(f field, path string) (out []Action) {
	if f.value.Kind != yaml.SequenceNode || len(f.value.Content) == 0 {
		l.errorAt(f.value, path, "actions is %s; want a list of at least one action, such as - remote_address: {}", show(f.value))
		return nil
	}
	for _, item := range f.value.Content {
		n := l.follow(item)
		fields := []field(nil)
		if n.Kind == yaml.MappingNode {
			fields = last(l.fields(n, path))
		}
		if len(fields) != 1 {
			l.errorAt(n, path, "an action is %s with %d keys; want a map with one of them, such as remote_address: {}", show(n), len(fields))
			continue
		}
		kind := slices.Index(actionNames[:], fields[0].name)
		if kind < 0 {
			l.unknown(fields[0], path, inActions)
			continue
		}
		out = append(out, l.action(ActionKind(kind), fields[0], path))
	}
	return out
}

// action reads the fields of one action.
func (l *loader) action(kind ActionKind, f field, path string) Action {
	a := Action{Kind: kind, Key: defaultKeys[kind]}
	if f.value.Kind != yaml.MappingNode {
		l.errorAt(f.value, path, "%s is %s; want a map, %s: {}", f.name, show(f.value), f.name)
		return a
	}
	switch kind {
	case MaskedRemoteAddress:
		return l.maskedAddress(f, path)
	case HeaderValueMatch:
		return l.headerValueMatch(f, path)
	}
	named := map[ActionKind]string{RequestHeaders: "header_name", QueryParameter: "query_parameter_name"}[kind]
	for _, g := range last(l.fields(f.value, path)) {
		switch {
		case g.name == "descriptor_key" && kind != RemoteAddress:
			a.Key = l.text(g, path)
		case g.name == "descriptor_value" && kind == GenericKey:
			a.Value = l.text(g, path)
		case g.name == "skip_if_absent" && named != "":
			a.SkipIfAbsent = l.boolean(g, path)
		case g.name == named:
			a.Name = l.text(g, path)
		default:
			l.errorAt(g.key, path, "%s has no key %q; want %s", f.name, g.name, actionFields[kind])
		}
	}
	switch {
	case kind == RequestHeaders && a.Name != "" && !isHeader(a.Name):
		l.errorAt(f.value, path, "header_name is %q; want the name of a header, or :method, :authority or :path", a.Name)
	case named != "" && a.Name == "":
		l.errorAt(f.value, path, "%s has no %s; want %s: NAME", f.name, named, named)
	default:
		l.wantEntry(a, f, path)
	}
	return a
}

// wantEntry reports whether an action has the key of its entry, and the value where files have it.
func (l *loader) wantEntry(a Action, f field, path string) bool {
	switch {
	case a.Key == "":
		l.errorAt(f.value, path, "%s has no descriptor_key; want descriptor_key: KEY, the key of the entry", f.name)
	case a.Value == "" && (a.Kind == GenericKey || a.Kind == HeaderValueMatch):
		l.errorAt(f.value, path, "%s has no descriptor_value; want descriptor_value: VALUE, the value of the entry", f.name)
	default:
		return true
	}
	return false
}

// maskedAddress reads masked_remote_address.
func (l *loader) maskedAddress(f field, path string) Action {
	a := Action{Kind: MaskedRemoteAddress, Key: defaultKeys[MaskedRemoteAddress], Bits: [2]int{32, 128}}
	for _, g := range last(l.fields(f.value, path)) {
		i := slices.Index([]string{"v4_prefix_mask_len", "v6_prefix_mask_len"}, g.name)
		if i < 0 {
			l.errorAt(g.key, path, "%s has no key %q; want %s", f.name, g.name, actionFields[MaskedRemoteAddress])
			continue
		}
		if n, ok := l.number(g, path, 0, int64(a.Bits[i])); ok {
			a.Bits[i] = int(n)
		}
	}
	return a
}

// headerValueMatch reads header_value_match.
func (l *loader) headerValueMatch(f field, path string) Action {
	a := Action{Kind: HeaderValueMatch, Key: defaultKeys[HeaderValueMatch]}
	for _, g := range last(l.fields(f.value, path)) {
		switch g.name {
		case "descriptor_key":
			a.Key = l.text(g, path)
		case "descriptor_value":
			a.Value = l.text(g, path)
		case "expect_match":
			a.ExpectMismatch = !isNull(g.value) && !l.boolean(g, path)
		case "headers":
			for n := range l.maps(g, path, "name: HEADER") {
				a.Headers = append(a.Headers, l.headerMatcher(n, path))
			}
		default:
			l.errorAt(g.key, path, "%s has no key %q; want %s", f.name, g.name, actionFields[HeaderValueMatch])
		}
	}
	if l.wantEntry(a, f, path) && len(a.Headers) == 0 {
		l.errorAt(f.value, path, "%s has no headers; want headers: a list of at least one condition, such as - {name: HEADER, exact_match: TEXT}", f.name)
	}
	return a
}

// isHeader reports whether a request can have a header of this name.
func isHeader(name string) bool {
	if strings.HasPrefix(name, ":") {
		return slices.Contains([]string{":method", ":authority", ":path"}, name)
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// actionFields lists the fields of each kind of action.
var actionFields = [...]string{
	RemoteAddress:  "none, remote_address: {}",
	RequestHeaders: "header_name, descriptor_key or skip_if_absent",
	QueryParameter: "query_parameter_name, descriptor_key or skip_if_absent",
	GenericKey:     "descriptor_key or descriptor_value",
	Path:           "descriptor_key",

	MaskedRemoteAddress: "v4_prefix_mask_len or v6_prefix_mask_len",
	HeaderValueMatch:    "descriptor_key, descriptor_value, expect_match or headers",
}

// defaultKeys are the keys of entries whose action names none.
var defaultKeys = [...]string{
	RemoteAddress: "remote_address", GenericKey: "generic_key", Path: "path", MaskedRemoteAddress: "masked_remote_address", HeaderValueMatch: "header_match",
}
