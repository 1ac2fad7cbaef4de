package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// openTerminal returns both ends of a terminal that nobody looks at.
func openTerminal(t *testing.T) (seen, terminal *os.File) {
	t.Helper()
	seen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("there is no /dev/ptmx here, and so no terminal")
	}
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
		cmd.Env = append(os.Environ(), servetest.AsProgram+"=1", "NO_COLOR=1", "TERM="+term)
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
		assert.Regexp(t, `\] +\d+%  `, string(drawn))
		assert.True(t, strings.HasSuffix(string(drawn), "\r"+strings.Repeat(" ", 78)+"\r"), "%q", drawn)
		assert.NotRegexp(t, `[\x00-\x0c\x0e-\x1f]`, string(drawn))
	}
	out, err := program("xterm").CombinedOutput()
	require.NoError(t, err)
	assert.NotContains(t, string(out), "\r")
}

// TestReplay_FollowInterrupted: SIGINT is the end of a log that is followed, and no error.
func TestReplay_FollowInterrupted(t *testing.T) {
	for _, command := range []string{"replay", "recommend"} {
		t.Run("command="+command, func(t *testing.T) { followInterrupted(t, command) })
	}
}

func followInterrupted(t *testing.T, command string) {
	t.Helper()
	noted := make(chan os.Signal, 1)
	signal.Notify(noted, os.Interrupt) // the other process would inherit that this one ignores it
	defer signal.Stop(noted)
	seen, terminal := openTerminal(t)
	cmd := exec.Command(os.Args[0], command, "--follow", writeFile(t, smallLog))
	cmd.Env = append(os.Environ(), servetest.AsProgram+"=1", "TERM=xterm")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, terminal
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	terminal.Close()
	drawn := make([]byte, 80)
	_, err := io.ReadFull(seen, drawn[:79])
	require.NoError(t, err)
	assert.Equal(t, "4 lines", strings.TrimSpace(string(drawn[:79])))
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	rest, _ := io.ReadAll(seen)
	_ = cmd.Wait()
	assert.Equal(t, cli.ExitOK, cmd.ProcessState.ExitCode())
	assert.NotContains(t, string(rest), "interrupted")
	assert.Contains(t, stdout.String(), "4 requests of 2 clients")
	assert.NotContains(t, stdout.String(), "not read to the end")
}

// TestReplay_FollowGrows: on a terminal the report of a log that is followed stands there as far as the log goes, and at the end as
// of a log that is read at once.
func TestReplay_FollowGrows(t *testing.T) {
	noted := make(chan os.Signal, 1)
	signal.Notify(noted, os.Interrupt)
	defer signal.Stop(noted)
	path := writeFile(t, smallLog)
	seen, terminal := openTerminal(t)
	cmd := exec.Command(os.Args[0], "replay", "--follow", path)
	cmd.Env = append(os.Environ(), servetest.AsProgram+"=1", "TERM=xterm")
	cmd.Stdout = terminal
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	terminal.Close()
	end := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }) // so that no read waits for what never comes
	defer end.Stop()
	var drawn []byte
	until := func(text string) {
		t.Helper()
		for buf := make([]byte, 4096); !bytes.Contains(drawn, []byte(text)); {
			n, err := seen.Read(buf)
			require.NoError(t, err, "%q", drawn)
			drawn = append(drawn, buf[:n]...)
		}
	}
	until("4 requests of 2 clients")
	for i := range 3 {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.WriteString(smallLog)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		until(fmt.Sprint(8+4*i, " requests of 2 clients"))
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	rest, _ := io.ReadAll(seen)
	require.NoError(t, cmd.Wait())
	drawn = append(drawn, rest...)
	_, final, _ := bytes.Cut(drawn, []byte("\x1b[H\x1b[J"))
	_, whole, _ := execute(nil, "replay", path)
	require.Equal(t, whole, strings.ReplaceAll(string(final), "\r\n", "\n"))
}
