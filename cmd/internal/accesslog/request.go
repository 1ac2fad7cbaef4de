package accesslog

import (
	"cmp"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// A Request is the part of a record beside its client and its time. It is whatever the
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

// line reads the first line of a request, METHOD TARGET HTTP/1.1. Any other text is nothing: servers
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
	return s != "" && s != "-" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_") == ""
}

// orEmpty is the text of a field, where a dash stands for none.
func orEmpty(field string) string {
	if field == "-" {
		return ""
	}
	return field
}

// requestOf makes a request of fields by the names that nginx has for them.
func requestOf(get func(name string) string) (r Request) {
	r.Host, r.User, r.Status = cmp.Or(get("host"), get("http_host"), get("server_name")), get("remote_user"), get("status")
	r.line(get("request"))
	r.Method = cmp.Or(get("request_method"), r.Method)
	target := get("request_uri")
	if target == "" {
		target = get("uri")
		if query := get("args"); query != "" {
			target += "?" + query
		}
	}
	if target != "" {
		r.Target = target
		r.absolute()
	}
	return r
}

// word cuts the first word off.
func word(b []byte) (first, rest []byte) {
	start := 0
	for start < len(b) && isBlank(b[start]) {
		start++
	}
	for end := start; end < len(b); end++ {
		if isBlank(b[end]) {
			return b[start:end], b[end:]
		}
	}
	return b[start:], nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// quoteEnd finds the end of a text in quotes: the first quote that stands before the next part, because
// servers of the 1990s escape no quotes. It is the end of the line if that is cut off, and -1 if it cannot be
// told from quotes in the text.
func quoteEnd(b []byte, next func(rest []byte) bool) int {
	first := -1
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if next(b[i+1:]) {
				return i
			}
			if first < 0 {
				first = i
			}
		}
	}
	switch {
	case first < 0:
		return len(b)
	case beforeBlank(b[first+1:]):
		return first
	}
	return -1
}

// beforeBlank reports whether a field can end before rest.
func beforeBlank(rest []byte) bool { return len(rest) == 0 || rest[0] == ' ' }

// unescape undoes the escapes of Apache (\" \\ \n \xe4) and nginx (\x22).
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

// asIs is the text of servers that escape nothing.
func asIs(b []byte) string { return string(b) }

// unhash undoes the escapes of HAProxy (#22).
func unhash(b []byte) string {
	var out []byte
	for ; len(b) > 0; b = b[1:] {
		if code := b[1:min(3, len(b))]; b[0] == '#' && len(code) == 2 {
			if c, err := hex.DecodeString(string(code)); err == nil {
				out, b = append(out, c...), b[2:]
				continue
			}
		}
		out = append(out, b[0])
	}
	return string(out)
}

// The names that fields have in logs in JSON: of Caddy, nginx as it is commonly set up, Traefik, and
// Elastic's common schema. The first that is there counts.
var (
	requestFields = newFields("request")
	methodFields  = newFields("request.method", "request_method", "RequestMethod", "http.request.method", "method")
	targetFields  = newFields("request.uri", "request_uri", "RequestPath", "url.original", "uri", "x-envoy-origin-path", "path")
	hostFields    = newFields("request.host", "http_host", "RequestHost", "url.domain", "host", "server_name", ":authority", "authority")
	userFields    = newFields("user_id", "remote_user", "ClientUsername", "user.name")
	statusFields  = newFields("status", "DownstreamStatus", "response", "http.response.status_code", "response_code")
	agentFields   = newFields("user_agent.original", "user_agent", "agent", "user-agent")
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
	r.Method = cmp.Or(first(line, methodFields), r.Method)
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
