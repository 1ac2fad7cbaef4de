package rulestore

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// An UpstreamServer is a server in which an Upstream counts. Every call asks it, even while it does not answer.
type UpstreamServer struct {
	client redis.UniversalClient
	prefix string
	onMode func(mode redislimit.Mode, cause error)

	redis, fallback, late, failed, poolTimeouts, dialErrors, outages, unshared, trips, tripTime atomic.Uint64

	row atomic.Int64 // trips that have failed, one after another

	mutex  sync.Mutex // held while onMode is told; guards the rest
	status redislimit.Status
	base   uint64 // unshared when status.Mode began
}

// degradedAfter is how many trips must fail one after another.
const degradedAfter = 5

func newUpstreamServer(client redis.UniversalClient, prefix string, onMode func(redislimit.Mode, error)) *UpstreamServer {
	return &UpstreamServer{client: client, prefix: prefix, onMode: onMode, status: redislimit.Status{Mode: redislimit.ModeShared, Since: time.Now()}}
}

// Mode returns the current mode; see Status.
func (s *UpstreamServer) Mode() redislimit.Mode { return s.Status().Mode }

// Reach asks the server for a key that counts nothing, so that the first calls find a connection. It returns the client's error, or
// that of the server.
func (s *UpstreamServer) Reach(ctx context.Context) error {
	err := s.client.Get(ctx, s.prefix+"_").Err()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// Status returns the current mode, and when and why it began. The mode is degraded after five trips have failed one
// after another, until a trip succeeds.
func (s *UpstreamServer) Status() redislimit.Status {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	out := s.status
	out.Unshared = s.unshared.Load() - s.base
	return out
}

// Stats returns the counts so far: calls by the Redis or the Fallback, Late and Failed calls,
// PoolTimeouts, DialErrors, Outages, Unshared, Trips and TripTime. All other fields are 0.
func (s *UpstreamServer) Stats() redislimit.Stats {
	return redislimit.Stats{
		Redis: s.redis.Load(), Fallback: s.fallback.Load(), Late: s.late.Load(), Failed: s.failed.Load(), PoolTimeouts: s.poolTimeouts.Load(), DialErrors: s.dialErrors.Load(),
		Outages: s.outages.Load(), Unshared: s.unshared.Load(), Trips: s.trips.Load(), TripTime: time.Duration(s.tripTime.Load()),
	}
}

// trip is the pipeline of a Decide to a server, and the calls in it.
type trip struct {
	redis.Pipeliner
	to    *UpstreamServer
	calls uint64
}

// exec sends the pipeline.
func (t *trip) exec(ctx context.Context) error {
	begin := time.Now()
	_, err := t.Exec(ctx)
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	if err == nil {
		t.to.trips.Add(1)
		t.to.tripTime.Add(uint64(time.Since(begin)))
	}
	t.to.judge(t.calls, err)
	return err
}

// judge notes the outcome of a trip with that many calls.
func (s *UpstreamServer) judge(calls uint64, err error) {
	var timeout net.Error
	if redislimit.Unreached(err) {
		s.dialErrors.Add(1)
	}
	switch {
	case err == nil:
		if s.row.Load() != 0 {
			s.turn(redislimit.ModeShared, nil)
		}
		return
	case errors.Is(err, redis.ErrPoolTimeout):
		s.poolTimeouts.Add(1)
		s.late.Add(calls)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		s.late.Add(calls)
	default:
		s.failed.Add(calls)
	}
	if s.row.Add(1) == degradedAfter {
		s.turn(redislimit.ModeDegraded, err)
	}
}

// turn changes the mode, unless another call has changed it already.
func (s *UpstreamServer) turn(mode redislimit.Mode, cause error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if mode == redislimit.ModeShared {
		s.row.Store(0)
	}
	if s.status.Mode == mode {
		return
	}
	if mode == redislimit.ModeDegraded {
		s.outages.Add(1)
	}
	s.status, s.base = redislimit.Status{Mode: mode, Since: time.Now(), Cause: cause}, s.unshared.Load()
	if s.onMode != nil {
		s.onMode(mode, cause)
	}
}

// admitted notes a call that was answered without the server.
func (s *UpstreamServer) admitted(in *rules.StoreCall) {
	s.fallback.Add(1)
	if in.Decision.Allowed && (in.Op == rules.CountFitting || in.Op == rules.CountAll) {
		s.unshared.Add(in.Hits)
	}
}
