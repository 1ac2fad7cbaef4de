package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openTerminal returns both ends of a terminal that nobody looks at.
func openTerminal(t *testing.T) (seen, terminal *os.File) {
	t.Helper()
	seen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { seen.Close() })
	var number, unlock int32
	for request, value := range map[uintptr]*int32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlock} {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, seen.Fd(), request, uintptr(unsafe.Pointer(value)))
		require.Zero(t, errno)
	}
	terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return seen, terminal
}

// TestReplay_ProgressOnATerminalOnly: the line is drawn on a terminal, and gone at the end; its only control
// character is the carriage return. In a pipe there is nothing.
func TestReplay_ProgressOnATerminalOnly(t *testing.T) {
	path := writeFile(t, strings.Repeat(smallLog, 1000))
	program := func(term string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "replay", path)
		cmd.Env = append(os.Environ(), asProgram+"=1", "NO_COLOR=1", "TERM="+term)
		return cmd
	}
	for _, term := range []string{"xterm", "dumb"} {
		seen, terminal := openTerminal(t)
		cmd := program(term)
		cmd.Stderr = terminal
		out, err := cmd.Output()
		require.NoError(t, err)
		assert.Contains(t, string(out), "4000 requests of 2 clients")
		terminal.Close()
		drawn, _ := io.ReadAll(seen) // ends with an error when nobody has the other end
		if term == "dumb" {
			assert.Empty(t, drawn)
			continue
		}
		assert.Contains(t, string(drawn), "] 100%  ")
		assert.True(t, strings.HasSuffix(string(drawn), "\r"+strings.Repeat(" ", 78)+"\r"), "%q", drawn)
		assert.NotRegexp(t, `[\x00-\x0c\x0e-\x1f]`, string(drawn))
	}
	out, err := program("xterm").CombinedOutput()
	require.NoError(t, err)
	assert.NotContains(t, string(out), "\r")
}
