package messagelimit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-go/sluice/internal/test/surfaces"
)

// openReader has each call read a message, which the handler then handles.
func openReader(_ *testing.T, s *surfaces.Setup) (surfaces.Door, error) {
	c := Config{Cost: func([]byte) int { return s.Policies[0].Cost() }}
	for _, p := range s.Policies {
		c.Keys = append(c.Keys, p.Limiter.Key(surfaces.Key))
	}
	l, err := New(c)
	if err != nil {
		return surfaces.Door{}, err
	}
	read := Reader(l, func(ctx context.Context) (int, []byte, error) { return 0, nil, ctx.Err() })
	return surfaces.Door{Call: func(ctx context.Context) (o surfaces.Outcome) {
		defer s.Handler.Left()
		defer func() {
			if v := recover(); v != nil {
				o.Err = fmt.Errorf("a panic: %v", v)
			}
		}()
		_, _, err := read(ctx)
		var denied *DeniedError
		switch {
		case errors.As(err, &denied):
			return surfaces.Outcome{Denied: true, RetryAfter: denied.RetryAfter}
		case err != nil:
			return surfaces.Outcome{Err: err}
		}
		s.Handler.Seen()
		s.Handler.Begin()
		return surfaces.Outcome{}
	}}, nil
}

func TestSurface_Reader(t *testing.T) {
	surfaces.Surface{
		Open:    openReader,
		Refuses: "httplimit",
		Cannot: map[string]string{
			"client gone":    "a message that has been read is handled: see \"client gone before\"",
			"error that":     "a handler of messages returns nothing to the limit",
			"handler panics": "it is behind the limit, which has returned",
			"hijacked":       "there is no response", "streaming": "there is no response",
			"timeout":   "nobody gives up on a handler",
			"settled: ": "there is no Settle", "panics in Settle": "there is none",
			"panics in Key": "the keys are those of a connection", "Key fails": "see \"panics in Key\"", "shadow whose Key fails": "see \"panics in Key\"",
			"panics in Limit": "a Key brings its limit", "limit that calls bring": "a Key brings its limit",
			"panics in Skip": "there is none", "panics in Charges": "there is none", "panics in Client": "there is none", "panics in PartitionKey": "there is none",
			"panics in OnDecision": "there is none", "panics in OnDenied": "there is none",
			"remote":                    "a message is charged to Limiters, all or none",
			"denials of another policy": "a message that is denied is charged to no key",
			"hint of a denial":          "an error tells the wait to a program, not to a client",
			"panics in OnMissingHeader": "the keys are those of a connection",
			"queue":                     "a connection waits by itself: one message of it at a time",
		},
	}.Test(t)
}
