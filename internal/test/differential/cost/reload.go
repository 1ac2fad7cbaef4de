//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// The most that a reload may take, and a call meanwhile.
const (
	reloadMost = 200 * time.Millisecond
	callMost   = 5 * time.Millisecond
)

// span is calls that were made one behind the other.
type span struct {
	took    time.Duration
	slowest time.Duration
}

// calls asks until something holds of the limit that the answer names.
func (s *subject) calls(ctx context.Context, until func(limit int, took time.Duration) bool) (out span, err error) {
	req := requests(1, 1)[0]
	begin := time.Now()
	for {
		from := time.Now()
		var data []byte
		if err := s.conns[0].Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, req.data, &data); err != nil {
			return out, fmt.Errorf("%s: %w", s.name, err)
		}
		out.slowest = max(out.slowest, time.Since(from))
		out.took = time.Since(begin)
		var resp pb.RateLimitResponse
		if err := proto.Unmarshal(data, &resp); err != nil {
			return out, err
		}
		if until(int(resp.Statuses[0].GetCurrentLimit().GetRequestsPerUnit()), out.took) {
			return out, nil
		}
	}
}

// reloads replaces 10,000 rules n times while calls are made, and reports whether that is as quick as it
// should be. Before each are calls for as long without one: slowness there is the machine's, and is taken off.
func (b *bench) reloads(ctx context.Context, n int) (bool, error) {
	const name, size = "sluiced serve, 10,000 rules", 10_000
	s, err := b.sluice(name, b.program, rulesText(size))
	if err != nil {
		return false, err
	}
	if err := s.dial(ctx); err != nil {
		return false, err
	}
	file, next := filepath.Join(b.folder(name), "a.yaml"), filepath.Join(b.dir, "next.yaml")
	last := 150 * time.Millisecond
	var quiet, reload []span
	for i := range n {
		limit := asked - 1 - i
		if err := os.WriteFile(next, []byte(rulesWith(size, limit)), 0o600); err != nil {
			return false, err
		}
		q, err := s.calls(ctx, func(_ int, took time.Duration) bool { return took >= last })
		if err != nil {
			return false, err
		}
		if err := os.Rename(next, file); err != nil {
			return false, err
		}
		if err := syscall.Kill(s.pids[0], syscall.SIGHUP); err != nil {
			return false, err
		}
		r, err := s.calls(ctx, func(got int, _ time.Duration) bool { return got == limit })
		if err != nil {
			return false, err
		}
		quiet, reload, last = append(quiet, q), append(reload, r), r.took
	}
	took, slow, idle := middle(reload, lasting), middle(reload, slowest), middle(quiet, slowest)
	fmt.Printf("\n%d reloads of 10,000 rules: %v each; the slowest call meanwhile %v, at most %v; without a reload %v, at most %v\n",
		n, took, slow, most(reload), idle, most(quiet))
	quick := verdict(took <= reloadMost, fmt.Sprintf("a reload, median, at most %v, in ms", reloadMost), milliseconds(took))
	smooth := verdict(slow-idle <= callMost, fmt.Sprintf("the slowest call, beyond that without a reload, medians, at most %v, in ms", callMost), milliseconds(slow-idle))
	return quick && smooth, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

func lasting(s span) time.Duration { return s.took }
func slowest(s span) time.Duration { return s.slowest }

// middle is the median.
func middle(list []span, value func(span) time.Duration) time.Duration {
	var all []time.Duration
	for _, s := range list {
		all = append(all, value(s))
	}
	slices.Sort(all)
	return all[len(all)/2].Round(time.Microsecond)
}

func most(list []span) (d time.Duration) {
	for _, s := range list {
		d = max(d, s.slowest)
	}
	return d.Round(time.Microsecond)
}
