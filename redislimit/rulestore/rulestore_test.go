package rulestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/servers"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/rules"
)

// patientBudget is all the time that a call may take on a busy machine.
const patientBudget = 5 * time.Second

// newStore returns a store on a server, for which calls have all the time that a busy machine may take.
func newStore(t *testing.T, addr string, c Config) *Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return storeOn(t, client, c)
}

// storeOn is newStore with a client.
func storeOn(t *testing.T, client redis.UniversalClient, c Config) *Store {
	t.Helper()
	if c.Budget == 0 {
		c.Budget = patientBudget
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	s, err := New(client, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

func load(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Load([]rules.File{{Name: "f.yaml", Data: []byte(text)}}, rules.Options{})
	require.NoError(t, err)
	return set
}

// eachServer runs f with each kind of server that there is.
func eachServer(t *testing.T, f func(t *testing.T, s *servers.Redis)) {
	if len(servers.AllRedis()) == 0 {
		t.Skip(servers.ErrNoRedis)
	}
	for i, binary := range servers.AllRedis() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s, err := servers.NewRedis(binary)
			require.NoError(t, err)
			t.Cleanup(s.Kill)
			f(t, s)
		})
	}
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// sentRefunds makes domains ones that have long been sent refunds; d if none is named.
func (s *Store) sentRefunds(t *testing.T, domains ...string) {
	t.Helper()
	if len(domains) == 0 {
		domains = []string{"d"}
	}
	for _, d := range domains {
		// The Store looks too, of itself. It looks for domains that it has entered, so if it finds one, it finds it listed.
		require.NoError(t, s.refunds.client.ZAdd(context.Background(), s.refunds.key, redis.Z{Score: 1, Member: d}).Err())
		s.refunds.enter(d)
	}
	require.NoError(t, s.refunds.poll())
	for _, d := range domains {
		require.True(t, s.refunds.enter(d).settled.Load())
	}
}

// TestOpen_ShortPeriods: rules whose periods no lease fits into do without, whatever the budget.
func TestOpen_ShortPeriods(t *testing.T) {
	server := servers.StartRedis(t)
	for _, c := range []struct {
		budget time.Duration
		limit  string
	}{{time.Second, "unit: second"}, {time.Minute, "unit: minute, algorithm: gcra"}, {2 * time.Second, "unit: minute"}, {0, "period: 9ms"}, {0, "period: 10ms"}} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer client.Close()
		store, err := New(client, Config{StoreConfig: redislimit.StoreConfig{Budget: c.budget}})
		require.NoError(t, err)
		engine, err := rules.New(load(t, "domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 10, "+c.limit+"}}]\n"), rules.Config{Store: store, Leases: true})
		require.NoError(t, err, "%v, %s", c.budget, c.limit)
		for _, s := range store.Stores() {
			require.NoError(t, s.Reach(t.Context()), "from now on a late answer is judged by the share")
		}
		var out rules.Response
		require.NoError(t, engine.Decide(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "k", Value: "v"}}}}}, &out))
		require.Equal(t, rules.OK, out.Code)
		require.NoError(t, store.Close(context.Background()))
	}
}

// TestLeaseLife: leases of long windows live longer than those of anything else.
func TestLeaseLife(t *testing.T) {
	for _, c := range []struct {
		algorithm sluice.Algorithm
		period    time.Duration
		block     time.Duration
		want      time.Duration
	}{
		{sluice.FixedWindow, time.Second, 0, 0},
		{sluice.FixedWindow, time.Minute - 1, 0, 0},
		{sluice.FixedWindow, time.Minute, 0, time.Second},
		{sluice.FixedWindow, 24 * time.Hour, 0, time.Second},
		{sluice.FixedWindow, time.Minute, time.Hour, 0},
		{sluice.SlidingWindow, time.Minute, 0, 0},
		{sluice.GCRA, time.Minute, 0, 0},
	} {
		l := &rules.StoreLimit{Algorithm: c.algorithm, Limit: sluice.Per(100, c.period), BlockFor: c.block}
		require.Equal(t, c.want, leaseLife(l), "%v", c)
	}
}

// TestRefunds_Known: until Redis has been asked about a domain, its denials are noted; and a flag that Redis has lost settles
// nothing, until all can know it again.
func TestRefunds_Known(t *testing.T) {
	ctx := context.Background()
	s := newStore(t, servers.StartRedis(t).Addr, Config{})
	d := s.refunds.enter("late") // after the first look
	require.True(t, d.refunds())
	require.NoError(t, s.refunds.poll())
	require.False(t, d.refunds())
	s.sentRefunds(t)
	d = s.refunds.enter("d")
	require.NoError(t, s.refunds.client.FlushAll(ctx).Err())
	require.NoError(t, s.refunds.poll())
	require.True(t, d.refunds(), "this process knows it still")
	require.False(t, d.settled.Load(), "and one that begins now does not")
	s.refunds.sent(d)
	require.Eventually(t, func() bool { return s.refunds.client.ZScore(ctx, s.refunds.key, "d").Err() == nil }, 10*time.Second, time.Millisecond)
}

// TestName_LongestCalendar: with the longest name of a zone, what redislimit is asked for has no more than the 128 bytes that it takes.
func TestName_LongestCalendar(t *testing.T) {
	dates := sluice.Calendar{Unit: sluice.CalendarQuarter, Zone: "America/Argentina/ComodRivadavia", Month: time.December, Day: 28}
	l := rules.StoreLimit{Domain: "d", Atomic: true, Second: true, Admitted: true, Algorithm: sluice.FixedWindow, Limit: sluice.PerCalendar(1, dates)}
	require.Equal(t, "fixed-window 0 per quarter in America/Argentina/ComodRivadavia starting 12-28 admitted second of 18ac3e7343f01689", name(&l))
	require.LessOrEqual(t, len(name(&l)+" denied now"), 128)
}
