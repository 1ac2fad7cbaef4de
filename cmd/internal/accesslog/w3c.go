package accesslog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// w3c reads the extended log format of the W3C, as IIS and CloudFront write it: a line of #Fields: names the
// fields of those behind it. Times are in UTC. W3C has blanks between fields, CloudFront tabs.
type w3c struct {
	name  string   // empty is W3C
	names []string // of the fields of the lines that follow; nil as long as no line has named them
	loose bool     // there may be fewer, or more
	date  string   // where fields have none
	from  string   // the field of the client; empty is c-ip
	clock string   // the field of the time of the day; empty is time
}

// iis are the fields that IIS writes by default, for a file whose first lines are gone.
var iis = strings.Fields("date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) " +
	"sc-status sc-substatus sc-win32-status time-taken")

// newCloudFront reads logs of CloudFront, also without the lines that name their fields.
func newCloudFront() w3c {
	return w3c{name: CloudFront, loose: true, names: strings.Fields("date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem " +
		"sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header")}
}

// CloudFront had 12 fields at first, and puts new ones behind them.
const (
	cloudFrontLeast = 12
	cloudFrontMost  = 64
)

var (
	errNoFields = errors.New("no line with #Fields: before it, and not the 15 fields that IIS writes by default")
	errDate     = errors.New("no date")
)

func (f w3c) Name() string {
	if f.name == "" {
		return W3C
	}
	return f.name
}

func (f w3c) Wants() string { return "#Fields: with date, time and c-ip, and lines of such fields" }

// separator stands between fields.
func (f w3c) separator() []byte {
	if f.name == CloudFront {
		return []byte{'\t'}
	}
	return []byte{' '}
}

func (f w3c) directive(line string) Parser {
	name, value, _ := strings.Cut(line, ":")
	switch value = strings.TrimSpace(value); name {
	case "#Fields":
		f.names, f.loose = strings.Fields(value), false
	case "#Date":
		f.date, _, _ = strings.Cut(value, " ")
	}
	return f
}

// directives begin comments of the format.
var directives = []string{"#Version:", "#Fields:", "#Software:", "#Date:", "#Start-Date:", "#End-Date:", "#Remark:"}

func (f w3c) Parse(line []byte) (Record, error) {
	if len(line) > 0 && line[0] == '#' && slices.ContainsFunc(directives, func(d string) bool { return bytes.HasPrefix(line, []byte(d)) }) {
		return Record{}, errComment
	}
	values, n := f.split(line)
	switch {
	case f.names == nil && n == len(iis):
		f.names = iis
	case f.names == nil:
		return Record{}, errNoFields
	case n != len(f.names) && !(f.loose && cloudFrontLeast <= n && n <= cloudFrontMost):
		return Record{}, fmt.Errorf("%d fields where #Fields: names %d", n, len(f.names))
	}
	if f.from != "" && !slices.Contains(f.names, f.from) {
		return Record{}, fmt.Errorf("no field %s among those that #Fields: names", f.from)
	}
	client, err := theClient(cmp.Or(f.from, "c-ip"), f.value(values, cmp.Or(f.from, "c-ip")))
	if err != nil {
		return Record{}, err
	}
	if addressForm(client) == noAddress {
		return Record{}, errAddress
	}
	date := string(f.value(values, "date"))
	if date == "" {
		date = f.date
	}
	if date == "" {
		return Record{}, errDate
	}
	at, err := parseTime(date + "T" + string(f.value(values, cmp.Or(f.clock, "time"))) + "Z")
	return Record{Client: client, Time: at}, err
}

// split returns the fields of a line, of which those in quotes can have separators, and how many there are: none are
// returned if these are more than any format has.
func (f w3c) split(line []byte) (values [][]byte, n int) {
	separator := f.separator()
	if n = bytes.Count(line, separator) + 1; bytes.IndexByte(line, '"') < 0 {
		if n > w3cMost {
			return nil, n
		}
		return bytes.Split(line, separator), n
	}
	for rest := line; ; {
		end := bytes.Index(rest, separator)
		if len(rest) > 0 && rest[0] == '"' {
			if quote := bytes.Index(rest[1:], append([]byte{'"'}, separator...)); quote >= 0 {
				end = quote + 2
			} else if bytes.HasSuffix(rest[1:], []byte{'"'}) {
				end = -1
			}
		}
		if len(values) == w3cMost {
			return nil, n
		}
		if end < 0 {
			values = append(values, unquoted(rest))
			return values, len(values)
		}
		values = append(values, unquoted(rest[:end]))
		rest = rest[end+len(separator):]
	}
}

// w3cMost bounds the fields of a line.
const w3cMost = 256

func unquoted(field []byte) []byte {
	if len(field) >= 2 && field[0] == '"' && field[len(field)-1] == '"' {
		return field[1 : len(field)-1]
	}
	return field
}

func (f w3c) value(values [][]byte, name string) []byte {
	names := f.names
	if names == nil {
		names = iis
	}
	if i := slices.Index(names, name); i >= 0 && i < len(values) {
		return values[i]
	}
	return nil
}

// w3cNames are the fields by the names that nginx has for them.
var w3cNames = map[string][]string{
	"request_method":  {"cs-method"},
	"uri":             {"cs-uri-stem", "cs-uri"},
	"args":            {"cs-uri-query"},
	"host":            {"x-host-header", "cs-host", "cs(Host)"},
	"remote_user":     {"cs-username"},
	"status":          {"sc-status"},
	"http_user_agent": {"cs(User-Agent)"},
	"http_referer":    {"cs(Referer)"},
}

func (f w3c) Request(line []byte) Request {
	values, _ := f.split(line)
	get := func(name string) string {
		for _, field := range w3cNames[name] {
			if v := orEmpty(string(f.value(values, field))); v != "" {
				return v
			}
		}
		return ""
	}
	r := requestOf(get)
	for _, name := range []string{"http_user_agent", "http_referer"} {
		v := get(name)
		if f.name == CloudFront {
			if plain, err := url.PathUnescape(v); err == nil {
				v = plain
			}
		} else {
			v = strings.ReplaceAll(v, "+", " ")
		}
		r.set(strings.ReplaceAll(strings.TrimPrefix(name, "http_"), "_", "-"), v)
	}
	return r
}
