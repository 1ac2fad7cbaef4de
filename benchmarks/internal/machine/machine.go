// Package machine describes the machine and the code of a run.
package machine

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// Describe looks at this machine, this program and the clone that it is run in.
// Of the modules only those named are listed, as far as the program contains them.
func Describe(now time.Time, rounds int, modules []string) results.Machine {
	return results.Machine{
		Date:     now.UTC().Format(time.DateOnly),
		Commit:   commit(),
		Go:       runtime.Version(),
		OS:       runtime.GOOS,
		Arch:     runtime.GOARCH,
		CPU:      cmp.Or(cpu(), runtime.GOARCH),
		Cores:    runtime.NumCPU(),
		Rounds:   rounds,
		Versions: versions(modules),
	}
}

// commit asks git, since go run does not record the revision.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty=+changes").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	return modelName(f)
}

// Available is how many bytes of memory programs can have without swapping; where the
// system does not say, as many as there are.
func Available() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return math.MaxInt64
	}
	defer f.Close()
	return available(f)
}

// available reads the text of /proc/meminfo.
func available(r io.Reader) int64 {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return math.MaxInt64
}

// modelName is the first processor's, from the text of /proc/cpuinfo. A virtual machine may hide the name's number: family and model still tell
// processors apart.
func modelName(r io.Reader) string {
	values := map[string]string{}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if name = strings.TrimSpace(name); ok && values[name] == "" {
			values[name] = strings.TrimSpace(value)
		}
	}
	name := values["model name"]
	if family, model := values["cpu family"], values["model"]; name != "" && family != "" && model != "" {
		name += fmt.Sprintf(" (family %s, model %s)", family, model)
	}
	return name
}

func versions(modules []string) map[string]string {
	found := map[string]string{}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return found
	}
	for _, m := range info.Deps {
		// A module that a folder replaces has no version but the folder's: the commit.
		if m.Replace == nil && slices.Contains(modules, m.Path) {
			found[m.Path] = m.Version
		}
	}
	return found
}
