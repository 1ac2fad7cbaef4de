package accesslog

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// logfmt reads lines of key=value, with values in quotes where they have blanks: of Heroku's router, whose time stands
// before them, and of programs that write their own.
type logfmt struct{ client, time string } // names of fields, or empty

// The names that the client and the time have. The first that is there counts.
var (
	logfmtClients = []string{"fwd", "client_ip", "remote_ip", "remote_addr", "client", "ip"}
	logfmtTimes   = []string{"time", "ts", "timestamp", "t", "@timestamp"}
)

var errNotLogfmt = errors.New("not key=value, with a client and a time")

// router is Heroku's text between the time and the pairs.
const router = " heroku[router]: "

func (logfmt) Name() string { return Logfmt }

func (logfmt) Wants() string {
	return "key=value with " + strings.Join(logfmtClients, " or ") + ", and " + strings.Join(logfmtTimes, " or ")
}

func (f logfmt) Parse(line []byte) (Record, error) {
	if len(line) == 0 || line[0] == '{' || bytes.IndexByte(line, '=') < 0 {
		return Record{}, errNotLogfmt
	}
	before, pairs := f.split(line)
	if _, err := parseTime(string(before)); len(before) > 0 && err != nil {
		return Record{}, errNotLogfmt
	}
	// Text before the first pair can be a client's, and so can pairs in it.
	if end := bytes.IndexAny(pairs, "= \t\""); end <= 0 || pairs[end] != '=' {
		return Record{}, errNotLogfmt
	}
	field, client, ok := firstOf(pairs, named(f.client, logfmtClients))
	if !ok {
		return Record{}, errNotLogfmt
	}
	_, stamp, ok := firstOf(pairs, named(f.time, logfmtTimes))
	if !ok && len(before) > 0 {
		stamp, ok = before, true
	}
	if !ok {
		return Record{}, errNotLogfmt
	}
	name, err := theClient(field, client)
	if err != nil {
		return Record{}, err
	}
	at, err := parseTime(string(stamp))
	return Record{Client: name, Time: at}, err
}

func named(name string, names []string) []string {
	if name != "" {
		return []string{name}
	}
	return names
}

// split returns Heroku's time in front, if there is one, and the pairs.
func (logfmt) split(line []byte) (before, pairs []byte) {
	if before, pairs, ok := bytes.Cut(line, []byte(router)); ok {
		return before, pairs
	}
	return nil, line
}

// firstOf returns the first of some names that pairs have, and its value.
func firstOf(pairs []byte, names []string) (name string, value []byte, ok bool) {
	for _, name := range names {
		if value, ok := pairOf(pairs, name); ok && len(value) > 0 {
			return name, value, true
		}
	}
	return "", nil, false
}

// pairOf returns the value of a name: the first, and none that stands in the quotes of another value.
func pairOf(pairs []byte, name string) (value []byte, ok bool) {
	for rest := pairs; ; {
		rest = bytes.TrimLeft(rest, " \t")
		end := bytes.IndexAny(rest, "= \t")
		if end < 0 {
			return nil, false
		}
		key := rest[:end]
		if rest[end] != '=' { // a word without a value
			rest = rest[end:]
			continue
		}
		value, rest = pairValue(rest[end+1:])
		if string(key) == name {
			return value, true
		}
	}
}

// pairValue cuts a value off.
func pairValue(b []byte) (value, rest []byte) {
	if len(b) == 0 || b[0] != '"' {
		return unquotedValue(b)
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if text, err := strconv.Unquote(string(b[:i+1])); err == nil {
				return []byte(text), b[i+1:]
			}
			return b[1:i], b[i+1:]
		}
	}
	return b[1:], nil
}

// unquotedValue cuts off all before a blank, which can be nothing.
func unquotedValue(b []byte) (value, rest []byte) {
	if end := bytes.IndexAny(b, " \t"); end >= 0 {
		return b[:end], b[end:]
	}
	return b, nil
}

func (f logfmt) Request(line []byte) Request {
	_, pairs := f.split(line)
	get := func(name string) string {
		_, value, _ := firstOf(pairs, logfmtNames[name])
		return orEmpty(string(value))
	}
	r := requestOf(get)
	r.set("User-Agent", get("agent"))
	return r
}

// logfmtNames are the fields by the names that nginx has for them.
var logfmtNames = map[string][]string{
	"request_method": {"method"},
	"request_uri":    {"path", "uri", "url"},
	"host":           {"host"},
	"remote_user":    {"user"},
	"status":         {"status", "code"},
	"agent":          {"user_agent", "agent"},
}

func (logfmt) fields() []string { return nil }

func (f logfmt) field(line []byte, name string) string {
	_, pairs := f.split(line)
	value, _ := pairOf(pairs, name)
	return orEmpty(string(value))
}

// caddyConsole reads Caddy's log as it writes it to a terminal: time, level, logger, message, and JSON.
type caddyConsole struct{ jsonLines }

// consoleTime is the time of such a line. It says nothing of a zone: UTC, as for all such times.
const consoleTime = "2006/01/02 15:04:05.000"

func newCaddyConsole() caddyConsole { return caddyConsole{newJSON(Caddy, "request.client_ip", "ts")} }

var errNotConsole = errors.New("not TIME, LEVEL, LOGGER, MESSAGE and JSON with tabs between")

func (f caddyConsole) object(line []byte) []byte {
	if start := bytes.Index(line, []byte("\t{")); start >= 0 {
		return line[start+1:]
	}
	return nil
}

func (f caddyConsole) Parse(line []byte) (Record, error) {
	object := f.object(line)
	if !isJSON(object) || len(line) < len(consoleTime) {
		return Record{}, errNotConsole
	}
	at, err := parseLayout(consoleTime, string(line[:len(consoleTime)]))
	if err != nil {
		return Record{}, errNotConsole
	}
	client, err := f.clientOf(object)
	return Record{Client: client, Time: at}, err
}

func (f caddyConsole) Request(line []byte) Request { return f.jsonLines.Request(f.object(line)) }

func (f caddyConsole) field(line []byte, name string) string {
	return f.jsonLines.field(f.object(line), name)
}
