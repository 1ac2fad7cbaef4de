package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// measured is the last column of the first table, which is a measurement.
var measured = regexp.MustCompile(`(?m)( +\d+%) +\d+$`)

// TestCompare_Golden: see TestReplay_GoldenSample.
func TestCompare_Golden(t *testing.T) {
	code, stdout, stderr := execute(nil, "compare", "--pattern", "boundary")
	require.Equal(t, cli.ExitOK, code)
	require.Empty(t, stderr)
	for line := range strings.Lines(stdout) {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
	}
	stdout = measured.ReplaceAllString(stdout, "$1  bytes")
	path := filepath.Join("testdata", "compare.txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(stdout), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), stdout)
}

// TestCompare_Log: a log is decided as by sluice replay.
func TestCompare_Log(t *testing.T) {
	log := dayLog(t, 3, 30, 20, 2)
	code, stdout, stderr := execute(nil, "compare", log, "--limit", "6/10s burst 9", "--output", "json")
	require.Equal(t, cli.ExitOK, code, stderr)
	var out struct {
		Limit      string
		Line       float64
		Spans      []int64 `json:"spans_ns"`
		Algorithms []struct {
			Rule           string
			DeniedDecision string `json:"decisions_sha256"`
			Most, Promised []int
			Bytes          float64 `json:"bytes_per_key"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &out))
	assert.Equal(t, "6/10s burst 9", out.Limit)
	require.Len(t, out.Algorithms, 6)
	for _, a := range out.Algorithms {
		assert.Equal(t, replayJSON(t, nil, log, "--rule", a.Rule).Rules[0].DecisionsSHA256, a.DeniedDecision, a.Rule)
		assert.Positive(t, a.Bytes)
		assert.Len(t, a.Most, len(out.Spans))
	}
	assert.Equal(t, "fixed-window 6/10s", out.Algorithms[5].Rule)
	_, stdout, _ = execute(nil, "compare", log)
	assert.Contains(t, stdout, log+"\n  55 requests of 4 clients, combined format\n")
}

func TestCompare_Refuses(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown pattern "x"`:                       {"--pattern", "x"},
		`--limit: limit "x"`:                        {"--limit", "x"},
		`--limit "0/s" leaves nothing to compare`:   {"--limit", "0/s"},
		`--limit "1/48h": 48h0m0s is no period`:     {"--limit", "1/48h"},
		`unknown algorithm "x"`:                     {"--algorithm", "x"},
		"--requests 0: want 1 to":                   {"--requests", "0"},
		"--requests -1: want 1 to":                  {"--requests", "-1"},
		`unknown output "x"`:                        {"--output", "x"},
		"want them without FILE":                    {"--requests", "5", "-"},
		"the flags for logs say how to read a FILE": {"--follow"},
		"nowhere: no such file":                     {"nowhere"},
		"rule sliding-log 2000000/s: rate 2000000":  {"--limit", "2000000/s"},
	} {
		code, stdout, stderr := execute(nil, append([]string{"compare"}, args...)...)
		assert.NotEqual(t, cli.ExitOK, code, args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want)
		assert.Equal(t, 1, strings.Count(stderr, "\n"))
	}
}
