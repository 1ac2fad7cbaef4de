package rulestore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/rules"
)

// TestReset: a key that is reset is fresh, under each algorithm, with a block and with a second budget, in memory and in Redis; and
// refunds of what it was denied before give back nothing that others have taken since.
func TestReset(t *testing.T) {
	set := load(t, `
domain: d
descriptors:
- {key: window, rate_limit: {unit: year, requests_per_unit: 100}}
- {key: sliding, rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding-window}}
- {key: log, rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding-log}}
- {key: bucket, rate_limit: {unit: year, requests_per_unit: 100, algorithm: token-bucket}}
- {key: gcra, rate_limit: {unit: year, requests_per_unit: 100, burst: 100, algorithm: gcra}}
- {key: leaky, rate_limit: {unit: year, requests_per_unit: 100, algorithm: leaky-bucket}}
- {key: calls, rate_limit: {unit: year, requests_per_unit: 100, algorithm: in-flight}}
- {key: blocks, rate_limit: {unit: year, requests_per_unit: 100, algorithm: gcra, block_for: 1h}}
- {key: plan, rate_limit: {unit: year, requests_per_unit: 60, then: more}}
- {key: credits, value: all, rate_limit: {unit: year, requests_per_unit: 40, name: more}}
- {key: free, rate_limit: {unlimited: true}}
`)
	ask := func(e *rules.Engine, key string, hits uint64, refund bool, o *rules.Override) (rules.Code, int) {
		var resp rules.Response
		d := rules.Descriptor{Entries: []rules.Entry{{Key: key, Value: "u"}}, Hits: &hits, Refund: refund, Override: o}
		require.NoError(t, e.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{d}}, &resp))
		return resp.Code, int(resp.Statuses[0].Remaining)
	}
	reset := func(e *rules.Engine, domain string, o *rules.Override, keys ...string) error {
		req := &rules.Request{Domain: domain}
		for _, key := range keys {
			req.Descriptors = append(req.Descriptors, rules.Descriptor{Entries: []rules.Entry{{Key: key, Value: "u"}}, Override: o})
		}
		return e.Reset(req)
	}
	run := func(t *testing.T, e *rules.Engine) {
		for _, key := range []string{"window", "sliding", "log", "bucket", "gcra", "leaky", "calls", "blocks", "plan"} {
			code, left := ask(e, key, 100, false, nil)
			require.Equal(t, rules.OK, code, key)
			require.Zero(t, left, key)
			code, _ = ask(e, key, 50, false, nil)
			require.Equal(t, rules.OverLimit, code, key)
			require.NoError(t, reset(e, "d", nil, key))
			code, left = ask(e, key, 60, false, nil)
			require.Equal(t, rules.OK, code, key)
			require.Equal(t, 40, left, key)
			_, left = ask(e, key, 50, true, nil) // of the call that was denied
			require.Equal(t, 40, left, key)
		}
		of := &rules.Override{Requests: 10, Unit: rules.Year}
		code, _ := ask(e, "own", 10, false, of)
		require.Equal(t, rules.OK, code)
		require.NoError(t, reset(e, "d", of, "own"))
		_, left := ask(e, "own", 1, false, of)
		require.Equal(t, 9, left)
		_, before := ask(e, "window", 0, false, nil)
		require.EqualError(t, reset(e, "d", nil, "window", "none"), "descriptor 1: no rule limits it; want the entries of a rule that has a limit")
		require.EqualError(t, reset(e, "d", nil, "window", "free"), "descriptor 1: no rule limits it; want the entries of a rule that has a limit")
		require.EqualError(t, reset(e, "other", nil, "window"), `domain "other" has no rules; want a domain that has`)
		require.ErrorIs(t, reset(e, "", nil, "window"), rules.ErrNoDomain)
		_, after := ask(e, "window", 0, false, nil)
		require.Equal(t, before, after, "nothing has changed")
	}
	t.Run("memory", func(t *testing.T) {
		e, err := rules.New(set, rules.Config{Clock: sluice.NewManualClock(time.Unix(1_700_000_000, 0))})
		require.NoError(t, err)
		run(t, e)
	})
	eachServer(t, func(t *testing.T, server *servers.Redis) {
		s := newStore(t, server.Addr, Config{})
		s.sentRefunds(t)
		e, err := rules.New(set, rules.Config{Store: s})
		require.NoError(t, err)
		run(t, e)
		server.Kill()
		require.ErrorIs(t, reset(e, "d", nil, "window"), rules.ErrStore)
	})
}
