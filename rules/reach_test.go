package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestHardest: fitting it says of a pattern what trying all short values says.
func TestHardest(t *testing.T) {
	r := seeded.Rand(t)
	var values []string
	for n, level := 0, []string{""}; n < 6; n++ {
		var next []string
		for _, v := range level {
			values = append(values, v)
			next = append(next, v+"a", v+"b", v+"c") // c is in no pattern
		}
		level = next
	}
	all := 0
	for range 3000 {
		word := func() string {
			var b strings.Builder
			for range 1 + r.IntN(4) {
				b.WriteString(pick(r, "a", "b", "*", "*"))
			}
			return b.String()
		}
		wide, narrow := newPattern("*"+word()), newPattern(word()+"*")
		text := narrow.prefix + "*"
		for _, m := range narrow.middle {
			text += m + "*"
		}
		text += narrow.suffix
		want := true
		for _, v := range values {
			want = want && (wide.fits(v) || !narrow.fits(v))
		}
		require.Equal(t, want, wide.fits(hardest(text)), "%+v %s", wide, text)
		if want {
			all++
		}
	}
	require.Greater(t, all, 100)
}

// warned loads files of a domain each, or of one, and returns the warnings.
func warned(t *testing.T, merge bool, texts ...string) (out []string) {
	t.Helper()
	var files []File
	for i, text := range texts {
		files = append(files, File{fmt.Sprint("f", i), []byte(text)})
	}
	set, err := Load(files, Options{MergeDomains: merge})
	require.NoError(t, err)
	for _, p := range set.Warnings() {
		out = append(out, p.String())
	}
	return out
}

// TestLoad_Unreached: what has an order, and what does not.
func TestLoad_Unreached(t *testing.T) {
	for text, want := range map[string]int{
		"[{key: k, value: 'ab*'}, {key: k, value: 'a*'}]":                                                   0,
		"[{key: k, value: 'a*'}, {key: k, value: 'ab'}]":                                                    0, // values come before patterns
		"[{key: k, value: 'a*'}, {key: l, value: 'a*'}, {key: k}]":                                          0,
		"[{key: k, value: 'a*', descriptors: [{key: k, value: 'a*'}]}]":                                     0,
		"[{key: k, value: 'a*', enabled: false}, {key: k, value: 'a*b'}]":                                   0,
		"[{key: k, value: 'a*'}, {key: k, value: 'a*b', enabled: false}]":                                   0,
		"[{key: k, value: '*a*'}, {key: k, value: 'b*ab*'}, {key: k, value: '*aa'}, {key: k, value: 'b*'}]": 2,
		"[{key: k, value: '**'}, {key: k, value: '*'}]":                                                     1,
	} {
		require.Len(t, warned(t, false, "domain: d\ndescriptors: "+text+"\n"), want, text)
	}
	require.Equal(t, []string{`f1:3:19: warning: d.k_ab*: the value "ab*" is never reached, since "a*" at f0:3 is before it and fits all that it does; want the narrower one first`},
		warned(t, true, "domain: d\ndescriptors:\n- {key: k, value: 'a*'}\n", "domain: d\ndescriptors:\n- {key: k, value: 'ab*'}\n"))
}

// TestLoad_ReplacesNobody: the name may stand anywhere in the domain, but not in another one, nor at a rule that is switched off.
func TestLoad_ReplacesNobody(t *testing.T) {
	const by = "- {key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}}\n"
	const x = "{key: x, rate_limit: {unit: day, requests_per_unit: 1, name: x}}\n"
	const d, e = "domain: d\ndescriptors:\n", "domain: e\ndescriptors:\n"
	warning := func(file string) []string {
		return []string{file + `:3:69: warning: d.k: replaces names "x", which no rule of the domain has; want the rate_limit.name of another rule`}
	}
	require.Empty(t, warned(t, false, d+by+"- {key: a, descriptors: [{key: b, value: c, descriptors: ["+strings.TrimSpace(x)+"]}]}\n"))
	require.Empty(t, warned(t, true, d+by, d+"- "+x))
	require.Empty(t, warned(t, false, d+strings.Replace(by, "key: k", "key: k, enabled: false", 1)))
	require.Equal(t, warning("f0"), warned(t, false, d+by, e+"- "+x))
	require.Equal(t, warning("f0"), warned(t, false, d+by+"- "+strings.Replace(x, "key: x", "key: x, enabled: false", 1)))
	require.Equal(t, append(warning("f0"), "f1:2:1: warning: e: unit means nothing in a file's top level and is ignored; want it in rate_limit"),
		warned(t, false, d+by, "domain: e\nunit: day\n"), "in the order of the files")
}

// TestLoad_ManyPatterns are loaded in a bounded time: not all of their pairs are compared.
func TestLoad_ManyPatterns(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 3000 {
		fmt.Fprintf(&b, "- {key: k, value: '%d*'}\n", i+10_000)
	}
	b.WriteString("- {key: k, value: '10000x*'}\n")
	l := newLoader(Options{}, pieceSize)
	require.True(t, l.load(File{"f", []byte(b.String())}))
	require.Greater(t, l.compared, maxCompared)
	require.Less(t, l.compared, maxCompared+3001)
	require.Empty(t, l.problems)
}
