package servers

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
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// BuildSluiced builds sluiced into a directory, and returns its path. It has to be called somewhere in the tree.
func BuildSluiced(dir string) (string, error) {
	path := filepath.Join(dir, "sluiced")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	build := exec.Command("go", "build", "-o", path, "github.com/sluice-go/sluice/cmd/sluiced")
	build.Env = append(os.Environ(), "GOWORK=") // the one of the tree, in a module outside of it, too
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}

// A Sluiced is a process of `sluiced serve`.
type Sluiced struct {
	Addresses map[string]string // of grpc, http, debug and metrics

	cmd  *exec.Cmd
	done chan struct{}
	log  lockedBuffer
}

// patience is how long a service may take to end.
const patience = time.Minute

var addressPattern = regexp.MustCompile(`(\w+) on ([^,;\s]+)`)

// NewSluiced starts a service on free ports of loopback, and waits until it answers. The caller ends it; it ends with this process, at the latest.
func NewSluiced(binary string, args ...string) (*Sluiced, error) {
	s := &Sluiced{done: make(chan struct{}), Addresses: map[string]string{}}
	ports := []string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--debug", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--drain", "10ms"}
	s.cmd = exec.Command(binary, append(ports, args...)...)
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	s.cmd.Stderr = &s.log
	s.cmd.SysProcAttr = ending()
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = s.cmd.Wait()
		close(s.done)
	}()
	for _, m := range addressPattern.FindAllStringSubmatch(line, -1) {
		s.Addresses[m[1]] = m[2]
	}
	if err == nil && len(s.Addresses) != 4 {
		err = fmt.Errorf("it says %q", line)
	}
	if err != nil {
		s.Kill()
		return nil, fmt.Errorf("sluiced serve %v: %w\n%s", args, err, s.Log())
	}
	return s, nil
}

// PID returns the number of the process.
func (s *Sluiced) PID() int { return s.cmd.Process.Pid }

// Log returns the log of the service.
func (s *Sluiced) Log() string { return s.log.String() }

// Kill ends the service at once, and waits for that.
func (s *Sluiced) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Stop ends the service as its users do, and reports how it ended.
func (s *Sluiced) Stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.Kill()
		return errors.New("it does not end")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("it ends with %d: %s", code, s.Log())
	}
	return nil
}

// Reload makes the service read its rules again.
func (s *Sluiced) Reload() error { return s.cmd.Process.Signal(syscall.SIGHUP) }

// Modes counts how often the service has lost its store, and found it again. Of an outage there can be several lines.
func (s *Sluiced) Modes() (lost, found int) {
	for line := range strings.Lines(s.Log()) {
		switch {
		case lost == found && strings.Contains(line, `msg="the store does not answer"`):
			lost++
		case lost > found && strings.Contains(line, `msg="the store answers again"`):
			found++
		}
	}
	return lost, found
}

// Get returns a page of the service, of metrics or debug.
func (s *Sluiced) Get(kind, path string) (string, error) {
	client := http.Client{Timeout: patience}
	r, err := client.Get("http://" + s.Addresses[kind] + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), err
}

// Metric returns the value of a metric, with its labels as the service has them.
func (s *Sluiced) Metric(name string) (float64, error) {
	text, err := s.Get("metrics", "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// lockedBuffer can be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
