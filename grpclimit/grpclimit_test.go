package grpclimit_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/grpclimit"
)

func requireConfigError(t *testing.T, err error, field, reason string) {
	t.Helper()
	var e *grpclimit.ConfigError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, field, e.Field)
	assert.Contains(t, e.Reason, reason)
	assert.Contains(t, e.Reason, "want")
	assert.Equal(t, "grpclimit: "+e.Field+": "+e.Reason, err.Error())
}

func free(context.Context, grpclimit.Call, codes.Code) int { return 0 }

func TestNew_ConfigErrors(t *testing.T) {
	lim := gcra(t, sluice.PerSecond(1), nil)
	good := grpclimit.Policy{Name: "p", Limiter: lim, Key: oneKey}
	with := func(change func(*grpclimit.Policy)) grpclimit.Config {
		p := good
		change(&p)
		return grpclimit.Config{Policies: []grpclimit.Policy{{Name: "first", Limiter: lim, Key: oneKey}, p}}
	}
	for _, tt := range []struct {
		c             grpclimit.Config
		field, reason string
	}{
		{grpclimit.Config{}, "Config.Policies", "there is none"},
		{with(func(p *grpclimit.Policy) { p.Name = "" }), "Config.Policies[1].Name", "is empty"},
		{with(func(p *grpclimit.Policy) { p.Name = "ä" }), "Config.Policies[1].Name", "printable ASCII"},
		{with(func(p *grpclimit.Policy) { p.Name = "a\nb" }), "Config.Policies[1].Name", "printable ASCII"},
		{with(func(p *grpclimit.Policy) { p.Name = strings.Repeat("a", 65) }), "Config.Policies[1].Name", "1 to 64"},
		{with(func(p *grpclimit.Policy) { p.Name = "first" }), "Config.Policies[1].Name", "is the name of policy 0"},
		{with(func(p *grpclimit.Policy) { p.Limiter = nil }), "Config.Policies[1].Limiter", "is nil"},
		{with(func(p *grpclimit.Policy) { p.Key = nil }), "Config.Policies[1].Key", "is nil"},
		{with(func(p *grpclimit.Policy) { p.Per = 3 }), "Config.Policies[1].Per", "3 is nothing to count"},
		{with(func(p *grpclimit.Policy) { p.Per, p.Settle = grpclimit.PerSent, free }), "Config.Policies[1].Settle", "want nil, or PerCall"},
		{with(func(p *grpclimit.Policy) { p.CountsDenialsOf = "last" }), "Config.Policies[1].CountsDenialsOf", `"last" is the name of no policy; want one of ["first"]`},
		{with(func(p *grpclimit.Policy) { p.Per, p.CountsDenialsOf = grpclimit.PerReceived, "first" }), "Config.Policies[1].CountsDenialsOf", "want the same Per"},
		{grpclimit.Config{Policies: []grpclimit.Policy{good}, OnKeyError: 2}, "Config.OnKeyError", "2 is not an action"},
		{grpclimit.Config{Policies: []grpclimit.Policy{good}, RetryJitter: -1}, "Config.RetryJitter", "-1ns cannot be added"},
		{grpclimit.Config{Policies: []grpclimit.Policy{good}, RetryJitter: time.Hour + time.Millisecond}, "Config.RetryJitter", "whole milliseconds"},
		{grpclimit.Config{Policies: []grpclimit.Policy{good}, MaxRetryAfter: time.Microsecond}, "Config.MaxRetryAfter", "whole milliseconds"},
		{grpclimit.Config{Policies: []grpclimit.Policy{good}, MaxRetryAfter: 366 * 24 * time.Hour}, "Config.MaxRetryAfter", "up to 8760h"},
	} {
		_, err := grpclimit.New(tt.c)
		requireConfigError(t, err, tt.field, tt.reason)
		assert.Panics(t, func() { sluice.Must(grpclimit.New(tt.c)) })
	}
	longest := good
	longest.Name = strings.Repeat("~", 64)
	_, err := grpclimit.New(grpclimit.Config{Policies: []grpclimit.Policy{longest}})
	assert.NoError(t, err)
}

func TestNewClient_ConfigErrors(t *testing.T) {
	lim := gcra(t, sluice.PerSecond(1), nil)
	all := func(string) bool { return true }
	for _, tt := range []struct {
		c             grpclimit.ClientConfig
		field, reason string
	}{
		{grpclimit.ClientConfig{Key: oneKey}, "Key", "without a Limiter"},
		{grpclimit.ClientConfig{Cost: func(context.Context, grpclimit.Call) int { return 1 }}, "Cost", "without a Limiter"},
		{grpclimit.ClientConfig{MaxWait: -1}, "MaxWait", "is negative"},
		{grpclimit.ClientConfig{MaxWait: 1, FailFast: true}, "MaxWait", "with FailFast"},
		{grpclimit.ClientConfig{MaxRetries: -1, Idempotent: all}, "MaxRetries", "0 to 100"},
		{grpclimit.ClientConfig{MaxRetries: 101, Idempotent: all}, "MaxRetries", "0 to 100"},
		{grpclimit.ClientConfig{MaxRetries: 1, FailFast: true, Idempotent: all}, "MaxRetries", "with FailFast"},
		{grpclimit.ClientConfig{MaxRetries: 1}, "Idempotent", "is nil with MaxRetries"},
		{grpclimit.ClientConfig{Idempotent: all}, "Idempotent", "without MaxRetries"},
		{grpclimit.ClientConfig{MaxRetryAfter: -1}, "MaxRetryAfter", "out of range"},
		{grpclimit.ClientConfig{MaxRetryAfter: 366 * 24 * time.Hour}, "MaxRetryAfter", "out of range"},
	} {
		_, err := grpclimit.NewClient(tt.c)
		requireConfigError(t, err, "ClientConfig."+tt.field, tt.reason)
	}
	for _, c := range []grpclimit.ClientConfig{
		{}, {Limiter: lim, FailFast: true}, {MaxWait: sluice.Never, MaxRetries: 100, Idempotent: all, MaxRetryAfter: 365 * 24 * time.Hour},
	} {
		_, err := grpclimit.NewClient(c)
		assert.NoError(t, err)
	}
}

func TestNewLimiter_ConfigErrors(t *testing.T) {
	c := onePolicy(t, sluice.PerSecond(1), nil)
	c.Settle = free
	_, err := grpclimit.NewLimiter(c)
	requireConfigError(t, err, "Config.Settle", "does not hear")
	c.Settle, c.Policies[0].Settle = nil, free
	_, err = grpclimit.NewLimiter(c)
	requireConfigError(t, err, "Config.Policies[0].Settle", "does not hear")
	for _, per := range []grpclimit.Per{grpclimit.PerReceived, grpclimit.PerSent} {
		c = onePolicy(t, sluice.PerSecond(1), nil)
		c.Policies[0].Per = per
		_, err = grpclimit.NewLimiter(c)
		requireConfigError(t, err, "Config.Policies", "per message")
	}
	for _, shadow := range []bool{false, true} {
		c = onePolicy(t, sluice.PerSecond(1), nil)
		atOnce := newLimiter(t, sluice.Config{Algorithm: sluice.InFlight, Limit: sluice.AtOnce(2, time.Hour), Shadow: shadow})
		c.Policies = append(c.Policies, grpclimit.Policy{Name: "at-once", Limiter: atOnce, Key: oneKey})
		_, err = grpclimit.NewLimiter(c)
		requireConfigError(t, err, "Config.Policies[1].Limiter", "want another algorithm, or the interceptors of New")
	}
	_, err = grpclimit.NewLimiter(grpclimit.Config{})
	requireConfigError(t, err, "Config.Policies", "there is none")
}

// Later changes to the Config have no effect.
func TestNew_CopiesTheConfig(t *testing.T) {
	c := onePolicy(t, sluice.PerMinute(1), newClock())
	j := newJudge(t, c)
	c.Policies[0].Key = func(context.Context, grpclimit.Call) (string, error) { panic("not asked") }
	assert.True(t, j.Decide(t.Context(), grpclimit.Call{}).Allowed)
	assert.False(t, j.Decide(t.Context(), grpclimit.Call{}).Allowed)
}
