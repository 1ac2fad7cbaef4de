package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"testing"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/httplimit"
	"github.com/sluice-go/sluice/internal/test/surfaces"
)

// openTransport starts a server without a limit, and calls it by a Transport.
func openTransport(t *testing.T, s *surfaces.Setup, c httplimit.TransportConfig) (surfaces.Door, error) {
	c.FailFast = true // the limiters' clock does not run with real time
	transport, err := httplimit.NewTransport(&http.Transport{DisableKeepAlives: true}, c)
	if err != nil {
		return surfaces.Door{}, err
	}
	url := surfaces.Listen(t, surfaces.NewHandler(s))
	roundTrip := func(r *http.Request) (resp *http.Response, err error) {
		defer s.Handler.Left()
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("a panic: %v", v)
			}
		}()
		return transport.RoundTrip(r)
	}
	return surfaces.Door{Call: func(ctx context.Context) surfaces.Outcome {
		o := surfaces.Get(ctx, t, s, url, roundTrip)
		var limited *httplimit.LimitError
		if errors.As(o.Err, &limited) {
			return surfaces.Outcome{Denied: true, RetryAfter: limited.RetryAfter}
		}
		return o
	}}, nil
}

// cannotByTransport are the rows that no Transport runs.
func cannotByTransport(more map[string]string) map[string]string {
	cannot := map[string]string{
		"error that nobody answers":                    "what handlers return is the server's",
		"client gone and an error that nobody answers": "what handlers return is the server's",
		"timeout":                     "nobody gives up on a handler but the client: see \"client gone\"",
		"settled: ":                   "there is no Settle",
		"panics in Settle":            "there is none",
		"panics in Limit":             "there is none",
		"panics in Skip":              "there is none",
		"panics in Client":            "httprules has it",
		"panics in PartitionKey":      "there is none",
		"panics in OnDecision":        "there is none",
		"remote":                      "a Transport waits for Limiters of its own",
		"queue":                       "a Transport waits by itself: see MaxWait",
		"hint of a denial":            "a Transport knows when it may call",
		"panics in OnMissingHeader":   "a Transport is nobody's server",
		"limit that calls bring":      "a Transport knows its limit",
		"denials of another policy":   "nobody bans itself",
		"panics in OnDenied":          "there is none",
		"streaming after the handler": "of a response that streams, RoundTrip returns while it does: see \"streaming in the handler\"",
	}
	maps.Copy(cannot, more)
	return cannot
}

func TestSurface_Transport(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			p := s.Policies[0]
			return openTransport(t, s, httplimit.TransportConfig{
				Limiter: p.Limiter,
				Key:     func(*http.Request) (string, error) { return p.Key() },
				Cost:    func(*http.Request) int { return p.Cost() },
			})
		},
		Cannot: cannotByTransport(map[string]string{
			"panics in Charges":           "they stand in for a Limiter: see TestSurface_TransportWithCharges",
			"denied by the second policy": "a Limiter is one policy: see TestSurface_TransportWithCharges",
			"shadow whose Key fails":      "a request without a key is not sent",
		}),
		One: true,
	}.Test(t)
}

func TestSurface_TransportWithCharges(t *testing.T) {
	surfaces.Surface{
		Open: func(t *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
			return openTransport(t, s, httplimit.TransportConfig{Charges: func(*http.Request) (all []sluice.Charge, err error) {
				if err = s.Called("Charges"); err != nil {
					return nil, err
				}
				for _, p := range s.Policies {
					key, err := p.Key()
					if err != nil {
						return nil, err
					}
					all = append(all, sluice.Charge{Key: p.Limiter.Key(key), Cost: p.Cost()})
				}
				return all, nil
			}})
		},
		Cannot: cannotByTransport(map[string]string{"shadow whose Key fails": "a request without a key is not sent"}),
	}.Test(t)
}
