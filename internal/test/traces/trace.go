package traces

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Trace is shared by all random comparisons: the sources of chance and time, the
// comparison, and the calls so far. As a string it is its last calls, for the message of a
// failure; until there is one, nothing is formatted. C is the library's Config.
type Trace[C any] struct {
	TB    testing.TB
	Rng   *rand.Rand
	Clock Clock
	Cfg   C
	calls []tracedCall
}

// A Clock is one that stands still until it is set.
type Clock interface {
	Now() int64
	Set(t time.Time)
	Advance(d time.Duration)
}

type tracedCall struct {
	now    int64
	format string
	args   []any
}

// Note keeps a call. The arguments must not change afterwards.
func (tr *Trace[C]) Note(format string, args ...any) {
	tr.calls = append(tr.calls, tracedCall{tr.Clock.Now(), format, args})
}

func (tr *Trace[C]) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%#v", tr.Cfg)
	for _, c := range tr.calls[max(0, len(tr.calls)-40):] {
		fmt.Fprintf(&b, "\nat %d: ", c.now)
		fmt.Fprintf(&b, c.format, c.args...)
	}
	return b.String()
}

// Equal demands that two comparable values are the same.
func (tr *Trace[C]) Equal(want, got any, what string) {
	if want != got {
		require.Equal(tr.TB, want, got, "%s\n%s", what, tr)
	}
}

// Equal is require.Equal for a million comparisons.
func Equal[T comparable](tb testing.TB, want, got T, msg ...any) {
	if want != got {
		tb.Helper()
		require.Equal(tb, want, got, msg...)
	}
}
