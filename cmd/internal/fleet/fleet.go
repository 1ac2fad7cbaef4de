// Package fleet starts real fleets, of `sluiced serve` processes and of Redis or Valkey, loads them, breaks what is between
// them, and judges what they admitted together. Its tests are the proof that a fleet keeps its limits; package prove is
// the same as a command, for longer runs.
package fleet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Build builds sluiced into a directory, and returns its path.
func Build(dir string) (string, error) {
	path := filepath.Join(dir, "sluiced")
	out, err := exec.Command("go", "build", "-o", path, "github.com/sluice-go/sluice/cmd/sluiced").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}

// A Service is a process of `sluiced serve`.
type Service struct {
	cmd       *exec.Cmd
	done      chan struct{}
	log       lockedBuffer
	addresses map[string]string
	conn      *grpc.ClientConn
	client    pb.RateLimitServiceClient
}

// patience is how long anything may take that happens soon.
const patience = time.Minute

var addressPattern = regexp.MustCompile(`(\w+) on ([^,\s]+)`)

// Serve starts a service on free ports of loopback, and waits until it answers. The caller ends it.
func Serve(binary string, args ...string) (*Service, error) {
	s := &Service{done: make(chan struct{}), addresses: map[string]string{}}
	ports := []string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--debug", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--drain", "10ms"}
	s.cmd = exec.Command(binary, append(ports, args...)...)
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	s.cmd.Stderr = &s.log
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
		s.addresses[m[1]] = m[2]
	}
	if err == nil && len(s.addresses) != 4 {
		err = fmt.Errorf("it says %q", line)
	}
	if err == nil {
		s.conn, err = grpc.NewClient(s.addresses["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if err != nil {
		s.Kill()
		return nil, fmt.Errorf("sluiced serve %v: %w\n%s", args, err, s.log.String())
	}
	s.client = pb.NewRateLimitServiceClient(s.conn)
	return s, nil
}

// Log returns what the service has logged.
func (s *Service) Log() string { return s.log.String() }

// Kill ends the service at once.
func (s *Service) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// Stop ends the service as its users do, and reports how it ended.
func (s *Service) Stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.Kill()
		return errors.New("it does not end")
	}
	_ = s.conn.Close()
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("it ends with %d: %s", code, s.log.String())
	}
	return nil
}

// Reload makes the service read its rules again.
func (s *Service) Reload() { _ = s.cmd.Process.Signal(syscall.SIGHUP) }

// modes counts how often the service has lost its store, and found it again. Of an outage there can be several lines.
func (s *Service) modes() (lost, found int) {
	for line := range strings.Lines(s.log.String()) {
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
func (s *Service) Get(kind, path string) (string, error) {
	client := http.Client{Timeout: patience}
	r, err := client.Get("http://" + s.addresses[kind] + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), err
}

// Metric returns the value of a metric without labels.
func (s *Service) Metric(name string) (float64, error) {
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

// ask makes one call.
func (s *Service) ask(ctx context.Context, r *pb.RateLimitRequest) (ok bool, err error) {
	answer, err := s.client.ShouldRateLimit(ctx, r)
	return err == nil && answer.OverallCode == pb.RateLimitResponse_OK, err
}

// A Fleet is services that share their rules and their flags.
type Fleet struct {
	Services []*Service
	dir      string
	binary   string
	args     []string
}

// New starts n services with rules, counting in the store at an URL. Service i gets the URL urls[i modulo their number].
func New(binary, rules string, n int, urls []string, args ...string) (*Fleet, error) {
	dir, err := os.MkdirTemp("", "sluice-fleet-")
	if err != nil {
		return nil, err
	}
	f := &Fleet{dir: dir, binary: binary, args: args}
	if err := f.SetRules(rules); err != nil {
		f.Close()
		return nil, err
	}
	for i := range n {
		if err := f.start(i, urls[i%len(urls)]); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

func (f *Fleet) start(i int, url string) error {
	args := append([]string{"--rules", f.dir, "--redis", url}, f.args...)
	s, err := Serve(f.binary, args...)
	if err != nil {
		return err
	}
	if i == len(f.Services) {
		f.Services = append(f.Services, s)
	}
	f.Services[i] = s
	return nil
}

// SetRules writes the rules, which running services read soon.
func (f *Fleet) SetRules(rules string) error {
	next := filepath.Join(f.dir, ".next")
	if err := os.WriteFile(next, []byte(rules), 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(f.dir, "rules.yaml"))
}

// Close kills all services.
func (f *Fleet) Close() {
	for _, s := range f.Services {
		s.Kill()
	}
	_ = os.RemoveAll(f.dir)
}

// healed returns when the service found its store again the last time, as its log says; zero for never.
func (s *Service) healed() (at time.Time) {
	for line := range strings.Lines(s.log.String()) {
		if text, ok := strings.CutPrefix(line, "time="); ok && strings.Contains(line, `msg="the store answers again"`) {
			text, _, _ = strings.Cut(text, " ")
			at, _ = time.Parse(time.RFC3339Nano, text)
		}
	}
	return at
}

// Healed waits until each service that has lost its store has found it again.
func (f *Fleet) Healed() error {
	began := time.Now()
	for _, s := range f.Services {
		for {
			if lost, found := s.modes(); lost == found {
				break
			}
			if time.Since(began) > patience {
				return fmt.Errorf("a service does not find its store again:\n%s", s.Log())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
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
