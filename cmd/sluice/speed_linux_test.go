package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// BenchmarkLog is the commands as processes of their own, on a log of 100,000 clients by Zipf's law: lines a second, processor time, and the most memory,
// which it fails above maxResident.
func BenchmarkLog(b *testing.B) {
	lines := 2_000_000
	if testing.Short() {
		lines = 100_000
	}
	path := writeZipf(b, lines, 100_000)
	for _, command := range []string{"replay", "recommend"} {
		b.Run(command, func(b *testing.B) { benchmarkCommand(b, lines, command, path) })
	}
}

const maxResident = 64e6

func benchmarkCommand(b *testing.B, lines int, args ...string) {
	var busy time.Duration
	var resident int64
	for b.Loop() {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), servetest.AsProgram+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(b, err, "%s", out)
		busy += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		resident = max(resident, int64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)<<10)
	}
	all := float64(b.N) * float64(lines)
	b.ReportMetric(all/b.Elapsed().Seconds(), "lines/s")
	b.ReportMetric(busy.Seconds()/all*1e6, "cpu-s/Mline")
	b.ReportMetric(float64(resident)/1e6, "MB")
	require.Less(b, float64(resident), maxResident)
}

// writeZipf makes a week's log.
func writeZipf(b *testing.B, lines, clients int) string {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.01, 1, uint64(clients-1))
	path := filepath.Join(b.TempDir(), "zipf.log")
	file, err := os.Create(path)
	require.NoError(b, err)
	out := bufio.NewWriter(file)
	for i := range lines {
		at := time.Unix(1772409600, 0).UTC().Add(time.Duration(i) * 7 * 24 * time.Hour / time.Duration(lines))
		c := zipf.Uint64()
		fmt.Fprintf(out, "10.%d.%d.%d - - [%s] \"GET /items/%d HTTP/1.1\" 200 %d \"https://example.com/page\" \"Mozilla/5.0 (X11; Linux x86_64)\"\n",
			c>>16, c>>8&255, c&255, at.Format("02/Jan/2006:15:04:05 -0700"), rng.IntN(1000), rng.IntN(5000))
	}
	require.NoError(b, out.Flush())
	require.NoError(b, file.Close())
	return path
}
