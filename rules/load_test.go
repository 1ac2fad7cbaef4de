package rules

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// data holds the files of Envoy's rate limit service.
const data = "../../shared/data/envoy-ratelimit"

func dataFiles(t *testing.T, dir string) []string {
	t.Helper()
	if _, err := os.Stat(data); err != nil {
		t.Skipf("upstream's own files are not here: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(data, dir, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func readFile(t testing.TB, name string) File {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return File{Name: filepath.Base(name), Data: b}
}

func problems(t testing.TB, set *Set, err error) []Problem {
	t.Helper()
	if err == nil {
		return set.Warnings()
	}
	var e *LoadError
	require.ErrorAs(t, err, &e)
	require.Nil(t, set)
	require.NotEmpty(t, e.Problems)
	return e.Problems
}

func TestLoad_UpstreamValid(t *testing.T) {
	for _, name := range dataFiles(t, "valid") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			set, err := Load([]File{readFile(t, name)}, Options{})
			require.NoError(t, err)
			assert.Empty(t, set.Warnings())
			assert.Len(t, set.Domains(), 1)
			assert.NotEmpty(t, set.Rules())
		})
	}
}

func TestLoad_UpstreamInvalid(t *testing.T) {
	want := map[string]string{
		"bad_limit_unit.yaml":   `bad_limit_unit.yaml:6:13: test-domain.key1_value1: unit is "foo"; want second, minute, hour, day, week, month or year, or period: a time, or calendar`,
		"bad_yaml.yaml":         `bad_yaml.yaml:2:1: not YAML: found unexpected end of stream`,
		"duplicate_key.yaml":    `duplicate_key.yaml:6:5: test-domain.key1_value1: the descriptor is already defined at duplicate_key.yaml:3; want one descriptor for key1_value1 at this level`,
		"empty_domain.yaml":     `empty_domain.yaml:1:1: the file names no domain; want domain: NAME, as Envoy's filter sends it`,
		"empty_key.yaml":        `empty_key.yaml:3:5: test-domain: a descriptor without a key; want key: NAME`,
		"misspelled_key.yaml":   `misspelled_key.yaml:5:5: test-domain.key1_value1: a descriptor has no key "ratelimit" (is it rate_limit?); want one of key, value, rate_limit, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata, enabled, description`,
		"non_string_key.yaml":   "non_string_key.yaml:1:1: key 0.25 is not text; want one of the known keys\nnon_string_key.yaml:1:1: the file names no domain; want domain: NAME, as Envoy's filter sends it",
		"replaces_empty.yaml":   `replaces_empty.yaml:10:15: test-domain.key1_value1.subkey1: replaces has an entry without a name; want name: the rate_limit.name of another rule`,
		"duplicate_domain.yaml": "", // fine alone
	}
	for _, name := range dataFiles(t, "invalid") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			message, ok := want[filepath.Base(name)]
			require.True(t, ok, "no expectation")
			_, err := Load([]File{readFile(t, name)}, Options{})
			if message == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, message)
		})
	}
}

func TestLoad_Domains(t *testing.T) {
	a := File{"a.yaml", []byte("domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}\n")}
	b := File{"b.yaml", []byte("domain: d\ndescriptors:\n- {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}\n")}
	_, err := Load([]File{a, b}, Options{})
	require.EqualError(t, err, "b.yaml:1:9: d: the domain is already defined at a.yaml:1; want each domain in one file, or domains merged")

	set, err := Load([]File{a, b}, Options{MergeDomains: true})
	require.NoError(t, err)
	require.NotNil(t, set.Match("d", entries("a=x")))
	require.NotNil(t, set.Match("d", entries("b=x")))

	_, err = Load([]File{a, a}, Options{MergeDomains: true})
	require.EqualError(t, err, "a.yaml:3:3: d.a: the descriptor is already defined at a.yaml:3; want one descriptor for a at this level")

	set, err = Load(nil, Options{})
	require.NoError(t, err)
	require.Empty(t, set.Domains())
}

// rule wraps the keys of one descriptor of domain d.
func inDomain(descriptor string) string {
	return "domain: d\ndescriptors:\n- key: k\n  " + strings.ReplaceAll(descriptor, "\n", "\n  ") + "\n"
}

// TestLoad_Errors has every mistake that stops a file from loading. REFERENCE.md lists them by field.
func TestLoad_Errors(t *testing.T) {
	for _, c := range loadErrors {
		t.Run(c.field+"/"+c.text, func(t *testing.T) {
			set, err := Load([]File{{Name: "f", Data: []byte(c.document())}}, Options{})
			list := problems(t, set, err)
			require.Error(t, err)
			require.Equal(t, "f:"+c.want, list[0].String(), "all: %v", err)
		})
	}
}

// TestLoad_Warnings has all that loads and is odd. Upstream loads these files, too.
func TestLoad_Warnings(t *testing.T) {
	for _, c := range loadWarnings {
		t.Run(c.field+"/"+c.text, func(t *testing.T) {
			set, err := Load([]File{{Name: "f", Data: []byte(c.document())}}, Options{})
			require.NoError(t, err)
			list := problems(t, set, err)
			require.NotEmpty(t, list)
			require.Equal(t, "f:"+c.want, list[0].String())
			for _, p := range list {
				require.True(t, p.Warning)
			}
		})
	}
}

// TestLoad_AllErrors: one pass reports everything, by file and place.
func TestLoad_AllErrors(t *testing.T) {
	_, err := Load([]File{
		{"a", []byte("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: fortnight, requests_per_unit: -1}\n  colour: red\n- value: v\n")},
		{"b", []byte("domain: d\n")},
		{"c", []byte("'''\n")},
		{"d", nil},
	}, Options{})
	var e *LoadError
	require.True(t, errors.As(err, &e))
	var places []string
	for _, p := range e.Problems {
		places = append(places, fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column))
	}
	require.Equal(t, []string{"a:4:22", "a:4:52", "a:5:3", "a:6:3", "b:1:9", "c:2:1", "d:1:1"}, places)
}

// TestLoad_YAML11: what is not quoted means what YAML 1.1 readers make of it.
func TestLoad_YAML11(t *testing.T) {
	set := mustLoad(t, "domain: on\ndescriptors:\n"+
		"- {key: yes, value: 010, shadow_mode: on, rate_limit: {unit: MiNuTe, requests_per_unit: 1_000}}\n"+
		"- {key: n, value: ~, quota_mode: Yes, rate_limit: {unit: day, requests_per_unit: 0x10}}\n"+
		"- {key: ip, value: 1.2.3.4, rate_limit: {unit: week, requests_per_unit: 0b11}}\n"+
		"- {key: tagged, value: !!str 1.5, shadow_mode: !!bool 'on', rate_limit: {unit: hour, requests_per_unit: !!int '7'}}\n"+
		"- {key: day, value: 2026-01-02, rate_limit: {unit: hour, requests_per_unit: 1}}\n"+
		"- {key: quoted, value: '2026-01-01', rate_limit: {unit: year, requests_per_unit: "+maxRequestsText+"}}\n")
	r := set.Match("on", entries("yes=010"))
	require.NotNil(t, r)
	assert.Equal(t, "on.yes_010: unit=MINUTE requests_per_unit=1000, shadow_mode: true, quota_mode: false", r.String())
	assert.Equal(t, "on.n: unit=DAY requests_per_unit=16, shadow_mode: false, quota_mode: true", set.Match("on", entries("n=x")).String())
	assert.EqualValues(t, 3, set.Match("on", entries("ip=1.2.3.4")).Requests())
	assert.NotNil(t, set.Match("on", entries("quoted=2026-01-01")))
	assert.NotNil(t, set.Match("on", entries("day=2026-01-02")), "a date is text")
	assert.Equal(t, "on.tagged_1.5: unit=HOUR requests_per_unit=7, shadow_mode: true, quota_mode: false", set.Match("on", entries("tagged=1.5")).String())
}

// TestLoad_Octal: a number in octal that does not look like one has a warning, however it is spelled.
func TestLoad_Octal(t *testing.T) {
	for number, warning := range map[string]string{
		"+0100": "is +0100, which is 64 for YAML, as it begins with 0; want 100", "0_100": "is 0_100, which is 64 for YAML, as it begins with 0; want 100",
		"00": "", "0": "", "0o10": "", "1_0": "",
	} {
		set, err := Load([]File{{"f", []byte(inDomain("rate_limit: {unit: day, requests_per_unit: " + number + "}"))}}, Options{})
		require.NoError(t, err, number)
		if warning == "" {
			assert.Empty(t, set.Warnings(), number)
			continue
		}
		require.Len(t, set.Warnings(), 1, number)
		assert.Equal(t, "requests_per_unit "+warning, set.Warnings()[0].Message)
	}
}

func TestLoad_AnchorsAndMerges(t *testing.T) {
	set := mustLoad(t, `
domain: d
descriptors:
- &base
  key: a
  rate_limit: &limit {unit: minute, requests_per_unit: 5}
- <<: *base
  key: b
- key: c
  rate_limit: {<<: *limit, requests_per_unit: 7}
- key: e
  rate_limit: *limit
`)
	for key, want := range map[string]uint32{"a": 5, "b": 5, "c": 7, "e": 5} {
		require.EqualValues(t, want, set.Match("d", entries(key+"=x")).Requests(), key)
	}
}

// TestLoad_Bombs: aliases of aliases, and a value that contains itself, end with an error.
func TestLoad_Bombs(t *testing.T) {
	bomb := "domain: d\nmetadata: &a0 {descriptors: []}\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n  metadata:\n    x0: &l0 [a, a, a, a, a, a, a, a, a]\n"
	for i := 1; i < 12; i++ {
		bomb += fmt.Sprintf("    x%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i-1), 9), ", "))
	}
	for name, text := range map[string]string{
		"aliases":   bomb,
		"itself":    "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n  metadata: &m {a: *m}\n",
		"a list":    "domain: d\ndescriptors: &d\n- key: k\n  descriptors: *d\n",
		"a merge":   "domain: d\ndescriptors:\n- &x\n  key: k\n  <<: *x\n",
		"ignored":   "domain: d\nrate_limit: &x {name: *x}\ndescriptors: []\n",
		"an alias":  "domain: d\ndescriptors: *nothing\n",
		"deep maps": "domain: d\nrate_limit: " + strings.Repeat("{name: ", 9000) + strings.Repeat("}", 9000) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Load([]File{{"f", []byte(text)}}, Options{})
			if name == "a merge" || name == "ignored" || name == "deep maps" {
				return // it has ended
			}
			require.Error(t, err)
			require.Less(t, len(problems(t, set, err)), 2000)
		})
	}
}

func TestLoad_Metadata(t *testing.T) {
	set := mustLoad(t, inDomain("rate_limit: {unit: day, requests_per_unit: 1}\nmetadata: {a: {b: [1, 2.5, yes, ~, 'text', 2026-01-01]}, 'c': ''}"))
	require.Equal(t, map[string]any{"a": map[string]any{"b": []any{int64(1), 2.5, true, nil, "text", "2026-01-01"}}, "c": ""},
		set.Match("d", entries("k=x")).Metadata())

	for _, endless := range []string{"!!float inf", "!!float -Inf", "!!float +infinity", "!!float nan", "[{b: !!float NaN}]"} {
		_, err := Load([]File{{"f", []byte(inDomain("rate_limit: {unit: day, requests_per_unit: 1}\nmetadata: {a: " + endless + "}"))}}, Options{})
		require.ErrorContains(t, err, "which JSON has no word for", endless)
		require.Equal(t, 0, strings.Count(err.Error(), "\n"))
	}
	set = mustLoad(t, inDomain("rate_limit: {unit: day, requests_per_unit: 1}\nmetadata: {a: .inf, b: .nan, c: 1e999, d: !!float 1e3, e: inf}"))
	require.Equal(t, map[string]any{"a": ".inf", "b": ".nan", "c": "1e999", "d": 1000.0, "e": "inf"}, set.Match("d", entries("k=x")).Metadata(), "text otherwise")
}

func TestLoad_Disabled(t *testing.T) {
	set := mustLoad(t, `
domain: d
descriptors:
- {key: a, enabled: false, rate_limit: {unit: minute, requests_per_unit: 1}, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]}
- {key: a, enabled: true, description: the other one, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: c, enabled: null, rate_limit: {unit: minute, requests_per_unit: 4}}
`)
	require.EqualValues(t, 3, set.Match("d", entries("a=x")).Requests())
	require.Nil(t, set.Match("d", entries("a=x,b=y")))
	require.EqualValues(t, 4, set.Match("d", entries("c=x")).Requests(), "as if nothing was said")
	require.Len(t, set.Rules(), 2)
	_, err := Load([]File{{"f", []byte(inDomain("enabled: false\nrate_limit: {unit: moon}"))}}, Options{})
	require.Error(t, err, "what is disabled is checked all the same")
}

func TestProblem_OneLine(t *testing.T) {
	_, err := Load([]File{{"f", []byte("domain: \"a\\nb\\u2028\"\ndescriptors: [{key: \"x\\ry\", \"colour\\n\": 1}]\n")}}, Options{})
	require.Error(t, err)
	require.Equal(t, 0, strings.Count(strings.TrimSpace(err.Error()), "\n"), "%s", err)
	require.NotContains(t, err.Error(), "\r")
}
