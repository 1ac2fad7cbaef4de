package accesslog

import (
	"bytes"
	"errors"
	"net/netip"
	"time"
)

var (
	errNoClient    = errors.New("no client at the start of the line")
	errNoTimestamp = errors.New("no [02/Jan/2006:15:04:05 -0700] after the client")
	errVhost       = errors.New("the client comes second, behind a host: that is format " + VhostCombined)
	errNoVhost     = errors.New("no host, with its port or followed by an address, at the start of the line")
)

// Of these lines it is known why their client is not.
const (
	errDash   = decisive("the client is -: the log does not say who asked")
	errPrefix = decisive("text before the client, as syslog puts it there: cut it off")
	errTwo    = decisive("two addresses at the start of the line: cut off the address that is not the client, or --format lighttpd, whose second word is the host")
	errList   = decisive("a list whose last word is no address where the client should be: keep the address that is the client")
)

// combined reads Common and Combined lines:
//
//	client ident user [time] "request" status bytes "referer" "user agent"
//
// Only the client and the time are needed, so a line with more or fewer
// fields, or with a damaged end, still counts.
type combined struct{}

func (combined) Name() string { return Combined }

func (combined) Wants() string {
	return "CLIENT ... [02/Jan/2006:15:04:05 -0700]"
}

// Parse reads an address in front as the client. A name in front is the client only
// if the rest leaves no other candidate: an ident that is missing, as nearly all
// are, or an ident and a user, none of whose words can be a client.
func (combined) Parse(line []byte) (Record, error) {
	h, err := readHead(line)
	if err != nil {
		return Record{}, err
	}
	client, err := theClient(forwardedFor, h.words[0])
	if err != nil {
		return Record{}, err
	}
	first, second := addressForm(client), addressForm(h.words[1])
	switch {
	case first == noAddress && (second != noAddress || namesPort(h.words[0])), first == withPort && second == bare:
		return Record{}, errVhost
	case first != noAddress && second != noAddress:
		return Record{}, errTwo
	case first != noAddress:
		return Record{Client: client, Time: h.time}, nil
	case !isName(h.words[0]):
		return Record{}, errNoClient
	case h.count > 3 && allDigits(h.words[0]):
		return Record{}, errPrefix
	case isDash(h.words[1]), h.count == 3 && addressForm(h.words[2]) == noAddress, h.count > 3 && plainUser(h.before):
		return Record{Client: client, Time: h.time}, nil
	case h.count <= 3:
		return Record{}, errNoClient
	}
	return Record{}, errPrefix
}

// tail is the part behind the time.
var tail, _ = compile("", ` "$request" $status $bytes_sent "$http_referer" "$http_user_agent"`)

func (combined) Request(line []byte) Request { return ncsa(line, 2) }

func (vhostCombined) Request(line []byte) Request {
	r := ncsa(line, 3)
	if r.Host == "" {
		h, _ := readHead(line)
		r.Host = string(h.words[0])
	}
	return r
}

// ncsa reads the rest of a Common or Combined line, whose user comes after a number of words.
func ncsa(line []byte, words int) Request {
	h, err := readHead(line)
	if err != nil {
		return Request{}
	}
	r := tail.Request(line[h.end:])
	user := h.before
	for range words {
		_, user = listWord(user)
	}
	user = bytes.TrimSpace(user)
	if second, rest := word(user); len(second) > 2 && second[0] == '[' && addressForm(second) != noAddress && bytes.HasPrefix(rest, []byte(" - ")) {
		user = rest[len(" - "):] // ADDR - [ADDR] - USER of older ingress-nginx
	}
	if name := string(user); name != emptyUser {
		r.User = orEmpty(name)
	}
	return r
}

// forwardedFor is the list that servers behind proxies log in the place of the client.
const forwardedFor = "X-Forwarded-For"

// isName reports whether a word can be the name of a client. The rest of a quoted field cannot, nor a
// tag such as nginx: in front of a line; unix: is nginx's word for a socket.
func isName(word []byte) bool {
	return bytes.IndexByte(word, '"') < 0 && (word[len(word)-1] != ':' || string(word) == "unix:")
}

// plainUser reports whether the text before a time, an ident that is no tag and a user of several
// words behind it, has no other word that can be a client or come before one.
func plainUser(before []byte) bool {
	_, rest := word(before)
	ident, rest := word(rest)
	if ident[len(ident)-1] == ':' {
		return false
	}
	for len(bytes.TrimLeft(rest, " \t")) > 0 {
		var name []byte
		if name, rest = word(rest); isDash(name) || bytes.ContainsAny(name, ":|[") || bytes.IndexByte(name[:len(name)-1], '.') >= 0 {
			return false
		}
	}
	return true
}

// vhostCombined reads Apache's logs of several hosts:
//
//	host:port client ident user [time] "request" ...
//
// The port may be missing if the client is an address: then that tells it from the
// ident of a combined line.
type vhostCombined struct{}

func (vhostCombined) Name() string { return VhostCombined }

func (vhostCombined) Wants() string {
	return "HOST:PORT CLIENT ... [02/Jan/2006:15:04:05 -0700]"
}

func (vhostCombined) Parse(line []byte) (Record, error) {
	h, err := readHead(line)
	if err != nil {
		return Record{}, err
	}
	host, second := h.words[0], noAddress
	client, err := theClient(forwardedFor, h.words[1])
	if err == nil {
		second = addressForm(client)
	}
	switch first := addressForm(host); {
	case isDash(host), bytes.IndexByte(host, ',') >= 0, h.count < 2, isTime(host):
		return Record{}, errNoVhost
	case first == bare, first == withPort && second != bare:
		return Record{}, errNoVhost
	case second == noAddress && !namesPort(host):
		return Record{}, errNoVhost
	case err != nil:
		return Record{}, err
	case second == noAddress && hasAddress(h.before):
		return Record{}, errPrefix
	}
	return Record{Client: client, Time: h.time}, nil
}

// isTime reports whether a word is a time, which ends as HOST:PORT does.
func isTime(word []byte) bool {
	if allDigits(bytes.ReplaceAll(word, []byte{':'}, nil)) {
		return true
	}
	_, err := parseTime(string(word))
	return err == nil
}

// hasAddress reports whether a word behind the first two is an address.
func hasAddress(before []byte) bool {
	_, rest := word(before)
	_, rest = word(rest)
	for len(bytes.TrimLeft(rest, " \t")) > 0 {
		var next []byte
		if next, rest = word(rest); addressForm(next) != noAddress {
			return true
		}
	}
	return false
}

// head is the part of a line before its request.
type head struct {
	words [3][]byte // the first words before the time
	count int       // how many there are, at most len(words)+1
	time  int64

	before []byte // the text before the time
	end    int    // of the text before the request
}

// readHead takes the last timestamp before the request. The user in front of it is
// whatever a stranger typed as a name, blanks and brackets included, and must
// not pass for the time; but servers escape the quotes in it, so that it cannot
// pass for the start of the request. A JSON object may well hold such a line, but
// its first field is no client.
func readHead(line []byte) (head, error) {
	if len(line) == 0 || line[0] == ' ' || line[0] == '\t' || looksJSON(line) {
		return head{}, errNoClient
	}
	whole := line
	line = beforeQuote(whole, 0)
	if rest := whole[len(line):]; bytes.HasPrefix(rest, []byte(` `+emptyUser+` [`)) && bytes.IndexByte(line, '[') < 0 {
		line = beforeQuote(whole, len(line)+len(emptyUser))
	}
	stamp, err := lastTimestamp(line)
	if err != nil {
		return head{}, err
	}
	h := head{time: stamp.nanos, before: line[:stamp.start], end: len(line)}
	for rest := h.before; h.count <= len(h.words); h.count++ {
		var first []byte
		if first, rest = listWord(rest); len(first) == 0 {
			break
		}
		if h.count < len(h.words) {
			h.words[h.count] = first
		}
	}
	if h.count == 0 {
		return head{}, errNoTimestamp
	}
	return h, nil
}

// listWord cuts the first word off, or words with commas behind them and the word that ends the list.
func listWord(b []byte) (first, rest []byte) {
	first, rest = word(b)
	whole := b[len(b)-len(rest)-len(first):]
	for len(first) > 0 && first[len(first)-1] == ',' {
		var next []byte
		if next, rest = word(rest); len(next) == 0 {
			break
		}
		first = whole[:len(whole)-len(rest)]
	}
	return first, rest
}

// emptyUser is Apache's word for a user without a name, which any client can be. It is not the
// request, which comes behind a time.
const emptyUser = `""`

// beforeQuote returns the text before the first quote behind a blank, from a place in the line on.
func beforeQuote(line []byte, from int) []byte {
	for at := from; ; {
		quote := bytes.IndexByte(line[at:], '"')
		if quote < 0 {
			return line
		}
		if at += quote; at > from && line[at-1] == ' ' {
			return line[:at-1]
		}
		at++
	}
}

// timestamp is a [time] in a line.
type timestamp struct {
	start int // of the brackets
	nanos int64
}

// maxTimestamp is the longest text taken for a time between brackets: with it a
// line of a million brackets is read as fast as any other.
const maxTimestamp = len(clfTime) + len(".000000000")

// lastTimestamp finds the last [timestamp] of a line. Brackets around anything
// that does not have the form of a time are passed over.
func lastTimestamp(line []byte) (timestamp, error) {
	for search := line; ; {
		open := bytes.LastIndexByte(search, '[')
		if open < 0 {
			return timestamp{}, errNoTimestamp
		}
		inside := line[open+1 : min(open+2+maxTimestamp, len(line))]
		inside, _, closed := bytes.Cut(inside, []byte{']'})
		if n, ok := parseCLF(inside); ok && closed {
			return timestamp{open, n}, nil
		}
		if t, err := time.Parse(clfTime, string(inside)); closed && err == nil {
			n, err := nanos(t)
			return timestamp{open, n}, err
		}
		search = search[:open]
	}
}

// form says how a word stands for an IP address.
type form int

const (
	noAddress form = iota
	bare           // 192.0.2.1, 2001:db8::1, [2001:db8::1]
	withPort       // 192.0.2.1:80, [2001:db8::1]:80
)

func addressForm(word []byte) form {
	// Most names begin with a letter that no address does.
	if len(word) == 0 || !hexDigit(word[0]) && word[0] != '[' && word[0] != ':' {
		return noAddress
	}
	if isIPv4(word) {
		return bare
	}
	text := string(word)
	if _, err := netip.ParseAddr(text); err == nil {
		return bare
	}
	if _, err := netip.ParseAddrPort(text); err == nil {
		return withPort
	}
	if text[0] == '[' && text[len(text)-1] == ']' {
		if _, err := netip.ParseAddr(text[1 : len(text)-1]); err == nil {
			return bare
		}
	}
	return noAddress
}

// isIPv4 is most of netip.ParseAddr in a fraction of its time.
func isIPv4(word []byte) bool {
	dots, digits, n := 0, 0, 0
	for _, c := range word {
		switch {
		case c == '.' && digits > 0:
			dots, digits, n = dots+1, 0, 0
		case '0' <= c && c <= '9' && (digits == 0 || n > 0):
			digits, n = digits+1, n*10+int(c-'0')
		default:
			return false
		}
		if n > 255 {
			return false
		}
	}
	return dots == 3 && digits > 0
}

// namesPort reports whether a word ends in a colon and digits, as HOST:PORT does.
func namesPort(word []byte) bool {
	colon := bytes.LastIndexByte(word, ':')
	return colon > 0 && colon < len(word)-1 && allDigits(word[colon+1:])
}

func isDash(word []byte) bool { return string(word) == "-" }

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}
