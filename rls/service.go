package rls

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/rules"
)

// Options describe a Service. The zero value of every field is the default of Envoy's service.
type Options struct {
	// Headers adds three headers for the client to every answer that knows a limit: the limit,
	// what remains, and the seconds until it is reset.
	Headers bool
	// LimitHeader, RemainingHeader and ResetHeader are their names; empty for RateLimit-Limit,
	// RateLimit-Remaining and RateLimit-Reset.
	LimitHeader, RemainingHeader, ResetHeader string

	// DynamicMetadata adds the request, and the metadata of the rules that passed, to every answer.
	// It also has would_deny, under "sluice", where the engine's Shadow admitted a call.
	DynamicMetadata bool

	// MaxDescriptors, MaxEntries (of a descriptor), MaxValue (bytes of a key or a value) and MaxText
	// (bytes of a request) bound what is looked at: more is INVALID_ARGUMENT. 0 means 256, 64, 8 KiB
	// and 64 KiB.
	MaxDescriptors, MaxEntries, MaxValue, MaxText int

	// Panicked is told of a panic in a call, at most once a minute. The call gets INTERNAL. nil
	// means that nobody is told.
	Panicked func(value any, stack []byte)
}

// A Service answers calls of ShouldRateLimit. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer

	engine  *rules.Engine
	options Options
	scratch sync.Pool // of *scratch

	ok, overLimit, refused, panics atomic.Uint64
	told                           atomic.Int64 // when Panicked was last called, Unix nanoseconds
}

// scratch is what a call needs while it is decided.
type scratch struct {
	req       rules.Request
	resp      rules.Response
	entries   []rules.Entry
	overrides []rules.Override
}

// New returns a service that decides by engine.
func New(engine *rules.Engine, o Options) *Service {
	defaults(&o.LimitHeader, "RateLimit-Limit")
	defaults(&o.RemainingHeader, "RateLimit-Remaining")
	defaults(&o.ResetHeader, "RateLimit-Reset")
	defaults(&o.MaxDescriptors, 256)
	defaults(&o.MaxEntries, 64)
	defaults(&o.MaxValue, 8<<10)
	defaults(&o.MaxText, 64<<10)
	return &Service{engine: engine, options: o, scratch: sync.Pool{New: func() any { return new(scratch) }}}
}

func defaults[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Register makes the service answer on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { pb.RegisterRateLimitServiceServer(r, s) }

// Counts is how many calls have been answered with a code, and how many have not.
type Counts struct {
	OK, OverLimit uint64
	Refused       uint64 // UNKNOWN and INVALID_ARGUMENT
	Panics        uint64 // INTERNAL
}

// Counts returns the counters.
func (s *Service) Counts() Counts {
	return Counts{s.ok.Load(), s.overLimit.Load(), s.refused.Load(), s.panics.Load()}
}

// ShouldRateLimit implements Envoy's service. The errors are: UNKNOWN for a request without a domain or
// descriptors; INVALID_ARGUMENT for one that is too large, or has an override without a unit.
func (s *Service) ShouldRateLimit(_ context.Context, req *pb.RateLimitRequest) (resp *pb.RateLimitResponse, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.panicked(v)
			resp, err = nil, status.Error(codes.Internal, "sluice: the call failed, and nothing else did")
		}
	}()
	w := s.scratch.Get().(*scratch)
	if err := s.read(w, req); err != nil {
		s.refused.Add(1)
		return nil, err
	}
	if err := s.engine.Decide(&w.req, &w.resp); err != nil {
		s.refused.Add(1)
		return nil, refusal(err)
	}
	resp = s.answer(req, &w.resp)
	if w.resp.Code == rules.OK {
		s.ok.Add(1)
	} else {
		s.overLimit.Add(1)
	}
	w.forget()
	s.scratch.Put(w)
	return resp, nil
}

// refusal is the status of an error of Decide.
func refusal(err error) error {
	var invalid *rules.InvalidError
	if errors.As(err, &invalid) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

// panicked counts, and tells of, a panic. The scratch of the call is left to the garbage collector.
func (s *Service) panicked(v any) {
	s.panics.Add(1)
	now, told := time.Now().UnixNano(), s.told.Load()
	if s.options.Panicked != nil && now-told > int64(time.Minute) && s.told.CompareAndSwap(told, now) {
		s.options.Panicked(v, debug.Stack())
	}
}

// forget drops what is of the request, so that a scratch that waits does not keep it.
func (w *scratch) forget() {
	clear(w.entries)
	clear(w.req.Descriptors)
	clear(w.resp.Statuses)
	w.req.Domain = ""
}

// read translates a request, and checks its sizes.
func (s *Service) read(w *scratch, req *pb.RateLimitRequest) error {
	o := &s.options
	if len(req.Descriptors) > o.MaxDescriptors {
		return tooLarge("%d descriptors; want at most %d", len(req.Descriptors), o.MaxDescriptors)
	}
	w.req.Domain, w.req.Hits = req.Domain, req.HitsAddend
	w.req.Descriptors, w.entries, w.overrides = w.req.Descriptors[:0], w.entries[:0], w.overrides[:0]
	text := len(req.Domain)
	total := 0
	for i, d := range req.Descriptors {
		if len(d.GetEntries()) > o.MaxEntries {
			return tooLarge("a descriptor, %d, of %d entries; want at most %d", i, len(d.Entries), o.MaxEntries)
		}
		total += len(d.GetEntries())
	}
	w.reserve(total, len(req.Descriptors))
	for i, d := range req.Descriptors {
		first := len(w.entries)
		for _, e := range d.GetEntries() {
			key, value := e.GetKey(), e.GetValue()
			if len(key) > o.MaxValue || len(value) > o.MaxValue {
				return tooLarge("a descriptor, %d, with a key or value of %d bytes; want at most %d", i, max(len(key), len(value)), o.MaxValue)
			}
			text += len(key) + len(value)
			w.entries = append(w.entries, rules.Entry{Key: key, Value: value})
		}
		out := rules.Descriptor{Entries: w.entries[first:len(w.entries):len(w.entries)]}
		if h := d.GetHitsAddend(); h != nil {
			out.Hits = &h.Value
		}
		if l := d.GetLimit(); l != nil {
			out.Override = w.override(l)
		}
		w.req.Descriptors = append(w.req.Descriptors, out)
	}
	if text > o.MaxText {
		return tooLarge("%d bytes of text; want at most %d", text, o.MaxText)
	}
	return nil
}

// reserve makes room, since pointers into the slices are kept while they grow.
func (w *scratch) reserve(entries, descriptors int) {
	if cap(w.entries) < entries {
		w.entries = make([]rules.Entry, 0, entries)
	}
	if cap(w.overrides) < descriptors {
		w.overrides = make([]rules.Override, 0, descriptors)
	}
}

// override translates a limit that comes with a request. A number that is no unit of the request's
// enumeration becomes UnknownUnit, which Decide refuses.
func (w *scratch) override(l *ratelimit.RateLimitDescriptor_RateLimitOverride) *rules.Override {
	o := rules.Override{Requests: l.RequestsPerUnit}
	if u := l.Unit; u >= 0 && u <= 6 {
		o.Unit = rules.Unit(u)
	}
	w.overrides = append(w.overrides, o)
	return &w.overrides[len(w.overrides)-1]
}

func tooLarge(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, "the request has "+fmt.Sprintf(format, args...))
}
