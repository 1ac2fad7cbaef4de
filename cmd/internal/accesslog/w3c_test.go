package accesslog

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestW3C: the fields are those of the last #Fields: before a line, also where a block ends between them.
func TestW3C(t *testing.T) {
	log := strings.Join([]string{
		utf8BOM + "#Software: Microsoft Internet Information Services 10.0",
		"#Version: 1.0",
		"#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query cs-username sc-status cs(User-Agent) cs-host",
		`2015-05-17 10:05:03 192.0.2.1 GET /a x=1 EX\ann 200 Mozilla/5.0+(X;+Y) a.example`,
		"2015-05-17 10:05:04 192.0.2.2 GET /a - - 200 - -",
		"2015-05-17 10:05:05 192.0.2.3 GET /a b - - 200 - -", // one more
		"2015-05-17 10:05:06 - GET /a - - 200 - -",
		"2015-05-17 10:05:07 ann GET /a - - 200 - -",
		"# no directive",
		"#Date: 2015-05-18 00:00:00",
		utf8BOM + "#Fields: c-ip time",
		"192.0.2.4 00:00:01",
		"2015-05-17 10:05:04 192.0.2.2 GET /a - - 200 - -",
		"#Fields: time",
		"00:00:02",
		"",
	}, "\r\n")
	for i, block := range []int{1, 30, 64, 1 << 20} {
		parsers, err := Select([]string{W3C, Auto}[i%2], "", "")
		require.NoError(t, err)
		var got []string
		var first *Request
		facts, err := Read(t.Context(), Config{Sources: []Source{Stream("log", strings.NewReader(log))}, Parsers: parsers, block: block, Requests: true}, func(rec Record) {
			got = append(got, fmt.Sprintf("%s %d", rec.Client, rec.Time/1e9))
			if first == nil {
				first = rec.Request
			}
		})
		require.NoError(t, err)
		assert.Equal(t, []string{"192.0.2.1 1431857103", "192.0.2.2 1431857104", "192.0.2.4 1431907201"}, got)
		assert.Equal(t, []int64{6, 7, 8, 9, 13, 15}, facts.MalformedLines)
		assert.Equal(t, "11 fields where #Fields: names 10", facts.MalformedReason)
		assert.EqualValues(t, 6, facts.Blank)
		assert.Equal(t, &Request{Method: "GET", Target: "/a?x=1", Host: "a.example", User: `EX\ann`, Status: "200",
			Header: http.Header{"User-Agent": {"Mozilla/5.0 (X; Y)"}}}, first)
	}
}

// TestPattern: what a pattern reads, and what it does not take for a client.
func TestPattern(t *testing.T) {
	for _, c := range []struct{ format, client, line, want, err string }{
		{`$remote_addr [$time_local] "$request" $status`, "", `192.0.2.1 [` + someTime + `] "GET /a "b" c" 200`, "192.0.2.1", ""},
		{`$remote_addr [$time_local] "$request" $status`, "", `192.0.2.1 [` + someTime + `] "GET /a" abc`, "", errPattern.Error()},
		{`$remote_addr [$time_local] "$request" $status`, "", `a b [` + someTime + `] "GET /a" 200`, "", errPattern.Error()},
		{`$remote_addr $time_local $status`, "", `host ` + someTime + ` 200 more`, "host", ""},
		{`$remote_addr $time_local`, "", `host ` + someTime, "host", ""},
		{`$msec,$remote_addr,$x`, "", `1431857103.000,192.0.2.1,y`, "192.0.2.1", ""},
		{`$msec|$remote_addr|`, "", `1431857103.000|192.0.2.1, 192.0.2.2|`, "192.0.2.2", ""},
		{`$msec|$remote_addr|`, "", `1431857103.000|-|`, "", string(errDash)},
		{`$msec|$remote_addr|`, "", `1431857103.000|a "b|`, "", errNoClient.Error()},
		{`$msec|$http_x_forwarded_for|`, "http_x_forwarded_for", `1431857103.000|192.0.2.1, 192.0.2.2|`, "192.0.2.2", ""},
		{`$msec|$http_x_forwarded_for|`, "http_x_forwarded_for", `1431857103.000|192.0.2.1, -|`, "", string(errDash)},
		{`$remote_addr:$port $msec`, "", `2001:db8::1:80 1431857103`, "2001:db8::1", ""},
		{`"$request" $remote_addr $msec`, "", `"GET /" 192.0.2.1 1431857103`, "192.0.2.1", ""},
		{`"$request" $remote_addr $msec`, "", `"GET /" 203.0.113.9 1 " 192.0.2.1 1431857103`, "", quotesError(3, 2).Error()},
	} {
		p, err := newPattern("pattern", c.format, c.client, "")
		require.NoError(t, err)
		rec, err := p.Parse([]byte(c.line))
		if c.err != "" {
			assert.EqualError(t, err, c.err, c.line)
			continue
		}
		require.NoError(t, err, c.line)
		assert.Equal(t, c.want, string(rec.Client), c.line)
		assert.Equal(t, someNanos, rec.Time, c.line)
	}
}
