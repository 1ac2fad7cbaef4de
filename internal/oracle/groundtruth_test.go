package oracle

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// groundTruthDir holds real access logs with the decisions that two independent
// exact programs took on every line. It is not part of the repository.
const groundTruthDir = "../../../shared/data/access"

// truth is the part of ground-truth.json that is used here.
type truth struct {
	Logs map[string]struct {
		File struct {
			SHA256 string `json:"sha256"`
		} `json:"file"`
		Facts struct {
			Counted int `json:"counted"`
		} `json:"facts"`
		Rules       map[string]outcome `json:"rules"`
		WithoutLine map[string]outcome `json:"rules_without_line_8899"`
	} `json:"logs"`
}

type outcome struct {
	Allowed     int    `json:"allowed"`
	Denied      int    `json:"denied"`
	FirstDenied *int   `json:"first_denied"`
	SHA256      string `json:"decisions_sha256"`
}

// line is one line of a log: who, and when in Unix nanoseconds.
type line struct {
	client string
	at     int64
}

// TestGroundTruth reproduces every decision on every line of the real logs.
func TestGroundTruth(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(groundTruthDir, "ground-truth.json"))
	if os.IsNotExist(err) {
		t.Skipf("no access logs at %s: the ground truth is not checked", groundTruthDir)
	}
	require.NoError(t, err)
	var gt truth
	require.NoError(t, json.Unmarshal(raw, &gt))
	require.NotEmpty(t, gt.Logs)

	for name, log := range gt.Logs {
		content := readLog(t, filepath.Join(groundTruthDir, filepath.Base(name)))
		sum := sha256.Sum256(content)
		require.Equal(t, log.File.SHA256, hex.EncodeToString(sum[:]), name)
		lines := parseLog(t, name, content)
		require.Len(t, lines, log.Facts.Counted, name)
		require.NotEmpty(t, log.Rules, name)

		for rule, want := range log.Rules {
			checkRule(t, filepath.Base(name)+"/"+rule, rule, lines, want)
		}
		if len(log.WithoutLine) == 0 {
			continue
		}
		lines = append(lines[:8898:8898], lines[8899:]...)
		for rule, want := range log.WithoutLine {
			checkRule(t, filepath.Base(name)+"/without-line-8899/"+rule, rule, lines, want)
		}
	}
}

// checkRule replays lines under each algorithm that a rule speaks of.
func checkRule(t *testing.T, title, rule string, lines []line, want outcome) {
	t.Run(title, func(t *testing.T) {
		limit, algorithms, err := parseRule(rule)
		require.NoError(t, err)
		for _, a := range algorithms {
			m := New(Config{Algorithm: a, Rate: limit, Period: int64(time.Minute)})
			assert.Equal(t, want, replayLog(m, lines), names[a])
		}
	})
}

// replayLog takes one unit for each line, on a clock that never runs back.
func replayLog(m *Model, lines []line) outcome {
	var got outcome
	var decisions strings.Builder
	now := int64(0)
	for i, l := range lines {
		now = max(now, l.at)
		if m.Take(l.client, now, 1).Allowed {
			got.Allowed++
			decisions.WriteByte('A')
			continue
		}
		got.Denied++
		decisions.WriteByte('D')
		if got.FirstDenied == nil {
			first := i + 1
			got.FirstDenied = &first
		}
	}
	sum := sha256.Sum256([]byte(decisions.String()))
	got.SHA256 = hex.EncodeToString(sum[:])
	return got
}

var (
	rulePattern   = regexp.MustCompile(`^([a-z_]+?)_([1-9]\d*)(?:_(refill|burst)_(\d+))?_per_60s(?:_(burst)_(\d+))?$`)
	clfPattern    = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\]`)
	clfTimeLayout = "02/Jan/2006:15:04:05 -0700"
)

// parseRule reads a rule's name. A name it does not know is an error, so that a
// rule added to the ground truth cannot go unchecked.
func parseRule(rule string) (limit int64, algorithms []Algorithm, err error) {
	m := rulePattern.FindStringSubmatch(rule)
	if m == nil {
		return 0, nil, fmt.Errorf("unknown rule %q", rule)
	}
	if _, err := fmt.Sscan(m[2], &limit); err != nil {
		return 0, nil, err
	}
	for shape, as := range map[string][]Algorithm{
		"fixed_window_%[1]d_per_60s":              {FixedWindow},
		"sliding_log_%[1]d_per_60s":               {SlidingLog},
		"token_bucket_%[1]d_refill_%[1]d_per_60s": {TokenBucket, LeakyBucket},
		"gcra_%[1]d_per_60s_burst_%[1]d":          family,
	} {
		if rule == fmt.Sprintf(shape, limit) {
			return limit, as, nil
		}
	}
	return 0, nil, fmt.Errorf("unknown rule %q", rule)
}

// TestParseRuleRefuses: what is not one of the four shapes is not guessed at.
func TestParseRuleRefuses(t *testing.T) {
	for _, rule := range []string{
		"", "fixed_window_5_per_61s", "sliding_window_5_per_60s", "gcra_5_per_60s",
		"gcra_5_per_60s_burst_6", "token_bucket_5_refill_6_per_60s", "fixed_window_0_per_60s",
	} {
		_, _, err := parseRule(rule)
		assert.Error(t, err, rule)
	}
}

// readLog returns the content of a log, uncompressed.
func readLog(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		r, err = gzip.NewReader(f)
		require.NoError(t, err)
	}
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	return content
}

// parseLog returns the client and the time of each line, in file order.
func parseLog(t *testing.T, name string, content []byte) []line {
	t.Helper()
	var lines []line
	sc := bufio.NewScanner(strings.NewReader(string(content)))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		client, stamp, layout := "", "", clfTimeLayout
		if strings.Contains(name, ".jsonl") {
			var entry struct {
				Time     string `json:"time"`
				RemoteIP string `json:"remote_ip"`
				Host     string `json:"ClientHost"`
				Start    string `json:"StartUTC"`
			}
			require.NoError(t, json.Unmarshal(sc.Bytes(), &entry))
			client, stamp = entry.RemoteIP, entry.Time
			if entry.Start != "" {
				client, stamp, layout = entry.Host, entry.Start, time.RFC3339Nano
			}
		} else {
			m := clfPattern.FindStringSubmatch(sc.Text())
			require.NotNil(t, m, "%s line %d", name, len(lines)+1)
			client, stamp = m[1], m[2]
		}
		at, err := time.Parse(layout, stamp)
		require.NoError(t, err, "%s line %d", name, len(lines)+1)
		lines = append(lines, line{client, at.UnixNano()})
	}
	require.NoError(t, sc.Err())
	return lines
}
