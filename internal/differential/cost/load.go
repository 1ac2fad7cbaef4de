//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// raw is a codec that passes bytes on as they are, so that the client takes little of the processor.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// The load: as many calls at a time, over as many connections.
const (
	inFlight    = 64
	connections = 4
)

// dial connects to a subject, and waits until it answers.
func (s *subject) dial(ctx context.Context) error {
	for range connections {
		conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
		if err != nil {
			return err
		}
		s.conns = append(s.conns, conn)
	}
	r := requests(1, 1)[0]
	return waitFor(func() error { return s.call(ctx, 0, r) })
}

func (s *subject) call(ctx context.Context, conn int, r request) error {
	var out []byte
	if err := s.conns[conn].Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, r.data, &out, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if len(out) < 4*r.descriptors {
		return fmt.Errorf("%s answers %d bytes to %d descriptors", s.name, len(out), r.descriptors)
	}
	return nil
}

// request is one in bytes.
type request struct {
	data        []byte
	descriptors int
}

// requests makes n different ones.
func requests(n, descriptors int) []request {
	out := make([]request, n)
	for i := range out {
		req := &pb.RateLimitRequest{Domain: "d"}
		for range descriptors {
			req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{
				Entries: []*common.RateLimitDescriptor_Entry{{Key: "client", Value: fmt.Sprint("client-", rand.IntN(10_000))}},
			})
		}
		data, err := proto.Marshal(req)
		if err != nil {
			panic(err) // of a message that was made here
		}
		out[i] = request{data, descriptors}
	}
	return out
}

// sample is what some calls have cost.
type sample struct {
	cpu  float64 // of the server, microseconds a call
	rate float64 // calls a second, with the client on the same machine
}

// measure makes calls.
func (s *subject) measure(ctx context.Context, calls, descriptors int) (sample, error) {
	list := requests(1000, descriptors)
	before, err := s.cpu()
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for caller := range inFlight {
		all.Go(func() {
			for i := int(next.Add(1)); i <= calls && failed.Load() == nil; i = int(next.Add(1)) {
				if err := s.call(ctx, caller%connections, list[i%len(list)]); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	if err := failed.Load(); err != nil {
		return sample{}, *err
	}
	after, err := s.cpu()
	return sample{float64((after - before).Nanoseconds()) / 1e3 / float64(calls), float64(calls) / took.Seconds()}, err
}
