package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// start is an arbitrary time in 2026, not aligned to anything.
var start = time.Unix(1_790_000_123, 456_789_012)

func mustLoad(tb testing.TB, text string) *Set {
	tb.Helper()
	set, err := Load([]File{{Name: "test.yaml", Data: []byte(text)}}, Options{})
	require.NoError(tb, err)
	return set
}

// world is an engine on a clock that the test moves.
type world struct {
	tb    testing.TB
	clock *sluice.ManualClock
	*Engine
	resp Response
}

func newWorld(tb testing.TB, c Config, text string) *world {
	tb.Helper()
	w := &world{tb: tb, clock: sluice.NewManualClock(start)}
	c.Clock = w.clock
	e, err := New(mustLoad(tb, text), c)
	require.NoError(tb, err)
	w.Engine = e
	return w
}

// entries reads "key=value,key=value".
func entries(s string) []Entry {
	var out []Entry
	for _, p := range strings.Split(s, ",") {
		k, v, _ := strings.Cut(p, "=")
		out = append(out, Entry{k, v})
	}
	return out
}

func describe(s string) Descriptor { return Descriptor{Entries: entries(s)} }

func withHits(s string, n uint64) Descriptor { return Descriptor{Entries: entries(s), Hits: &n} }

func override(s string, n uint32, u Unit) Descriptor {
	return Descriptor{Entries: entries(s), Override: &Override{n, u}}
}

// ask decides on descriptors of domain d.
func (w *world) ask(ds ...Descriptor) *Response {
	w.tb.Helper()
	require.NoError(w.tb, w.Decide(&Request{Domain: "d", Descriptors: ds}, &w.resp))
	return &w.resp
}

// one asks for one descriptor, and returns its status.
func (w *world) one(s string) Status {
	w.tb.Helper()
	return w.ask(describe(s)).Statuses[0]
}

// left is how much is left of a descriptor's limit, without counting.
func (w *world) left(s string) int {
	w.tb.Helper()
	return int(w.ask(withHits(s, 0)).Statuses[0].Remaining)
}

func (w *world) series(path string) Series {
	w.tb.Helper()
	for _, s := range w.Series() {
		if s.Path == path {
			return s
		}
	}
	w.tb.Fatalf("no series %q in %v", path, w.Series())
	return Series{}
}
