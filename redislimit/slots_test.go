package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// thirds returns a cluster whose primaries have these addresses, and a third of the slots each.
func thirds(addrs ...string) (ranges []redis.ClusterSlot) {
	for i, addr := range addrs {
		ranges = append(ranges, redis.ClusterSlot{Start: i * slots / 3, End: (i+1)*slots/3 - 1, Nodes: []redis.ClusterNode{{Addr: addr}}})
	}
	return ranges
}

// TestRouter_NewAddresses: primaries that come under new addresses again and again take over lanes that have nothing to do, so that
// there are no more of these than of primaries, twice and one. An address that stays has its lane.
func TestRouter_NewAddresses(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer client.Close()
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(10)}), TierConfig{})
	r := tier.router
	var stays *lane
	for i := range 100 {
		now, unused := r.assign(thirds("stays", fmt.Sprint("a", i), fmt.Sprint("b", i)))
		if i == 0 {
			stays = now[0]
		}
		require.Same(t, stays, now[0])
		require.NotSame(t, now[slots/2], now[slots-1])
		for _, l := range unused {
			require.NotContains(t, now[:], l)
			l.retire()
		}
		require.LessOrEqual(t, len(r.all()), 1+2*3)
	}
}

// TestRouter_Busy: a lane that has something to do is no other primary's, and what it owes goes by the lane that its key has now.
func TestRouter_Busy(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer client.Close()
	tier := newTier(t, newLimiter(t, client, Config{Limit: sluice.PerHour(10)}), TierConfig{})
	r := tier.router
	before, _ := r.assign(thirds("a", "b", "c"))
	old := before[0]
	for _, busy := range []func(l *lane, more int){
		func(l *lane, more int) { l.senders += more },
		func(l *lane, more int) { l.late += more },
		func(l *lane, more int) {
			l.owed = map[string]owedCharge{}
			if more > 0 {
				l.owe(tier.shared.plan.Load(), "k", 1, time.Now())
			}
		},
	} {
		old.mu.Lock()
		busy(old, 1)
		old.mu.Unlock()
		_, unused := r.assign(thirds("x", "b", "c"))
		require.Contains(t, unused, old)
		require.Contains(t, r.all(), old, "Close waits for what it has under way")
		now, _ := r.assign(thirds("y", "b", "c"))
		require.NotSame(t, old, now[0])
		old.mu.Lock()
		busy(old, -1)
		old.mu.Unlock()
		old = now[0]
	}
}
