package rls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/rules"
)

// Options describe a Service. The zero value of every field is the default of Envoy's service.
type Options struct {
	// Headers adds three headers for the client to every answer that knows a limit: the limit,
	// the remaining hits, and the seconds until they are reset. Whatever this says, a denial by a domain with
	// max_retry_after or retry_jitter has Retry-After, by rules.Response.RetryAfter; the reset stays exact.
	Headers bool
	// LimitHeader, RemainingHeader and ResetHeader are their names; empty for RateLimit-Limit,
	// RateLimit-Remaining and RateLimit-Reset.
	LimitHeader, RemainingHeader, ResetHeader string

	// DynamicMetadata adds the request, and the metadata of the rules that passed and have a limit, to every answer.
	// It also has would_deny and the rule, under "sluice", where the engine's Shadow admitted a call. The dynamic metadata
	// of a call that is denied has "sluice": {"rule": PATH} whatever this says, by rules.Response.DeniedBy.
	DynamicMetadata bool

	// RuleHeader is the name of a header that tells the client of a denied call which rule denied it,
	// in the form of HeaderOf. Empty means that no answer has it.
	RuleHeader string

	// MaxDescriptors, MaxEntries (of a descriptor), MaxValue (bytes of a key or a value) and MaxText
	// (bytes of a request) bound what is looked at: more is INVALID_ARGUMENT. 0 means 256, 64, 64 KiB
	// and 64 KiB, which is more than all headers of a request that Envoy takes.
	MaxDescriptors, MaxEntries, MaxValue, MaxText int

	// MessageTime bounds how long the message of a call of a server by NewServer, or a body in JSON, may take to come: the
	// call then gets DEADLINE_EXCEEDED, or 408. 0 means 10 s; a negative time that there is no bound.
	MessageTime time.Duration

	// Took is told how long a call of a server by NewServer, or one of RegisterHolds, has taken, without the network.
	// nil means that nobody is told.
	Took func(time.Duration)

	// Decided is told of each call that is decided, on the goroutine that answers it. It keeps neither the request nor the
	// response. nil means that nobody is told. Calls about holds are no part of it.
	Decided func(*rules.Request, *rules.Response)

	// Panicked is told of a panic in a call, at most once a minute. The call gets INTERNAL. nil
	// means that nobody is told.
	Panicked func(value any, stack []byte)

	// StoreFailed is told why the engine's Store has not answered a call, at most once a minute: the call gets UNAVAILABLE,
	// and no more than that, since the error may name servers. nil means that nobody is told.
	StoreFailed func(error)
}

// A Service answers calls of ShouldRateLimit. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer

	engine  *rules.Engine
	options Options
	scratch sync.Pool // of *scratch

	decoding, bodies *room // bytes of requests that are decoded and decided, and of bodies that come, at a time

	ok, overLimit, refused, panics atomic.Uint64
	toldPanic, toldStore           atomic.Int64 // when Panicked and StoreFailed were last called, Unix nanoseconds
}

// scratch is the memory of a call while it is decided.
type scratch struct {
	req       rules.Request
	resp      rules.Response
	entries   []rules.Entry
	described []described
	count     int    // of descriptors, also those beyond the bound
	out       []byte // the answer on the wire
}

// described is a descriptor while a request is read.
type described struct {
	first, end, count int // of its entries; count also has those beyond the bound
	hits              uint64
	override          rules.Override
	counted, limited  bool // hits and override are there
	refund            bool // is_negative_hits
}

// New returns a service that decides by engine.
func New(engine *rules.Engine, o Options) *Service {
	return &Service{
		engine: engine, options: o.withDefaults(), scratch: sync.Pool{New: func() any { return new(scratch) }},
		decoding: newRoom(decodingRoom), bodies: newRoom(bodyRoom),
	}
}

func (o Options) withDefaults() Options {
	o.LimitHeader = cmp.Or(o.LimitHeader, "RateLimit-Limit")
	o.RemainingHeader = cmp.Or(o.RemainingHeader, "RateLimit-Remaining")
	o.ResetHeader = cmp.Or(o.ResetHeader, "RateLimit-Reset")
	o.MaxDescriptors = cmp.Or(o.MaxDescriptors, 256)
	o.MaxEntries = cmp.Or(o.MaxEntries, 64)
	o.MaxValue = cmp.Or(o.MaxValue, 64<<10)
	o.MaxText = cmp.Or(o.MaxText, 64<<10)
	o.MessageTime = cmp.Or(o.MessageTime, 10*time.Second)
	return o
}

// Register makes the service answer on a server, which decodes requests before their sizes are looked at: grpc.MaxRecvMsgSize
// of MessageBytes bounds them, and a server of NewServer counts their descriptors first.
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
// descriptors; INVALID_ARGUMENT for one that is too large, or has an override without a unit; UNAVAILABLE if the
// engine's Store does not answer and is to deny then.
func (s *Service) ShouldRateLimit(_ context.Context, req *pb.RateLimitRequest) (resp *pb.RateLimitResponse, err error) {
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, s.panicked(v)
		}
	}()
	w := s.scratch.Get().(*scratch)
	if err := s.decide(w, s.read(w, req)); err != nil {
		return nil, err
	}
	resp = s.answer(req, &w.resp)
	w.forget()
	s.scratch.Put(w)
	return resp, nil
}

// decide judges a request that has been read, unless that has failed, and counts the call. After
// an error the scratch is left to the garbage collector.
func (s *Service) decide(w *scratch, failed error) error {
	if failed != nil {
		s.refused.Add(1)
		return failed
	}
	if err := s.engine.Decide(&w.req, &w.resp); err != nil {
		s.refused.Add(1)
		return s.refusal(err)
	}
	if w.resp.Code == rules.OK {
		s.ok.Add(1)
	} else {
		s.overLimit.Add(1)
	}
	if s.options.Decided != nil {
		s.options.Decided(&w.req, &w.resp)
	}
	return nil
}

// refusal is the status of an error of Decide.
func (s *Service) refusal(err error) error {
	var invalid *rules.InvalidError
	if errors.As(err, &invalid) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if errors.Is(err, rules.ErrStore) {
		if s.options.StoreFailed != nil && due(&s.toldStore) {
			s.options.StoreFailed(err)
		}
		return status.Error(codes.Unavailable, rules.ErrStore.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

// panicked counts, and tells of, a panic, and returns the error of the call. Its scratch is left to the
// garbage collector.
func (s *Service) panicked(v any) error {
	s.panics.Add(1)
	if s.options.Panicked != nil && due(&s.toldPanic) {
		s.options.Panicked(v, debug.Stack())
	}
	return status.Error(codes.Internal, "sluice: the call failed, and nothing else did")
}

// due reports whether it is time to tell again, and makes it so that it is not.
func due(at *atomic.Int64) bool {
	now, told := time.Now().UnixNano(), at.Load()
	return now-told > int64(time.Minute) && at.CompareAndSwap(told, now)
}

// forget drops the parts of the request, so that a scratch that waits does not keep it.
func (w *scratch) forget() {
	clear(w.entries)
	clear(w.req.Descriptors)
	clear(w.resp.Statuses)
	w.req.Domain = ""
}

// read translates a request, and checks its sizes.
func (s *Service) read(w *scratch, req *pb.RateLimitRequest) error {
	o := &s.options
	w.begin()
	w.req.Domain, w.req.Hits = req.Domain, req.HitsAddend
	for _, in := range req.Descriptors {
		d := w.descriptor(o)
		for _, e := range in.GetEntries() {
			w.entry(o, d, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if h := in.GetHitsAddend(); h != nil {
			d.counted, d.hits = true, h.Value
		}
		d.refund = in.GetIsNegativeHits()
		if l := in.GetLimit(); l != nil {
			d.limited, d.override = true, rules.Override{Requests: l.RequestsPerUnit, Unit: unit(int32(l.Unit))}
		}
	}
	return w.link(o)
}

// begin makes room for another request.
func (w *scratch) begin() {
	w.req.Domain, w.req.Hits, w.count = "", 0, 0
	w.req.Descriptors, w.entries, w.described = w.req.Descriptors[:0], w.entries[:0], w.described[:0]
}

// descriptor begins another descriptor, which is valid until the next one begins. Those beyond the bound share one.
func (w *scratch) descriptor(o *Options) *described {
	if w.count++; w.count <= o.MaxDescriptors+1 {
		w.described = append(w.described, described{first: len(w.entries), end: len(w.entries)})
	}
	return &w.described[len(w.described)-1]
}

// entry adds an entry to the last descriptor.
func (w *scratch) entry(o *Options, d *described, e rules.Entry) {
	if d.count++; d.count <= o.MaxEntries && w.count <= o.MaxDescriptors {
		w.entries = append(w.entries, e)
		d.end++
	}
}

// link checks the sizes of the parts read, and makes the request of them.
func (w *scratch) link(o *Options) error {
	if w.count > o.MaxDescriptors {
		return tooLarge("%d descriptors; want at most %d", w.count, o.MaxDescriptors)
	}
	for i := range w.described {
		if n := w.described[i].count; n > o.MaxEntries {
			return tooLarge("a descriptor, %d, of %d entries; want at most %d", i, n, o.MaxEntries)
		}
	}
	text := len(w.req.Domain)
	for i := range w.described {
		d := &w.described[i]
		out := rules.Descriptor{Entries: w.entries[d.first:d.end:d.end], Refund: d.refund}
		for j := range out.Entries {
			key, value := len(out.Entries[j].Key), len(out.Entries[j].Value)
			if max(key, value) > o.MaxValue {
				return tooLarge("a descriptor, %d, with a key or value of %d bytes; want at most %d", i, max(key, value), o.MaxValue)
			}
			text += key + value
		}
		if d.counted {
			out.Hits = &d.hits
		}
		if d.limited {
			out.Override = &d.override
		}
		w.req.Descriptors = append(w.req.Descriptors, out)
	}
	if text > o.MaxText {
		return tooLarge("%d bytes of text; want at most %d", text, o.MaxText)
	}
	return nil
}

// unit translates the unit of a limit that comes with a request. A number that is no unit of the request's
// enumeration becomes UnknownUnit, which Decide refuses.
func unit(n int32) rules.Unit {
	if n >= 0 && n <= 6 {
		return rules.Unit(n)
	}
	return rules.UnknownUnit
}

func tooLarge(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, "the request has "+fmt.Sprintf(format, args...))
}
