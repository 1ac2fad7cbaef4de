package httplimit

import (
	"math"
	"math/big"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	digitsOnly = regexp.MustCompile(`^[0-9]{1,64}$`)

	// The grammar of RFC 9651, as one expression.
	itemNumber = `-?(?:[0-9]{1,12}\.[0-9]{1,3}|[0-9]{1,15})`
	itemString = `"(?:[ !#-\[\]-~]|\\["\\])*"`
	itemToken  = "[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"
	itemBytes  = `:(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3})?=*:`
	// UTF-8 by RFC 3629, section 4.
	more        = `%[89ab][0-9a-f]`
	itemDisplay = `%"(?:[ !#$&-~]|%[0-7][0-9a-f]|%(?:c[2-9a-f]|d[0-9a-f])` + more + `|%e0%[ab][0-9a-f]` + more + `|%e[1-9a-cef]` + more + more +
		`|%ed%[89][0-9a-f]` + more + `|%f0%[9ab][0-9a-f]` + more + more + `|%f[1-3]` + more + more + more + `|%f4%8[0-9a-f]` + more + more + `)*"`
	itemOther  = itemBytes + `|` + itemDisplay + `|\?[01]|@-?[0-9]{1,15}`
	parameter  = `; *([a-z*][a-z0-9_.*-]*)(?:=(` + itemNumber + `|` + itemString + `|` + itemToken + `|` + itemOther + `))?`
	limitItem  = `(?:` + itemString + `|` + itemToken + `)(?:` + parameter + `)*`
	limitField = regexp.MustCompile(`^[ \t]*(?:` + limitItem + `(?:[ \t]*,[ \t]*` + limitItem + `)*[ \t]*)?$`)

	limitItems = regexp.MustCompile(limitItem)
	parameters = regexp.MustCompile(parameter)
	limitName  = regexp.MustCompile(`^(?:` + itemString + `|` + itemToken + `)`)
	countOnly  = regexp.MustCompile(`^(?:[0-9]{1,15}|-0{1,15})$`) // -0 is 0
)

// referenceRetryAfter is parseRetryAfter by regular expression and big numbers.
func referenceRetryAfter(value string, now time.Time) (time.Duration, bool) {
	if digitsOnly.MatchString(value) {
		n, _ := new(big.Int).SetString(value, 10)
		n.Mul(n, big.NewInt(1e9))
		if n.IsInt64() && n.Int64() <= math.MaxInt64/1e9*1e9 {
			return time.Duration(n.Int64()), true
		}
		return math.MaxInt64, true
	}
	at, err := http.ParseTime(value)
	if err != nil || len(value) > 64 {
		return 0, false
	}
	if at.Before(now) {
		return 0, true
	}
	return at.Sub(now), true
}

// referenceRateLimit is parseRateLimit by regular expression.
func referenceRateLimit(field string) (time.Duration, bool) {
	if len(field) >= 8192 || !limitField.MatchString(field) {
		return 0, false
	}
	longest := time.Duration(0)
	for _, item := range limitItems.FindAllString(field, -1) {
		params := map[string]string{}
		for _, m := range parameters.FindAllStringSubmatch(limitName.ReplaceAllString(item, ""), -1) {
			params[m[1]] = m[2]
		}
		t, hasT := params["t"]
		if !countOnly.MatchString(params["r"]) || hasT && !countOnly.MatchString(t) {
			return 0, false
		}
		params["r"], params["t"] = strings.TrimPrefix(params["r"], "-"), strings.TrimPrefix(t, "-")
		if strings.Trim(params["r"], "0") != "" || params["t"] == "" {
			continue
		}
		d, _ := referenceRetryAfter(params["t"], time.Time{})
		longest = max(longest, d)
	}
	return longest, true
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, s := range []string{
		"", "0", "120", "-1", "1.5", "9223372037", "99999999999999999999", "Sat, 21 Nov 2026 12:00:30 GMT", "Saturday, 21-Nov-26 12:00:30 GMT",
		"Sat Nov 21 12:00:30 2026", "Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 21 Nov 2026 12:00:30 UTC", "soon",
	} {
		f.Add(s, int64(1795262400))
	}
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		now := time.Unix(unix%(1<<40), 0)
		d, ok := parseRetryAfter(value, now)
		want, wantOK := referenceRetryAfter(value, now)
		require.Equal(t, wantOK, ok, "%q", value)
		require.Equal(t, want, d, "%q", value)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.True(t, ok || d == 0)
	})
}

func FuzzParseRateLimit(f *testing.F) {
	for _, s := range []string{
		"", " ", `"default";r=50;t=30`, `"default";r=0;t=30`, `"default";r=999;pk=:dHJpYWwxMjEzMjM=:`, `"a";r=0;t=5,"b";r=0;t=9`, `a;r=0; t=5 , b;r=-0`,
		`"a\"\\";r=0;t=1;t=2`, `"a";r=1;x;y=?1;z=@5;w=%"%c3%bc";v=1.5;u=tok`, `"a";r=0;t=999999999999999`, `limit=100, remaining=0, reset=5`,
		`"a";r=-1`, `"a";t=5`, `("a");r=0`, `"a";r=0,`, `"a";r=0;t=1.0`, `"a";r=0;t="1"`, `"a`, `"a";`,
		`"a";r=0;t;t="x";t=47`, `"a";r=0;t=4;t`, `"a";r;r=0`, `"a";r=0;x=%"%e2%82%ac"`, `"a";r=0;x=%"%e2%82"`, `"a";r=0;x=:a:`, `"a";r=0;x=:aaa==:`,
	} {
		f.Add(s, "")
		f.Add(`"p";r=0;t=7`, s)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		d, ok := parseRateLimit([]string{first, second})
		want, wantOK := referenceRateLimit(first + "," + second)
		require.Equal(t, wantOK, ok, "%q", []string{first, second})
		require.Equal(t, want, d, "%q", []string{first, second})

		d, ok = parseRateLimit([]string{first})
		want, wantOK = referenceRateLimit(first)
		require.Equal(t, wantOK, ok, "%q", first)
		require.Equal(t, want, d, "%q", first)
	})
}

// The result is a fixed point, and no spelling has two results.
func FuzzCanonicalHost(f *testing.F) {
	for _, s := range []string{"a.test", "A.TEST.:080", "[::1]:443", "[::ffff:1.2.3.4]", "a:b:c", "[", "..", "[fe80::1%Eth0]", "bücher.test", ":", ":..:", "[:.]", "a..", "[fe80::1%a..]", "[a.test]", ".:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got, err := canonicalHost(&url.URL{Scheme: "https", Host: host})
		if err != nil {
			require.Empty(t, got)
			return
		}
		again, err := canonicalHost(&url.URL{Scheme: "https", Host: got})
		require.NoError(t, err)
		assert.Equal(t, got, again, "%q", host)
		upper, err := canonicalHost(&url.URL{Scheme: "https", Host: strings.ToUpper(host)})
		require.NoError(t, err)
		assert.Equal(t, got, upper, "%q", host)
	})
}
