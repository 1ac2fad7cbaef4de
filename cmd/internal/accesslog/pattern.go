package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

var (
	errPattern = errors.New("not in the order of the fields")
	errAddress = errors.New("no address where the client should be")
)

// quotesError says why a client behind quotes is not certain.
func quotesError(has, want int) error {
	return decisive(fmt.Sprintf("%d quotes where the format has %d: in a field, so that it is not certain where the client is, or in fields that the format leaves out", has, want))
}

// pattern reads lines whose fields have an order, in the notation of nginx's log_format: text, and the names
// of fields behind a $. A field ends where the text behind it begins; in quotes, at a quote that the server
// has not escaped. It has no blanks if a blank comes next.
type pattern struct {
	name, text   string
	order        []patternField
	behind       string // the last field
	client, time int    // numbers of fields
	need         int    // fields that a line must have: those before quotes behind client, time and status
	quotes       int    // in the text, if a client that comes behind quotes can be forged by more of them
	addresses    bool   // the client is an address
	padded       bool   // fields can have more blanks in front
	plain        func([]byte) string
}

type patternField struct {
	name   string
	before string // text
	quoted bool
}

// times are the names of fields that hold a time.
var times = []string{"time_local", "time_iso8601", "msec"}

// compile cuts the text of a pattern up.
func compile(name, text string) (pattern, error) {
	p := pattern{name: name, text: text, plain: unescape}
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "$")
		if !found {
			p.behind = before
			break
		}
		end := strings.IndexFunc(after+" ", func(r rune) bool {
			return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		})
		switch last := len(p.order) - 1; {
		case end == 0:
			return p, fmt.Errorf("format %q has a $ without a name behind it: want one as in nginx's log_format, such as $remote_addr", text)
		case before == "" && last >= 0:
			return p, fmt.Errorf("format %q has nothing between $%s and $%s: want text there, to tell where one ends", text, p.order[last].name, after[:end])
		case len(p.order) == maxFields:
			return p, fmt.Errorf("format %q has too many fields: want at most %d, and those behind them left out", text, maxFields)
		}
		p.order = append(p.order, patternField{after[:end], before, strings.HasSuffix(before, `"`) && strings.HasPrefix(after[end:], `"`)})
		rest = after[end:]
	}
	return p, nil
}

func newPattern(name, text, client, time string) (pattern, error) {
	p, err := compile(name, text)
	if err != nil {
		return p, err
	}
	if client == "" {
		client = "remote_addr"
	}
	p.client = p.index(client)
	p.time = slices.IndexFunc(p.order, func(f patternField) bool {
		return f.name == time || time == "" && slices.Contains(times, f.name)
	})
	switch {
	case p.client < 0:
		return p, fmt.Errorf("format %q has no $%s: want it where the client is, or its name in --client-field", text, client)
	case p.time < 0 && time != "":
		return p, fmt.Errorf("format %q has no $%s: want it where the time is", text, time)
	case p.time < 0:
		return p, fmt.Errorf("format %q has no time: want $%s, or its name in --time-field", text, strings.Join(times, ", $"))
	}
	p.need = max(p.client, p.time, p.index("status")) + 1
	for p.need < len(p.order) && !p.order[p.need].quoted {
		p.need++
	}
	if slices.ContainsFunc(p.order[:p.client], func(f patternField) bool { return f.quoted }) {
		p.quotes = strings.Count(text, `"`)
	}
	return p, nil
}

func (p pattern) index(name string) int {
	return slices.IndexFunc(p.order, func(f patternField) bool { return f.name == name })
}

func (p pattern) Name() string { return p.name }

func (p pattern) Wants() string { return p.text }

func (p pattern) Parse(line []byte) (Record, error) {
	values, n := p.match(line)
	if n < p.need {
		return Record{}, errPattern
	}
	if has := bytes.Count(line, []byte{'"'}); p.quotes > 0 && has != p.quotes {
		return Record{}, quotesError(has, p.quotes)
	}
	client, err := theClient(p.order[p.client].name, values[p.client])
	if err != nil {
		return Record{}, err
	}
	switch {
	case p.addresses && addressForm(client) == noAddress:
		return Record{}, errAddress
	case bytes.ContainsAny(client, "\" \t"):
		return Record{}, errNoClient
	}
	at, err := parseTime(string(values[p.time]))
	return Record{Client: client, Time: at}, err
}

// theClient is the client in a field. Of a list that proxies have forwarded it is the last address, which the proxy has
// seen itself: the addresses before it were told to the proxy. A field of another name has a list if it has addresses alone;
// else its commas are part of a name, unless it ends like a list.
func theClient(field string, value []byte) ([]byte, error) {
	value = bytes.TrimSpace(value)
	if comma := bytes.LastIndexByte(value, ','); comma >= 0 {
		last := bytes.TrimSpace(value[comma+1:])
		switch forwarded := isForwarded(field); {
		case addressForm(last) != noAddress && (forwarded || allAddresses(value)), forwarded && isDash(last):
			value = last
		case addressForm(last) != noAddress, forwarded:
			return nil, errList
		}
	}
	if len(value) == 0 || isDash(value) {
		return nil, errDash
	}
	return value, nil
}

// isForwarded reports whether a field of a name lists forwarded addresses.
func isForwarded(field string) bool {
	field = strings.ToLower(field)
	return strings.Contains(field, "forwarded") || strings.Contains(field, "xff") || field == "fwd"
}

func allAddresses(list []byte) bool {
	for address := range bytes.SplitSeq(list, []byte{','}) {
		if addressForm(bytes.TrimSpace(address)) == noAddress {
			return false
		}
	}
	return true
}

// maxFields bounds the fields of a pattern.
const maxFields = 48

// match cuts a line up, and returns how many fields it has.
func (p pattern) match(line []byte) (values [maxFields][]byte, n int) {
	for i, f := range p.order {
		if len(line) < len(f.before) || string(line[:len(f.before)]) != f.before {
			return values, i
		}
		line = line[len(f.before):]
		if p.padded {
			line = bytes.TrimLeft(line, " ")
		}
		after := p.behind
		if i+1 < len(p.order) {
			after = p.order[i+1].before
		}
		end := p.end(i, line, after)
		if end < 0 {
			return values, i
		}
		values[i], line = line[:end], line[end:]
		if f.name == "status" && !isStatus(values[i]) {
			return values, i
		}
	}
	return values, len(p.order)
}

// end finds the end of a field that line begins with: -1 if there is none.
func (p pattern) end(i int, line []byte, after string) int {
	switch f := p.order[i]; {
	case f.quoted:
		return quoteEnd(line, func(rest []byte) bool {
			switch {
			case i+1 == len(p.order) && after == `"`:
				return beforeBlank(rest)
			case !bytes.HasPrefix(rest, []byte(after[1:])):
				return false
			case i+1 == len(p.order) || p.order[i+1].name != "status":
				return true
			}
			status, _ := word(rest[len(after)-1 : min(len(after)+4, len(rest))])
			return isStatus(status)
		})
	case after == "" || after[0] == ' ' || after[0] == '\t':
		end := bytes.IndexAny(line, " \t")
		if f.name == "prefix" { // of another program, blanks and all
			return bytes.Index(line, []byte(after))
		}
		if f.name == "time_local" && end > 0 { // it has a blank before the zone
			if zone := bytes.IndexAny(line[end+1:], " \t"); zone >= 0 {
				return end + 1 + zone
			}
			return len(line)
		}
		if end < 0 {
			return len(line)
		}
		return end
	case f.name == "remote_addr" && after == ":": // of an address in IPv6, the last one
		word, _ := word(line)
		return bytes.LastIndex(word, []byte(after))
	}
	return bytes.Index(line, []byte(after))
}

// isStatus reports whether a field can be a status, or the mark of servers for none.
func isStatus(b []byte) bool {
	return len(b) == 3 && allDigits(b) || slices.Contains([]string{"-", "0", "-1"}, string(b))
}

func (p pattern) Request(line []byte) Request {
	values, n := p.match(line)
	get := func(name string) string {
		if i := p.index(name); i >= 0 && i < n {
			return orEmpty(p.plain(values[i]))
		}
		return ""
	}
	r := requestOf(get)
	for i, f := range p.order[:n] {
		if header, ok := strings.CutPrefix(f.name, "http_"); ok {
			r.set(strings.ReplaceAll(header, "_", "-"), p.plain(values[i]))
		}
	}
	return r
}
