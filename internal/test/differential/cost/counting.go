//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A counting counts what processes ask of the system: calls of it, if there is perf(1) to count them, and how often a thread
// is put aside for another one, or to wait.
type counting struct {
	of          *subject
	perf        *exec.Cmd // or nil
	out         bytes.Buffer
	before      float64
	systemCalls float64 // 0 without perf
	switches    float64
}

// countingOf begins to count.
func countingOf(s *subject) (*counting, error) {
	c := &counting{of: s}
	if path, err := exec.LookPath("perf"); err == nil {
		var pids []string
		for _, pid := range s.pids {
			pids = append(pids, strconv.Itoa(pid))
		}
		c.perf = exec.Command(path, "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", strings.Join(pids, ","))
		c.perf.Stderr = &c.out
		if err := c.perf.Start(); err != nil {
			return nil, err
		}
		time.Sleep(100 * time.Millisecond) // it says nothing when it is ready
	}
	var err error
	c.before, err = switches(s)
	return c, err
}

// end ends the counting.
func (c *counting) end() error {
	after, err := switches(c.of)
	c.switches = after - c.before
	if c.perf == nil || err != nil {
		return err
	}
	_ = c.perf.Process.Signal(unix.SIGINT)
	_ = c.perf.Wait() // it ends by the signal
	n, _, _ := strings.Cut(strings.TrimSpace(c.out.String()), ",")
	c.systemCalls, _ = strconv.ParseFloat(n, 64) // where it may not count there is a text
	return nil
}

// switches returns how often threads of a subject have been put aside. Threads of Go that have ended are few.
func switches(s *subject) (sum float64, err error) {
	for _, pid := range s.pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil {
			return 0, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if errors.Is(err, os.ErrNotExist) {
				continue
			} else if err != nil {
				return 0, err
			}
			for line := range strings.Lines(string(text)) {
				if name, value, _ := strings.Cut(line, ":"); strings.HasSuffix(name, "voluntary_ctxt_switches") {
					n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
					if err != nil {
						return 0, fmt.Errorf("%s: %q: %w", file, line, err)
					}
					sum += n
				}
			}
		}
	}
	return sum, nil
}

// traced is how long goroutines are traced.
const traced = time.Second

// goroutineStarts returns how often goroutines of the first process of a subject begin to run, in the time traced.
func (s *subject) goroutineStarts() (float64, error) {
	resp, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/trace?seconds=%d", s.debug[0], traced/time.Second))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	file, err := os.CreateTemp("", "sluice-cost-*.trace")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	_, err = io.Copy(file, resp.Body)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	text, err := exec.Command("go", "tool", "trace", "-d=parsed", file.Name()).Output()
	if err != nil {
		return 0, fmt.Errorf("go tool trace: %w", err)
	}
	n := 0
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "Runnable->Running") {
			n++
		}
	}
	return float64(n), lines.Err()
}
