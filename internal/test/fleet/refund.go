package fleet

import (
	"context"
	"fmt"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// give makes a call that gives hits back.
func give(s *Service, key, value string, hits uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := request(key, value)
	r.Descriptors[0].IsNegativeHits = true
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(hits)
	_, err := s.client.ShouldRateLimit(ctx, r)
	return err
}

// take makes a call of some hits.
func take(s *Service, key, value string, hits uint64) (admitted bool, remaining uint32, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := request(key, value)
	r.Descriptors[0].HitsAddend = wrapperspb.UInt64(hits)
	answer, err := s.client.ShouldRateLimit(ctx, r)
	if err != nil {
		return false, 0, err
	}
	return answer.OverallCode == pb.RateLimitResponse_OK, answer.Statuses[0].LimitRemaining, nil
}

// A Stream is a call that takes an estimate, and gives back unused units at its end, as a proxy does for budgets of
// tokens: also if it was denied, since a proxy does not look.
type Stream struct {
	Estimate, Used uint64
	Admitted       bool
}

// Begin takes the estimate from a service.
func (r *Stream) Begin(s *Service, key, value string) (err error) {
	if r.Admitted, _, err = take(s, key, value, r.Estimate); !r.Admitted {
		r.Used = 0
	}
	return err
}

// Settle gives back at a service, maybe another one.
func (r *Stream) Settle(s *Service, key, value string) error {
	if r.Used >= r.Estimate {
		return nil
	}
	return give(s, key, value, r.Estimate-r.Used)
}

// Kept is how many units of a stream count in the end.
func (r *Stream) Kept() uint64 {
	if !r.Admitted {
		return 0
	}
	return min(r.Used, r.Estimate)
}

// RefundsKnown makes a domain one that is sent refunds, and waits until those give something back at all services. The key is that
// of a limit of which nothing comes back meanwhile.
func (f *Fleet) RefundsKnown(key string) error {
	for i, s := range f.Services {
		value := fmt.Sprint("known ", i, time.Now().UnixNano())
		err := eventually("refunds give something back", func() bool {
			_, before, err := take(s, key, value, 1)
			if err != nil || before == 0 {
				return false
			}
			if give(s, key, value, 1) != nil {
				return false
			}
			_, after, err := take(s, key, value, 0)
			return err == nil && after == before+1
		})
		if err != nil {
			return err
		}
	}
	return nil
}
