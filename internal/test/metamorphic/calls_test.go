package metamorphic

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// Calls as text, a line each, below the configuration that they are made under:
//
//	with gcra 2/s burst 4
//	500ms take 1 key b: admitted 0 0s 2s
//	1.4s debit 4 ago 20ms
//	2s limit 0 to 3/m
//
// The first time is the clock's. Before it is made, a call goes through each word in turn: its cost, or how many ns a
// block is long; its key, if it is not k; how long before the clock's time it is made; and the limit of a change, or
// the one that it brings. A
// time below that of a line before is an older time, too. Behind a colon is the outcome by hand, with Remaining,
// RetryAfter and ResetAfter; the model is asked in any case.

// A call is one that a tracer makes of its limiters and of their model.
type call struct {
	now   int64 // the clock's
	name  string
	cost  int64
	key   string
	ago   int64 // the call's time is so much before
	limit sluice.Limit
	want  string // the outcome by hand, or ""
}

func (c call) String() string {
	s := fmt.Sprintf("%v %s %d", time.Duration(c.now), c.name, c.cost)
	if c.key != "k" {
		s += " key " + c.key
	}
	if c.ago != 0 {
		s += fmt.Sprint(" ago ", time.Duration(c.ago))
	}
	if c.limit != (sluice.Limit{}) {
		s += fmt.Sprint(" to ", c.limit)
	}
	return s
}

// handStart is the time 0s of traces that say no other: the edge of a minute.
const handStart = 1_790_000_100 * int64(time.Second)

// A recording is calls, and the configuration that they are made under.
type recording struct {
	name  string
	c     sluice.Config
	older bool // there are older times, and so nothing is swept
	calls []call
}

func (r recording) String() string {
	s := fmt.Sprintf("# %s\nwith %v %v", r.name, r.c.Algorithm, r.c.Limit)
	for _, option := range []struct {
		name string
		set  bool
		v    any
	}{{"offset", r.c.Offset != 0, r.c.Offset}, {"soft", r.c.Soft != 0, r.c.Soft}, {"block", r.c.BlockFor != 0, r.c.BlockFor}, {"denied", r.c.CountDenied, 1}, {"keys", r.c.MaxKeys != 0, r.c.MaxKeys}, {"older", r.older, 1}, {"from", true, 0}} {
		if option.set {
			s += fmt.Sprintf(" %s %v", option.name, option.v)
		}
	}
	for _, c := range r.calls {
		s += "\n" + c.String()
	}
	return s + "\n"
}

// parse reads recordings, one for each line that begins with "with", which stand above the same calls.
func parse(t testing.TB, text string) (all []recording) {
	for _, part := range strings.Split(text, "\n\n") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(part, "# "), "\n")
		rows := strings.Split(strings.TrimSpace(rest), "\n")
		calls := slices.IndexFunc(rows, func(row string) bool { return !strings.HasPrefix(row, "with ") })
		require.Positive(t, calls, "%s: want a configuration, then calls", name)
		for _, with := range rows[:calls] {
			r, from := recording{name: name}, handStart
			r.c, r.older, from = parseConfig(t, strings.TrimPrefix(with, "with "), from)
			now := from
			for _, row := range rows[calls:] {
				c := parseCall(t, row, from)
				if c.now < now {
					c.now, c.ago = now, now-c.now
				}
				now = c.now
				r.older = r.older || c.ago != 0
				r.calls = append(r.calls, c)
			}
			all = append(all, r)
		}
	}
	return all
}

// pairs cuts "a b c d" into pairs; a burst stays with its limit.
func pairs(t testing.TB, text string) (all [][2]string) {
	words := strings.Fields(strings.ReplaceAll(text, " burst ", "_burst_"))
	require.Zero(t, len(words)%2, "%q: want a value for each word", text)
	for i := 0; i < len(words); i += 2 {
		all = append(all, [2]string{words[i], strings.ReplaceAll(words[i+1], "_", " ")})
	}
	return all
}

func parseConfig(t testing.TB, text string, start int64) (c sluice.Config, older bool, from int64) {
	from = start
	for i, p := range pairs(t, text) {
		switch {
		case i == 0:
			require.NoError(t, c.Algorithm.UnmarshalText([]byte(p[0])), text)
			require.NoError(t, c.Limit.UnmarshalText([]byte(p[1])), text)
		case p[0] == "offset":
			c.Offset = durationOf(t, p[1])
		case p[0] == "soft":
			c.Soft = int(numberOf(t, p[1]))
		case p[0] == "block":
			c.BlockFor = durationOf(t, p[1])
		case p[0] == "keys":
			c.MaxKeys = int(numberOf(t, p[1]))
		case p[0] == "denied":
			c.CountDenied = true
		case p[0] == "older":
			older = true
		case p[0] == "from":
			from = numberOf(t, p[1])
		default:
			require.Fail(t, "no such option", text)
		}
	}
	return c, older, from
}

func parseCall(t testing.TB, row string, from int64) call {
	row, _, _ = strings.Cut(row, " #")
	row, want, _ := strings.Cut(row, ": ")
	c := call{key: "k", want: want}
	at, rest, _ := strings.Cut(row, " ")
	c.now = from + int64(durationOf(t, at))
	for i, p := range pairs(t, rest) {
		switch {
		case i == 0:
			c.name, c.cost = p[0], numberOf(t, p[1])
		case p[0] == "key":
			c.key = p[1]
		case p[0] == "ago":
			c.ago = int64(durationOf(t, p[1]))
		case p[0] == "to":
			require.NoError(t, c.limit.UnmarshalText([]byte(p[1])), row)
		default:
			require.Fail(t, "no such word", row)
		}
	}
	return c
}

func numberOf(t testing.TB, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

func durationOf(t testing.TB, text string) time.Duration {
	if text == "never" {
		return sluice.Never
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// decisionOf reads "admitted 0 0s 2s".
func decisionOf(t testing.TB, text string, limit int) sluice.Decision {
	var outcome, retry, reset string
	d := sluice.Decision{Limit: limit}
	_, err := fmt.Sscanf(text, "%s %d %s %s", &outcome, &d.Remaining, &retry, &reset)
	require.NoError(t, err, text)
	d.Allowed, d.RetryAfter, d.ResetAfter = outcome == "admitted", durationOf(t, retry), durationOf(t, reset)
	return d
}

// A recorder writes the calls of a tracer to a file if its test fails, as few as still fail.
type recorder struct {
	testing.TB
	tr *tracer
}

func (r *recorder) FailNow() {
	r.TB.Helper()
	rec := recording{r.TB.Name(), r.tr.first, r.tr.older, shortened(r.tr)}
	if len(rec.calls) == 0 {
		r.TB.Log("the calls alone do not fail again")
	} else if path, err := rec.save(); err != nil {
		r.TB.Log(err)
	} else {
		r.TB.Logf("%d of %d calls fail as well: go test ./internal/metamorphic -run Replay -file %s\n%s", len(rec.calls), len(r.tr.calls), path, rec)
	}
	r.TB.FailNow()
}

// save writes the calls to a new file.
func (r recording) save() (path string, err error) {
	f, err := os.CreateTemp("", "sluice-calls-*.txt")
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = f.WriteString(r.String())
	return f.Name(), err
}

// shortened returns calls of tr without which nothing fails, or none if they do not fail again. It leaves out
// halves, then quarters, and so on, as long as what is left fails.
func shortened(tr *tracer) []call {
	fails := func(calls []call) bool {
		return replayFails(tr.TB, recording{c: tr.first, older: tr.older, calls: calls})
	}
	calls := slices.Clone(tr.calls)
	if !fails(calls) {
		return nil
	}
	for size := (len(calls) + 1) / 2; ; size = (size + 1) / 2 {
		for from := 0; from < len(calls); {
			if less := slices.Delete(slices.Clone(calls), from, min(from+size, len(calls))); len(less) > 0 && fails(less) {
				calls = less
			} else {
				from += size
			}
		}
		if size == 1 {
			return calls
		}
	}
}

// A trial is a test that may fail.
type trial struct{ testing.TB }

// failed is the panic of a trial that fails.
type failed struct{}

func (trial) Errorf(string, ...any) {}
func (trial) FailNow()              { panic(failed{}) }
func (trial) Helper()               {}

func replayFails(tb testing.TB, rec recording) (fails bool) {
	defer func() {
		if e := recover(); e != nil {
			fails = true // by whatever
		}
	}()
	replay(trial{tb}, rec)
	return false
}

// replay makes the calls again.
func replay(tb testing.TB, rec recording) {
	tr := newPlayer(tb, rec.c, rec.older, rec.calls[0].now, 1)
	for _, c := range rec.calls {
		tr.do(c)
	}
}

var replayed = flag.String("file", "", "a file of calls for TestReplay, instead of those in testdata")

// TestReplay makes the calls of testdata, which are by hand or have failed once, and compares each with the
// outcome that was worked out by hand, if there is one, and with the model.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	if *replayed != "" {
		files = []string{*replayed}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, rec := range parse(t, string(data)) {
			t.Run(fmt.Sprint(rec.name, "/", rec.c.Algorithm), func(t *testing.T) { replay(t, rec) })
		}
	}
}

// TestRecording_IsReadAsItIsWritten: a failure is in the file, and little else.
func TestRecording_IsReadAsItIsWritten(t *testing.T) {
	rec := recording{"a name", sluice.Config{
		Algorithm: sluice.FixedWindow, Limit: sluice.PerMinute(3), Offset: time.Second, Soft: 2, BlockFor: time.Hour, CountDenied: true,
	}, true, []call{
		{now: 1, name: "take", cost: math.MinInt64, key: "k"},
		{now: math.MaxInt64, name: "limit", key: "b", ago: -5, limit: sluice.PerSecond(2).WithBurst(7)},
	}}
	require.Equal(t, []recording{rec}, parse(t, rec.String()))

	tr := newPlayer(trial{t}, sluice.Config{Limit: sluice.PerMinute(3)}, false, 0, 1)
	for i := range int64(100) {
		tr.calls = append(tr.calls, call{now: i, name: "take", cost: 1, key: "k"})
	}
	require.Empty(t, shortened(tr), "it does not fail")
	tr.calls[77].want = "admitted 2 0s 20s" // as it would be if it were the first
	require.Len(t, shortened(tr), 2)
	require.Equal(t, tr.calls[77], shortened(tr)[1])
}
