package rulestore

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/rules"
)

// TestBans: forty denials, by whichever process, ban a client from all of them, also from holds, under each algorithm; and
// a process with leases knows of a ban that another one has begun.
func TestBans(t *testing.T) {
	kinds := []string{", algorithm: gcra", ", algorithm: token-bucket", ", algorithm: sliding-window", ", algorithm: leaky-bucket", ", algorithm: gcra, block_for: 24h", ", block_for: 24h"}
	t.Run("atomic", func(t *testing.T) { testBans(t, true, kinds) })
	t.Run("each", func(t *testing.T) { testBans(t, false, append(kinds, "")) })
}

func testBans(t *testing.T, atomic bool, kinds []string) {
	text := fmt.Sprintf("domain: d\nsluice: {atomic: %v}\ndescriptors:\n", atomic) + "- {key: client, rate_limit: {unit: year, requests_per_unit: 2, name: throttle}}\n"
	for i, kind := range kinds {
		text += fmt.Sprintf("- {key: ban%d, rate_limit: {unit: year, requests_per_unit: 40, counts_denials_of: throttle%s}}\n", i, kind)
	}
	set := load(t, text)
	eachServer(t, func(t *testing.T, server *servers.Redis) {
		var engines []*rules.Engine
		for range 2 {
			var c Config
			c.Replicas = 2
			e, err := rules.New(set, rules.Config{Store: newStore(t, server.Addr, c), Leases: true})
			require.NoError(t, err)
			engines = append(engines, e)
		}
		for i, kind := range kinds {
			client := fmt.Sprint("ann", i)
			ban := rules.Descriptor{Entries: []rules.Entry{{Key: fmt.Sprint("ban", i), Value: client}}}
			req := &rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "client", Value: client}}}, ban}}
			var resp rules.Response
			other := &rules.Hold{ID: client, Request: rules.Request{Domain: "d", Descriptors: []rules.Descriptor{
				{Entries: []rules.Entry{{Key: "client", Value: client + "'s friend"}}}, {Entries: []rules.Entry{{Key: fmt.Sprint("ban", i), Value: client + "'s friend"}}},
			}}}
			require.NoError(t, engines[0].Hold(other, &resp), "also with a rule that has no holds")
			require.Equal(t, rules.OK, resp.Code)
			other.Request.Hits = 1
			require.NoError(t, engines[1].Settle(other))
			denied := 0
			for n := 0; denied < 40; n++ {
				require.Less(t, n, 42, kind)
				require.NoError(t, engines[n%2].Decide(req, &resp))
				if resp.Statuses[0].Code == rules.OverLimit {
					denied++
				}
				require.Equal(t, denied == 40, resp.Statuses[1].Code == rules.OverLimit, "%s: %d denials", kind, denied)
			}
			require.Greater(t, resp.Statuses[1].RetryAfter, time.Hour)
			for _, e := range engines {
				require.NoError(t, e.Decide(req, &resp))
				require.Equal(t, rules.OverLimit, resp.Statuses[1].Code, kind)
				require.NoError(t, e.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{ban}}, &resp))
				require.Equal(t, rules.OverLimit, resp.Code, kind)
				require.NoError(t, e.Hold(&rules.Hold{ID: client, Request: rules.Request{Domain: "d", Descriptors: []rules.Descriptor{ban}}}, &resp))
				require.Equal(t, rules.OverLimit, resp.Code, kind)
			}
		}
	})
}
