package rules

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
)

// requireSame loads a file in pieces as small as they can be, and as a whole, with the same outcome.
func requireSame(t testing.TB, text string) {
	t.Helper()
	files := []File{{"f", []byte(text)}}
	whole, wholeErr := load(files, Options{}, math.MaxInt)
	pieces, err := load(files, Options{}, 1)
	require.Equal(t, wholeErr, err, "%q", text)
	require.Equal(t, whole, pieces, "%q", text)
}

// TestPieces_MeanTheWhole: a file says the same in pieces, its problems and their places included.
func TestPieces_MeanTheWhole(t *testing.T) {
	for _, list := range [][]mistake{loadErrors, loadWarnings} {
		for _, m := range list {
			requireSame(t, m.document())
			requireSame(t, m.document()+"- key: behind\n  "+limit1+"\n")
		}
	}
	for _, text := range []string{
		minuteRules, tree, kinds, manyRules(100),
		"domain: \"d\ndescriptors:\n- key: k\n\"\ndescriptors:\n", // a line of a text
		"domain: d\ndescriptors:\n  - key: k\n  ''\n",             // what stays is empty, and no empty list
		"domain: d\ndescriptors:\n- key: k\n---\n- key: l\n",
		"domain: d\ndescriptors:\n- key: k\ndescriptors:\n- key: l\n",
	} {
		requireSame(t, text)
		requireSame(t, strings.ReplaceAll(text, "\n", "\r\n"))
	}
}

// fragments are parts of files that end a line or go on in the next one.
var fragments = []string{
	"- key: k\n", "- key: %d\n  " + limit1 + "\n", "  value: v\n", "  value: 'a\n", "  value: \"b\n", "  value: b\"\n", "  description: |\n",
	"  description: >-\n", "    text\n", " text\n", "text\n", "  - key: l\n", "- {key: %d,\n", "- [\n", "]\n", "  key: m}\n", "'\n", "\"\n",
	"# note\n", "  # note\n", "\n", "  \n", "- &a\n", "- *a\n", "- &a {key: %d}\n", "- <<: *a\n  key: n\n", "- - key: o\n", "-\n", "  key: p\n", "-\tkey: q\n",
	"\tkey: r\n", "---\n", "...\n", "descriptors:\n", "  descriptors:\n", "  descriptors:\n  - key: s\n", "domain: d\n", "domain: e\r\n", "http: []\n",
	"sluice: {atomic: true}\n", "? x\n", "  rate_limit:\n", "    unit: hour\n    requests_per_unit: 010\n", "- key: t\r\n", "\xef\xbb\xbf", "- key: é\n", "- key: \x00\n", "- !!map\n", "%TAG ! x\n",
}

// TestPieces_Random: the same with files that are put together at random, most of which are wrong.
func TestPieces_Random(t *testing.T) {
	rng := seeded.Rand(t)
	loaded, cutUp := 0, 0
	for range 5000 {
		var b strings.Builder
		if rng.IntN(4) > 0 {
			b.WriteString("domain: d\n")
		}
		if rng.IntN(8) > 0 {
			b.WriteString("descriptors:\n")
		}
		indent := strings.Repeat(" ", rng.IntN(2)*2)
		for i := range rng.IntN(8) {
			f := "- key: k%d\n"
			if rng.IntN(3) == 0 {
				f = fragments[rng.IntN(len(fragments))]
			}
			if strings.Contains(f, "%d") {
				f = fmt.Sprintf(f, i)
			}
			if rng.IntN(8) > 0 {
				f = indent + strings.ReplaceAll(strings.TrimSuffix(f, "\n"), "\n", "\n"+indent) + "\n"
			}
			b.WriteString(f)
		}
		requireSame(t, b.String())
		if c := cut([]byte(b.String()), 1); c.pieces != nil {
			cutUp++
			if _, err := Load([]File{{"f", []byte(b.String())}}, Options{}); err == nil {
				loaded++
			}
		}
	}
	require.Greater(t, cutUp, 1000)
	require.Greater(t, loaded, 500)
}

// TestPieces_AreUsed: a long list is cut, and no part of it makes the loader take the whole.
func TestPieces_AreUsed(t *testing.T) {
	data := []byte(manyRules(2000))
	c := cut(data, pieceSize)
	require.GreaterOrEqual(t, len(c.pieces), len(data)/pieceSize/2)
	items := 0
	for _, p := range c.pieces {
		list, ok := p.parse()
		require.True(t, ok)
		items += len(list)
	}
	require.Equal(t, 2000, items)
	l := newLoader(Options{}, pieceSize)
	require.True(t, l.load(File{"f", data}))
	require.Len(t, l.set.rules, 2000)
}

// TestSet_FewObjects: the garbage collector looks at what a set is made of for as long as its rules are
// in force, and takes time from calls for each of it. Swap of a set makes nothing by the rule but
// what it counts.
func TestSet_FewObjects(t *testing.T) {
	const rules = 2000
	set := mustLoad(t, manyRules(rules))
	e, err := New(set, Config{})
	require.NoError(t, err)
	require.Less(t, testing.AllocsPerRun(3, func() { require.NoError(t, e.Swap(set)) }), rules/10.0)
}

// TestSwap_FreesTheOldSet: what a rule goes on to count with does not hold the rules of before.
func TestSwap_FreesTheOldSet(t *testing.T) {
	text := inDomain(limit1) + "- key: own\n  detailed_metric: true\n  rate_limit: {period: 90s, requests_per_unit: 1}\n"
	old := mustLoad(t, text)
	e, err := New(old, Config{})
	require.NoError(t, err)
	var resp Response
	require.NoError(t, e.Decide(&Request{Domain: "d", Descriptors: []Descriptor{describe("k=x"), describe("own=x")}}, &resp))
	resp = Response{}
	gone := weak.Make(old)
	rule, path := weak.Make(old.rules[0]), weak.Make(unsafe.StringData(old.rules[0].path))
	old = nil
	require.NoError(t, e.Swap(mustLoad(t, text)))
	runtime.GC()
	require.Nil(t, gone.Value())
	require.Nil(t, rule.Value())
	require.Nil(t, path.Value())
	require.Len(t, e.Series(), 3)
}

// TestSwap_FreesRulesThatGo: what a rule has counted with lies beside what others go on to count with, and
// does not hold the rules of before.
func TestSwap_FreesRulesThatGo(t *testing.T) {
	old := mustLoad(t, manyRules(20))
	e, err := New(old, Config{})
	require.NoError(t, err)
	rule, path := weak.Make(old.rules[19]), weak.Make(unsafe.StringData(old.rules[19].path))
	old = nil
	require.NoError(t, e.Swap(mustLoad(t, manyRules(10))))
	runtime.GC()
	require.Nil(t, rule.Value())
	require.Nil(t, path.Value())
	require.Len(t, e.Series(), 10)
	require.NoError(t, e.Swap(mustLoad(t, manyRules(70))))
	require.Len(t, e.Series(), 70)
}
