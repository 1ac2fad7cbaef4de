package rulestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

func newUpstream(t *testing.T, client redis.UniversalClient, c UpstreamConfig) *Upstream {
	t.Helper()
	if c.Budget == 0 {
		c.Budget = 5 * time.Second
	}
	if c.OnUnavailable == redislimit.LocalShare {
		c.OnUnavailable = redislimit.FailClosed
	}
	u, err := NewUpstream(client, c)
	require.NoError(t, err)
	return u
}

// TestUpstream_Names: keys have the names that envoyproxy/ratelimit gives them, and live as long; hits are added and taken off.
func TestUpstream_Names(t *testing.T) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr})
	defer client.Close()
	u := newUpstream(t, client, UpstreamConfig{Prefix: "p:", Jitter: time.Minute})
	u.now = func() time.Time { return time.Unix(1_790_000_123, 5) }
	set := load(t, "domain: web\ndescriptors:\n- {key: path, value: /a*, share_threshold: true, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 5}}]}\n")
	e, err := rules.New(set, rules.Config{Store: u})
	require.NoError(t, err)
	var resp rules.Response
	ask := func(hits uint64, refund bool) rules.Status {
		d := rules.Descriptor{Entries: []rules.Entry{{Key: "path", Value: "/abc"}, {Key: "user", Value: "id_42"}}, Hits: &hits, Refund: refund}
		require.NoError(t, e.Decide(&rules.Request{Domain: "web", Descriptors: []rules.Descriptor{d}}, &resp))
		return resp.Statuses[0]
	}
	require.EqualValues(t, 2, ask(3, false).Remaining)
	const key = "p:web_path_/a*_user_id_42_1789999200"
	require.Equal(t, "3", client.Get(ctx, key).Val(), "%v", client.Keys(ctx, "*").Val())
	ttl := client.TTL(ctx, key).Val()
	require.GreaterOrEqual(t, ttl, time.Hour-time.Second)
	require.Less(t, ttl, time.Hour+time.Minute)
	require.NoError(t, client.Incr(ctx, key).Err(), "another program counts one")
	require.EqualValues(t, 1, ask(0, false).Remaining)
	require.Equal(t, rules.OverLimit, ask(2, false).Code)
	require.Equal(t, "6", client.Get(ctx, key).Val())
	require.EqualValues(t, 5, ask(9, true).Remaining)
	require.Equal(t, "0", client.Get(ctx, key).Val())
	require.Equal(t, 3600*time.Second-923*time.Second, ask(0, false).ResetAfter)
}

// units are so long that no boundary comes while a test runs; and nothing comes back that a status would show.
var units = []string{"month", "year"}

// randomRequest is a call of different keys.
func randomRequest(r *rand.Rand) *rules.Request {
	req := &rules.Request{Domain: "d", Hits: uint32(r.IntN(3))}
	keys := []string{"a", "b", "c"}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+r.IntN(3)] {
		d := rules.Descriptor{Entries: []rules.Entry{{Key: key, Value: pick(r, "x", "y1", "y2", "z")}}}
		if r.IntN(4) == 0 {
			n := uint64(r.IntN(6))
			d.Hits = &n
		}
		d.Refund = r.IntN(6) == 0
		if r.IntN(6) == 0 {
			d.Override = &rules.Override{Requests: uint32(1 + r.IntN(20)), Unit: []rules.Unit{rules.Month, rules.Year}[r.IntN(2)]}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// comparable is what a status says that does not depend on the moment: the engine in memory decides a little later.
func comparable(s rules.Status) string {
	return fmt.Sprint(s.Code, s.Over, s.Limited, s.Requests, s.Unit, s.Remaining)
}

// TestUpstream_DecidesAsMemory: every status is that of an engine in memory.
func TestUpstream_DecidesAsMemory(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: servers.StartRedis(t).Addr})
	defer client.Close()
	r := seeded.Rand(t)
	for round := range 8 {
		c := rules.Config{StopWhenOver: round%2 == 1}
		var b strings.Builder
		b.WriteString("domain: d\ndescriptors:\n")
		for _, key := range []string{"a", "b", "c"} {
			for _, value := range []string{"", "x", "y*"} {
				fmt.Fprintf(&b, "- {key: %s, value: %q, shadow_mode: %t, rate_limit: {unit: %s, requests_per_unit: %d}}\n", key, value, r.IntN(5) == 0, pick(r, units...), r.IntN(30))
			}
		}
		set := load(t, b.String())
		memory, err := rules.New(set, c)
		require.NoError(t, err)
		c.Store = newUpstream(t, client, UpstreamConfig{Prefix: fmt.Sprint(round, ":")})
		shared, err := rules.New(set, c)
		require.NoError(t, err)
		var want, got rules.Response
		for i := range 200 {
			req := randomRequest(r)
			for j := range req.Descriptors {
				req.Descriptors[j].Refund = false // in memory, what was denied and not counted absorbs them
			}
			require.NoError(t, memory.Decide(req, &want))
			require.NoError(t, shared.Decide(req, &got))
			require.Equal(t, want.Code, got.Code, "call %d: %+v", i, req)
			for j := range want.Statuses {
				require.Equal(t, comparable(want.Statuses[j]), comparable(got.Statuses[j]), "call %d: %+v", i, req)
			}
		}
	}
}

// TestUpstream_Refuses: rules that such names cannot count are refused, with the reason.
func TestUpstream_Refuses(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for text, want := range map[string]string{
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra}}]":        "d.k: algorithm: gcra; upstream's names count fixed windows only",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, block_for: 1s}}]":          "d.k: algorithm: fixed-window; upstream's names count fixed windows only",
		"domain: d\ndescriptors: [{key: k, rate_limit: {period: 7s, requests_per_unit: 1}}]":                        "d.k: period: windows of 7s",
		"domain: d\ndescriptors: [{key: k, rate_limit: {calendar: {unit: day}, requests_per_unit: 1}}]":             `d.k: calendar: windows of "1 per day in UTC"; upstream's names count units of one length only`,
		"domain: d\nsluice: {atomic: true}\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]": "d: atomic or then: keys under upstream's names",
	} {
		_, err := rules.New(load(t, text), rules.Config{Store: newUpstream(t, client, UpstreamConfig{})})
		require.ErrorContains(t, err, want)
	}
	_, err := NewUpstream(client, UpstreamConfig{})
	require.ErrorContains(t, err, "want FailOpen or FailClosed")
}

// TestUpstream_Unavailable: without Redis a call is an error, or admitted.
func TestUpstream_Unavailable(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	set := load(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]")
	req := &rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "k", Value: "x"}}}}}
	var resp rules.Response
	e, err := rules.New(set, rules.Config{Store: newUpstream(t, client, UpstreamConfig{OnUnavailable: redislimit.FailClosed})})
	require.NoError(t, err)
	require.ErrorIs(t, e.Decide(req, &resp), rules.ErrStore)
	e, err = rules.New(set, rules.Config{Store: newUpstream(t, client, UpstreamConfig{OnUnavailable: redislimit.FailOpen})})
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, e.Decide(req, &resp))
		require.Equal(t, rules.OK, resp.Code)
	}
}
