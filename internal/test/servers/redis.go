// Package servers starts private servers of Redis or Valkey on loopback, for tests and for examples.
package servers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A Redis is a process of its own, without persistence.
type Redis struct {
	Addr    string // HOST:PORT
	Binary  string
	Options []string

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// ErrNoRedis is the error of FindRedis if there is no server to start.
var ErrNoRedis = errors.New("there is no redis-server and no valkey-server; want one in the PATH: apt-get install redis-server")

// FindRedis returns the server in the PATH.
func FindRedis() (binary string, err error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoRedis
}

// AllRedis lists the server in the PATH, if there is one, and those that SLUICE_REDIS_SERVERS names, separated by colons.
func AllRedis() (binaries []string) {
	if path, err := FindRedis(); err == nil {
		binaries = append(binaries, path)
	}
	for _, path := range filepath.SplitList(os.Getenv("SLUICE_REDIS_SERVERS")) {
		if path != "" {
			binaries = append(binaries, path)
		}
	}
	return binaries
}

// StartRedis starts the server in the PATH for a test, which is skipped if there is none, and ends it after the test.
func StartRedis(tb testing.TB, options ...string) *Redis {
	tb.Helper()
	binary, err := FindRedis()
	if err != nil {
		tb.Skip(err)
	}
	s, err := NewRedis(binary, options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}

// NewRedis starts a server on a free port, with options of its own such as "--requirepass", "secret". The caller kills it.
func NewRedis(binary string, options ...string) (*Redis, error) {
	for range 20 { // another process may take the port first
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		s := &Redis{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Binary: binary, Options: options}
		switch err := s.Restart(); {
		case err == nil:
			return s, nil
		case !errors.Is(err, errEnded):
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s %v does not start", binary, options)
}

// FreePort returns a port of 127.0.0.1 that nobody listens on. It is below the ports that systems give to connections, and to listeners
// that leave the choice to them: a server that is killed finds its port free when it starts again, whatever connects meanwhile.
func FreePort() (port int, err error) {
	for range 100 {
		port = 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("of 100 ports below 30000 none is free: port %d was the last", port)
}

var errEnded = errors.New("the server has ended, or does not answer")

// Restart starts a server that has been killed, at its address and empty, and waits until it
// answers.
func (s *Redis) Restart() error {
	dir, err := os.MkdirTemp("", "sluice-redis-")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(s.Addr)
	s.cmd = exec.Command(s.Binary, append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}, s.Options...)...)
	s.cmd.SysProcAttr = ending()
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return err
	}
	ready, done := make(chan struct{}), make(chan struct{})
	s.done = done
	go func(cmd *exec.Cmd) {
		watch(out, ready)
		_ = cmd.Wait()
		os.RemoveAll(dir)
		close(done)
	}(s.cmd)
	select {
	case <-ready: // another server that has the port would answer, but not say so here
		return nil
	case <-done:
		return errEnded
	case <-time.After(10 * time.Second):
		s.Kill()
		return errEnded
	}
}

// watch reads a server's log to its end, and closes ready where it says that the server answers.
func watch(out io.Reader, ready chan struct{}) {
	lines := bufio.NewScanner(out)
	for said := false; lines.Scan(); {
		if !said && strings.Contains(lines.Text(), "eady to accept connections") {
			said = true
			close(ready)
		}
	}
}

// PID returns the number of the process.
func (s *Redis) PID() int { return s.cmd.Process.Pid }

// Kill ends the server at once, and waits for that.
func (s *Redis) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}
