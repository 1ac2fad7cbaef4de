package report

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// obeyed is what a terminal may act on: control characters, and those that turn
// the writing direction.
var obeyed = regexp.MustCompile(`[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}\x{200e}\x{200f}\x{202a}-\x{202e}\x{2066}-\x{2069}]`)

var start = time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)

func newReplay(t *testing.T, rules ...replay.Rule) *replay.Replay {
	t.Helper()
	clients, err := replay.NewClients(replay.IPv6Prefix)
	require.NoError(t, err)
	engine, err := replay.New(rules, clients)
	require.NoError(t, err)
	return engine
}

// reportOf replays one request per client and step, under a limit of 1 a day.
func reportOf(t *testing.T, step time.Duration, clients ...string) Report {
	t.Helper()
	engine := newReplay(t, replay.Rule{Algorithm: sluice.GCRA, Limit: sluice.PerDay(1)}, replay.Rule{Algorithm: sluice.FixedWindow, Limit: sluice.Unlimited})
	for i, c := range clients {
		engine.Add([]byte(c), start.Add(time.Duration(i)*step).UnixNano(), nil)
	}
	n := int64(len(clients))
	return Report{
		Source: "access.log",
		Log:    accesslog.Facts{Format: "combined", Lines: n, Counted: n},
		Result: engine.Result(20),
	}
}

func text(t *testing.T, rep Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Text(&b, rep))
	return b.String()
}

func TestReports_HoldNothingThatATerminalObeys(t *testing.T) {
	hostile := []string{
		"\x1b[2J\x1b]0;owned\x07", "a\nb", "a\rb", "\x7f\x00", "\u009b31m", "\xff\xfe\x9b",
		"\u202egnol", "\u2066x\u2069", `back\slash"quote`, strings.Repeat("long", 500), "m\u00fcller\u4e2d",
	}
	rep := reportOf(t, time.Second, append(hostile, hostile...)...)
	rep.Source = "log\x1b[31m\u202e.gz"
	rep.Log.Malformed, rep.Log.MalformedLines, rep.Log.MalformedReason = 1, []int64{3}, "field \x1b is not a client"
	out := text(t, rep)
	assert.NotRegexp(t, obeyed, out)
	for _, shown := range []string{`\x1b[2J\x1b]0;owned\a `, `a\nb `, `\u009b31m `, `\xff\xfe\x9b `, `\u202egnol `,
		`back\\slash"quote `, "longlonglonglonglonglonglonglonglong... ", `m\u00fcller\u4e2d `} {
		assert.Contains(t, out, "\n  "+shown)
	}
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
	}

	var b bytes.Buffer
	require.NoError(t, JSON(&b, rep))
	assert.NotRegexp(t, regexp.MustCompile(`[^\n\x20-\x7e]`), b.String())
	var doc document
	require.NoError(t, json.Unmarshal(b.Bytes(), &doc))
	var names []string
	for _, c := range doc.Rules[0].Top {
		names = append(names, c.Client)
	}
	assert.Contains(t, names, "m\u00fcller\u4e2d")
	assert.Contains(t, names, hostile[0])
}

func TestText_MalformedLines(t *testing.T) {
	rep := reportOf(t, time.Second, "a", "b")
	assert.Contains(t, text(t, rep), "\n  2 lines counted, 0 malformed\n\n")
	rep.Log.Malformed, rep.Log.MalformedLines, rep.Log.MalformedReason = 1, []int64{7}, "not a JSON object"
	assert.Contains(t, text(t, rep), "\n  2 lines counted, 1 malformed: 7\n  line 7: not a JSON object\n")
	rep.Log.Malformed, rep.Log.MalformedLines = 12, []int64{7, 8}
	assert.Contains(t, text(t, rep), "\n  2 lines counted, 12 malformed: 7, 8, ...\n  line 7: not a JSON object\n")
}

func TestText_LateRequests(t *testing.T) {
	rep := reportOf(t, time.Second, "a", "b")
	assert.NotContains(t, text(t, rep), "out of order")
	rep.Result.Late, rep.Result.MaxLate = 1, 59*time.Second
	assert.Contains(t, text(t, rep), "\n  1 request out of order, at most 59s late; the clock never goes back\n")
}

func TestText_NothingDenied(t *testing.T) {
	out := text(t, reportOf(t, time.Minute, "a", "b", "c"))
	assert.Contains(t, out, "  1  gcra 1/d                      3       0   0.0%        0  -\n")
	assert.NotContains(t, out, "most denials")
	assert.NotContains(t, out, "denied by")
}

func TestText_AShareIsAllOrNothingOnlyIfThatIsExact(t *testing.T) {
	for want, denied := range map[string][]int64{
		"0.0%": {0}, "<0.1%": {1, 999}, "0.1%": {1000}, "50.0%": {1_000_000},
		"99.9%": {1_998_000}, ">99.9%": {1_999_001, 1_999_990, 1_999_999}, "100.0%": {2_000_000},
	} {
		for _, n := range denied {
			assert.Equal(t, want, share(n, 2_000_000), n)
		}
	}
	rep := reportOf(t, time.Second, "a", "a")
	rep.Result.Requests, rep.Result.Rules[0].Allowed, rep.Result.Rules[0].Denied = 2_000_000, 10, 1_999_990
	assert.Contains(t, text(t, rep), "  1  gcra 1/d                     10  1999990  >99.9% ")
}

func TestText_TimesAreAsPreciseAsTheColumns(t *testing.T) {
	for step, want := range map[time.Duration][]string{
		time.Nanosecond:       {"2026-03-02 09:00:00.000000000 to 09:00:00.000000003 UTC", "1ns a column"},
		40 * time.Millisecond: {"2026-03-02 09:00:00.000 to 09:00:00.120 UTC", "5ms a column"},
		time.Second:           {"2026-03-02 09:00:00 to 09:00:03 UTC", "1s a column", "  09:00:01\n"},
		10 * time.Minute:      {"2026-03-02 09:00:00 to 09:30:00 UTC", "1m a column", "  09:00  "},
		8 * time.Hour:         {"2026-03-02 09:00:00 to 2026-03-03 09:00:00 UTC", "30m a column", "  03-02 17:00:00\n"},
		400 * 24 * time.Hour:  {"2026-03-02 09:00:00 to 2029-06-14 09:00:00 UTC", "50d a column", "  2026-02-16  "},
	} {
		out := text(t, reportOf(t, step, "a", "a", "a", "a"))
		for _, s := range want {
			assert.Contains(t, out, s, "step %v", step)
		}
	}
}

// TestText_AllTimeThereIs: the last of its columns ends after the last time that fits into nanoseconds.
func TestText_AllTimeThereIs(t *testing.T) {
	engine := newReplay(t, replay.Rule{Algorithm: sluice.GCRA, Limit: sluice.PerDay(1)})
	for _, at := range []int64{0, math.MaxInt64} {
		engine.Add([]byte("a"), at, nil)
	}
	out := text(t, Report{Source: "access.log", Result: engine.Result(20)})
	assert.Contains(t, out, ", 2000d a column\n")
	assert.Regexp(t, `\n  1970-01-01 +2265-09-11\n$`, out)
}

func TestText_BarsShareAScaleAndTheSmallestShows(t *testing.T) {
	var b bytes.Buffer
	writeBars(&b, "title", []int64{0, 1, 500, 1000, 0}, 1000)
	assert.Equal(t, "\n  title, at most 1000\n  \u00b7\u2581\u2584\u2588\u00b7\n", b.String())
	b.Reset()
	writeBars(&b, "title", []int64{500}, 1000)
	assert.Contains(t, b.String(), "  \u2584\n")
}

func TestText_TopMergesTheTopsOfAllRules(t *testing.T) {
	a := replay.Client{Name: "a", Denied: []int64{9, 0}}
	b := replay.Client{Name: "b", Denied: []int64{1, 20}}
	c := replay.Client{Name: "c", Denied: []int64{8, 1}}
	merged := topOfAny([]replay.RuleResult{{Top: []replay.Client{a, c}}, {Top: []replay.Client{b, c}}})
	assert.Equal(t, []replay.Client{b, a, c}, merged)
}

func TestCount(t *testing.T) {
	assert.Equal(t, []string{"0 files", "1 file", "2 files"}, []string{message.Count(0, "file"), message.Count(int64(1), "file"), message.Count(2, "file")})
}

func TestOneLine(t *testing.T) {
	assert.Equal(t, `a\nb\x1bc m`+"\u00fc"+`ller \u202e \ufffd`, message.OneLine("a\nb\x1bc m\u00fcller \u202e \xff"))
}
