package accesslog

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// A Request is what a log says of a request beside its client and its time. It is whatever the
// client has sent, except that servers escape some of it, and empty where the log says nothing.
type Request struct {
	Method string
	Target string // as in the first line of the request
	Host   string
	User   string
	Status string
	Header http.Header // nil for none
}

// set keeps a header of the request, if there is one.
func (r *Request) set(name, value string) {
	if value == "" || value == "-" {
		return
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Add(name, value)
}

// line reads the first line of a request, METHOD TARGET HTTP/1.1. What is none is nothing: servers
// log whatever bytes come.
func (r *Request) line(s string) {
	method, target, ok := strings.Cut(s, " ")
	if end := strings.LastIndex(target, " HTTP/"); end >= 0 {
		target = target[:end]
	}
	if target = strings.TrimSpace(target); !ok || !isMethod(method) || target == "" {
		return
	}
	r.Method, r.Target = method, target
	r.absolute()
}

// absolute takes the host of a target that has one, which counts more than the header Host.
func (r *Request) absolute() {
	if r.Method == http.MethodConnect {
		r.Host, r.Target = r.Target, ""
		return
	}
	if scheme, rest, ok := strings.Cut(r.Target, "://"); ok && (scheme == "http" || scheme == "https") {
		r.Host = rest[:strings.IndexAny(rest+"/", "/?#")]
	}
}

func isMethod(s string) bool {
	return s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_") == ""
}

// orEmpty is the text of a field, where a dash stands for none.
func orEmpty(field string) string {
	if field == "-" {
		return ""
	}
	return field
}

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
func ncsa(line []byte, words int) (r Request) {
	h, err := readHead(line)
	if err != nil {
		return r
	}
	user := h.before
	for range words {
		_, user = word(user)
	}
	if name := string(bytes.TrimSpace(user)); name != emptyUser {
		r.User = orEmpty(name)
	}
	request, rest := quoted(line[h.end:], beforeStatus)
	r.line(request)
	status, rest := word(rest)
	r.Status = orEmpty(string(status))
	_, rest = word(rest) // bytes
	referer, rest := quoted(rest, beforeBlank)
	agent, _ := quoted(rest, beforeBlank)
	r.set("Referer", referer)
	r.set("User-Agent", agent)
	return r
}

// Request reads what follows the client of a line of S3:
//
//	requester id operation key "request" status error bytes size time turnaround "referer" "user agent" version id signature cipher authentication host
func (s3) Request(line []byte) (r Request) {
	h, err := readHead(line)
	if err != nil {
		return r
	}
	_, rest := word(h.rest)
	requester, _ := word(rest)
	r.User = orEmpty(string(requester))
	request, rest := quoted(line[h.end:], beforeStatus)
	r.line(request)
	status, rest := word(rest)
	r.Status = orEmpty(string(status))
	for range 5 {
		_, rest = word(rest)
	}
	referer, rest := quoted(rest, beforeBlank)
	agent, rest := quoted(rest, beforeBlank)
	r.set("Referer", referer)
	r.set("User-Agent", agent)
	var host []byte
	for range 6 {
		host, rest = word(rest)
	}
	if r.Host == "" {
		r.Host = orEmpty(string(host))
	}
	return r
}

// word cuts the first word off.
func word(b []byte) (first, rest []byte) {
	b = bytes.TrimLeft(b, " \t")
	if end := bytes.IndexAny(b, " \t"); end >= 0 {
		return b[:end], b[end:]
	}
	return b, nil
}

// quoted cuts the text in quotes off that b begins with, without what servers escape in it. It ends at
// the first quote that stands before what comes next, because servers of the 1990s escape no quotes. It is
// cut off where the line is, and nothing if its end cannot be told from quotes in it.
func quoted(b []byte, next func(rest []byte) bool) (text string, rest []byte) {
	b = bytes.TrimLeft(b, " \t")
	if len(b) == 0 || b[0] != '"' {
		_, rest = word(b)
		return "", rest
	}
	b = b[1:]
	end := len(b)
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if next(b[i+1:]) {
				return unescape(b[:i]), b[i+1:]
			}
			end = min(end, i)
		}
	}
	if rest = b[min(end+1, len(b)):]; beforeBlank(rest) {
		return unescape(b[:end]), rest
	}
	return "", nil
}

// beforeStatus reports whether a quote ends a request: a status of three digits follows.
func beforeStatus(rest []byte) bool {
	return len(rest) >= 4 && rest[0] == ' ' && allDigits(string(rest[1:4])) && beforeBlank(rest[4:])
}

// beforeBlank reports whether a quote ends a field.
func beforeBlank(rest []byte) bool { return len(rest) == 0 || rest[0] == ' ' }

// unescape puts back what Apache (\" \\ \n \xe4) and nginx (\x22) have escaped.
func unescape(b []byte) string {
	s := string(b)
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for s != "" {
		c, _, tail, err := strconv.UnquoteChar(s, '"')
		if err != nil || s[0] != '\\' {
			out.WriteByte(s[0])
			s = s[1:]
			continue
		}
		if c < 0x100 {
			out.WriteByte(byte(c))
		} else {
			out.WriteRune(c)
		}
		s = tail
	}
	return out.String()
}

// The names that fields have in logs in JSON: of Caddy, nginx as it is commonly set up, Traefik, and
// Elastic's common schema. The first that is there counts.
var (
	requestFields = newFields("request")
	methodFields  = newFields("request.method", "request_method", "RequestMethod", "http.request.method", "method")
	targetFields  = newFields("request.uri", "request_uri", "RequestPath", "url.original", "uri")
	hostFields    = newFields("request.host", "http_host", "RequestHost", "url.domain", "host", "server_name")
	userFields    = newFields("user_id", "remote_user", "ClientUsername", "user.name")
	statusFields  = newFields("status", "DownstreamStatus", "response", "http.response.status_code")
	agentFields   = newFields("user_agent.original", "user_agent", "agent")
	refererFields = newFields("http.request.referrer", "referrer", "referer")
)

func newFields(names ...string) []field {
	out := make([]field, len(names))
	for i, name := range names {
		out[i] = newField(name)
	}
	return out
}

// first returns the text of the first field that is there.
func first(line []byte, fields []field) string {
	for _, f := range fields {
		if v := f.in(line); isScalar(v) && orEmpty(text(v)) != "" {
			return text(v)
		}
	}
	return ""
}

// Request reads the fields above, and headers: Caddy's request.headers, nginx's http_NAME, Traefik's
// request_NAME.
func (f jsonLines) Request(line []byte) (r Request) {
	r.Host, r.User, r.Status = first(line, hostFields), first(line, userFields), first(line, statusFields)
	r.line(first(line, requestFields))
	if method := first(line, methodFields); method != "" {
		r.Method = method
	}
	if target := first(line, targetFields); target != "" {
		r.Target = target
		r.absolute()
	}
	gjson.GetBytes(line, "request.headers").ForEach(func(name, values gjson.Result) bool {
		values.ForEach(func(_, v gjson.Result) bool {
			r.set(name.Str, v.Str)
			return true
		})
		return true
	})
	gjson.ParseBytes(line).ForEach(func(name, value gjson.Result) bool {
		header, nginx := strings.CutPrefix(name.Str, "http_")
		traefik := false
		if nginx {
			header = strings.ReplaceAll(header, "_", "-")
		} else {
			header, traefik = strings.CutPrefix(name.Str, "request_")
			traefik = traefik && header != "" && 'A' <= header[0] && header[0] <= 'Z' // nginx has request_time
		}
		if (nginx || traefik) && isScalar(value) && r.Header.Get(header) == "" {
			r.set(header, text(value))
		}
		return true
	})
	for name, fields := range map[string][]field{"User-Agent": agentFields, "Referer": refererFields} {
		if r.Header.Get(name) == "" {
			r.set(name, first(line, fields))
		}
	}
	return r
}
