package httplimit_test

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A parser of the part of structured fields (RFC 9651, section 4.2) that the fields
// RateLimit and RateLimit-Policy use, written from the RFC: lists of strings with
// parameters that are integers, strings or byte sequences. Anything else is an error.

type sfItem struct {
	value  string
	params map[string]any // int64, string or []byte
}

type sfParser struct{ in string }

func parseSFList(in string) (items []sfItem, err error) {
	p := &sfParser{strings.Trim(in, " ")}
	for p.in != "" {
		item, err := p.item()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		p.in = strings.TrimLeft(p.in, " \t")
		if p.in == "" {
			return items, nil
		}
		if !p.take(',') {
			return nil, fmt.Errorf("no comma before %q", p.in)
		}
		p.in = strings.TrimLeft(p.in, " \t")
		if p.in == "" {
			return nil, fmt.Errorf("trailing comma")
		}
	}
	return items, nil
}

func (p *sfParser) take(c byte) bool {
	if p.in == "" || p.in[0] != c {
		return false
	}
	p.in = p.in[1:]
	return true
}

func (p *sfParser) item() (item sfItem, err error) {
	if item.value, err = p.str(); err != nil {
		return item, err
	}
	item.params = map[string]any{}
	for p.take(';') {
		p.in = strings.TrimLeft(p.in, " ")
		name := p.in[:len(p.in)-len(strings.TrimLeft(p.in, "abcdefghijklmnopqrstuvwxyz0123456789_-.*"))]
		if name == "" || strings.Contains("0123456789_-.", name[:1]) {
			return item, fmt.Errorf("no parameter name at %q", p.in)
		}
		p.in = p.in[len(name):]
		if !p.take('=') {
			return item, fmt.Errorf("parameter %s is a boolean", name)
		}
		if item.params[name], err = p.bare(); err != nil {
			return item, fmt.Errorf("%s: %w", name, err)
		}
	}
	return item, nil
}

func (p *sfParser) bare() (any, error) {
	switch {
	case p.in == "":
		return nil, fmt.Errorf("no value")
	case p.in[0] == '"':
		return p.str()
	case p.in[0] == ':':
		text, rest, ok := strings.Cut(p.in[1:], ":")
		if !ok {
			return nil, fmt.Errorf("byte sequence without an end")
		}
		p.in = rest
		return base64.StdEncoding.Strict().DecodeString(text)
	}
	digits := strings.TrimPrefix(p.in, "-")
	n := len(digits) - len(strings.TrimLeft(digits, "0123456789"))
	if n == 0 || n > 15 {
		return nil, fmt.Errorf("%d digits at %q", n, p.in)
	}
	n += len(p.in) - len(digits)
	text := p.in[:n]
	p.in = p.in[n:]
	return strconv.ParseInt(text, 10, 64)
}

func (p *sfParser) str() (string, error) {
	if !p.take('"') {
		return "", fmt.Errorf("no string at %q", p.in)
	}
	var s strings.Builder
	for p.in != "" {
		c := p.in[0]
		p.in = p.in[1:]
		switch {
		case c == '"':
			return s.String(), nil
		case c == '\\':
			if !strings.HasPrefix(p.in, `"`) && !strings.HasPrefix(p.in, `\`) {
				return "", fmt.Errorf("bad escape before %q", p.in)
			}
			c = p.in[0]
			p.in = p.in[1:]
		case c < 0x20 || c > 0x7e:
			return "", fmt.Errorf("byte %#x in a string", c)
		}
		s.WriteByte(c)
	}
	return "", fmt.Errorf("string without an end")
}

// The parser is checked against the examples of the draft and against what RFC 9651
// refuses.
func TestSFParser(t *testing.T) {
	_, err := parseSFList(`"peruser";q=100;w=60;pk=:cHsdsRa894==:`)
	require.Error(t, err, "the draft's own partition key has bits left over")
	items, err := parseSFList(`"permin";q=50;w=60,"per\"hr";q=1000;qu="content-bytes"; pk=:QXBwLTk5OQ==:`)
	require.NoError(t, err)
	assert.Equal(t, []sfItem{
		{"permin", map[string]any{"q": int64(50), "w": int64(60)}},
		{`per"hr`, map[string]any{"q": int64(1000), "qu": "content-bytes", "pk": []byte("App-999")}},
	}, items)
	for _, bad := range []string{
		`"a";q=50,`, `a;q=1`, `"a"q=1`, `"a";q=`, `"a";q=1234567890123456`, `"a";q=:AA:`, `"a\n"`, "\"a\x00\"", `"a`, `"a";Q=1`, `"a" "b"`, `"a";q`, `"a";pk=:AA==`,
	} {
		_, err := parseSFList(bad)
		assert.Error(t, err, "%s", bad)
	}
}
