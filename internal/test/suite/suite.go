// Package suite runs the tests of a package again, with crowded tables: with -homes every table
// is one long probe, and with -most it is split when it has a few ids. Only tests use it.
package suite

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/crowding"
	"github.com/sluice-go/sluice/internal/test/depth"
)

func init() {
	flag.Func("homes", "bits of an id that choose its home slot, in one shard (default all)", func(s string) error {
		bits, err := strconv.ParseUint(s, 10, 6)
		if err == nil && !crowding.Built {
			err = errors.New("it needs -tags=crowded, too")
		}
		crowding.Homes = 1 << bits
		return err
	})
	flag.Func("most", "ids of a table before it is split (default as many as are good)", func(s string) (err error) {
		crowding.IDs, err = strconv.Atoi(s)
		return err
	})
}

// Crowded reports whether the tests run with home slots cut, which makes every
// probe long: tests with very many keys use fewer.
func Crowded() bool { return crowding.Homes < math.MaxUint64 }

// Splits reports whether the tests run with tables of a few ids each: tests of one table of
// many do not.
func Splits() bool { return crowding.IDs < math.MaxInt }

// CrowdedHomes runs all tests of the package again with home slots cut to 16 and to one, in a
// binary that is built for that.
func CrowdedHomes(t *testing.T) {
	if !depth.Full() {
		t.Skip("SLUICE_DEPTH=full runs the tests again with crowded homes")
	}
	binary := filepath.Join(t.TempDir(), "crowded.test")
	out, err := exec.Command("go", "test", "-c", "-tags=crowded", "-o", binary).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Run("all", func(t *testing.T) { // returns when the parallel ones have ended, before the binary goes
		for _, bits := range []int{4, 0} {
			t.Run(fmt.Sprintf("bits=%d", bits), func(t *testing.T) { again(t, binary, fmt.Sprintf("-homes=%d", bits)) })
		}
	})
}

// TablesOfAFewIDs runs the tests that match a pattern again, with tables that are split when they
// have so many ids, so that all that moves a key meets splits and merges.
func TablesOfAFewIDs(t *testing.T, ids int, run string) {
	if !depth.Full() {
		t.Skip("SLUICE_DEPTH=full runs the tests again with tables of a few ids")
	}
	again(t, os.Args[0], fmt.Sprintf("-most=%d", ids), "-test.run="+run)
}

// again runs the short tests of a binary in a process of its own.
func again(t *testing.T, binary string, args ...string) {
	t.Parallel()
	cmd := exec.Command(binary, append(args, "-test.short", "-test.timeout="+timeLeft(t))...)
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
