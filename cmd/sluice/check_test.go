package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// files writes files into a directory of the test's and returns it.
func files(t *testing.T, named map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range named {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

const goodRules = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"

func TestCheck(t *testing.T) {
	dir := files(t, map[string]string{"a.yaml": goodRules, "sub/b.yml": "domain: e\n", "notes.txt": "x"})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, dir+"/notes.txt: not read: its name does not end in .yaml or .yml\n1 rule in 2 domains of 2 files\n", stdout)
	require.Empty(t, stderr)
}

func TestCheck_Problems(t *testing.T) {
	dir := files(t, map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: moon}}\n- {value: v}\n",
		"b.yaml": "domain: d\n---\n",
	})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, exitFailed, code)
	require.Equal(t, dir+`/a.yaml:3:24: warning: d.k: requests_per_unit is missing, which is 0: everything is denied; want requests_per_unit: 0 to say so, or a number
`+dir+`/a.yaml:3:31: d.k: unit is "moon"; want second, minute, hour, day, week, month or year, or period: a time
`+dir+`/a.yaml:4:3: d: a descriptor without a key; want key: NAME
`+dir+`/b.yaml:1:9: d: the domain is already defined at `+dir+`/a.yaml:1; want each domain in one file, or domains merged
`+dir+`/b.yaml:2:1: warning: a second document, which is not read; want one document a file
`, stdout)
	require.Equal(t, "sluice check: 3 errors and 2 warnings in 2 files\n", stderr)
}

// TestCheck_CanNeverHappen: what loads, and does nothing, is told with its place.
func TestCheck_CanNeverHappen(t *testing.T) {
	dir := files(t, map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n- {key: k, value: 'a*'}\n- {key: k, value: 'ab*', rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: nobody}]}}\n- {key: l, rate_limit: }\n",
	})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, exitFailed, code)
	require.Equal(t, dir+`/a.yaml:4:19: warning: d.k_ab*: the value "ab*" is never reached, since "a*" at `+dir+`/a.yaml:3 is before it and fits all that it does; want the narrower one first
`+dir+`/a.yaml:4:83: warning: d.k_ab*: replaces names "nobody", which no rule of the domain has; want the rate_limit.name of another rule
`+dir+`/a.yaml:5:12: warning: d.l: rate_limit is empty, so nothing is limited; want unit and requests_per_unit, or no rate_limit
`, stdout)
	require.Equal(t, "sluice check: 0 errors and 3 warnings in 1 file\n", stderr)
}

func TestCheck_Exits(t *testing.T) {
	dir := files(t, map[string]string{"good/a.yaml": goodRules, "good/b.yaml": "domain: d\n", "warning/a.yaml": "domain: d\nunit: x\n", "empty/x.txt": ""})
	for _, c := range []struct {
		want int
		args []string
	}{
		{exitOK, []string{"--merge", dir + "/good"}},
		{exitFailed, []string{dir + "/good"}},
		{exitFailed, []string{dir + "/warning/a.yaml"}},
		{exitFailed, []string{dir + "/empty"}},
		{exitFailed, []string{dir + "/none"}},
		{exitUsage, nil},
		{exitUsage, []string{"--store-keys", "x", dir + "/good"}},
		{exitUsage, []string{"--colour", dir}},
	} {
		code, _, stderr := execute(nil, append([]string{"check"}, c.args...)...)
		require.Equal(t, c.want, code, "%v %s", c.args, stderr)
	}
}

// TestCheck_Stored: check says of a store what serve says, with its place and beside all that loads with a warning.
func TestCheck_Stored(t *testing.T) {
	dir := files(t, map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5, soft: 1}}\n- {key: l, rate_limit: }\n",
		"b.yaml": "domain: e\nsluice: {atomic: true}\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding-window}}\n",
		"c.yaml": "domain: f\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding-log, count_denied: true}}\n",
	})
	soft := dir + "/a.yaml:3:24: d.k: soft: 1, which a store has no word for; want it deleted, or counts in memory\n"
	denied := dir + "/c.yaml:3:24: f.k: count_denied: true with sliding-log, of which a store counts what is admitted; want it deleted, or counts in memory\n"
	atomic := dir + "/b.yaml:1:9: e: atomic or then: keys under upstream's names are in many places, and cannot be counted all or none; want the store's own names\n"
	for keys, want := range map[string]string{"sluice": soft + denied, "upstream": soft + atomic + denied} {
		code, stdout, stderr := execute(nil, "check", "--store-keys", keys, dir)
		require.Equal(t, exitFailed, code)
		require.Equal(t, dir+"/a.yaml:4:12: warning: d.l: rate_limit is empty, so nothing is limited; want unit and requests_per_unit, or no rate_limit\n"+want, stdout)
		require.Contains(t, stderr, "and 1 warning in 3 files")
		code, _, stderr = execute(nil, "serve", "--redis", "127.0.0.1:1", "--store-keys", keys, "--rules", dir, "--log-level", "error")
		require.Equal(t, exitFailed, code)
		require.Equal(t, want+"sluice serve: the rules are refused\n", stderr, "serve says the same")
	}
	code, _, _ := execute(nil, "check", dir)
	require.Equal(t, exitFailed, code, "for the warning")
	good := files(t, map[string]string{"a.yaml": goodRules})
	code, stdout, stderr := execute(nil, "check", "--store-keys", "upstream", good)
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "1 rule in 1 domain of 1 file\n", stdout)
}

// TestCheck_Explains: what a request costs by weights, scale and then is said in words.
func TestCheck_Explains(t *testing.T) {
	dir := files(t, map[string]string{"a.yaml": `domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 100000, weights: {input: 1, output: 5}, then: credits}}
- {key: a, value: x, rate_limit: {unit: month, requests_per_unit: 1000000, name: credits}}
`})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, dir+`/a.yaml:3: d.a: a request of 1,000 input and 200 output costs 2,000 units of 100,000 a day; what does not fit is taken from "credits", d.a_x (1,000,000 a month)
2 rules in 1 domain of 1 file
`, stdout)
}

// TestCheck_OneLine: no name in a file makes a terminal obey, or another line.
func TestCheck_OneLine(t *testing.T) {
	dir := files(t, map[string]string{"a.yaml": "domain: \"d\\u009b31m\\u202e\\nforged\"\ndescriptors:\n- {key: \"k\\u009b\\u202e\\n\", rate_limit: {unit: moon}}\n- {value: v}\n"})
	code, stdout, _ := execute(nil, "check", dir)
	require.Equal(t, exitFailed, code)
	require.NotContains(t, stdout, "\u009b")
	require.NotContains(t, stdout, "\u202e")
	require.NotContains(t, stdout, "\nforged")
	require.Contains(t, stdout, `d\u009b31m\u202e\x0aforged`)
}
