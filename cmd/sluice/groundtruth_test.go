package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dataDir holds logs and the decisions that two independent exact programs made
// on them. It lies next to the repository, not in it.
const dataDir = "../../../shared/data"

type truth struct {
	Logs map[string]struct {
		File  struct{ Lines int64 }
		Facts struct {
			Counted, Skipped, Clients int64
			First, Last               time.Time
			BehindRunningMax          int64   `json:"behind_running_max"`
			MaxBack                   float64 `json:"max_back"`
		}
		Rules            map[string]truthRule
		RulesWithout8899 map[string]truthRule `json:"rules_without_line_8899"`
	}
}

type truthRule struct {
	Allowed         int64
	Denied          int64
	LimitedClients  int64 `json:"limited_clients"`
	Top5            []truthClient
	FirstDenied     *int64 `json:"first_denied"`
	DecisionsSHA256 string `json:"decisions_sha256"`
}

// truthClient is written as an array of a name and a number.
type truthClient struct {
	name   string
	denied int64
}

func (c *truthClient) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&c.name, &c.denied})
}

// output is the JSON report as a user's program would declare it.
type output struct {
	Log struct {
		Source         string
		Format         string
		Lines          int64
		Blank          int64
		Counted        int64
		Malformed      int64
		Key            string
		Keyless        int64
		Outside        int64
		MalformedLines []int64 `json:"malformed_lines"`
		Reason         string  `json:"malformed_reason"`
		Incomplete     string
		Clients        int64
		PrivateClients bool      `json:"private_clients"`
		FirstTime      time.Time `json:"first_time"`
		LastTime       time.Time `json:"last_time"`
		Late           int64
		LateMaxSeconds float64 `json:"late_max_seconds"`
		Timeline       struct {
			Start    time.Time
			StepNS   int64 `json:"step_ns"`
			Requests []int64
		}
	}
	Rules   []outputRule
	Changes *changed
}

type outputRule struct {
	Rule            string
	Algorithm       string
	Limit           string
	Allowed         int64
	Denied          int64
	DeniedShare     float64    `json:"denied_share"`
	LimitedClients  int64      `json:"limited_clients"`
	FirstDenied     *int64     `json:"first_denied"`
	FirstDeniedTime *time.Time `json:"first_denied_time"`
	Top             []struct {
		Client           string
		Requests, Denied int64
	}
	HeaviestDenied int64 `json:"heaviest_denied"`
	LongestStreak  *struct {
		Client string
		Denied int64
	} `json:"longest_streak"`
	DeniedOverTime  []int64 `json:"denied_over_time"`
	DecisionsSHA256 string  `json:"decisions_sha256"`
	Limits          []limitData
	Undescribed     int64
	Refused         int64
}

type limitData struct {
	Rule             string
	Hits, Near, Over int64
}

func loadTruth(t *testing.T) truth {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dataDir, "access", "ground-truth.json"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the real logs are not there: no access/ground-truth.json in %s", dataDir)
	}
	require.NoError(t, err)
	var tr truth
	require.NoError(t, json.Unmarshal(text, &tr))
	require.NotEmpty(t, tr.Logs)
	return tr
}

var truthNames = []struct {
	pattern *regexp.Regexp
	rules   []string // what must decide like it
}{
	{regexp.MustCompile(`^fixed_window_(\d+)_per_(\d+)s$`), []string{"fixed-window $1/${2}s"}},
	{regexp.MustCompile(`^sliding_log_(\d+)_per_(\d+)s$`), []string{"sliding-log $1/${2}s"}},
	{regexp.MustCompile(`^token_bucket_(\d+)_refill_(\d+)_per_(\d+)s$`), []string{"token-bucket $2/${3}s burst $1"}},
	{regexp.MustCompile(`^gcra_(\d+)_per_(\d+)s_burst_(\d+)$`),
		[]string{"gcra $1/${2}s burst $3", "leaky-bucket $1/${2}s burst $3"}},
}

// rulesFor translates a name in the ground truth. A name that it does not know
// fails the test: what is not compared must not look as if it had been.
func rulesFor(t *testing.T, name string) []string {
	t.Helper()
	for _, n := range truthNames {
		if match := n.pattern.FindStringSubmatchIndex(name); match != nil {
			var rules []string
			for _, template := range n.rules {
				rules = append(rules, string(n.pattern.ExpandString(nil, template, name, match)))
			}
			return rules
		}
	}
	require.FailNow(t, "unknown rule in the ground truth", name)
	return nil
}

func replayJSON(t *testing.T, stdin io.Reader, args ...string) output {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(append([]string{"replay", "--output", "json"}, args...), stdin, &stdout, &stderr)
	require.Zero(t, code, stderr.String())
	require.Empty(t, stderr.String())
	decoder := json.NewDecoder(&stdout)
	decoder.DisallowUnknownFields()
	var out output
	require.NoError(t, decoder.Decode(&out))
	return out
}

func assertRule(t *testing.T, want truthRule, got outputRule) {
	t.Helper()
	assert.Equal(t, want.Allowed, got.Allowed)
	assert.Equal(t, want.Denied, got.Denied)
	assert.Equal(t, want.LimitedClients, got.LimitedClients)
	assert.Equal(t, want.FirstDenied, got.FirstDenied)
	assert.Equal(t, want.DecisionsSHA256, got.DecisionsSHA256)
	top := []truthClient{}
	for _, c := range got.Top {
		top = append(top, truthClient{c.Client, c.Denied})
	}
	assert.Equal(t, want.Top5, top)
}

func TestReplay_GroundTruth(t *testing.T) {
	for name, log := range loadTruth(t).Logs {
		path := filepath.Join(dataDir, filepath.FromSlash(name))
		require.NotEmpty(t, log.Rules)
		var together []string
		var wants []truthRule
		for ruleName, want := range log.Rules {
			for _, rule := range rulesFor(t, ruleName) {
				together = append(together, "--rule", rule)
				wants = append(wants, want)
				t.Run("log="+filepath.Base(name)+"/rule="+rule, func(t *testing.T) {
					algorithm, limit, _ := strings.Cut(rule, " ")
					out := replayJSON(t, nil, path, "--algorithm", algorithm, "--limit", limit)
					require.Len(t, out.Rules, 1)
					assert.Equal(t, algorithm, out.Rules[0].Algorithm)
					assertRule(t, want, out.Rules[0])
				})
			}
		}
		t.Run("log="+filepath.Base(name)+"/all in one pass", func(t *testing.T) {
			out := replayJSON(t, nil, append(together, path)...)
			require.Len(t, out.Rules, len(wants))
			for i, want := range wants {
				assertRule(t, want, out.Rules[i])
			}
			assert.Equal(t, log.File.Lines, out.Log.Lines)
			assert.Equal(t, log.Facts.Counted, out.Log.Counted)
			assert.Equal(t, log.Facts.Skipped, out.Log.Malformed)
			assert.Equal(t, log.Facts.Clients, out.Log.Clients)
			assert.Equal(t, log.Facts.BehindRunningMax, out.Log.Late)
			assert.InDelta(t, log.Facts.MaxBack, out.Log.LateMaxSeconds, 0)
			assert.True(t, log.Facts.First.Equal(out.Log.FirstTime), out.Log.FirstTime)
			assert.True(t, log.Facts.Last.Equal(out.Log.LastTime), out.Log.LastTime)
		})
	}
}

// TestReplay_GroundTruthWithoutTheDamagedLine feeds the log without its line 8899
// by way of standard input, and then with that line damaged beyond reading.
func TestReplay_GroundTruthWithoutTheDamagedLine(t *testing.T) {
	const name = "access/elastic-apache-2015-05.log.gz"
	log, ok := loadTruth(t).Logs[name]
	require.True(t, ok)
	require.NotEmpty(t, log.RulesWithout8899)
	lines := strings.SplitAfter(gunzipFile(t, filepath.Join(dataDir, filepath.FromSlash(name))), "\n")
	without := strings.Join(slices.Delete(slices.Clone(lines), 8898, 8899), "")
	lines[8898] = "damaged\n"
	damaged := strings.Join(lines, "")
	for ruleName, want := range log.RulesWithout8899 {
		for _, rule := range rulesFor(t, ruleName) {
			t.Run("rule="+rule, func(t *testing.T) {
				out := replayJSON(t, strings.NewReader(without), "-", "--rule", rule)
				assertRule(t, want, out.Rules[0])
				assert.EqualValues(t, 9999, out.Log.Counted)

				out = replayJSON(t, strings.NewReader(damaged), "-", "--rule", rule)
				assertRule(t, want, out.Rules[0])
				assert.Equal(t, []int64{8899}, out.Log.MalformedLines)
			})
		}
	}
}

func gunzipFile(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	text, err := io.ReadAll(unzipped)
	require.NoError(t, err)
	return string(text)
}
