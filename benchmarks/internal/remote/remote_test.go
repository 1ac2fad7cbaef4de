package remote

import (
	"context"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func startServer(t *testing.T) *Server {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server: apt-get install redis-server")
	}
	s, err := Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// Every subject admits as many units of a key at once as the limit says, which is what makes
// their figures comparable.
func TestRedis_SubjectsLimitAlike(t *testing.T) {
	s := startServer(t)
	for _, subject := range Subjects(Workloads()[0]) {
		t.Run(subject.Name, func(t *testing.T) {
			take, end, err := subject.New(s.Addr, Limit{3, 1000 * time.Hour}, 1)
			require.NoError(t, err)
			defer end()
			for _, key := range []string{"a", "b"} {
				for i := range 6 {
					allowed, err := take(t.Context(), key)
					require.NoError(t, err)
					assert.Equal(t, i < 3, allowed, "call %d of %s", i, key)
				}
			}
		})
	}
}

// Each subject has a sample of each workload and round, in turns and in changing orders.
func TestRedis_Run(t *testing.T) {
	s := startServer(t)
	samples, err := Run(t.Context(), Config{Rounds: 2, Sample: 5 * time.Millisecond, Log: t.Logf}, s)
	require.NoError(t, err)
	for _, w := range Workloads() {
		var all []string
		for _, subject := range Subjects(w) {
			all = append(all, subject.Name)
		}
		var orders [2][]string
		for round := range orders {
			require.GreaterOrEqual(t, len(samples), len(all))
			for _, sample := range samples[:len(all)] {
				orders[round] = append(orders[round], sample.Subject)
				assert.Equal(t, w.Name, sample.Workload)
				assert.Positive(t, sample.PerSecond, "%+v", sample)
				assert.Positive(t, sample.P50)
				assert.GreaterOrEqual(t, sample.P99, sample.P50)
				assert.Equal(t, w.Denied, sample.Admitted == 0, "%+v", sample)
			}
			assert.ElementsMatch(t, all, orders[round])
			samples = samples[len(all):]
		}
		assert.NotEqual(t, orders[0], orders[1], "nobody always follows the same one")
	}
	assert.Empty(t, samples)
}

func TestRedis_RunEndsWithItsContext(t *testing.T) {
	s := startServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, Config{Rounds: 1, Sample: time.Hour, Log: t.Logf}, s)
	assert.ErrorIs(t, err, context.Canceled)
}

// A limiter that is asked rarely asks Redis once in so many calls, from the first on, and says what
// it is told then.
func TestRarely(t *testing.T) {
	asked, ended := 0, false
	take, end, err := rarely(func(addr string, limit Limit, replicas int) (Take, func(), error) {
		assert.Equal(t, "addr", addr)
		assert.Equal(t, Limit{3, time.Hour}, limit)
		assert.Equal(t, 8, replicas)
		return func(_ context.Context, key string) (bool, error) {
			assert.Equal(t, "k", key)
			asked++
			return false, nil
		}, func() { ended = true }, nil
	})("addr", Limit{3, time.Hour}, 8)
	require.NoError(t, err)
	for i := range 3 * seldom {
		allowed, err := take(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, i%seldom != 0, allowed, "call %d", i)
		require.Equal(t, i/seldom+1, asked)
	}
	end()
	assert.True(t, ended)
}

// Only under a load there is a peer that is asked as rarely as leases let Redis be.
func TestSubjects_Rarely(t *testing.T) {
	for _, w := range Workloads() {
		last := Subjects(w)[len(Subjects(w))-1]
		assert.Equal(t, w.Load > 0, last.Name == "redis_rate, 1 call in 150", w.Name)
	}
}

// Callers that ask for a part of the limit pause, and replicas share it: no decision is demanded.
func TestWorkload_Load(t *testing.T) {
	w := Workload{Callers: 4, Keys: 1, Replicas: 2, Load: 0.5}
	assert.Equal(t, 800*time.Microsecond, w.pause())
	var calls [2]atomic.Int64
	takes := make([]Take, 2)
	for i := range takes {
		takes[i] = func(context.Context, string) (bool, error) { return calls[i].Add(1)%2 == 0, nil }
	}
	o, err := w.of(takes, []string{"k"})(t.Context(), 20*time.Millisecond)
	require.NoError(t, err)
	assert.Equal(t, calls[0].Load()+calls[1].Load(), o.took.TotalCount())
	assert.Equal(t, int(calls[0].Load()/2+calls[1].Load()/2), o.admitted)
	assert.GreaterOrEqual(t, o.all, 20*time.Millisecond)
	assert.LessOrEqual(t, o.took.TotalCount(), int64(4*(2+o.all/w.pause())))
}

// A limiter that decides otherwise than it should has no figures.
func TestUntil_WrongDecisionsAreErrors(t *testing.T) {
	take := Take(func(context.Context, string) (bool, error) { return true, nil })
	_, err := Workload{Callers: 2, Denied: true}.of([]Take{take}, []string{"k"})(t.Context(), time.Hour)
	assert.EqualError(t, err, "allowed=true, where false was to be")
}
