package httplimit

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCanonicalHost_OneTextForAllSpellings(t *testing.T) {
	for want, spellings := range map[string][]string{
		"a.test":        {"http://a.test", "http://A.tEsT/", "http://a.test:80", "https://a.test:443", "http://a.test.", "http://a.test.:0080", "http://a.test:", "http://u:p@a.test"},
		"a.test:443":    {"http://a.test:443", "http://A.test.:443", "http://a.test:00443"},
		"a.test:80":     {"https://a.test:80"},
		"a.test:0":      {"http://a.test:0", "http://a.test:000"},
		"192.0.2.1":     {"http://192.0.2.1", "http://192.0.2.1:80", "http://[::ffff:192.0.2.1]", "http://[::ffff:c000:201]:80"},
		"[2001:db8::1]": {"http://[2001:db8::1]", "http://[2001:DB8:0:0:0:0:0:1]:80", "https://[2001:0db8::0001]:443"},
		"[2001:db8::1]:8080": {
			"http://[2001:db8::1]:8080", "http://[2001:DB8::0:1]:08080",
		},
		"[fe80::1%eth0]":     {"http://[fe80::1%25eth0]", "http://[FE80:0::1%25eth0]:80"},
		"xn--bcher-kva.test": {"http://xn--bcher-kva.test", "http://XN--BCHER-KVA.test."},
		"":                   {"", "file:///etc/motd", "mailto:x"},
	} {
		for _, s := range spellings {
			u, err := url.Parse(s)
			require.NoError(t, err)
			got, err := canonicalHost(u)
			require.NoError(t, err, s)
			assert.Equal(t, want, got, s)
		}
	}
}

// A host that was not parsed can be anything.
func TestCanonicalHost_TakesAnyURL(t *testing.T) {
	for host, want := range map[string]string{
		":": "", ":8080": ":8080", " ": " ", "a b": "a b", "[::1]:99999999999": "[::1]:99999999999", "[192.0.2.1]": "192.0.2.1",
	} {
		got, err := canonicalHost(&url.URL{Scheme: "http", Host: host})
		assert.NoError(t, err, host)
		assert.Equal(t, want, got)
	}
	// A host that is neither a name nor an address has no form to compare.
	for _, host := range []string{
		"::", "::1", "[", "]", "[]", "[::1", "::1]", "a:b:c", "a:80:80", "[%", ".", "..", "a..", ".:80", "..:80", "a:-1", "[a]:80", "[a.test]", "[a.test]:443",
		":..:", "[:.]", "[:]", "[fe80::1%a..]", "[fe80::1%]", "a]",
	} {
		got, err := canonicalHost(&url.URL{Scheme: "http", Host: host})
		assert.ErrorContains(t, err, "is neither a name nor an address", "%q becomes %q", host, got)
	}
	_, err := canonicalHost(&url.URL{Host: strings.Repeat("a", 512)})
	assert.NoError(t, err)
}

func TestCanonicalHost_UsualHostsAllocateNothing(t *testing.T) {
	u := &url.URL{Scheme: "https", Host: "api.example.com"}
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = canonicalHost(u) }))
}

var sentAt = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestParseRetryAfter(t *testing.T) {
	const malformed = -1
	for value, want := range map[string]time.Duration{
		"0":                                0,
		"1":                                time.Second,
		"007":                              7 * time.Second,
		"120":                              2 * time.Minute,
		"9223372036":                       9223372036 * time.Second,
		"9223372037":                       math.MaxInt64,
		"10000000000000000000":             math.MaxInt64, // 2^63 and a bit
		"18446744073709551617":             math.MaxInt64, // 2^64 + 1
		"99999999999999999999":             math.MaxInt64,
		strings.Repeat("9", 64):            math.MaxInt64,
		strings.Repeat("0", 63) + "5":      5 * time.Second,
		"Sat, 21 Nov 2026 12:00:30 GMT":    30 * time.Second,
		"Sat, 21 Nov 2026 12:00:00 GMT":    0,
		"Sat, 21 Nov 2026 11:59:59 GMT":    0,
		"Saturday, 21-Nov-26 12:00:30 GMT": 30 * time.Second,
		"Sat Nov 21 12:00:30 2026":         30 * time.Second,
		"Fri, 31 Dec 9999 23:59:59 GMT":    math.MaxInt64,
		"":                                 malformed,
		" ":                                malformed,
		"-1":                               malformed,
		"+1":                               malformed,
		"1.5":                              malformed,
		"1e3":                              malformed,
		"1s":                               malformed,
		"0x10":                             malformed,
		"1, 2":                             malformed,
		"soon":                             malformed,
		"１":                                malformed,
		"Sat, 21 Nov 2026 12:00:30":        malformed,
		"Sat, 32 Nov 2026 12:00:30 GMT":    malformed,
		"2026-11-21T12:00:30Z":             malformed,
		strings.Repeat("9", 65):            malformed,
		strings.Repeat("x", 1<<20):         malformed,
		"Sat, 21 Nov 2026 12:00:30 GMT" + strings.Repeat(" ", 64): malformed,
	} {
		got, ok := parseRetryAfter(value, sentAt)
		assert.Equal(t, want != malformed, ok, "%.80q", value)
		assert.Equal(t, max(0, want), got, "%.80q", value)
	}
}

func TestParseRetryAfter_LongGarbageIsNotCopied(t *testing.T) {
	garbage := strings.Repeat("x", 1<<20)
	assert.Zero(t, testing.AllocsPerRun(100, func() { parseRetryAfter(garbage, sentAt) }))
}

func TestParseRateLimit(t *testing.T) {
	many := strings.Repeat(`"p";r=1,`, maxRateLimitBytes/8-2)
	for _, c := range []struct {
		want  time.Duration
		lines []string
	}{
		{0, nil},
		{0, []string{""}},
		{0, []string{"   "}},
		{0, []string{`"default";r=50;t=30`}},
		{0, []string{`"default";r=0`}},
		{0, []string{`"default";r=0;t=0`}},
		{30 * time.Second, []string{`"default";r=0;t=30`}},
		{30 * time.Second, []string{`"default";t=30;r=0`}},
		{30 * time.Second, []string{`default;r=0;t=30`}},
		{30 * time.Second, []string{`  "a";r=0;t=30  `}},
		{30 * time.Second, []string{`"a\"b\\c;r=1";r=0;t=30`}},
		{9 * time.Second, []string{`"a";r=0;t=5, "b";r=7;t=60 ,	"c";r=0;t=9,"d";r=0`}},
		{9 * time.Second, []string{`"a";r=0;t=5`, `"b";r=0;t=9`}},
		{5 * time.Second, []string{`"a";r=0;t=30;t=5`}},
		{47 * time.Second, []string{`"a";r=0;t;t=-1;t="x";t=47`}}, // the last one counts
		{47 * time.Second, []string{`"a";r;r=x;r=1;r=0;t=47`}},
		{5 * time.Second, []string{"\t " + `"a";r=0;t=5` + " \t"}},
		{5 * time.Second, []string{`"a";r=0;t=5;x=%"%41%c3%a9%e2%82%ac%f0%9f%98%80%ef%bf%bd";y=:YQ:;z=:YQ====:`}},
		{0, []string{`"a";r=0;t=30;r=1`}},
		{5 * time.Second, []string{`"a";pk=:cHsdsRa894==:;r=0; t=5;acme-x=1.5;b=tok/en:x;c;*d_e.f-0="s";g=?0;h=@-5;i=%"%c3%bc"`}},
		{math.MaxInt64, []string{`"a";r=0;t=999999999999999`}},
		{5 * time.Second, []string{many + `"p";r=0;t=5`}},
	} {
		got, ok := parseRateLimit(c.lines)
		assert.True(t, ok, "%.80q", c.lines)
		assert.Equal(t, c.want, got, "%.80q", c.lines)
	}
}

// One malformed item, and all of the field is ignored (RFC 9651, 4.2).
func TestParseRateLimit_Malformed(t *testing.T) {
	for _, line := range []string{
		`"b"`, `"b";t=5`, `"b";r`, `"b";r=-1`, `"b";r=0.0`, `"b";r="0"`, `"b";r=?0`, `"b";r=@0`, `"b";r=`, `"b";r=zero`,
		`"b";r=0;t`, `"b";r=0;t=5;t`, `"b";r=0;t=5;t=-1`, `"b";r=0;r`, `"b";r=1;x=:a:`, `"b";r=1;x=:YQ=YQ:`,
		`"b";r=1;x=%"%ff"`, `"b";r=1;x=%"%c3"`, `"b";r=1;x=%"%c3x"`, `"b";r=1;x=%"%e2%82"`, `"b";r=1;x=%"%c0%80"`, `"b";r=1;x=%"%ed%a0%80"`, `"b";r=1;x=%"%c3%"`, `"b";r=1;x=%"%f4%90%80%80"`,
		`"b";r=0;t=-1`, `"b";r=0;t=1.0`, `"b";r=0;t="1"`, `"b";r=0;t=1234567890123456`, `"b";r=0;t=--1`, `"b";r=0;t=+1`,
		`"b";r=1;t=`, `"b";R=0`, `"b";r=1;T=1`, `"b";r=1;1=1`, `"b";r=1;`, `"b";r=1;;`, `"b" ;r=1`, `"b";r =1`, `"b";r= 1`, `"b";r=1 t=1`,
		`"b`, `"b\`, `"b\x";r=1`, `b";r=1`, "\"b\t\";r=1", "\"\x7f\";r=1", `"ü";r=1`, `'b';r=1`,
		`;r=1`, `,`, `"b";r=1,`, `,"b";r=1`, `"b";r=1,,"c";r=1`, `"b";r=1 "c";r=1`, `("b");r=1`, `("b";r=1)`,
		`5;r=1`, `5.5;r=1`, `?1;r=1`, `:YQ==:;r=1`, `@5;r=1`, `%"b";r=1`,
		`"b";r=1;x=:YQ==`, `"b";r=1;x=:Y Q:`, `"b";r=1;x=?2`, `"b";r=1;x=?`, `"b";r=1;x=@`, `"b";r=1;x=@1.5`, `"b";r=1;x=%"%C3%BC"`, `"b";r=1;x=%"%c"`, `"b";r=1;x=%c3`,
		`"b";r=1;x=1.`, `"b";r=1;x=1.2345`, `"b";r=1;x=1234567890123.5`, `"b";r=1;x=.5`, `"b";r=1;x=-`,
		`limit=100, remaining=0, reset=5`, // drafts before 08
		strings.Repeat("x", maxRateLimitBytes),
	} {
		d, ok := parseRateLimit([]string{line})
		assert.False(t, ok, "%.80q", line)
		assert.Zero(t, d)
		for _, lines := range [][]string{{`"a";r=0;t=5`, line}, {line, `"a";r=0;t=5`}} {
			d, ok = parseRateLimit(lines)
			assert.False(t, ok, "%.80q", lines)
			assert.Zero(t, d)
		}
	}
}

func TestParseRateLimit_IsBounded(t *testing.T) {
	item := `"a";r=0;t=5`
	padded := item + strings.Repeat(" ", maxRateLimitBytes-len(item)-1)
	d, ok := parseRateLimit([]string{padded})
	assert.True(t, ok)
	assert.Equal(t, 5*time.Second, d)
	_, ok = parseRateLimit([]string{padded + " "})
	assert.False(t, ok)
	_, ok = parseRateLimit(make([]string, maxRateLimitBytes+1))
	assert.False(t, ok)
	assert.Zero(t, testing.AllocsPerRun(100, func() { parseRateLimit([]string{padded}) }))
}

func TestAskedPause(t *testing.T) {
	const held = `"d";r=0;t=9`
	for _, c := range []struct {
		status int
		header []string
		want   time.Duration
	}{
		{429, nil, 0},
		{429, []string{"Retry-After", "5"}, 5 * time.Second},
		{503, []string{"Retry-After", "5"}, 5 * time.Second},
		{403, []string{"Retry-After", "5"}, 5 * time.Second},
		{200, []string{"Retry-After", "5"}, 0},
		{202, []string{"Retry-After", "5"}, 0}, // when to look again, of one operation
		{301, []string{"Retry-After", "5"}, 0},
		{413, []string{"Retry-After", "5"}, 0},
		{429, []string{"Retry-After", "soon"}, 0},
		{429, []string{"Retry-After", "5 "}, 5 * time.Second}, // as HTTP/2 delivers it
		{429, []string{"Retry-After", " \t5\t"}, 5 * time.Second},
		{429, []string{"Retry-After", "\u00a05"}, 0},
		{429, []string{"Retry-After", "1", "Retry-After", "soon", "Retry-After", "5", "Retry-After", "2"}, 5 * time.Second},
		{429, []string{"Retry-After", " Sat, 21 Nov 2026 13:00:30 GMT ", "Date", " Sat, 21 Nov 2026 13:00:00 GMT "}, 30 * time.Second},
		{200, []string{"RateLimit", held}, 9 * time.Second},
		{301, []string{"RateLimit", held}, 9 * time.Second},
		{429, []string{"RateLimit", held}, 9 * time.Second},
		{429, []string{"RateLimit", `"c";r=0;t=4`, "RateLimit", held}, 9 * time.Second},
		{429, []string{"RateLimit", held, "Retry-After", "5"}, 5 * time.Second}, // takes precedence
		{429, []string{"RateLimit", held, "Retry-After", "0"}, 0},
		{429, []string{"RateLimit", held, "Retry-After", "soon"}, 9 * time.Second},
		{200, []string{"RateLimit", held, "Retry-After", "5"}, 9 * time.Second},
		{200, []string{"RateLimit", held, "Age", "0"}, 9 * time.Second},
		{200, []string{"RateLimit", held, "Age", "young"}, 9 * time.Second},
		{200, []string{"RateLimit", held, "Age", "1"}, 0},
		{200, []string{"RateLimit", held, "Age", " 1 "}, 0},
		{200, []string{"RateLimit", held + ","}, 0},
		{429, []string{"Retry-After", "Sat, 21 Nov 2026 12:00:30 GMT"}, 30 * time.Second},
		// The server's clock is an hour ahead, or behind.
		{429, []string{"Retry-After", "Sat, 21 Nov 2026 13:00:30 GMT", "Date", "Sat, 21 Nov 2026 13:00:00 GMT"}, 30 * time.Second},
		{429, []string{"Retry-After", "Sat, 21 Nov 2026 11:00:30 GMT", "Date", "Sat, 21 Nov 2026 11:00:00 GMT"}, 30 * time.Second},
		{429, []string{"Retry-After", "Sat, 21 Nov 2026 12:00:30 GMT", "Date", "today"}, 30 * time.Second},
	} {
		assert.Equal(t, c.want, askedPause(respond(c.status, c.header...), sentAt), "%d %q", c.status, c.header)
	}
}

// All requests to the host are held back, no others, to the nanosecond.
func TestTransport_ResponseHoldsItsHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := newFakeBase(always(http.StatusOK))
		tr := newTestTransport(t, base, TransportConfig{})
		tr.heed("a.test", respond(http.StatusOK, "RateLimit", `"d";r=0;t=5`))
		time.Sleep(5*time.Second - 1)
		assert.Equal(t, time.Duration(1), tr.holds.Remaining("a.test", time.Now()))
		send(t, tr, "http://b.test/")
		send(t, tr, "http://A.test.:80/")
		assert.Equal(t, []time.Duration{5*time.Second - 1, 5 * time.Second}, base.at)
	})
}

func TestTransport_HoldIsNeverMadeShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTransport(t, nil, TransportConfig{MaxRetryAfter: 100 * time.Second})
		heed := func(status int, header ...string) time.Duration {
			tr.heed("a.test", respond(status, header...))
			return tr.holds.Remaining("a.test", time.Now())
		}
		assert.Equal(t, 20*time.Second, heed(429, "Retry-After", "20"))
		assert.Equal(t, 20*time.Second, heed(429, "Retry-After", "1"))
		assert.Equal(t, 20*time.Second, heed(429, "Retry-After", "0"))
		assert.Equal(t, 20*time.Second, heed(429))
		assert.Equal(t, 20*time.Second, heed(200, "RateLimit", `"d";r=100;t=60`))
		assert.Equal(t, 21*time.Second, heed(200, "RateLimit", `"d";r=0;t=21`))
		assert.Equal(t, 100*time.Second, heed(503, "Retry-After", "101"), "capped")
		assert.Equal(t, 100*time.Second, heed(503, "Retry-After", "99999999999999999999"))
		time.Sleep(time.Second)
		assert.Equal(t, 99*time.Second, heed(503, "Retry-After", "98"))
	})
}

// However many hosts ask to be left alone, those that already are stay so, and the table
// does not grow. A hold that has ended makes room.
func TestTransport_HostileHostsNeitherGrowTheTableNorEndAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTestTransport(t, nil, TransportConfig{MaxHosts: 10})
		tr.heed("short.test", respond(429, "Retry-After", "5"))
		for i := range 9 {
			tr.heed(fmt.Sprint("victim", i), respond(429, "Retry-After", "60"))
		}
		for i := range 10000 {
			tr.heed(fmt.Sprint("hostile", i), respond(429, "Retry-After", "300"))
		}
		assert.Equal(t, 10, tr.holds.Len())
		for i := range 9 {
			assert.Equal(t, time.Minute, tr.holds.Remaining(fmt.Sprint("victim", i), time.Now()))
		}
		tr.heed("victim3", respond(429, "Retry-After", "70"))
		assert.Equal(t, 70*time.Second, tr.holds.Remaining("victim3", time.Now()), "a full table heeds a host that is in it")

		time.Sleep(5 * time.Second)
		tr.heed("new.test", respond(429, "Retry-After", "7"))
		assert.Equal(t, 7*time.Second, tr.holds.Remaining("new.test", time.Now()))
		assert.Equal(t, 10, tr.holds.Len())
		tr.heed("newer.test", respond(429, "Retry-After", "7"))
		assert.Zero(t, tr.holds.Remaining("newer.test", time.Now()))
	})
}
