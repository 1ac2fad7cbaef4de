package stall

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

var quickTails = TailConfig{Keys: 1000, LogKeys: 100, LogUnits: 50, Repeats: 3}

// The rows are those of sluice itself, in small: a row for each situation.
func TestRunTails_EverySituation(t *testing.T) {
	c := quickTails
	c.Idle = 20 * time.Millisecond
	rows, left, err := RunTails(peers.All(), c, silent)
	require.NoError(t, err)
	assert.Empty(t, left)
	keys := map[string]int{}
	for _, row := range rows {
		keys[row.Situation+" "+row.Subject] = row.Keys
		assert.Positive(t, row.Calls, row.Situation)
		assert.LessOrEqual(t, row.P50, row.Max)
		assert.Positive(t, row.BaselineMax)
	}
	assert.Equal(t, map[string]int{
		"growth sluice GCRA": 1000, "sweep sluice GCRA": 1000, "flood sluice GCRA": 1000, "set-limit sluice GCRA": 1000, "snapshot sluice GCRA": 1000,
		"log sluice sliding log": 100,
	}, keys)
	assert.Equal(t, int64(500), rows[2].Calls, "half of the keys are turned over")
}

// changer counts the changes of its limit.
type changer struct {
	*fake
	changes *[]peers.Options
	err     error
}

func (c changer) SetLimit(o peers.Options) error {
	*c.changes = append(*c.changes, o)
	return c.err
}

func TestSetLimit_ChangesTheLimitOfAllKeys(t *testing.T) {
	var made, changes []peers.Options
	s, closed := subject(peers.Subject{}, fake{})
	newFake, broken := s.New, error(nil)
	s.New = func(o peers.Options) (peers.Limiter, error) {
		l, err := newFake(o)
		made = append(made, o)
		return changer{l.(*fake), &changes, broken}, err
	}
	run, baseline, err := setLimit(s, newSetup(quick))
	require.NoError(t, err)
	assert.Positive(t, run.TotalCount())
	assert.Equal(t, run.TotalCount(), baseline.TotalCount())
	require.Len(t, changes, 1)
	assert.NotEqual(t, made[0].Rate, changes[0].Rate)
	assert.Equal(t, 1, *closed)

	broken = errors.New("no")
	_, _, err = setLimit(s, newSetup(quick))
	assert.Equal(t, broken, err)

	s, _ = subject(peers.Subject{}, fake{})
	_, _, err = setLimit(s, newSetup(quick))
	assert.Equal(t, omitted("its limit cannot be changed"), err)

	forgetful, _ := subject(peers.Subject{}, fake{most: 10})
	newFake, broken = forgetful.New, nil
	forgetful.New = s.New
	forgetful.New = func(o peers.Options) (peers.Limiter, error) {
		l, err := newFake(o)
		return changer{l.(*fake), &changes, nil}, err
	}
	_, _, err = setLimit(forgetful, newSetup(quick))
	assert.EqualError(t, err, "it holds 10 keys, want 1024")
}

// forger writes a snapshot of so many keys, or fails.
type forger struct {
	*fake
	keys int
	err  error
}

func (f forger) Snapshot(w io.Writer) error {
	_, _ = w.Write(make([]byte, 16*f.keys))
	return f.err
}

func TestSnapshot_HasAllKeys(t *testing.T) {
	s, _ := subject(peers.Subject{}, fake{})
	newFake, made := s.New, forger{keys: 1024}
	s.New = func(o peers.Options) (peers.Limiter, error) {
		assert.True(t, o.Stable)
		l, err := newFake(o)
		made.fake = l.(*fake)
		return made, err
	}
	run, baseline, err := snapshot(s, newSetup(quick))
	require.NoError(t, err)
	assert.Equal(t, run.TotalCount(), baseline.TotalCount())

	made.keys = 1023
	_, _, err = snapshot(s, newSetup(quick))
	assert.EqualError(t, err, "it wrote 16368 bytes, want 16384 or more")

	made.err = errors.New("no")
	_, _, err = snapshot(s, newSetup(quick))
	assert.Equal(t, made.err, err)
}

func TestRunTails_FailuresAreNamedAndWhatCannotBeIsLeftOut(t *testing.T) {
	name := peers.Subject{Name: "sluice GCRA", Kind: peers.Ours, Clock: peers.System}
	broken := name
	broken.New = func(peers.Options) (peers.Limiter, error) { return nil, errors.New("no") }
	_, _, err := RunTails([]peers.Subject{broken}, quickTails, silent)
	assert.EqualError(t, err, "tails of sluice GCRA, growth: no")

	name.Bounded = true
	s, _ := subject(name, fake{})
	rows, left, err := RunTails([]peers.Subject{s}, quickTails, silent)
	require.NoError(t, err)
	assert.Len(t, rows, 2, "growth and flood")
	require.Len(t, left, 3)
	assert.Equal(t, results.Omission{Subject: "sluice GCRA", Measurement: "tails, set-limit", Reason: "its limit cannot be changed"}, left[1])
	assert.Equal(t, results.Omission{Subject: "sluice GCRA", Measurement: "tails, snapshot", Reason: "it cannot be written down"}, left[2])
}

// Time that the machine adds to some of the runs does not count.
func TestTail_TheCalmestRunAndTheCalmestBaselineCount(t *testing.T) {
	of := func(value int64) *hdrhistogram.Histogram {
		h := hdrhistogram.New(1, int64(longest), 3)
		require.NoError(t, h.RecordValue(value))
		return h
	}
	maxima := [][2]int64{{900, 20}, {500, 700}, {600, 10}}
	at := -1
	rows := collection{pick: calmestRun, log: silent}
	require.NoError(t, rows.add("x", peers.Subject{Name: "s"}, func(peers.Subject, setup) (run, baseline *hdrhistogram.Histogram, err error) {
		at++
		return of(maxima[at][0]), of(maxima[at][1]), nil
	}, setup{Config: Config{Keys: 7, Repeats: len(maxima)}}))
	r := rows.measured[0]
	assert.Equal(t, []int64{500, 10, 490, 7}, []int64{r.Max, r.BaselineMax, r.Own(), int64(r.Keys)})
	for want, s := range map[int64]results.Stall{
		40: {Max: 100, BaselineMax: 60},
		0:  {Max: 100, BaselineMax: 160},
	} {
		assert.Equal(t, want, s.Own())
	}
}

// The empty call is made for as long, not as often, where the longest one counts.
func TestAsMuch(t *testing.T) {
	often := setup{}.asMuch(3, time.Hour)
	assert.True(t, often(2))
	assert.False(t, often(3))
	long := setup{Config: Config{AsLong: true}}.asMuch(3, time.Hour)
	assert.True(t, long(1e9))
	over := setup{Config: Config{AsLong: true}}.asMuch(3, 0)
	assert.True(t, over(0), "once at least")
	assert.False(t, over(1))
}

func TestTailConfig_NeedsMemory(t *testing.T) {
	assert.EqualValues(t, 1_600_000_000, TailConfig{Keys: 1e7}.Needs())
	assert.EqualValues(t, 2_000_000_000, TailConfig{LogKeys: 100_000, LogUnits: 1000}.Needs())
}
