package accesslog

import (
	"bytes"
	"regexp"

	"github.com/tidwall/gjson"
)

// A line of a server may stand in an envelope: of the container runtime, of syslog, of a collector. Each
// begins where no client writes, at the start of the line.

// syslogTime is the start of a line of syslog or journald: with a priority or without.
const syslogTime = `^(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d))`

// envelopes match all that stands in front of the line within.
var envelopes = []*regexp.Regexp{
	regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] `), // CRI
	regexp.MustCompile(`^\[pod/[^\] ]+\] `),                                                                  // kubectl logs --prefix
	regexp.MustCompile(`^[A-Za-z0-9][\w.-]* +\| `),                                                           // docker compose
	regexp.MustCompile(syslogTime + ` \S+ [^\s:]+: `),                                                        // RFC 3164, short-iso: host and tag
	regexp.MustCompile(`^<\d{1,3}>\d \S+ \S+ \S+ \S+ \S+ (?:-|(?:\[(?:[^\]\\]|\\.)*\])+) (?:\xef\xbb\xbf)?`), // RFC 5424
}

// inner are the fields in which collectors keep a line: Docker, fluent-bit; Elastic, Vector; journald.
var inner = newFields("log", "message", "MESSAGE")

// peel returns the line within an envelope; nil if there is none.
func peel(line []byte) []byte {
	if isJSON(line) {
		for _, f := range inner {
			if v := f.in(line); v.Type == gjson.String && v.Str != "" {
				return bytes.TrimRight([]byte(v.Str), "\r\n")
			}
		}
	}
	if object := arrayElement(line); object != nil {
		return object
	}
	if len(line) == 0 || line[0] != '<' && line[0] != '[' && !isAlphanumeric(line[0]) {
		return nil
	}
	for _, e := range envelopes {
		if m := e.Find(line); m != nil && len(m) < len(line) {
			return line[len(m):]
		}
	}
	return nil
}

// peeled are a line and the lines within its envelopes, of which it can have three: a line of syslog, in JSON, in the
// file of a container runtime. They are made when they are asked for, and empty where there is none.
type peeled [4][]byte

func (t *peeled) get(i int) []byte {
	if i == 0 {
		return t[0]
	}
	if t.get(i - 1); t[i] == nil {
		t[i] = []byte{}
		if len(t[i-1]) > 0 {
			t[i] = append(t[i], peel(t[i-1])...)
		}
	}
	if len(t[i]) == 0 {
		return nil
	}
	return t[i]
}

// arrayElement returns the object in a line of an array of objects, a line each.
func arrayElement(line []byte) []byte {
	object := bytes.Trim(bytes.TrimSpace(line), "[,]")
	if object = bytes.TrimSpace(object); len(object) < len(line) && looksJSON(object) && object[len(object)-1] == '}' {
		return object
	}
	return nil
}

// inArray reports whether a line is nothing but the end of an array.
func inArray(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 1 && (line[0] == '[' || line[0] == ']' || line[0] == ',')
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
