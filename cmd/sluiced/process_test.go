package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// program is the command, running.
type program struct {
	*testing.T
	cmd       *exec.Cmd
	addresses map[string]string
	done      chan struct{}
	log       servetest.Log
}

// anyPort are flags for ports of this machine only, whichever are free.
var anyPort = []string{"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--debug", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}

var addressPattern = regexp.MustCompile(`(\w+) on ([^,\s]+)`)

// startServe starts `sluiced serve` on any port, and waits until it says where it serves.
func startServe(t *testing.T, environment []string, args ...string) *program {
	t.Helper()
	p := &program{T: t, done: make(chan struct{}), addresses: map[string]string{}}
	p.cmd = exec.Command(os.Args[0], append(append([]string{"serve"}, anyPort...), args...)...)
	// Nothing of the environment of the tests, where HOST or LOG_LEVEL could be set.
	p.cmd.Env = append([]string{servetest.AsProgram + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, environment...)
	p.cmd.Stderr = &p.log
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	require.NoError(t, err, p.log.String())
	for _, m := range addressPattern.FindAllStringSubmatch(line, -1) {
		p.addresses[m[1]] = m[2]
	}
	require.Len(t, p.addresses, 4, line)
	return p
}

// end stops the program by a signal, and returns its exit code.
func (p *program) end(signal syscall.Signal) int {
	p.Helper()
	require.NoError(p, p.cmd.Process.Signal(signal))
	select {
	case <-p.done:
	case <-time.After(servetest.Patience):
		p.Fatal("it does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// askFor is `sluiced ask` at the program.
func (p *program) askFor(args ...string) (code int, stdout, stderr string) {
	return execute(append([]string{"ask", "--address", p.addresses["grpc"]}, args...)...)
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }
