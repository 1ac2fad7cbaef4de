package redislimit

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// TestKeys_Slots: whoever chooses keys cannot name the slot of a cluster that they are in. An operator can, by a hash
// tag in the Prefix, and then all keys are in it.
func TestKeys_Slots(t *testing.T) {
	distinct := func(prefix, key string) int {
		seen := map[int]bool{}
		for i := range 1000 {
			seen[slotOf(name(prefix, 'b', fmt.Sprintf(key, i)))] = true
		}
		return len(seen)
	}
	for _, key := range []string{"{a}%d", "%d{a}", "{%d{a}", "}{a}%d", "{{a}}%d", "{}{a}%d", "x%d{a}{b}", "\x00{a}%d\xff"} {
		require.Greater(t, distinct("rl", key), 900, "%q", key)
		require.Greater(t, distinct("rl{}", key), 900, "%q, behind an empty tag", key)
		require.Equal(t, 1, distinct("rl:{login}", key), "%q, behind a tag", key)
	}
	rng := seeded.Rand(t)
	names := map[string]string{}
	for range 20_000 {
		b := make([]byte, rng.IntN(12))
		for i := range b {
			b[i] = "{}ab#:~"[rng.IntN(7)]
		}
		key := string(b)
		n := name("rl", 'b', key)
		require.NotContains(t, n, "{", "%q", key)
		if other, taken := names[n]; taken {
			require.Equal(t, other, key)
		}
		names[n] = key
	}
}

// TestKeys_SlotsOfACluster compares with where a cluster has them.
func TestKeys_SlotsOfACluster(t *testing.T) {
	t.Parallel() // it mostly waits
	c := startCluster(t, anyServer(t).binary, 0)
	client := c.client()
	tagged := newLimiter(t, client, Config{Limit: sluice.PerHour(10), Prefix: newPrefix() + "{own}"})
	free := newLimiter(t, client, Config{Limit: sluice.PerHour(10)})
	sizes := func() (n []int64) {
		for _, node := range c.nodes {
			n = append(n, node.client.DBSize(ctx).Val())
		}
		return n
	}
	for i := range 60 {
		take(t, free, fmt.Sprintf("{a}%d", i), 1)
	}
	before := sizes()
	require.NotContains(t, before, int64(0), "clients who put a tag into keys")
	for i := range 60 {
		take(t, tagged, fmt.Sprintf("{%d}", i), 1)
	}
	more := 0
	for i, n := range sizes() {
		if n > before[i] {
			more++
		}
	}
	require.Equal(t, 1, more, "an operator who puts one into the Prefix")
}
