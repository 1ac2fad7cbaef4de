package rulestore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/rules"
)

// TestInFlight: two engines on one Redis limit together what runs at once. Negative hits give back, of any process; those of
// calls that were denied give back nothing.
func TestInFlight(t *testing.T) {
	server := servers.StartRedis(t)
	const text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 4, algorithm: in-flight}}]\n"
	var engines [2]*rules.Engine
	for i := range engines {
		var err error
		engines[i], err = rules.New(load(t, text), rules.Config{Store: newStore(t, server.Addr, Config{}), Leases: i == 0})
		require.NoError(t, err)
	}
	decide := func(e int, value string, hits uint64, back bool) (bool, int) {
		var out rules.Response
		d := rules.Descriptor{Entries: []rules.Entry{{Key: "k", Value: value}}, Hits: &hits, Refund: back}
		assert.NoError(t, engines[e].Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{d}}, &out))
		return out.Code == rules.OK, int(out.Statuses[0].Remaining)
	}
	for i, step := range []struct {
		engine int
		hits   uint64
		back   bool
		ok     bool
		left   int
	}{
		{0, 2, false, true, 2}, {1, 2, false, true, 0}, {0, 1, false, false, 0}, {1, 1, false, false, 0},
		{1, 1, true, true, 0}, {0, 1, true, true, 0}, {1, 1, false, false, 0}, {0, 1, true, true, 0}, // those that were denied
		{0, 1, true, true, 1}, {1, 1, false, true, 0}, {0, 3, true, true, 3}, {1, 4, false, false, 3}, {1, 4, true, true, 3}, {1, 3, false, true, 0},
	} {
		ok, left := decide(step.engine, "turns", step.hits, step.back)
		require.Equal(t, step.ok, ok, "step %d", i)
		require.Equal(t, step.left, left, "step %d", i)
	}

	var inUse, made atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 50 {
				ok, _ := decide(g%2, "at once", 1, false)
				if ok {
					made.Add(1)
					assert.LessOrEqual(t, inUse.Add(1), int64(4))
					inUse.Add(-1)
				}
				decide(g%2, "at once", 1, true) // as a proxy does, also for calls that were denied
			}
		})
	}
	wg.Wait()
	_, left := decide(0, "at once", 0, false)
	require.Equal(t, 4, left, "all have come back; %d of 400 calls were admitted", made.Load())
}

// TestHolds_InFlight: a hold that is settled has ended, and uses nothing of what runs at once, whatever it has used.
func TestHolds_InFlight(t *testing.T) {
	text := "\ndomain: d\ndescriptors:\n  - {key: requests, rate_limit: {unit: year, requests_per_unit: 2, algorithm: in-flight}}\n  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 100}}\n"
	e := holders(t, servers.StartRedis(t), 2, text)
	var resp rules.Response
	for i, tokens := range []uint32{80, 60, 40} {
		for _, id := range []string{"x", "y"} {
			require.NoError(t, e[i%2].Hold(holdOf(fmt.Sprint(id, i), 1, 20), &resp))
			require.Equal(t, rules.OK, resp.Code)
		}
		require.NoError(t, e[1].Hold(holdOf("z", 1, 1), &resp))
		require.Equal(t, rules.OverLimit, resp.Code)
		for _, id := range []string{"x", "y"} {
			require.NoError(t, e[0].Extend(holdOf(fmt.Sprint(id, i), 0, 1), &resp))
			require.Equal(t, rules.OK, resp.Code, "what runs is not cut by what runs at once")
			for range 2 {
				require.NoError(t, e[1].Settle(holdOf(fmt.Sprint(id, i), 1, 10)))
			}
		}
		require.NoError(t, e[0].Decide(&holdOf("", 0, 0).Request, &resp))
		require.Equal(t, []uint32{2, tokens}, []uint32{resp.Statuses[0].Remaining, resp.Statuses[1].Remaining})
	}
}
