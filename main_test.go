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

// crowded reports whether the suite runs with home slots cut, which makes every
// probe long: tests with very many keys use fewer.
func crowded() bool { return *homeBits < 64 }

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
	l, err := newLimiter(c, homes())
	require.NoError(tb, err)
	return l
}

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
		t.Run(fmt.Sprintf("bits=%d", bits), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.short", "-test.timeout="+timeLeft(t), fmt.Sprintf("-homes=%d", bits))
			out, err := cmd.CombinedOutput()
			if errors.Is(err, syscall.ENOEXEC) {
				t.Skip("this machine runs the tests under an emulator, and cannot start them by itself")
			}
			require.NoError(t, err, "%s", out)
		})
	}
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

// slotsOf returns how many slots all tables of l have.
func slotsOf(l *Limiter) (n int) {
	for i := range l.shards {
		n += len(l.shards[i].table.Load().slots)
	}
	return n
}

// wordOf returns the word of id under a one-word algorithm.
func wordOf(l *Limiter, id uint64) uint64 {
	if at := l.shardOf(id).locate(id); at.slot != nil {
		return at.slot.released()
	}
	return 0
}
