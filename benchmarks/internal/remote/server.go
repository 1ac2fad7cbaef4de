// Package remote measures limiters that keep their state in Redis: beside each other, on a
// private server on loopback.
package remote

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// A Server is a redis-server of its own, without persistence.
type Server struct {
	*servers.Redis
	Version string

	client *redis.Client
}

// Start starts the server in the PATH.
func Start(ctx context.Context) (*Server, error) {
	binary, err := servers.FindRedis()
	if err != nil {
		return nil, err
	}
	process, err := servers.NewRedis(binary)
	if err != nil {
		return nil, err
	}
	s := &Server{Redis: process, client: redis.NewClient(&redis.Options{Addr: process.Addr, MaxRetries: -1})}
	info, err := s.info(ctx, "server")
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Version = info["redis_version"]
	return s, nil
}

// Close ends the server.
func (s *Server) Close() {
	s.client.Close()
	s.Kill()
}

// info returns the fields of a section of INFO.
func (s *Server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.client.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// A usage is the work of a server since it began.
type usage struct {
	cpu      time.Duration // of all of its threads
	commands int64
	scripts  int64 // of those, calls of EVALSHA and EVAL
	script   time.Duration
}

func (u usage) since(before usage) usage {
	return usage{u.cpu - before.cpu, u.commands - before.commands, u.scripts - before.scripts, u.script - before.script}
}

func (s *Server) usage(ctx context.Context) (u usage, err error) {
	cpu, err := s.info(ctx, "cpu")
	if err != nil {
		return u, err
	}
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(cpu[name], 64)
		if err != nil {
			return u, fmt.Errorf("INFO cpu: %s: %w", name, err)
		}
		u.cpu += time.Duration(seconds * float64(time.Second))
	}
	stats, err := s.info(ctx, "commandstats")
	if err != nil {
		return u, err
	}
	for name, text := range stats {
		var calls, usec int64
		if _, err := fmt.Sscanf(text, "calls=%d,usec=%d", &calls, &usec); err != nil {
			return u, fmt.Errorf("INFO commandstats: %s: %q: %w", name, text, err)
		}
		switch name {
		case "cmdstat_info":
			continue
		case "cmdstat_evalsha", "cmdstat_eval":
			u.scripts += calls
			u.script += time.Duration(usec) * time.Microsecond
		}
		u.commands += calls
	}
	return u, nil
}
