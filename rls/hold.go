package rls

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rls/holdpb"
	"github.com/sluice-go/sluice/rules"
)

// The services of holds. The second one is Kuadrant's: its messages have the same fields on the wire, so that
// gateways which speak to Limitador can speak to this service. It has no more of that service's methods.
const (
	holdService     = "sluice.ratelimit.v1.HoldService"
	kuadrantService = "kuadrant.service.ratelimit.v1.RateLimitService"
)

// RegisterHolds makes the service answer Reserve, Commit, Extend and Release of holdpb on a server, and Reserve and
// Commit of kuadrant.service.ratelimit.v1.RateLimitService. The server of NewServer answers them already. Others decode
// requests before their sizes are looked at, as with Register.
func (s *Service) RegisterHolds(r grpc.ServiceRegistrar) { s.registerHolds(r, false) }

// registerHolds is RegisterHolds. raw says that the server has our codec.
func (s *Service) registerHolds(r grpc.ServiceRegistrar, raw bool) {
	reserve := unary("Reserve", raw, s.reserve)
	commit := unary("Commit", raw, s.commit)
	extend, release := unary("Extend", raw, s.extend), unary("Release", raw, s.release)
	for name, methods := range map[string][]grpc.MethodDesc{
		holdService:     {reserve(holdService), commit(holdService), extend(holdService), release(holdService)},
		kuadrantService: {reserve(kuadrantService), commit(kuadrantService)},
	} {
		r.RegisterService(&grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil), Methods: methods, Metadata: "holdpb/hold.proto"}, s)
	}
}

// unary is a method of a service, by its name and its function.
func unary[In, Out any](name string, raw bool, do func(*In) (*Out, error)) func(service string) grpc.MethodDesc {
	return func(service string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, read func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			s := srv.(*Service)
			if s.options.Took != nil {
				defer s.took(time.Now())
			}
			in := new(In)
			entered, err := s.readHoldMessage(ctx, read, in, raw)
			defer s.leave(entered)
			if err != nil {
				return nil, err
			}
			if interceptor == nil {
				return do(in)
			}
			info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + service + "/" + name}
			return interceptor(ctx, in, info, func(_ context.Context, m any) (any, error) { return do(m.(*In)) })
		}}
	}
}

// readHoldMessage reads the message of a call about a hold. What is returned is for leave, also with an error.
func (s *Service) readHoldMessage(ctx context.Context, read func(any) error, in any, raw bool) (entered int, err error) {
	if !raw {
		return 0, s.readInTime(ctx, read, in)
	}
	var m message
	if err = s.readInTime(ctx, read, &m); err != nil {
		return 0, err
	}
	if entered, err = s.enter(len(m.text)); err == nil {
		err = s.unpack(m.text, in.(proto.Message))
	}
	return entered, err
}

// held is a call about a hold in a form that both transports share.
type held struct {
	hold     rules.Hold
	response *rules.Response
}

// withHold reads a call about a hold, lets do make it, and answers.
func withHold[Out any](s *Service, read func(*scratch, *Options) (rules.Hold, error), do func(*rules.Hold, *rules.Response) error, answer func(*held) *Out) (out *Out, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = nil, s.panicked(v)
		}
	}()
	w := s.scratch.Get().(*scratch)
	w.begin()
	h, err := read(w, &s.options)
	if err == nil {
		err = w.link(&s.options)
	}
	if err != nil {
		s.refused.Add(1)
		return nil, err
	}
	h.Request.Domain, h.Request.Descriptors = w.req.Domain, w.req.Descriptors
	if err := do(&h, &w.resp); err != nil {
		s.refused.Add(1)
		return nil, s.holdRefusal(err)
	}
	out = answer(&held{h, &w.resp})
	w.forget()
	s.scratch.Put(w)
	return out, nil
}

// holdRefusal is the status of an error about a hold.
func (s *Service) holdRefusal(err error) error {
	switch {
	case errors.Is(err, rules.ErrNotHeld):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, rules.ErrOtherHold), errors.Is(err, rules.ErrEndedHold):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, rules.ErrManyHolds):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, rules.ErrNoHolds), errors.Is(err, rules.ErrNoReset):
		return status.Error(codes.Unimplemented, err.Error())
	case errors.Is(err, rules.ErrNoDomain), errors.Is(err, rules.ErrNoDescriptors):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return s.refusal(err)
}

// readHold reads the descriptors of a message. Each has hits, so that 0 is 0.
func (w *scratch) readHold(o *Options, domain string, descriptors []*holdpb.Descriptor, amount uint64) {
	w.req.Domain = domain
	for _, in := range descriptors {
		d := w.descriptor(o)
		for _, e := range in.GetEntries() {
			w.entry(o, d, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		d.counted, d.hits, d.refund = true, amount, in.GetIsNegativeHits()
		if h := in.GetHitsAddend(); h != nil {
			d.hits = h.GetValue()
		}
		if l := in.GetLimit(); l != nil {
			d.limited, d.override = true, rules.Override{Requests: l.GetRequestsPerUnit(), Unit: unit(l.GetUnit())}
		}
	}
}

// ttl is the time that a message gives to a hold; 0 if it gives none.
func ttl(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 {
		return 0, status.Error(codes.InvalidArgument, fmt.Sprintf("ttl is %v; want more than 0, or none for 10 minutes", d.AsDuration()))
	}
	return d.AsDuration(), nil
}

func (s *Service) reserve(in *holdpb.ReserveRequest) (*holdpb.ReserveResponse, error) {
	return withHold(s, func(w *scratch, o *Options) (h rules.Hold, err error) {
		w.readHold(o, in.GetDomain(), in.GetDescriptors(), in.GetAmount())
		h.TTL, err = ttl(in.GetTtl())
		h.ID, h.GiveBack = in.GetIdempotencyKey(), in.GetGiveBack()
		return h, err
	}, s.engine.Hold, func(h *held) *holdpb.ReserveResponse {
		out := &holdpb.ReserveResponse{Code: holdpb.Code(h.response.Code), RetryAfter: retryAfter(h.response), DeniedBy: h.response.DeniedBy(), Replayed: h.hold.Again}
		if h.response.Code == rules.OK {
			out.ReservationId = h.hold.ID
		}
		return out
	})
}

// commit settles a hold. A gateway can do nothing about a hold that is gone, so that is an answer and no error.
func (s *Service) commit(in *holdpb.CommitRequest) (*holdpb.CommitResponse, error) {
	do := func(h *rules.Hold, resp *rules.Response) error { return s.engine.Settle(h) }
	if in.GetReservationId() == "" {
		do = func(h *rules.Hold, resp *rules.Response) error { return s.engine.Decide(&h.Request, resp) }
	}
	out, err := withHold(s, func(w *scratch, o *Options) (h rules.Hold, err error) {
		w.readHold(o, in.GetDomain(), in.GetDescriptors(), in.GetActualAmount())
		return rules.Hold{ID: in.GetReservationId()}, nil
	}, do, func(h *held) *holdpb.CommitResponse {
		return &holdpb.CommitResponse{ReservationReleased: h.hold.ID != "", Replayed: h.hold.Again, Capped: h.hold.Capped}
	})
	if status.Code(err) == codes.NotFound {
		return &holdpb.CommitResponse{}, nil
	}
	return out, err
}

func (s *Service) extend(in *holdpb.ExtendRequest) (*holdpb.ExtendResponse, error) {
	return withHold(s, func(w *scratch, o *Options) (h rules.Hold, err error) {
		w.readHold(o, in.GetDomain(), in.GetDescriptors(), in.GetAmount())
		h.TTL, err = ttl(in.GetTtl())
		h.ID, h.Step = in.GetReservationId(), in.GetIdempotencyKey()
		return h, err
	}, s.engine.Extend, func(h *held) *holdpb.ExtendResponse {
		return &holdpb.ExtendResponse{Code: holdpb.Code(h.response.Code), RetryAfter: retryAfter(h.response), DeniedBy: h.response.DeniedBy(), Replayed: h.hold.Again}
	})
}

func (s *Service) release(in *holdpb.ReleaseRequest) (*holdpb.ReleaseResponse, error) {
	return withHold(s, func(w *scratch, o *Options) (h rules.Hold, err error) {
		w.readHold(o, in.GetDomain(), in.GetDescriptors(), 0)
		return rules.Hold{ID: in.GetReservationId()}, nil
	}, s.releaseHold, func(h *held) *holdpb.ReleaseResponse { return &holdpb.ReleaseResponse{Replayed: h.hold.Again} })
}

func (s *Service) releaseHold(h *rules.Hold, _ *rules.Response) error { return s.engine.Release(h) }

// retryAfter is the wait that the client of a denied call is told; nil if it is not denied, or no wait helps.
func retryAfter(resp *rules.Response) *durationpb.Duration {
	wait, _ := resp.RetryAfter()
	if resp.Code != rules.OverLimit || wait == sluice.Never {
		return nil
	}
	return durationpb.New(wait)
}

// seconds rounds up, so that a client that waits as long is not early.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
