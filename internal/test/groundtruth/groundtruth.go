// Package groundtruth reads real access logs and the decisions that two
// independent exact programs took on every line of them. Only tests use it. The
// logs are not part of the repository; see Load.
package groundtruth

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Log is one access log and the rules it was judged by.
type Log struct {
	Name  string
	Lines []Line
	Rules []Rule
}

// Line is one request: who, and when in Unix nanoseconds, on a clock that all
// lines of the log share and that never runs back.
type Line struct {
	Client string
	Now    int64
}

// Rule is a limit of Limit units a minute under each of some algorithms, given by
// the text forms of the library, and the numbers that they must all find in the log.
type Rule struct {
	Name       string
	Algorithms []string
	Limit      int
	Want       Outcome
}

// Outcome sums up the decisions on a log.
type Outcome struct {
	Allowed        int      `json:"allowed"`
	Denied         int      `json:"denied"`
	LimitedClients int      `json:"limited_clients"`
	FirstDenied    int      `json:"first_denied"` // ordinal from 1; 0 if none
	Top5           []Client `json:"top5"`
	SHA256         string   `json:"decisions_sha256"`
}

// Client is a client and how many of its requests were denied.
type Client struct {
	Name   string
	Denied int
}

// UnmarshalJSON reads the form ["name", 3].
func (c *Client) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&c.Name, &c.Denied})
}

// truth is the part of ground-truth.json that is used here.
type truth struct {
	Logs map[string]struct {
		File struct {
			SHA256 string `json:"sha256"`
		} `json:"file"`
		Facts struct {
			Counted int `json:"counted"`
		} `json:"facts"`
		Rules       map[string]Outcome `json:"rules"`
		WithoutLine map[string]Outcome `json:"rules_without_line_8899"`
	} `json:"logs"`
}

// damagedLine is the index of the line that rules_without_line_8899 leave out.
const damagedLine = 8898

// Load reads the logs in shared/data/access beside the repository whose root is
// given. The error matches fs.ErrNotExist if they are not there. A rule that Load
// does not understand is an error, so that none goes unchecked.
func Load(root string) ([]Log, error) {
	dir := filepath.Join(root, "..", "shared", "data", "access")
	raw, err := os.ReadFile(filepath.Join(dir, "ground-truth.json"))
	if err != nil {
		return nil, err
	}
	var gt truth
	if err := json.Unmarshal(raw, &gt); err != nil {
		return nil, err
	}
	var logs []Log
	for path, entry := range gt.Logs {
		log := Log{Name: filepath.Base(path)}
		content, err := readFile(filepath.Join(dir, log.Name))
		if err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != entry.File.SHA256 {
			return nil, fmt.Errorf("%s has changed: its checksum is not that of ground-truth.json", path)
		}
		if log.Lines, err = parse(log.Name, content); err != nil {
			return nil, err
		}
		if len(log.Lines) != entry.Facts.Counted || len(entry.Rules) == 0 {
			return nil, fmt.Errorf("%s: %d lines and %d rules, want %d lines", path, len(log.Lines), len(entry.Rules), entry.Facts.Counted)
		}
		if log.Rules, err = parseRules(entry.Rules); err != nil {
			return nil, err
		}
		logs = append(logs, log)
		if len(entry.WithoutLine) > 0 {
			log.Name += " without line 8899"
			log.Lines = slices.Delete(slices.Clone(log.Lines), damagedLine, damagedLine+1)
			if log.Rules, err = parseRules(entry.WithoutLine); err != nil {
				return nil, err
			}
			logs = append(logs, log)
		}
	}
	return logs, nil
}

// ForEach runs f as a sub-test for each algorithm of each rule of each log. Where
// the logs are not there it skips the test, and says so.
func ForEach(t *testing.T, root string, f func(t *testing.T, log Log, rule Rule, algorithm string)) {
	t.Helper()
	logs, err := Load(root)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no shared/data/access beside the repository: the ground truth is not checked")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, log := range logs {
		for _, rule := range log.Rules {
			for _, algorithm := range rule.Algorithms {
				t.Run(log.Name+"/"+rule.Name+"/"+algorithm, func(t *testing.T) { f(t, log, rule, algorithm) })
			}
		}
	}
}

// Replay asks allow about each line, at a cost of 1, and sums up the answers.
func Replay(lines []Line, allow func(client string, now int64) bool) Outcome {
	var got Outcome
	denied := map[string]int{}
	decisions := make([]byte, len(lines))
	for i, line := range lines {
		if allow(line.Client, line.Now) {
			got.Allowed++
			decisions[i] = 'A'
			continue
		}
		got.Denied++
		decisions[i] = 'D'
		denied[line.Client]++
		if got.FirstDenied == 0 {
			got.FirstDenied = i + 1
		}
	}
	got.LimitedClients = len(denied)
	got.Top5 = []Client{}
	for name, n := range denied {
		got.Top5 = append(got.Top5, Client{name, n})
	}
	slices.SortFunc(got.Top5, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Name, b.Name))
	})
	got.Top5 = got.Top5[:min(5, len(got.Top5))]
	sum := sha256.Sum256(decisions)
	got.SHA256 = hex.EncodeToString(sum[:])
	return got
}

func parseRules(named map[string]Outcome) ([]Rule, error) {
	var rules []Rule
	for name, want := range named {
		r, err := parseRule(name)
		if err != nil {
			return nil, err
		}
		r.Want = want
		rules = append(rules, r)
	}
	return rules, nil
}

var ruleLimit = regexp.MustCompile(`_([1-9]\d*)_`)

// parseRule reads a rule's name, which must be one of four shapes.
func parseRule(name string) (Rule, error) {
	r := Rule{Name: name}
	m := ruleLimit.FindStringSubmatch(name)
	if m == nil {
		return r, fmt.Errorf("unknown rule %q", name)
	}
	if _, err := fmt.Sscan(m[1], &r.Limit); err != nil {
		return r, err
	}
	for shape, algorithms := range map[string][]string{
		"fixed_window_%[1]d_per_60s":              {"fixed-window"},
		"sliding_log_%[1]d_per_60s":               {"sliding-log"},
		"token_bucket_%[1]d_refill_%[1]d_per_60s": {"token-bucket"},
		"gcra_%[1]d_per_60s_burst_%[1]d":          {"gcra", "leaky-bucket"},
	} {
		if name == fmt.Sprintf(shape, r.Limit) {
			r.Algorithms = algorithms
			return r, nil
		}
	}
	return r, fmt.Errorf("unknown rule %q", name)
}

// readFile returns the content of a file, uncompressed.
func readFile(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(path, ".gz") {
		return raw, err
	}
	r, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

var combined = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^\]]+)\]`)

const combinedTime = "02/Jan/2006:15:04:05 -0700"

// parse returns the client and the common clock's time of each line.
func parse(name string, content []byte) ([]Line, error) {
	var lines []Line
	now := int64(0)
	sc := bufio.NewScanner(bytes.NewReader(content))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		client, stamp, layout := "", "", combinedTime
		if strings.Contains(name, ".jsonl") {
			var entry struct{ RemoteIP, Time, ClientHost, StartUTC string }
			text := bytes.Replace(sc.Bytes(), []byte(`"remote_ip"`), []byte(`"RemoteIP"`), 1)
			if err := json.Unmarshal(text, &entry); err != nil {
				return nil, fmt.Errorf("%s line %d: %w", name, len(lines)+1, err)
			}
			client, stamp = entry.RemoteIP, entry.Time
			if entry.StartUTC != "" {
				client, stamp, layout = entry.ClientHost, entry.StartUTC, time.RFC3339Nano
			}
		} else if m := combined.FindStringSubmatch(sc.Text()); m != nil {
			client, stamp = m[1], m[2]
		}
		at, err := time.Parse(layout, stamp)
		if err != nil || client == "" {
			return nil, fmt.Errorf("%s line %d: client %q, time %q: %w", name, len(lines)+1, client, stamp, err)
		}
		now = max(now, at.UnixNano())
		lines = append(lines, Line{client, now})
	}
	return lines, sc.Err()
}
