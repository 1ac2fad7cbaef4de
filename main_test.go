package sluice

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/depth"
)

// homeBits cuts the bits of an id that choose where in a table its probe starts,
// and puts all keys into one shard. At 0 every key probes from slot 0.
var homeBits = flag.Int("homes", 64, "bits of an id that choose its home slot")

// mostIn bounds how many ids a table has before it is split.
var mostIn = flag.Int("most", math.MaxInt, "ids of a table before it is split")

// crowded reports whether the suite runs with home slots cut, which makes every
// probe long: tests with very many keys use fewer.
func crowded() bool { return *homeBits < 64 }

// splits reports whether the suite runs with tables of a few ids each: tests of one table of
// many do not.
func splits() bool { return *mostIn < math.MaxInt }

// homes is the bound that newLimiter takes, a power of two.
func homes() uint64 {
	if !crowded() {
		return math.MaxUint64
	}
	return 1 << *homeBits
}

// mustNew is New for tests; all of them make their limiters with it.
func mustNew(tb testing.TB, c Config) *Limiter {
	tb.Helper()
	l, err := newForTests(c)
	require.NoError(tb, err)
	return l
}

func newForTests(c Config) (*Limiter, error) { return newLimiter(c, homes(), *mostIn) }

// mustEqual is require.Equal for what is compared a million times.
func mustEqual[T comparable](tb testing.TB, want, got T, msg ...any) {
	if want != got {
		tb.Helper()
		require.Equal(tb, want, got, msg...)
	}
}

// start is an arbitrary time in 2026, not aligned to anything.
var start = time.Unix(1_790_000_123, 456_789_012)

// TestSuite_CrowdedHomes runs the whole suite again with home slots cut to 16 and
// to one, so that every table is one long probe.
func TestSuite_CrowdedHomes(t *testing.T) {
	if !depth.Full() {
		t.Skip("SLUICE_DEPTH=full runs the suite again with crowded homes")
	}
	for _, bits := range []int{4, 0} {
		t.Run(fmt.Sprintf("bits=%d", bits), func(t *testing.T) { runAgain(t, fmt.Sprintf("-homes=%d", bits)) })
	}
}

// TestSuite_TablesOfAFewIDs runs again what decides and moves, with tables that are split when
// they have three ids, so that all that moves a key meets splits and merges.
func TestSuite_TablesOfAFewIDs(t *testing.T) {
	if !depth.Full() {
		t.Skip("SLUICE_DEPTH=full runs the suite again with tables of a few ids")
	}
	runAgain(t, "-most=3", "-test.run=^Test(Model|Concurrent|Table|Directory|Rebuild|Restore|Snapshot|SetLimit|SetKeyLimit|SetPlan|Cells|"+
		"Sweep|Ledger|Wait|Reserve|TakeAll|TakeUpTo|Charge|Insert|Growth|Cancel|Receipt|Fuzz|WithLimit)")
}

// runAgain runs the short suite in a process of its own.
func runAgain(t *testing.T, args ...string) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], append(args, "-test.short", "-test.timeout="+timeLeft(t))...)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skip("this machine runs the tests under an emulator, and cannot start them by itself")
	}
	require.NoError(t, err, "%s", out)
}

// timeLeft returns the -test.timeout of a run that is part of this one: it ends a little
// earlier, to say itself where it stood. No limit of its own fits every machine.
func timeLeft(t *testing.T) string {
	deadline, ok := t.Deadline()
	if !ok {
		return "0"
	}
	return max(time.Until(deadline)-10*time.Second, time.Second).String()
}

// peekAt is Peek at a time of the test's choosing.
func peekAt(l *Limiter, id uint64, now int64, cost int) (d Decision) {
	l.peekAt(&d, id, now, cost)
	return d
}

// setAlgorithm puts another algorithm, of the same words, in the place of the limiter's.
func setAlgorithm(l *Limiter, alg algorithm, wide wideAlgorithm) {
	p := l.policyOf(0)
	p.alg, p.wide = alg, wide
}

// tablesOf returns all tables of l, which is at rest.
func tablesOf(l *Limiter) (all []*table) {
	for i := range l.shards {
		for _, t := range l.tablesLocked(&l.shards[i]) {
			all = append(all, t)
		}
	}
	return all
}

// slotsOf returns how many slots all tables of l have.
func slotsOf(l *Limiter) (n int) {
	for _, t := range tablesOf(l) {
		n += len(t.slots)
	}
	return n
}

// wordOf returns the word of id under a one-word algorithm.
func wordOf(l *Limiter, id uint64) uint64 {
	if at := l.locate(id); at.slot != nil {
		return at.slot.released()
	}
	return 0
}
