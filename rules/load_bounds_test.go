package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
)

// repeated is what n calls of f return, separated.
func repeated(n int, separator string, f func(i int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = f(i)
	}
	return strings.Join(parts, separator)
}

// manyKeys is a map of n keys, and of one that comes again at the end.
func manyKeys(n int) string {
	return "{" + repeated(n, ", ", func(i int) string { return fmt.Sprintf("k%d: x", i) }) + ", k1: z}"
}

// TestLoad_ManyKeysInOneMap takes half a second for a file of 100,000 keys. Were each key compared with all
// before it, it would take a minute.
func TestLoad_ManyKeysInOneMap(t *testing.T) {
	n := depth.Of(20_000, 20_000, 100_000)
	rule := "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 1}\n"
	set := mustLoad(t, rule+"  metadata: "+manyKeys(n)+"\n")
	require.Len(t, set.Warnings(), 1)
	assert.Contains(t, set.Warnings()[0].Message, "k1 is given twice, first in line 5; the last one counts")
	metadata := set.Rules()[0].Metadata()
	assert.Len(t, metadata, n)
	assert.Equal(t, "z", metadata["k1"])

	for name, text := range map[string]string{
		"file":       "{domain: d, " + manyKeys(n)[1:],
		"descriptor": "domain: d\ndescriptors:\n- {key: a, " + manyKeys(n)[1:] + "\n",
		"rate_limit": "domain: d\ndescriptors:\n- key: a\n  rate_limit: " + manyKeys(n) + "\n",
		"metadata":   "domain: d\nmetadata: " + manyKeys(n) + "\n",
		"sluice":     "domain: d\nsluice: " + manyKeys(n) + "\n",
		"merged":     rule + "  <<: " + manyKeys(n) + "\n",
	} {
		_, err := Load([]File{{Name: "f", Data: []byte(text)}}, Options{})
		require.Error(t, err, name)
		lines := strings.Split(err.Error(), "\n")
		require.Len(t, lines, maxLines+1, name)
		assert.Equal(t, fmt.Sprintf("and %d more", len(problems(t, nil, err))-maxLines), lines[maxLines], name)
		assert.GreaterOrEqual(t, len(problems(t, nil, err)), n, name)
	}
}

// TestLoad_LongNames: a name with many places at which it could be a key and a value is looked up once.
func TestLoad_LongNames(t *testing.T) {
	long := strings.Repeat("_", 100_000)
	text := "domain: d\ndescriptors:\n" + repeated(30, "\n", func(i int) string { return fmt.Sprintf("- key: k%d%s", i, long) })
	mustLoad(t, text)
	_, err := Load([]File{{Name: "f", Data: []byte(text + "\n- {key: k7, value: " + long[1:] + "}\n")}}, Options{})
	require.ErrorContains(t, err, "f:33:3: d.k7___")
	require.ErrorContains(t, err, "the descriptor is already defined at f:10; ")
}

// TestLoad_PathsAreBounded: names above many descriptors, and names in a deep nest, would take ten thousand
// times the file's memory in paths.
func TestLoad_PathsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	wide := "domain: d\ndescriptors:\n- key: " + strings.Repeat(long, 200) + "\n  descriptors:\n" +
		repeated(20_000, "\n", func(i int) string { return fmt.Sprintf("  - {key: k%d}", i) })
	deep := "domain: d\ndescriptors: " + strings.Repeat("[{key: k"+long+", descriptors: ", 900) + "[]" + strings.Repeat("}]", 900) + "\n"
	for name, text := range map[string]string{"wide": wide, "deep": deep} {
		_, err := Load([]File{{Name: "f", Data: []byte(text)}}, Options{})
		require.ErrorContains(t, err, "too much text", name)
		assert.Equal(t, 1, strings.Count(err.Error(), "\n")+1, name)
		assert.Less(t, len(err.Error()), 1000, name)
	}
	half := strings.Replace(wide, long, "", 150)
	assert.Equal(t, 0, mustLoad(t, half[:strings.LastIndex(half, "k100}")]+"k}").Len())
}

// TestSet_Len is the number of rules, which nothing has to be sorted for.
func TestSet_Len(t *testing.T) {
	set := mustLoad(t, manyRules(200))
	assert.Equal(t, 200, set.Len())
	assert.Len(t, set.Rules(), set.Len())
	assert.Zero(t, testing.AllocsPerRun(10, func() { set.Len() }))
}

// BenchmarkLoadOneMap is a tenth of the keys, and all of them: it should take ten times as long.
func BenchmarkLoadOneMap(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		text := "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 1}\n  metadata: " + manyKeys(n) + "\n"
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			for b.Loop() {
				mustLoad(b, text)
			}
		})
	}
}
