package accesslog

import (
	"bytes"
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
}

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
	errNoFields = errors.New("no line with #Fields: before it")
	errDate     = errors.New("no date")
)

func (f w3c) Name() string {
	if f.name == "" {
		return W3C
	}
	return f.name
}

func (f w3c) Wants() string { return "#Fields: with date, time and c-ip, and lines of such fields" }

// separator is what the format has between fields.
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

// directives are what a comment of the format begins with.
var directives = []string{"#Version:", "#Fields:", "#Software:", "#Date:", "#Start-Date:", "#End-Date:", "#Remark:"}

func (f w3c) Parse(line []byte) (Record, error) {
	if len(line) > 0 && line[0] == '#' && slices.ContainsFunc(directives, func(d string) bool { return bytes.HasPrefix(line, []byte(d)) }) {
		return Record{}, errComment
	}
	if f.names == nil {
		return Record{}, errNoFields
	}
	n := bytes.Count(line, f.separator()) + 1 // before a slice of them is made, which can be long
	if n != len(f.names) && !(f.loose && cloudFrontLeast <= n && n <= cloudFrontMost) {
		return Record{}, fmt.Errorf("%d fields where #Fields: names %d", n, len(f.names))
	}
	values := bytes.Split(line, f.separator())
	client, err := theClient("", f.value(values, "c-ip"))
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
	at, err := parseTime(date + "T" + string(f.value(values, "time")) + "Z")
	return Record{Client: client, Time: at}, err
}

func (f w3c) value(values [][]byte, name string) []byte {
	if i := slices.Index(f.names, name); i >= 0 && i < len(values) {
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
	values := bytes.Split(line, f.separator())
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
