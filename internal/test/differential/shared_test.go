//go:build !386

package differential

import (
	"context"
	"io"
	"math/rand"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/redis"
	service "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/utils"
	gostats "github.com/lyft/gostats"
	goredis "github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/redislimit/rulestore"
	"github.com/sluice-go/sluice/rls"
	"github.com/sluice-go/sluice/rules"
)

// realUpstream is upstream's service with its own client of a real Redis, and the time of day.
func realUpstream(t *testing.T, address string, m modes) *upstream {
	logrus.SetOutput(io.Discard)
	t.Setenv("SHADOW_MODE", "false")
	t.Setenv("QUOTA_MODE", "false")
	t.Setenv("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
	t.Setenv("RESPONSE_DYNAMIC_METADATA", "true")
	u := &upstream{stats: newRecorder()}
	scope := gostats.NewStore(gostats.NewNullSink(), false)
	client := redis.NewClientImpl(scope, false, "", "tcp", "single", address, 2, 0, 0, nil, false, nil, 10*time.Second, "", "")
	t.Cleanup(func() { _ = client.Close() })
	clock := utils.NewTimeSourceImpl()
	cache := redis.NewFixedRateLimitCacheImpl(client, nil, clock, rand.New(rand.NewSource(1)), 0, nil, m.near, "both:", u.stats, m.stop)
	u.service = service.NewService(cache, u, u.stats, nil, clock, false, true, false)
	return u
}

// sharedOurs is our service with upstream's names for keys.
func sharedOurs(t *testing.T, client goredis.UniversalClient, m modes, set *rules.Set) *ours {
	store, err := rulestore.NewUpstream(client, rulestore.UpstreamConfig{Prefix: "both:", Budget: time.Minute, OnUnavailable: redislimit.FailClosed})
	require.NoError(t, err)
	engine, err := rules.New(set, rules.Config{NearRatio: m.near, StopWhenOver: m.stop, Store: store})
	require.NoError(t, err)
	return &ours{engine, rls.New(engine, rls.Options{Headers: true, DynamicMetadata: true})}
}

// contents is all that a Redis counts. Upstream adds hits of 0 to a key that is not there, and leaves one that holds 0; ours only looks.
func contents(t *testing.T, client *goredis.Client) map[string]string {
	ctx := context.Background()
	out := map[string]string{}
	keys, err := client.Keys(ctx, "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		if n := client.Get(ctx, key).Val(); n != "0" {
			out[key] = n
		}
	}
	return out
}

// window is the number of the present window of a unit.
func window(u rules.Unit) int64 { return time.Now().UnixNano() / int64(u.Period()) }

// A pair is both programs on one Redis, and upstream alone on another one.
type pair struct {
	*world
	client, reference *goredis.Client
	theirs, only      *upstream
	us                *ours
	set               *rules.Set
	files             []rules.File
	asked             [2]int // of upstream and ours: calls that were compared
	over              int
}

// call is a random one, of one of the two and of upstream alone.
func (p *pair) call(t *testing.T) {
	req, unit := p.request(), p.units[0]
	req.HitsAddend %= 3 // 2^32 hits more would be over for good
	before, ours := window(unit), p.IntN(2)
	want, err := p.only.ask(req)
	require.NoError(t, err)
	var got *pb.RateLimitResponse
	if ours == 1 {
		got, err = p.us.ask(req)
	} else {
		got, err = p.theirs.ask(req)
	}
	require.NoError(t, err)
	if window(unit) != before { // the two may have counted in different ones
		require.NoError(t, p.client.FlushAll(context.Background()).Err())
		require.NoError(t, p.reference.FlushAll(context.Background()).Err())
		return
	}
	if ours == 1 {
		got = older(got, req, p.set, p.modes)
	}
	p.asked[ours]++
	require.Len(t, got.Statuses, len(want.Statuses))
	for i, w := range want.Statuses {
		g := got.Statuses[i]
		same := w.Code == g.Code && w.LimitRemaining == g.LimitRemaining && w.CurrentLimit.GetRequestsPerUnit() == g.CurrentLimit.GetRequestsPerUnit()
		require.True(t, same, "%v, ours %d: want %v, got %v\n%s", unit, ours, w, g, describe(p.files, req))
		if w.Code == pb.RateLimitResponse_OVER_LIMIT {
			p.over++
		}
	}
}

// TestShared: upstream with its own client of Redis, and ours under upstream's names, count together. Each random call goes to
// one of the two, and is answered as upstream alone answers it, which gets all calls on a Redis of its own. In the end both
// servers hold the same keys and counts.
func TestShared(t *testing.T) {
	r := seeded.Rand(t)
	servers := [2]*servers.Redis{servers.StartRedis(t), servers.StartRedis(t)}
	client, reference := goredis.NewClient(&goredis.Options{Addr: servers[0].Addr}), goredis.NewClient(&goredis.Options{Addr: servers[1].Addr})
	defer client.Close()
	defer reference.Close()
	var asked [2]int
	over, keys := 0, 0
	for _, unit := range []rules.Unit{rules.Second, rules.Minute, rules.Hour, rules.Day} {
		for round := range 4 {
			require.NoError(t, client.FlushAll(t.Context()).Err())
			require.NoError(t, reference.FlushAll(t.Context()).Err())
			w := &world{Rand: r, modes: modes{near: 0.8, stop: round%2 == 1}, units: []rules.Unit{unit}}
			p := &pair{world: w, client: client, reference: reference, files: w.files()}
			set, err := rules.Load(p.files, rules.Options{})
			require.NoError(t, err)
			p.theirs, p.only = realUpstream(t, servers[0].Addr, w.modes), realUpstream(t, servers[1].Addr, w.modes)
			require.NoError(t, p.theirs.load(p.files))
			require.NoError(t, p.only.load(p.files))
			p.set, p.us = set, sharedOurs(t, client, w.modes, set)
			for range 200 {
				p.call(t)
			}
			if unit > rules.Minute { // others expire meanwhile
				want := contents(t, reference)
				require.Equal(t, want, contents(t, client))
				keys += len(want)
			}
			asked[0], asked[1], over = asked[0]+p.asked[0], asked[1]+p.asked[1], over+p.over
		}
	}
	t.Logf("%d calls of upstream and %d of ours; %d statuses were over; %d keys are the same", asked[0], asked[1], over, keys)
	require.Greater(t, min(asked[0], asked[1]), 800)
	require.Greater(t, over, 20)
	require.Greater(t, keys, 20)
}

// TestShared_Zero: of hits of 0 for a key that is not there upstream leaves one that holds 0, and ours none. The answers are the same.
func TestShared_Zero(t *testing.T) {
	server := servers.StartRedis(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr})
	defer client.Close()
	files := []rules.File{{Name: "f.yaml", Data: []byte("domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 5}}]\n")}}
	set, err := rules.Load(files, rules.Options{})
	require.NoError(t, err)
	m := modes{near: 0.8}
	theirs, us := realUpstream(t, server.Addr, m), sharedOurs(t, client, m, set)
	require.NoError(t, theirs.load(files))
	look := func(value string) *pb.RateLimitRequest {
		return &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: "k", Value: value}}, HitsAddend: wrapperspb.UInt64(0),
		}}}
	}
	for i, ask := range []func(*pb.RateLimitRequest) (*pb.RateLimitResponse, error){us.ask, theirs.ask} {
		answer, err := ask(look([]string{"ours", "theirs"}[i]))
		require.NoError(t, err)
		require.EqualValues(t, 5, answer.Statuses[0].LimitRemaining)
	}
	keys := client.Keys(t.Context(), "*").Val()
	require.Len(t, keys, 1)
	require.Contains(t, keys[0], "theirs")
	require.Equal(t, "0", client.Get(t.Context(), keys[0]).Val())
}
