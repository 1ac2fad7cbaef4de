package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

const goodRules = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"

func TestCheck(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a.yaml": goodRules, "sub/b.yml": "domain: e\n", "notes.txt": "x"})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, dir+"/notes.txt: not read: its name does not end in .yaml or .yml\n1 rule in 2 domains of 2 files\n", stdout)
	require.Empty(t, stderr)
}

func TestCheck_Problems(t *testing.T) {
	dir := servetest.Files(t, map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: moon}}\n- {value: v}\n",
		"b.yaml": "domain: d\n---\n",
	})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, cli.ExitFailed, code)
	require.Equal(t, dir+`/a.yaml:3:24: warning: d.k: requests_per_unit is missing, which is 0: everything is denied; want requests_per_unit: 0 to say so, or a number
`+dir+`/a.yaml:3:31: d.k: unit is "moon"; want second, minute, hour, day, week, month or year, or period: a time, or calendar
`+dir+`/a.yaml:4:3: d: a descriptor without a key; want key: NAME
`+dir+`/b.yaml:1:9: d: the domain is already defined at `+dir+`/a.yaml:1; want each domain in one file, or domains merged
`+dir+`/b.yaml:2:1: warning: a second document, which is not read; want one document a file
`, stdout)
	require.Equal(t, "sluice check: 3 errors and 2 warnings in 2 files\n", stderr)
}

// TestCheck_CanNeverHappen: what loads, and does nothing, is told with its place.
func TestCheck_CanNeverHappen(t *testing.T) {
	dir := servetest.Files(t, map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n- {key: k, value: 'a*'}\n- {key: k, value: 'ab*', rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: nobody}]}}\n- {key: l, rate_limit: }\n",
	})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, cli.ExitFailed, code)
	require.Equal(t, dir+`/a.yaml:4:19: warning: d.k_ab*: the value "ab*" is never reached, since "a*" at `+dir+`/a.yaml:3 is before it and fits all that it does; want the narrower one first
`+dir+`/a.yaml:4:83: warning: d.k_ab*: replaces names "nobody", which no rule of the domain has; want the rate_limit.name of another rule
`+dir+`/a.yaml:5:12: warning: d.l: rate_limit is empty, so nothing is limited; want unit and requests_per_unit, or no rate_limit
`, stdout)
	require.Equal(t, "sluice check: 0 errors and 3 warnings in 1 file\n", stderr)
}

func TestCheck_Exits(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"good/a.yaml": goodRules, "good/b.yaml": "domain: d\n", "warning/a.yaml": "domain: d\nunit: x\n", "empty/x.txt": ""})
	for _, c := range []struct {
		want int
		args []string
	}{
		{cli.ExitOK, []string{"--merge", dir + "/good"}},
		{cli.ExitFailed, []string{dir + "/good"}},
		{cli.ExitFailed, []string{dir + "/warning/a.yaml"}},
		{cli.ExitFailed, []string{dir + "/empty"}},
		{cli.ExitFailed, []string{dir + "/none"}},
		{cli.ExitUsage, nil},
		{cli.ExitUsage, []string{"--store-keys", "sluice", dir + "/good"}}, // only sluiced knows the store
		{cli.ExitUsage, []string{"--colour", dir}},
	} {
		code, _, stderr := execute(nil, append([]string{"check"}, c.args...)...)
		require.Equal(t, c.want, code, "%v %s", c.args, stderr)
	}
}

// TestCheck_Explains: what a request costs by weights, scale and then is said in words.
func TestCheck_Explains(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a.yaml": `domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 100000, weights: {input: 1, output: 5}, then: credits}}
- {key: a, value: x, rate_limit: {unit: month, requests_per_unit: 1000000, name: credits}}
`})
	code, stdout, stderr := execute(nil, "check", dir)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, dir+`/a.yaml:3: d.a: a request of 1,000 input and 200 output costs 2,000 units of 100,000 a day; what does not fit is taken from "credits", d.a_x (1,000,000 a month)
2 rules in 1 domain of 1 file
`, stdout)
}

// TestCheck_OneLine: no name in a file makes a terminal obey, or another line.
func TestCheck_OneLine(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a.yaml": "domain: \"d\\u009b31m\\u202e\\nforged\"\ndescriptors:\n- {key: \"k\\u009b\\u202e\\n\", rate_limit: {unit: moon}}\n- {value: v}\n"})
	code, stdout, _ := execute(nil, "check", dir)
	require.Equal(t, cli.ExitFailed, code)
	require.NotContains(t, stdout, "\u009b")
	require.NotContains(t, stdout, "\u202e")
	require.NotContains(t, stdout, "\nforged")
	require.Contains(t, stdout, `d\u009b31m\u202e\x0aforged`)
}
