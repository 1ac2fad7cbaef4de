package remote

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
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
	for _, subject := range Subjects() {
		t.Run(subject.Name, func(t *testing.T) {
			take, end, err := subject.New(s.Addr, Limit{3, 1000 * time.Hour})
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

// Each subject has a sample of each workload and round, in turns.
func TestRedis_Run(t *testing.T) {
	s := startServer(t)
	samples, err := Run(t.Context(), Config{Rounds: 2, Sample: 5 * time.Millisecond, Log: t.Logf}, s)
	require.NoError(t, err)
	require.Len(t, samples, 2*len(Workloads())*len(Subjects()))
	for i, sample := range samples {
		assert.Equal(t, Subjects()[i%len(Subjects())].Name, sample.Subject)
		assert.Equal(t, Workloads()[i/(2*len(Subjects()))].Name, sample.Workload)
		assert.Positive(t, sample.PerSecond, "%+v", sample)
		assert.Positive(t, sample.P50)
		assert.GreaterOrEqual(t, sample.P99, sample.P50)
	}
}

func TestRedis_RunEndsWithItsContext(t *testing.T) {
	s := startServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, Config{Rounds: 1, Sample: time.Hour, Log: t.Logf}, s)
	assert.ErrorIs(t, err, context.Canceled)
}

// A limiter that decides otherwise than it should has no figures.
func TestUntil_WrongDecisionsAreErrors(t *testing.T) {
	take := Take(func(context.Context, string) (bool, error) { return true, nil })
	_, _, err := take.of(Workload{Callers: 2, Denied: true}, []string{"k"})(t.Context(), time.Hour)
	assert.EqualError(t, err, "allowed=true, where false was to be")
}

func TestTable(t *testing.T) {
	var samples []Sample
	for round := range 3 {
		for i, name := range []string{"redistier.Limiter", Base} {
			samples = append(samples, Sample{
				Workload: "1 caller, 1 key", Subject: name,
				PerSecond: float64((round + 1) * 1000 * (2 - i)), P50: time.Duration(round+1) * 1500, P99: 2 * time.Millisecond,
				CPU: 20 * time.Microsecond * time.Duration(i+1), Script: time.Duration(i) * time.Microsecond, Commands: 3.98765,
			})
		}
	}
	table := Table(samples)
	for _, want := range []string{
		"| **1 caller, 1 key** | | | | | | | | |\n" +
			"| redistier.Limiter | 4,000 | 2.00 | 3.00 us | 2,000 us | 20.0 us | 0.50 | - | 3.99 |\n" +
			"| redis_rate | 2,000 | 1.00 | 3.00 us | 2,000 us | 40.0 us | 1.00 | 1.00 us | 3.99 |\n",
	} {
		assert.Contains(t, table, want)
	}
	columns := strings.Count(strings.SplitN(table, "\n", 2)[0], "|")
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		assert.Equal(t, columns, strings.Count(line, "|"), line)
	}
}

func TestNumbers(t *testing.T) {
	assert.Equal(t, "0 12 123 1,234 12,345 1,234,567", fmt.Sprint(thousands(0), " ", thousands(12), " ", thousands(123), " ", thousands(1234), " ", thousands(12345), " ", thousands(1234567)))
	assert.Equal(t, 2.0, middle([]float64{3, 1, 2}))
	assert.Equal(t, 1.5, middle([]float64{2, 1}))
	assert.Zero(t, middle(nil))
}
