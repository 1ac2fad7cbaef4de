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

// The load: as many calls at a time, over as many connections. Those that count in a Redis are fewer, or a machine of two
// processors answers none of them within a few milliseconds.
const (
	inFlight       = 64
	inFlightShared = 16
	connections    = 4
	clientWindow   = 1 << 20
)

// dial connects to a subject, and waits until it answers.
func (s *subject) dial(ctx context.Context) error {
	n := len(s.addresses)
	for i := range max(connections/n, 1) * n { // as many to each process
		conn, err := grpc.NewClient(s.addresses[i%n], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})),
			// Envoy's windows are static, too. To measure others a client would ping the server at each call.
			grpc.WithStaticStreamWindowSize(clientWindow), grpc.WithStaticConnWindowSize(clientWindow))
		if err != nil {
			return err
		}
		s.conns = append(s.conns, conn)
	}
	for i := range s.conns {
		if err := waitFor(func() error { return s.call(ctx, i, requests(1, 1)[0]) }); err != nil {
			return err
		}
	}
	return nil
}

func (s *subject) call(ctx context.Context, conn int, r request) error {
	var out []byte
	if err := s.conns[conn].Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, r.data, &out, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if len(out) < 4*r.descriptors {
		return fmt.Errorf("%s answers %d bytes to %d descriptors", s.name, len(out), r.descriptors)
	}
	if r.code != 0 && (out[0] != codeTag || out[1] != byte(r.code)) {
		return fmt.Errorf("%s answers % x to a call of %v that wants %v", s.name, out[:2], r.descriptors, r.code)
	}
	return nil
}

// codeTag begins a message with overall_code.
const codeTag = 1 << 3

// request is one in bytes.
type request struct {
	data        []byte
	descriptors int
	code        pb.RateLimitResponse_Code // of its answer, or 0 if that is any
}

// newRequest is one with a descriptor for each value of a key.
func newRequest(key string, values ...string) request {
	req := &pb.RateLimitRequest{Domain: "d"}
	for _, v := range values {
		req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: v}}})
	}
	data, err := proto.Marshal(req)
	if err != nil {
		panic(err) // of a message that was made here
	}
	return request{data: data, descriptors: len(values)}
}

// requests makes n different ones.
func requests(n, descriptors int) []request {
	out := make([]request, n)
	for i := range out {
		values := make([]string, descriptors)
		for j := range values {
			values[j] = fmt.Sprint("client-", rand.IntN(10_000))
		}
		out[i] = newRequest("client", values...)
	}
	return out
}

// sample is the cost of some calls.
type sample struct {
	cpu  float64 // of the server, microseconds a call
	rate float64 // calls a second, with the client on the same machine
}

// measure makes calls, so many at a time, with the requests of a list by turns.
func (s *subject) measure(ctx context.Context, calls, atOnce int, list []request) (sample, error) {
	before, err := s.cpu()
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for caller := range atOnce {
		all.Go(func() {
			for i := int(next.Add(1)); i <= calls && failed.Load() == nil; i = int(next.Add(1)) {
				if err := s.call(ctx, caller%len(s.conns), list[i%len(list)]); err != nil {
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
