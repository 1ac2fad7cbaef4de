package accesslog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestReader_Nineties has lines of the 1990s, as servers wrote them that escaped nothing, and each kind on
// which this parser and the first one, which took the first word of any line with a time for the client,
// differ. Empty: the line counts for nobody.
func TestReader_Nineties(t *testing.T) {
	const at = " [" + someTime + "] "
	for line, client := range map[string]string{
		"uplherc.upl.com - -" + at + `"GET /a "b" c HTTP/1.0" 200 6245`:             "uplherc.upl.com",
		"uplherc.upl.com - -" + at + `"GET /"><a href="x" HTTP/1.0" 404 -`:          "uplherc.upl.com",
		"uplherc.upl.com - -" + at + `"GET /apollo 13.html" 200 0`:                  "uplherc.upl.com",
		"local - -" + at + `"GET index.html HTTP/1.0" 200 150`:                      "local",
		"***.novo.dk - -" + at + `"GET / HTTP/1.0" 200 1`:                           "***.novo.dk",
		"cs.host_x.edu UNIX,US-ASCII:ann -" + at + `"GET / HTTP/1.0" 200 1`:         "cs.host_x.edu",
		"cs.host_x.edu - -" + at + `"GET /x - - [01/Jul/1995:00:00:01 -0400] "y" 1`: "cs.host_x.edu",
		"cs.host_x.edu - -" + at + "\"GET /a\rb HTTP/1.0\" 200 1":                   "cs.host_x.edu", // after the first parser, refused for a while
		"cs.host_x.edu ann Ann Lee" + at + `"GET / HTTP/1.0" 200 1`:                 "cs.host_x.edu", // the same
		"cs.host_x.edu unix:ann A. B. Lee" + at + `"GET / HTTP/1.0" 200 1`:          "cs.host_x.edu", // the same
		"cs.host_x.edu ann 10.0.0.1" + at + `"GET / HTTP/1.0" 200 1`:                "",              // counted then, but the user may be the client
		"cs.host_x.edu pc user -" + at + `"GET / HTTP/1.0" 200 1`:                   "",              // and so may user here
		"web1.example.org nginx: cs.host_x.edu ann lee" + at + `"GET / HTTP/1.0" 1`: "",              // it counted, for the host of the log
		"web1 app cs.host_x.edu ann lee" + at + `"GET / HTTP/1.0" 1`:                "",              // the same
		"nginx: local ann" + at + `"GET / HTTP/1.0" 200 1`:                          "",              // for nginx:
		"- -" + at + `"y" 200 1`:                                                    "", // for -
		"user" + at + `"GET / HTTP/1.0" 200 1`:                                      "", // for the end of a user, of a line that was wrapped
		`"Mozilla - -` + at + `"GET / HTTP/1.0" 200 1`:                              "", // for the start of a quotation
		`400 - cs.host_x.edu - -` + at + `"GET / HTTP/1.0" 200 1`:                   "", // for a status
		"slip-5,3.example.com - -" + at + `"GET / HTTP/1.0" 200 1`:                  "", // for what is in a list, and in no name
		"cs.host_x.edu - -" + at + "\"GET / HTTP/1.0\" 200 1\rb - -" + at + `"G" 1`: "", // for the first of several
		`cs.host_x.edu - "joe"` + at + `"GET / HTTP/1.0" 200 1`:                     "", // never counted: the request begins behind a quote
		"cs.host_x.edu [29:23:53:25] " + `"GET / HTTP/1.0" 200 1497`:                "", // nor without a date
	} {
		clients, facts, _ := readAll(t, strings.NewReader(line+"\n"), Combined)
		if client == "" {
			assert.Empty(t, clients, line)
			assert.EqualValues(t, 1, facts.Malformed, line)
		} else {
			assert.Equal(t, []string{client}, clients, line)
		}
	}
}

// wrapped is a log as another tool leaves it that breaks lines at a column, or at a blank before it.
func wrapped(lines []string, width int, blanks bool) string {
	var out strings.Builder
	for _, line := range lines {
		for {
			cut := min(width, len(line))
			if blank := strings.LastIndexByte(line[:cut], ' '); blanks && cut < len(line) && blank >= 0 {
				cut = blank + 1
			}
			out.WriteString(line[:cut] + "\n")
			if line = line[cut:]; line == "" {
				break
			}
		}
	}
	return out.String()
}

// TestReader_Wrapped: of lines that were wrapped at any width, those with a client and a time count, and
// nothing counts for anybody else, whatever names are as long as a line and whatever requests look like.
func TestReader_Wrapped(t *testing.T) {
	rng := seeded.Rand(t)
	hosts := []string{"192.0.2.7", "uplherc.upl.com", "local", strings.Repeat("a", 63) + "." + strings.Repeat("b", 61) + ".example.com"}
	idents := []string{"-", "-", "ann", "pc user", strings.Repeat("i", 70)}
	requests := []string{"GET / HTTP/1.0", `GET /a "b" c HTTP/1.0`, "GET /" + strings.Repeat("long/", 40) + " HTTP/1.0",
		"GET /" + strings.Repeat("forged.example - - ["+someTime+"] ", 12), "GET /a\rb HTTP/1.0", "-", ""}
	for _, width := range []int{60, 72, 80, 100, 132} {
		for _, blanks := range []bool{false, true} {
			var lines []string
			for i := range 3000 { // the time tells which line a record is of
				lines = append(lines, fmt.Sprintf(`%s %s %s [%s] "%s" 200 %d`, hosts[rng.IntN(len(hosts))], idents[rng.IntN(len(idents))],
					idents[rng.IntN(len(idents))], time.Unix(int64(i), 0).UTC().Format(clfTime), requests[rng.IntN(len(requests))], rng.IntN(10000)))
			}
			parsers, err := Select(Combined, "", "")
			require.NoError(t, err)
			counted := 0
			c := Config{Sources: []Source{Stream("log", strings.NewReader(wrapped(lines, width, blanks)))}, Parsers: parsers}
			facts, err := Read(t.Context(), c, func(rec Record) {
				at := rec.Time / int64(time.Second)
				require.Less(t, at, int64(len(lines)), "the forged time, of %q, at width %d", rec.Client, width)
				require.True(t, strings.HasPrefix(lines[at], string(rec.Client)+" "), "%q counted as %q at width %d", lines[at], rec.Client, width)
				counted++
			})
			require.NoError(t, err)
			assert.Greater(t, counted, 500)
			assert.Equal(t, facts.Lines, facts.Counted+facts.Malformed)
		}
	}
}
