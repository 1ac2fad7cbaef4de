package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/sluice-go/sluice"
)

// A Limiter limits by one method, Limit(ctx) error: that is ratelimit.Limiter of
// github.com/grpc-ecosystem/go-grpc-middleware/v2, whose server interceptors ask it. Those build
// the status themselves, so that a denied client is told when to retry by grpc-retry-pushback-ms
// and in the text, but not by details. A handler can ask it, too, before it does anything else: the
// pushback lets clients send the call again. It is safe for concurrent use and must be made by
// NewLimiter.
type Limiter struct{ judge *Judge }

// NewLimiter returns a Limiter. The error is a *ConfigError. Of a call Limit knows only when it
// begins: Config.Settle and those of the policies must be nil, all policies PerCall, and no Limiter of sluice.InFlight, since nothing
// would give its units back.
func NewLimiter(c Config) (*Limiter, error) {
	j, err := New(c)
	switch {
	case err != nil:
		return nil, err
	case c.Settle != nil:
		return nil, configErrorf("Config.Settle", "is set for a Limiter, which does not hear how calls end; want nil, or the interceptors of New")
	case len(j.received.list) > 0 || len(j.sent.list) > 0:
		return nil, configErrorf("Config.Policies", "some are per message, of which a Limiter does not hear; want PerCall only, or the interceptors of New")
	}
	for i, p := range c.Policies {
		if p.Settle != nil {
			return nil, configErrorf(fmt.Sprintf("Config.Policies[%d].Settle", i), "is set for a Limiter, which does not hear how calls end; want nil, or the interceptors of New")
		}
		if p.Remote == nil && p.Limiter.Config().Algorithm == sluice.InFlight {
			return nil, configErrorf(fmt.Sprintf("Config.Policies[%d].Limiter", i), "is of in-flight, whose units come back when calls end, of which a Limiter does not hear; want another algorithm, or the interceptors of New")
		}
	}
	return &Limiter{j}, nil
}

// Limit judges the call of a server whose context it is, and returns nil or a *DeniedError. It
// sets the trailer of a call that is denied. Call.Message is nil, and Call.Stream false.
func (l *Limiter) Limit(ctx context.Context) error {
	method, _ := grpc.Method(ctx)
	call := Call{FullMethod: method}
	if l.judge.config.Skip(ctx, call) {
		return nil
	}
	if d, _ := l.judge.judge(ctx, call); !d.Allowed {
		return l.judge.deny(ctx, d)
	}
	return nil
}
