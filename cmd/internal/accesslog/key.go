package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sluice-go/sluice/cmd/internal/original"
)

// A Key is the parts that requests are counted by, where it is not the client alone: one part of a request, or several together.
type Key struct {
	parts  []keyPart
	client func([]byte) []byte
}

// keyPart is a part of a request. It is of a field of the line, or of a Request, or the client.
type keyPart struct {
	name  string
	field string
	of    func(r *Request) string
}

// fieldPrefix stands before the name that a format itself has for a field.
const fieldPrefix = "field:"

const clientPart = "client"

// keyParts are the parts that have a name in all formats, in the order of help.
var keyParts = []keyPart{
	{name: clientPart},
	{name: "path-class", of: func(r *Request) string { return PathClass(original.Path(r.Target)) }},
	{name: "path", of: func(r *Request) string { return original.Path(r.Target) }},
	{name: "method", of: func(r *Request) string { return r.Method }},
	{name: "host", of: func(r *Request) string { return original.Host(r.Host) }},
	{name: "user", of: func(r *Request) string { return r.User }},
	{name: "agent", of: func(r *Request) string { return r.Header.Get("User-Agent") }},
	{name: "status", of: func(r *Request) string { return r.Status }},
	{name: "status-class", of: statusClass},
}

// KeyParts names the parts of a Key beside field:NAME.
func KeyParts() (names []string) {
	for _, p := range keyParts {
		names = append(names, p.name)
	}
	return names
}

func statusClass(r *Request) string {
	if len(r.Status) != 3 || !allDigits([]byte(r.Status)) {
		return ""
	}
	return r.Status[:1] + "xx"
}

// ParseKey reads names of parts with commas between. The Key that is the client alone is nil. client gives all spellings of a client one
// name; several goroutines call it at once.
func ParseKey(text string, client func(spelled []byte) []byte) (*Key, error) {
	k := &Key{client: client}
	for name := range strings.SplitSeq(text, ",") {
		part := keyPart{name: name}
		if field, ok := strings.CutPrefix(name, fieldPrefix); ok && field != "" {
			part.field = field
		} else if i := slices.IndexFunc(keyParts, func(p keyPart) bool { return p.name == name }); i >= 0 {
			part = keyParts[i]
		} else {
			return nil, fmt.Errorf("key %q has the part %q: want %s or %sNAME, with commas between", text, name, strings.Join(KeyParts(), ", "), fieldPrefix)
		}
		if slices.ContainsFunc(k.parts, func(p keyPart) bool { return p.name == name }) {
			return nil, fmt.Errorf("key %q has %s twice", text, name)
		}
		k.parts = append(k.parts, part)
	}
	if len(k.parts) == 1 && k.parts[0].name == clientPart {
		return nil, nil
	}
	return k, nil
}

// String returns the form that ParseKey reads; "client" of nil.
func (k *Key) String() string {
	if k == nil {
		return clientPart
	}
	var names []string
	for _, p := range k.parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ",")
}

// errKeyless is the error of a line that lacks a part of the key.
var errKeyless = errors.New("it lacks a part of the key")

// ErrKey is wrapped by the error of a log whose lines cannot have the key that is asked for.
var ErrKey = errors.New("no such key")

// keyError is an ErrKey. It is about a source, and no line of it.
type keyError struct{ text string }

func (e keyError) Error() string { return e.text }

func (e keyError) Unwrap() error { return ErrKey }

// keyed is a Parser that tells of its lines more than a Request does.
type keyed interface {
	Parser
	// fields names the fields of lines, as the format calls them; nil if any can be there, or if it is not known yet.
	fields() []string
	// field reads one of them: empty if it is not there.
	field(line []byte, name string) string
}

// check returns the mistake in a key for lines of a format.
func (k *Key) check(p Parser) error {
	f, ok := p.(keyed)
	if !ok {
		panic("accesslog: a format without fields")
	}
	fields := f.fields()
	if fields == nil {
		return nil
	}
	parts := partsOf(fields)
	for _, part := range k.parts {
		if part.field != "" && !slices.Contains(fields, part.field) || part.field == "" && !slices.Contains(parts, part.name) {
			return keyError{fmt.Sprintf("key %s: format %s has no %s; it has %s, and as %sNAME %s", k, p.Name(), part.name, strings.Join(parts, ", "), fieldPrefix, strings.Join(fields, ", "))}
		}
	}
	return nil
}

// partFields are the fields that parts are read of, of which one is enough.
var partFields = map[string][]string{
	"path":   {"request", "request_uri", "uri", "cs-uri-stem", "cs-uri"},
	"method": {"request", "request_method", "cs-method"},
	"host":   {"host", "http_host", "server_name", "x-host-header", "cs-host", "cs(Host)"},
	"user":   {"remote_user", "cs-username"},
	"agent":  {"http_user_agent", "cs(User-Agent)"},
	"status": {"status", "sc-status"},
}

// partsOf returns the parts that can be had of fields.
func partsOf(fields []string) (parts []string) {
	for _, p := range keyParts {
		of := partFields[strings.TrimSuffix(p.name, "-class")]
		if p.name == clientPart || slices.ContainsFunc(of, func(name string) bool { return slices.Contains(fields, name) }) {
			parts = append(parts, p.name)
		}
	}
	return parts
}

// of returns the key of a line that Parse has read: its parts, with blanks between, and in quotes if they could be taken for several.
func (k *Key) of(p Parser, line []byte, rec Record) ([]byte, error) {
	var request *Request
	var out []byte
	for i, part := range k.parts {
		var value string
		switch {
		case part.field != "":
			value = p.(keyed).field(line, part.field)
		case part.of != nil:
			if request == nil {
				r := p.Request(line)
				request = &r
			}
			value = part.of(request)
		default:
			value = string(k.client(rec.Client))
		}
		if value == "" {
			return nil, errKeyless
		}
		if i > 0 {
			out = append(out, ' ')
		}
		if len(k.parts) > 1 && strings.ContainsAny(value, ` "`) {
			out = strconv.AppendQuote(out, value)
		} else {
			out = append(out, value...)
		}
	}
	return out, nil
}

// missing is the error of a log of which no line has the key. line is the first one that lacks it.
func (k *Key) missing(p Parser, line []byte) error {
	has := ""
	if _, ok := p.(jsonLines); ok {
		var names []string
		gjson.ParseBytes(line).ForEach(func(name, _ gjson.Result) bool {
			names = append(names, name.Str)
			return len(names) < 2*maxFields
		})
		has = "; the first of them has the fields " + strings.Join(names, ", ")
	}
	return keyError{fmt.Sprintf("key %s: no line of format %s has all of it%s", k, p.Name(), has)}
}

// The fields of formats.

func (combined) fields() []string { return append([]string{"remote_user"}, tail.fields()...) }

func (vhostCombined) fields() []string {
	return append([]string{"host", "remote_user"}, tail.fields()...)
}

func (c combined) field(line []byte, name string) string { return ncsaField(c.Request, line, name) }

func (c vhostCombined) field(line []byte, name string) string {
	return ncsaField(c.Request, line, name)
}

func ncsaField(request func([]byte) Request, line []byte, name string) string {
	switch name {
	case "remote_user":
		return request(line).User
	case "host":
		return request(line).Host
	}
	if h, err := readHead(line); err == nil {
		return tail.field(line[h.end:], name)
	}
	return ""
}

func (p pattern) fields() (names []string) {
	for _, f := range p.order {
		names = append(names, f.name)
	}
	return names
}

func (p pattern) field(line []byte, name string) string {
	values, n := p.match(line)
	if i := p.index(name); i >= 0 && i < n {
		return orEmpty(p.plain(values[i]))
	}
	return ""
}

func (f w3c) fields() []string { return f.names }

func (f w3c) field(line []byte, name string) string {
	values, _ := f.split(line)
	return orEmpty(string(f.value(values, name)))
}

func (jsonLines) fields() []string { return nil }

func (f jsonLines) field(line []byte, name string) string {
	if v := newField(name).in(line); isScalar(v) || v.IsBool() {
		if v.IsBool() {
			return v.Raw
		}
		return orEmpty(text(v))
	}
	return ""
}
