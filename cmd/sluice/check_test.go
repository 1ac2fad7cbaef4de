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
		{exitUsage, []string{"--colour", dir}},
	} {
		code, _, stderr := execute(nil, append([]string{"check"}, c.args...)...)
		require.Equal(t, c.want, code, "%v %s", c.args, stderr)
	}
}
