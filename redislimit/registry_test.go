package redislimit

import (
	"runtime"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestPrefix_Taken: two limits with one Prefix would charge each other. The second one is refused, as long as there is the first,
// and says which one that is.
func TestPrefix_Taken(t *testing.T) {
	client, another := redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{})
	defer client.Close()
	defer another.Close()
	prefix := newPrefix()
	first, err := New(client, Config{Limit: sluice.PerSecond(10), Prefix: prefix})
	require.NoError(t, err)
	refused := func(c Config) {
		t.Helper()
		c.Prefix = prefix
		l, err := New(client, c)
		require.Nil(t, l)
		var bad *ConfigError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, "Prefix", bad.Field)
		require.ErrorContains(t, err, first.Limit().String())
		require.ErrorContains(t, err, c.Limit.String())
	}
	accepted := func(by redis.UniversalClient, c Config) {
		t.Helper()
		c.Prefix = prefix
		_, err := New(by, c)
		require.NoError(t, err)
	}
	refused(Config{Limit: sluice.PerHour(1000)})
	refused(Config{Limit: sluice.PerSecond(10).WithBurst(11)})
	refused(Config{Limit: sluice.PerSecond(10), BlockFor: 1000})
	refused(Config{Limit: sluice.DenyAll})
	accepted(client, Config{Limit: sluice.PerSecond(10)})
	accepted(client, Config{Algorithm: sluice.TokenBucket, Limit: sluice.PerSecond(10)}) // decides the same
	accepted(client, Config{Algorithm: sluice.FixedWindow, Limit: sluice.PerHour(1000)}) // has budgets of its own
	accepted(another, Config{Limit: sluice.PerHour(1000)})
	require.NoError(t, first.SetLimit(sluice.PerSecond(20)))
	runtime.GC() // those with the old limit, that nobody has
	accepted(client, Config{Limit: sluice.PerSecond(20)})
	refused(Config{Limit: sluice.PerSecond(10)})
	runtime.KeepAlive(first)
	accepted(client, Config{Limit: sluice.PerDay(7)})
}

// TestPrefix_Forgotten: limiters that nobody has any more leave nothing behind.
func TestPrefix_Forgotten(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	prefix := newPrefix()
	for i := range 10 {
		newLimiter(t, client, Config{Limit: sluice.PerSecond(10 + i), Prefix: prefix})
	}
	await(t, "they are gone", func() bool {
		runtime.GC()
		limiters.Lock()
		defer limiters.Unlock()
		return len(limiters.by[name(prefix, 'b', "")]) == 0
	})
}
