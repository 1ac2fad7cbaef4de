// Package fleet starts real fleets, of `sluiced serve` processes and of Redis or Valkey, loads them, breaks the connections between
// them, and judges the calls that they admitted together. Its tests are the proof that a fleet keeps its limits; package prove is
// the same as a command, for longer runs.
package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-go/sluice/internal/test/servers"
)

// A Service is a process of `sluiced serve`, and a client of it.
type Service struct {
	*servers.Sluiced
	conn   *grpc.ClientConn
	client pb.RateLimitServiceClient
}

// patience is how long anything may take that happens soon.
const patience = time.Minute

// Serve starts a service on free ports of loopback, and waits until it answers. The caller ends it.
func Serve(binary string, args ...string) (*Service, error) {
	process, err := servers.NewSluiced(binary, args...)
	if err != nil {
		return nil, err
	}
	s := &Service{Sluiced: process}
	if s.conn, err = grpc.NewClient(s.Addresses["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		process.Kill()
		return nil, err
	}
	s.client = pb.NewRateLimitServiceClient(s.conn)
	return s, nil
}

// Kill ends the service at once.
func (s *Service) Kill() {
	s.Sluiced.Kill()
	_ = s.conn.Close()
}

// Stop ends the service as its users do, and reports how it ended.
func (s *Service) Stop() error {
	err := s.Sluiced.Stop()
	_ = s.conn.Close()
	return err
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
	for line := range strings.Lines(s.Log()) {
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
			if lost, found := s.Modes(); lost == found {
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
