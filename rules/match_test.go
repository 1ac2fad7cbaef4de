package rules

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

const tree = `
domain: d
descriptors:
- key: a
  rate_limit: {unit: minute, requests_per_unit: 1}
- key: a
  value: x
  descriptors:
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: b, value: y, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: b, value: y, enabled: false}
- key: a
  value: x*
  rate_limit: {unit: minute, requests_per_unit: 4}
- key: a
  value: xx*
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: a
  value: '*end'
- {key: e, value: '', rate_limit: {unit: minute, requests_per_unit: 6}}
- {key: a_x, rate_limit: {unit: minute, requests_per_unit: 7}, value: z}
`

func TestMatch(t *testing.T) {
	set := mustLoad(t, tree)
	for list, want := range map[string]string{
		"a=1":         "d.a",
		"a=":          "d.a",
		"a=x":         "", // the value without a limit hides the default
		"a=xy":        "d.a_x*",
		"a=xx":        "d.a_x*", // the first pattern, not the longest
		"a=xx*":       "d.a_xx*",
		"a=x*":        "d.a_x*",
		"a=the end":   "", // a pattern without a limit hides the default
		"a=x,b=1":     "d.a_x.b",
		"a=x,b=y":     "d.a_x.b_y",
		"a=x,b=":      "d.a_x.b",
		"a=xy,b=1":    "", // what is chosen stays chosen
		"a=1,b=1":     "",
		"a=x,b=1,c=1": "", "b=1": "", "=": "", "=a": "", "a_x=": "",
		"e=":    "d.e",
		"e=any": "d.e",
		"a_x=z": "d.a_x_z",
		"a=x_z": "d.a_x*", // and not a_x=z
	} {
		r := set.Match("d", entries(list))
		if want == "" {
			require.Nil(t, r, list)
			continue
		}
		require.NotNil(t, r, list)
		require.Equal(t, want, r.Path(), list)
	}
	require.Nil(t, set.Match("d", nil))
	require.Nil(t, set.Match("e", entries("a=1")))
}

// TestPattern_Regexp compares patterns with the regular expressions that say the same.
func TestPattern_Regexp(t *testing.T) {
	r := seeded.Rand(t)
	text := func(alphabet string, n int) string {
		var b strings.Builder
		for range r.IntN(n) {
			b.WriteByte(alphabet[r.IntN(len(alphabet))])
		}
		return b.String()
	}
	fit := 0
	for range 50_000 {
		p := text("aab*", 8)
		if !strings.Contains(p, "*") {
			require.Nil(t, newPattern(p))
			continue
		}
		quoted := strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*")
		v := text("aab*", 12)
		want := regexp.MustCompile("(?s)^" + quoted + "$").MatchString(v)
		require.Equal(t, want, newPattern(p).fits(v), "%q %q", p, v)
		if want {
			fit++
		}
	}
	require.Greater(t, fit, 1000)
	require.True(t, newPattern("*").fits(""))
	require.True(t, newPattern("/api*v1").fits("/api/a/b/v1"))
	ok, _ := path.Match("a*", "a/b")
	require.False(t, ok, "path.Match would not do")
}
