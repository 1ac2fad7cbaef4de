package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// recommended is the JSON of a recommendation as a user's program would declare it.
type recommended struct {
	Log       output `json:"-"`
	Clients   string
	MaxDenied int   `json:"max_denied_clients"`
	PerNS     int64 `json:"per_ns"`
	Peaks     []struct {
		SpanNS                   int64 `json:"span_ns"`
		P50, P90, P99, P999, Max int64
		Client                   string
	}
	Frontier struct {
		Shares []string
		Denied []int `json:"denied_clients"`
		Points []struct {
			Rate   string
			Bursts []*int64
		}
	}
	Recommended []struct {
		Rule     string
		Refused  string
		InAnyPer int `json:"in_any_per"`
		Evidence outputRule
	}
	Rules map[string]string
	Check *struct {
		MaxDenied int `json:"max_denied_clients"`
		Holds     []bool
		Rules     []outputRule
	}
	Gate *struct {
		Most    string `json:"max_denied_clients"`
		Denied  int    `json:"denied_clients"`
		Exceeds []string
	}
}

func recommendJSON(t *testing.T, args ...string) (out recommended) {
	t.Helper()
	code, stdout, stderr := execute(nil, append([]string{"recommend", "--output", "json"}, args...)...)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Empty(t, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &out))
	return out
}

// TestRecommend_Golden: see TestReplay_GoldenSample.
func TestRecommend_Golden(t *testing.T) {
	for file, args := range map[string][]string{
		"recommend.txt":  {"recommend", "--clients", "95%"},
		"recommend.json": {"recommend", "--clients", "95%", "--algorithm", "gcra,sliding-log", "--output", "json"},
	} {
		t.Run("file="+file, func(t *testing.T) {
			code, stdout, stderr := execute(nil, args...)
			require.Equal(t, cli.ExitOK, code)
			require.Empty(t, stderr)
			path := filepath.Join("testdata", file)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(stdout), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), stdout)
			if report, _, ok := strings.Cut(stdout, "\nsluiced serve\n"); ok { // lines of Envoy are as long as they are
				for line := range strings.Lines(report) {
					assert.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
				}
			}
		})
	}
}

// TestRecommend_GroundTruth: on every real log, sluice replay says that each limit denies something to at most the goal's clients,
// and with one unit less at once to more.
func TestRecommend_GroundTruth(t *testing.T) {
	for name := range loadTruth(t).Logs {
		path := filepath.Join(dataDir, filepath.FromSlash(name))
		for _, args := range [][]string{
			{}, {"--clients", "100%"}, {"--clients", "99%"}, {"--clients", "90%", "--per", "1h"}, {"--clients", "50%", "--per", "10s"}, {"--rate", "7/m"}, {"--rate", "13/1h", "--clients", "98%"},
		} {
			t.Run(fmt.Sprintf("log=%s/args=%q", filepath.Base(name), args), func(t *testing.T) {
				found := recommendJSON(t, append([]string{path}, args...)...)
				require.Len(t, found.Recommended, 6)
				var rules []string
				for _, r := range found.Recommended {
					require.Empty(t, r.Refused)
					rules = append(rules, "--rule", r.Rule, "--rule", oneLess(t, r.Rule))
				}
				replayed := replayJSON(t, nil, append(rules, path)...)
				at := map[string]outputRule{}
				for _, r := range replayed.Rules {
					at[r.Rule] = r
				}
				for _, r := range found.Recommended {
					assert.LessOrEqual(t, at[r.Rule].LimitedClients, int64(found.MaxDenied), r.Rule)
					assert.Greater(t, at[oneLess(t, r.Rule)].LimitedClients, int64(found.MaxDenied), r.Rule)
					r.Evidence.Top, r.Evidence.DeniedOverTime = at[r.Rule].Top, at[r.Rule].DeniedOverTime
					assert.Equal(t, at[r.Rule], r.Evidence)
				}
			})
		}
	}
}

// oneLess is a rule with one unit less at once.
func oneLess(t *testing.T, rule string) string {
	t.Helper()
	var algorithm, per string
	var n, burst int
	if _, err := fmt.Sscanf(strings.ReplaceAll(rule, "/", " / "), "%s %d / %s burst %d", &algorithm, &n, &per, &burst); err == nil {
		require.Greater(t, burst, 1)
		return fmt.Sprintf("%s %d/%s burst %d", algorithm, n, per, burst-1)
	}
	_, err := fmt.Sscanf(strings.ReplaceAll(rule, "/", " / "), "%s %d / %s", &algorithm, &n, &per)
	require.NoError(t, err, rule)
	if strings.HasSuffix(algorithm, "log") || strings.HasSuffix(algorithm, "window") {
		return fmt.Sprintf("%s %d/%s", algorithm, n-1, per)
	}
	require.Greater(t, n, 1) // a burst of the rate is not written
	return fmt.Sprintf("%s %d/%s burst %d", algorithm, n, per, n-1)
}

// TestRecommend_SourcesAgree: whatever way a log comes, the limits are the same.
func TestRecommend_SourcesAgree(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write([]byte(smallLog))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	plain := writeFile(t, smallLog)
	_, want, _ := execute(nil, "recommend", "--clients", "60%", plain)
	require.Contains(t, want, "recommended")
	for _, stdin := range []string{smallLog, zipped.String()} {
		code, stdout, stderr := execute(strings.NewReader(stdin), "recommend", "--clients", "60%", "-")
		require.Equal(t, cli.ExitOK, code, stderr)
		assert.Equal(t, strings.Replace(want, plain, "standard input", 1), stdout)
	}
}

// dayLog has so many requests of each client, a second apart, in the Combined format.
func dayLog(t *testing.T, requests ...int) string {
	var b strings.Builder
	for client, n := range requests {
		for i := range n {
			fmt.Fprintf(&b, "192.0.2.%d - - [02/Mar/2026:09:00:%02d +0000] \"GET / HTTP/1.1\" 200 1\n", client, i)
		}
	}
	return writeFile(t, b.String())
}

// TestRecommend_Check: limits of one day, on another one.
func TestRecommend_Check(t *testing.T) {
	monday, tuesday := dayLog(t, 1, 2, 3, 4), dayLog(t, 3, 3, 3, 30, 30)
	args := []string{"--clients", "75%", "--algorithm", "fixed-window,gcra", "--rate", "1/h", monday}
	found := recommendJSON(t, args...)
	assert.Equal(t, 1, found.MaxDenied)
	assert.Equal(t, "fixed-window 3/m", found.Recommended[0].Rule)
	assert.Equal(t, "gcra 1/h burst 3", found.Recommended[1].Rule)
	assert.Nil(t, found.Check)

	found = recommendJSON(t, append(args, "--check", monday)...)
	assert.Equal(t, []bool{true, true}, found.Check.Holds)
	found = recommendJSON(t, append(args, "--check", tuesday)...)
	assert.Equal(t, 1, found.Check.MaxDenied, "a quarter of five")
	assert.Equal(t, []bool{false, false}, found.Check.Holds)
	assert.EqualValues(t, 54, found.Check.Rules[0].Denied)
	assert.EqualValues(t, 27, found.Check.Rules[0].LongestStreak.Denied)
	_, stdout, _ := execute(nil, append([]string{"recommend", "--check", tuesday}, args...)...)
	assert.Contains(t, stdout, "does not hold")
	assert.Contains(t, stdout, "the same limits on "+tuesday)

	for most, want := range map[string]int{"40%": cli.ExitOK, "39.9%": cli.ExitFailed, "2": cli.ExitOK, "1": cli.ExitFailed, "0": cli.ExitFailed, "100%": cli.ExitOK} {
		code, stdout, stderr := execute(nil, append([]string{"recommend", "--check", tuesday, "--max-denied-clients", most}, args...)...)
		assert.Equal(t, want, code, most)
		if want == cli.ExitOK {
			assert.Empty(t, stderr)
			assert.Contains(t, stdout, "within --max-denied-clients "+most)
		} else {
			assert.Contains(t, stderr, "2 recommended limits deny something to more than", most)
			assert.Contains(t, stdout, "beyond --max-denied-clients "+most)
		}
	}
	code, _, _ := execute(nil, append([]string{"recommend", "--max-denied-clients", "1"}, args...)...)
	assert.Equal(t, cli.ExitOK, code, "without --check it is the log itself")
	code, _, _ = execute(nil, append([]string{"recommend", "--max-denied-clients", "0"}, args...)...)
	assert.Equal(t, cli.ExitFailed, code)
}

// TestRecommend_Refuses: bad input is one line that says what would be right, and nothing on standard output.
func TestRecommend_Refuses(t *testing.T) {
	log := dayLog(t, 1, 1, 1)
	for want, args := range map[string][]string{
		`--clients "99" is no share: want a percentage`:                           {"--clients", "99"},
		"--per 1ms is no period":                                                  {"--per", "1ms"},
		"--per 48h0m0s is no period":                                              {"--per", "48h"},
		`--rate "5/m burst 4": want a count per time and no burst`:                {"--rate", "5/m burst 4"},
		`--rate "unlimited": want a count`:                                        {"--rate", "unlimited"},
		`--rate "0/s": want a count`:                                              {"--rate", "0/s"},
		"--rate: limit \"x\"":                                                     {"--rate", "x"},
		"more units than a 64-bit word":                                           {"--rate", "100000000/10ms"},
		`unknown algorithm "all"`:                                                 {"--algorithm", "all"},
		`--max-denied-clients "x": want a number`:                                 {"--max-denied-clients", "x"},
		`--max-denied-clients "101%" is no share`:                                 {"--max-denied-clients", "101%"},
		"--max-clients 0: want":                                                   {"--max-clients", "0"},
		"--top -1 is negative":                                                    {"--top", "-1"},
		"--ipv6-prefix 8 is not":                                                  {"--ipv6-prefix", "8"},
		`unknown output "xml": want text, json, serve, nginx`:                     {"--output", "xml"},
		"--check: nowhere.log: no such file":                                      {"--check", "nowhere.log"},
		"more than 2 clients: want --max-clients":                                 {"--max-clients", "2"},
		"--check: " + filepath.Join("testdata", "one.txt") + ": no readable line": {"--check", filepath.Join("testdata", "one.txt")},
	} {
		code, stdout, stderr := execute(nil, append([]string{"recommend", log}, args...)...)
		assert.NotEqual(t, cli.ExitOK, code, args)
		assert.Empty(t, stdout, args)
		assert.Contains(t, stderr, want)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	code, _, stderr := execute(nil, "recommend", dayLog(t, 1), "--check", log, "--max-clients", "2")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "more than 2 clients")
}

// TestRecommend_Incomplete: what could be read is reported, and the exit code is 1.
func TestRecommend_Incomplete(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	for range 200 {
		_, err := w.Write([]byte(smallLog))
		require.NoError(t, err)
	}
	require.NoError(t, w.Flush())
	path := writeFile(t, zipped.String())
	code, stdout, stderr := execute(nil, "recommend", path)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stdout, "not read to the end")
	assert.Contains(t, stdout, "recommended")
	assert.Contains(t, stderr, "the report covers what comes before")
}

// TestRecommend_Serve: the rules load without a warning, and deny what the recommended limit denies.
func TestRecommend_Serve(t *testing.T) {
	log := dayLog(t, 3, 30, 20, 2, 2, 2, 2, 2, 2)
	for _, args := range [][]string{{}, {"--rate", "2/1500ms"}, {"--rate", "1/24h"}, {"--rate", "5/h"}} {
		args = append(args, log, "--clients", "70%")
		code, rules, _ := execute(nil, append([]string{"recommend", "--output", "serve"}, args...)...)
		require.Equal(t, cli.ExitOK, code)
		dir := servetest.Files(t, map[string]string{"web.yaml": rules})
		code, stdout, stderr := execute(nil, "check", dir)
		require.Equal(t, cli.ExitOK, code, stdout+stderr)
		assert.NotContains(t, stdout+stderr, "warning")
		want := recommendJSON(t, args...).Recommended[0].Evidence
		require.Positive(t, want.Denied)
		got := replayJSON(t, nil, log, "--rules", dir).Rules[0]
		assert.Equal(t, want.DecisionsSHA256, got.DecisionsSHA256)
	}
}

// TestRecommend_Go: the line compiles.
func TestRecommend_Go(t *testing.T) {
	goCommand := servetest.Installed(t, "go", "a Go toolchain")
	for _, rate := range []string{"2/1500ms", "7/m"} {
		_, line, _ := execute(nil, "recommend", "--output", "go", "--rate", rate)
		program := "package main\n\nimport \"github.com/sluice-go/sluice\"\n\nfunc main() {\n" + line + "\nif lim.Config().Limit.Burst < 2 { panic(lim) }\n}\n"
		path := filepath.Join(servetest.Files(t, map[string]string{"main.go": program}), "main.go")
		out, err := exec.Command(goCommand, "run", path).CombinedOutput()
		require.NoError(t, err, "%s%s", program, out)
	}
}
