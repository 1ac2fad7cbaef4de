package stall

import (
	"errors"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
)

// fake is a limiter of which the tests choose what it says about its keys.
type fake struct {
	seen   map[string]bool
	most   int // 0: no bound
	mute   bool
	closed *int
}

func (f *fake) Allow(key string) bool {
	if f.most == 0 || len(f.seen) < f.most {
		f.seen[key] = true
	}
	return true
}

func (f *fake) Keys() int {
	if f.mute {
		return -1
	}
	return len(f.seen)
}

func (f *fake) Sweep() {}

func (f *fake) Close() { *f.closed++ }

// subject makes fakes as given.
func subject(s peers.Subject, f fake) (peers.Subject, *int) {
	f.closed = new(int)
	if s.Name == "" {
		s.Name = "fake"
	}
	s.New = func(o peers.Options) (peers.Limiter, error) {
		l := f
		l.seen = map[string]bool{}
		if s.Bounded {
			l.most += o.MaxKeys
		}
		return &l, nil
	}
	return s, f.closed
}

var quick = Config{Keys: 1 << 10, Repeats: 3}

func silent(string, ...any) {}

func TestRun_RowsOfTheSituationsThatApply(t *testing.T) {
	grows, _ := subject(peers.Subject{Name: "grows"}, fake{})
	bounded, closed := subject(peers.Subject{Name: "bounded", Bounded: true}, fake{})
	bare, _ := subject(peers.Subject{Name: "bare", Kind: peers.Bare}, fake{})
	rows, left, err := Run([]peers.Subject{grows, bounded, bare}, quick, silent)
	require.NoError(t, err)
	var got []string
	for _, row := range rows {
		got = append(got, row.Situation+" "+row.Subject)
		assert.EqualValues(t, quick.Keys, row.Calls)
		assert.Positive(t, row.P50)
		assert.LessOrEqual(t, row.P50, row.P9999)
		assert.LessOrEqual(t, row.P9999, row.Max)
		assert.LessOrEqual(t, row.BaselineP9999, row.BaselineMax)
	}
	assert.Equal(t, []string{"growth grows", "growth bounded", "flood bounded"}, got)
	reasons := map[string]string{}
	for _, o := range left {
		reasons[o.Measurement+" "+o.Subject] = o.Reason
	}
	assert.Equal(t, map[string]string{
		"stall, growth bare":   "it has no keys",
		"stall, sweep grows":   "it drops no keys",
		"stall, sweep bounded": "it drops no keys",
		"stall, sweep bare":    "it has no keys",
		"stall, flood grows":   "it has no bound on its keys",
		"stall, flood bare":    "it has no keys",
	}, reasons)
	assert.Equal(t, 2*quick.Repeats, *closed)
}

func TestSweep_LeavesOutWhatDoesNotSweep(t *testing.T) {
	for want, f := range map[string]fake{
		"it cannot be asked to sweep: of 1280 keys, 1024 idle ones, 1280 were left":     {},
		"it sweeps when it pleases and cannot tell its keys, so that nobody knows when": {mute: true},
		"it swept by itself before it was asked to: 10 keys of 1280 were left":          {most: 10},
	} {
		s, closed := subject(peers.Subject{Sweeps: true}, f)
		_, _, err := sweep(s, newSetup(quick))
		assert.Equal(t, omitted(want), err)
		assert.Equal(t, 1, *closed, want)
	}
}

func TestSweep_TimesTheCallsBesideIt(t *testing.T) {
	s, _ := subject(peers.Subject{Sweeps: true}, fake{})
	s.New = func(peers.Options) (peers.Limiter, error) { return &sweeper{}, nil }
	run, baseline, err := sweep(s, newSetup(quick))
	require.NoError(t, err)
	assert.Positive(t, run.TotalCount())
	assert.Equal(t, run.TotalCount(), baseline.TotalCount())
}

// sweeper has nothing that calls and the sweep would have to share.
type sweeper struct{ swept bool }

func (s *sweeper) Allow(string) bool { return true }
func (s *sweeper) Sweep()            { s.swept = true }
func (s *sweeper) Close()            {}
func (s *sweeper) Keys() int {
	if s.swept {
		return liveKeys
	}
	return quick.Keys + liveKeys
}

func TestRun_WrongNumberOfKeysIsAnError(t *testing.T) {
	forgetful, closed := subject(peers.Subject{Name: "forgetful"}, fake{most: 10})
	_, _, err := Run([]peers.Subject{forgetful}, quick, silent)
	assert.EqualError(t, err, "stall of forgetful, growth: it holds 10 keys, want 1024")
	assert.Equal(t, 1, *closed)

	greedy, _ := subject(peers.Subject{Name: "greedy", Bounded: true}, fake{most: 1})
	_, _, err = flood(greedy, newSetup(quick))
	assert.EqualError(t, err, "it holds 1025 keys, want 768 to 1024")

	broken := peers.Subject{Name: "broken", New: func(peers.Options) (peers.Limiter, error) { return nil, errors.New("no") }}
	_, _, err = Run([]peers.Subject{broken}, quick, silent)
	assert.EqualError(t, err, "stall of broken, growth: no")
}

func TestMedianRun_IsTheOneWithTheMedianTail(t *testing.T) {
	of := func(values ...int64) *hdrhistogram.Histogram {
		h := hdrhistogram.New(1, int64(longest), 3)
		for _, v := range values {
			require.NoError(t, h.RecordValue(v))
		}
		return h
	}
	a, b, c := of(1, 500), of(400, 20), of(3, 30)
	assert.Same(t, b, medianRun([]*hdrhistogram.Histogram{a, b, c}))
	assert.Same(t, a, medianRun([]*hdrhistogram.Histogram{a, b}), "the worse of two")
}
