package rulestore

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

var _ rules.HoldStore = (*Store)(nil)

// holders returns engines of one set of rules, on one Redis.
func holders(t *testing.T, s *servers.Redis, n int, text string) (engines []*rules.Engine) {
	prefix := fmt.Sprint(t.Name(), time.Now().UnixNano())
	for range n {
		store := newStore(t, s.Addr, Config{StoreConfig: redislimit.StoreConfig{Prefix: prefix[len(prefix)-20:]}})
		e, err := rules.New(load(t, text), rules.Config{Store: store})
		require.NoError(t, err)
		engines = append(engines, e)
	}
	return engines
}

// holdOf is a hold of the user u with so many hits of each descriptor.
func holdOf(id string, hits ...uint64) *rules.Hold {
	h := &rules.Hold{ID: id, TTL: time.Hour, Request: rules.Request{Domain: "d"}}
	for i := range hits {
		h.Request.Descriptors = append(h.Request.Descriptors, rules.Descriptor{Entries: []rules.Entry{{Key: []string{"requests", "tokens"}[i], Value: "u"}}, Hits: &hits[i]})
	}
	return h
}

const holdRules = `
domain: d
sluice: {atomic: %t}
descriptors:
  - key: requests
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: tokens
    %s
`

// TestHolds_TwoEngines: a hold of one engine is extended and settled at another one, all or none, and repeated.
func TestHolds_TwoEngines(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servers.Redis) {
		for _, atomic := range []bool{false, true} {
			for _, limit := range []string{"rate_limit: {unit: year, requests_per_unit: 100}", "rate_limit: {unit: year, requests_per_unit: 100, algorithm: gcra}", "rate_limit: {unit: year, requests_per_unit: 100, algorithm: sliding-window}"} {
				e := holders(t, s, 2, fmt.Sprintf(holdRules, atomic, limit))
				var resp rules.Response
				code := func(f func(*rules.Hold, *rules.Response) error, h *rules.Hold) rules.Code {
					t.Helper()
					require.NoError(t, f(h, &resp))
					return resp.Code
				}
				left := func(a, b uint32) {
					t.Helper()
					h := holdOf("", 0, 0)
					require.NoError(t, e[1].Decide(&h.Request, &resp))
					require.Equal(t, []uint32{a, b}, []uint32{resp.Statuses[0].Remaining, resp.Statuses[1].Remaining})
				}
				require.Equal(t, rules.OK, code(e[0].Hold, holdOf("x", 1, 60)))
				require.Equal(t, rules.OK, code(e[1].Hold, holdOf("x", 1, 60)), "again")
				left(2, 40)
				require.ErrorIs(t, e[1].Hold(holdOf("x", 1, 61), &resp), rules.ErrOtherHold)
				require.Equal(t, rules.OverLimit, code(e[1].Hold, holdOf("y", 1, 41)))
				left(2, 40)
				require.Equal(t, rules.OverLimit, code(e[1].Extend, holdOf("x", 0, 41)))
				require.Equal(t, rules.OK, code(e[1].Extend, holdOf("x", 0, 30)))
				left(2, 10)
				require.NoError(t, e[1].Settle(holdOf("x", 1, 20)))
				left(2, 80)
				require.NoError(t, e[0].Settle(holdOf("x", 1, 20)), "again")
				require.ErrorIs(t, e[0].Settle(holdOf("x", 1, 21)), rules.ErrNotHeld)
				require.ErrorIs(t, e[0].Settle(holdOf("unknown", 1, 20)), rules.ErrNotHeld)
				require.ErrorIs(t, e[0].Extend(holdOf("x", 0, 1), &resp), rules.ErrNotHeld)
				require.Equal(t, rules.OK, code(e[0].Hold, holdOf("z", 1, 80)))
				require.NoError(t, e[1].Release(holdOf("z", 1, 80)))
				left(2, 80)
			}
		}
	})
}

// TestHolds_Step: an extension that is repeated by its step, at whatever engine, is made once; one that was denied is not
// remembered, and a hold knows so many steps.
func TestHolds_Step(t *testing.T) {
	eachServer(t, func(t *testing.T, s *servers.Redis) {
		for _, algorithm := range []sluice.Algorithm{sluice.FixedWindow, sluice.GCRA, sluice.SlidingWindow, sluice.InFlight} {
			e := holders(t, s, 2, fmt.Sprintf(holdRules, true, fmt.Sprintf("rate_limit: {unit: year, requests_per_unit: 100, algorithm: %v}", algorithm)))
			var resp rules.Response
			left := func(want uint32) {
				t.Helper()
				require.NoError(t, e[1].Decide(&holdOf("", 0, 0).Request, &resp))
				require.Equal(t, want, resp.Statuses[1].Remaining)
			}
			extend := func(engine int, step string, more uint64) rules.Code {
				t.Helper()
				h := holdOf("x", 0, more)
				h.Step = step
				require.NoError(t, e[engine].Extend(h, &resp))
				return resp.Code
			}
			require.NoError(t, e[0].Hold(holdOf("x", 1, 50), &resp))
			for i := range 4 {
				require.Equal(t, rules.OK, extend(i%2, "first", 20))
				left(30)
			}
			require.Equal(t, rules.OverLimit, extend(0, "second", 31))
			require.Equal(t, rules.OK, extend(1, "second", 10))
			require.Equal(t, rules.OK, extend(0, "first", 20))
			left(20)
			for i := range 1022 {
				require.Equal(t, rules.OK, extend(0, fmt.Sprint(i), 0))
			}
			h := holdOf("x", 0, 1)
			h.Step = "more"
			require.ErrorIs(t, e[0].Extend(h, &resp), rules.ErrManyHolds)
			require.Equal(t, rules.OK, extend(1, "1021", 1))
			require.NoError(t, e[1].Settle(holdOf("x", 1, 60)))
			used := uint32(60)
			if algorithm == sluice.InFlight { // what has ended uses nothing
				used = 0
			}
			left(100 - used)
			require.NoError(t, e[0].Hold(holdOf("y", 1, 10), &resp))
			h = holdOf("y", 0, 5)
			h.Step = "first"
			require.NoError(t, e[0].Extend(h, &resp), "another hold has steps of its own")
			left(85 - used)
		}
	})
}

// TestHolds_TwoServers: limits that count in two servers are not held together, and nothing is held.
func TestHolds_TwoServers(t *testing.T) {
	server, second := servers.StartRedis(t), servers.StartRedis(t)
	client := redis.NewClient(&redis.Options{Addr: second.Addr})
	defer client.Close()
	s := newStore(t, server.Addr, Config{PerSecond: client})
	var calls []rules.StoreCall
	for _, period := range []time.Duration{time.Hour, time.Second} {
		c, err := s.Open(rules.StoreLimit{Domain: "d", Limit: sluice.Per(10, period)})
		require.NoError(t, err)
		defer c.Close()
		calls = append(calls, rules.StoreCall{Counter: c, Key: "k", Hits: 1})
	}
	_, err := s.Hold(rules.HoldTerms{ID: "x", TTL: time.Hour}, calls)
	require.ErrorIs(t, err, rules.ErrNoHolds)
	require.ErrorContains(t, err, "another Redis")
	for _, c := range calls {
		_, err = s.Hold(rules.HoldTerms{ID: "y", TTL: time.Hour}, []rules.StoreCall{c})
		require.NoError(t, err)
		_, err = s.Settle(rules.HoldTerms{ID: "x", TTL: time.Hour}, []rules.StoreCall{c})
		require.ErrorIs(t, err, rules.ErrNotHeld)
	}
}

// TestHolds_NotOfThisLimit: a limit that has no holds in Redis says so through the engine, and nothing is held.
func TestHolds_NotOfThisLimit(t *testing.T) {
	s := newStore(t, servers.StartRedis(t).Addr, Config{})
	set, err := rules.Load([]rules.File{{Name: "rules.yaml", Data: []byte(`
domain: d
descriptors:
- {key: log, rate_limit: {unit: hour, requests_per_unit: 9, algorithm: sliding-log}}
- {key: blocks, rate_limit: {unit: hour, requests_per_unit: 9, block_for: 1m}}
- {key: window, rate_limit: {unit: hour, requests_per_unit: 9}}
`)}}, rules.Options{})
	require.NoError(t, err)
	e, err := rules.New(set, rules.Config{Store: s})
	require.NoError(t, err)
	one := func(key string) rules.Descriptor {
		return rules.Descriptor{Entries: []rules.Entry{{Key: key, Value: "a"}}}
	}
	for _, key := range []string{"log", "blocks"} {
		h := &rules.Hold{ID: key, Request: rules.Request{Domain: "d", Descriptors: []rules.Descriptor{one("window"), one(key)}}}
		err := e.Hold(h, new(rules.Response))
		require.ErrorIs(t, err, rules.ErrNoHolds)
		require.ErrorContains(t, err, "sliding-log or block_for")
		h.Request.Descriptors = h.Request.Descriptors[:1]
		require.ErrorIs(t, e.Release(h), rules.ErrNotHeld)
	}
}

// TestHolds_SameKey: two calls of one hold whose limits count the same keys are held beside each other.
func TestHolds_SameKey(t *testing.T) {
	s := newStore(t, servers.StartRedis(t).Addr, Config{})
	open := func(n int) rules.StoreCounter {
		l := rules.StoreLimit{Domain: "d", Algorithm: sluice.FixedWindow}
		l.Limit.Rate, l.Limit.Period = n, 365*24*time.Hour
		c, err := s.Open(l)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	a, b := open(100), open(50)
	terms := rules.HoldTerms{ID: "x", TTL: time.Hour, Remember: time.Hour}
	calls := func(x, y uint64) []rules.StoreCall {
		return []rules.StoreCall{{Counter: a, Key: "k", Hits: x}, {Counter: b, Key: "k", Hits: y, Op: rules.CountAll}}
	}
	count := func() uint64 {
		look := []rules.StoreCall{{Counter: a, Key: "k", Op: rules.Look}}
		require.NoError(t, s.Decide(look))
		return look[0].Count
	}
	for range 2 {
		r, err := s.Hold(terms, calls(40, 70))
		require.NoError(t, err)
		require.Equal(t, -1, r.Denied)
		require.EqualValues(t, 110, count())
	}
	for range 2 {
		_, err := s.Settle(terms, calls(1, 2))
		require.NoError(t, err)
		require.EqualValues(t, 3, count())
	}
}

// TestHolds_Outage: a hold that was made while Redis was away is repeated and settled, then and afterwards, with its id as with its
// limits: nothing is counted twice, and in the end Redis has what was used.
func TestHolds_Outage(t *testing.T) {
	server := servers.StartRedis(t)
	e := holders(t, server, 1, fmt.Sprintf(holdRules, false, "rate_limit: {unit: year, requests_per_unit: 100}"))[0]
	var resp rules.Response
	require.NoError(t, e.Hold(holdOf("before", 1, 10), &resp))
	server.Kill()
	again := func(f func() error) { // until the outcome is known
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, f()) }, 20*time.Second, time.Millisecond)
	}
	again(func() error { return e.Hold(holdOf("a", 1, 20), &resp) })
	require.Equal(t, rules.OK, resp.Code)
	h := holdOf("a", 1, 20)
	require.NoError(t, e.Hold(h, &resp))
	require.True(t, h.Again)
	require.ErrorIs(t, e.Hold(holdOf("a", 1, 21), &resp), rules.ErrOtherHold)
	require.NoError(t, e.Hold(holdOf("b", 1, 30), &resp))
	require.NoError(t, e.Settle(holdOf("b", 1, 5)))
	require.NoError(t, server.Restart())
	again(func() error { return e.Settle(holdOf("a", 1, 7)) })
	again(func() error { return e.Settle(holdOf("a", 1, 7)) })
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		h := holdOf("", 0, 0)
		assert.NoError(c, e.Decide(&h.Request, &resp))
		assert.Equal(c, []uint32{0, 78}, []uint32{resp.Statuses[0].Remaining, resp.Statuses[1].Remaining}) // 10, 7 and 5 of 100
	}, 20*time.Second, time.Millisecond)
}

// TestHolds_Fleet: the share of a very large fleet has room for the id of each hold that it has room for.
func TestHolds_Fleet(t *testing.T) {
	server := servers.StartRedis(t)
	store := newStore(t, server.Addr, Config{StoreConfig: redislimit.StoreConfig{Replicas: 1 << 20}})
	e, err := rules.New(load(t, fmt.Sprintf(holdRules, false, "rate_limit: {unit: year, requests_per_unit: 1000000000}")), rules.Config{Store: store})
	require.NoError(t, err)
	server.Kill()
	var resp rules.Response
	for _, id := range []string{"a", "b", "c"} { // 1 of 1,000 ids would have room without
		hold, settled := holdOf(id, 1, 10), holdOf(id, 1, 5)
		hold.Request.Descriptors, settled.Request.Descriptors = hold.Request.Descriptors[1:], settled.Request.Descriptors[1:]
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, e.Hold(hold, &resp)) }, 20*time.Second, time.Millisecond)
		require.Equal(t, rules.OK, resp.Code)
		require.NoError(t, e.Settle(settled))
	}
}
