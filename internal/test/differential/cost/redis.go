//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// processorTime is the processor time of a process so far.
func processorTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	// The clock of a process, as clock_getcpuclockid(3) makes it of its number.
	if err := unix.ClockGettime(int32(^uint32(pid)<<3|2), &t); err != nil {
		return 0, fmt.Errorf("the processor time of %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// A redisState is the work of a Redis so far.
type redisState struct {
	cpu      time.Duration
	commands int64 // run, those that scripts run among them
	sent     int64 // by clients: all but those
	bytes    int64 // of the network, in and out
	memory   int64 // bytes in use now
}

func (a redisState) minus(b redisState) redisState {
	return redisState{a.cpu - b.cpu, a.commands - b.commands, a.sent - b.sent, a.bytes - b.bytes, a.memory - b.memory}
}

// state asks a Redis. Its INFO is in no count of commands.
func (s *store) state(ctx context.Context, client *goredis.Client) (out redisState, err error) {
	text, err := client.Info(ctx, "all").Result()
	if err != nil {
		return out, err
	}
	if out.cpu, err = processorTime(s.server.PID()); err != nil {
		return out, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		command, isCommand := strings.CutPrefix(name, "cmdstat_")
		if isCommand {
			value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		}
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case name == "total_net_input_bytes", name == "total_net_output_bytes":
			out.bytes += n
		case name == "used_memory":
			out.memory = n
		case !isCommand || command == "info":
		default:
			out.commands += n
			switch command {
			case "get", "set", "pttl", "time": // of sluice's scripts; of what is sent in this load, TIME once a second
			default:
				out.sent += n
			}
		}
	}
	return out, lines.Err()
}

// withoutRedis is how many decisions sluice has made since Redis was late, or failed.
func (s *subject) withoutRedis(ctx context.Context) (sum float64, err error) {
	for _, address := range s.metrics {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "sluice_tier_decisions_total{") && strings.Contains(line, `source="fallback"`) {
				fields := strings.Fields(line)
				n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
				if err != nil {
					return 0, fmt.Errorf("%s: %q: %w", s.name, line, err)
				}
				sum += n
			}
		}
	}
	return sum, nil
}
