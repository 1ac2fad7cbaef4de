package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestHeartbeat_Less: fewer processes count only after all could have beaten, with every beat answered and no primary given up, and
// then as many as have beaten meanwhile; more count at once.
func TestHeartbeat_Less(t *testing.T) {
	const second = time.Second
	type beat struct {
		found  int64
		steady bool
	}
	steady := func(found int64, times int) (beats []beat) {
		for range times {
			beats = append(beats, beat{found, true})
		}
		return beats
	}
	join := func(all ...[]beat) (beats []beat) {
		for _, some := range all {
			beats = append(beats, some...)
		}
		return beats
	}
	lost := []beat{{0, false}}
	for _, c := range []struct {
		name  string
		beats []beat
		want  []int64 // without the last ones that are the same
	}{
		{"a set that fills up again", join(steady(4, 1), steady(1, 1), steady(2, 1), steady(4, 20)), []int64{4}},
		{"processes that have gone", join(steady(4, 1), steady(3, 9)), []int64{4, 4, 4, 4, 4, 4, 4, 4, 3}},
		{"the most of those found meanwhile", join(steady(4, 1), steady(1, 3), steady(3, 1), steady(2, 4)), []int64{4, 4, 4, 4, 4, 4, 4, 4, 3}},
		{"an outage begins the wait again", join(steady(4, 1), steady(1, 7), lost, steady(1, 7), lost, steady(2, 7)), []int64{4}},
		{"degraded", join(steady(4, 1), []beat{{1, false}, {1, false}, {1, false}, {1, false}, {1, false}, {1, false}, {1, false}, {1, false}, {1, false}}), []int64{4}},
		{"more, also while degraded", join(steady(4, 1), []beat{{5, false}}, steady(6, 1)), []int64{4, 5, 6}},
		{"no more than shares can be of", steady(maxReplicas+5, 1), []int64{maxReplicas}},
		{"never none", join(steady(2, 1), steady(0, 8)), []int64{2, 2, 2, 2, 2, 2, 2, 2, 1}},
	} {
		var h heartbeat
		now, known, got := time.Unix(1_700_000_000, 0), int64(1), []int64{}
		for _, b := range c.beats {
			known = h.count(now, known, b.found, b.steady)
			got = append(got, known)
			now = now.Add(second)
		}
		for i := range got {
			require.Equal(t, c.want[min(i, len(c.want)-1)], got[i], "%s: beat %d of %v: %v", c.name, i, c.beats, got)
		}
	}
}

// TestHeartbeat_Lost: when Redis has lost its data, no process takes itself for one of fewer, until all have beaten again.
func TestHeartbeat_Lost(t *testing.T) {
	t.Parallel() // it mostly waits
	s := start(t, anyServer(t).binary)
	defer s.kill()
	var stores []*Store
	for range 4 {
		client := redis.NewClient(&redis.Options{Addr: s.addr})
		defer client.Close()
		store, err := NewStore(client, StoreConfig{Prefix: "lost"})
		require.NoError(t, err)
		defer store.Close(ctx)
		stores = append(stores, store)
	}
	all := func() (numbers []int) {
		for _, store := range stores {
			numbers = append(numbers, store.Replicas())
		}
		return numbers
	}
	await(t, "all know of all", func() bool { return fmt.Sprint(all()) == "[4 4 4 4]" })
	require.NoError(t, s.client.FlushAll(ctx).Err())
	until := time.After(2 * beatPause)
	for done := false; !done; {
		require.Equal(t, []int{4, 4, 4, 4}, all())
		select {
		case <-until:
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	require.Equal(t, int64(4), s.client.ZCard(ctx, "lost~replicas").Val())
}
