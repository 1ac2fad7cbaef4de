package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice/benchmarks/internal/remote"
)

// redisSamples are three rounds of two subjects, of which the first decides twice as fast.
func redisSamples() (samples []remote.Sample) {
	for round := range 3 {
		for i, name := range []string{"redislimit.Limiter", remote.Base} {
			samples = append(samples, remote.Sample{
				Workload: "1 caller, 1 key", Subject: name,
				PerSecond: float64((round + 1) * 1000 * (2 - i)), P50: time.Duration(round+1) * 1500, P99: 2 * time.Millisecond,
				CPU: 20 * time.Microsecond * time.Duration(i+1), Script: time.Duration(i) * time.Microsecond, Scripts: 0.125, Commands: 3.98765, Admitted: 1,
			})
		}
	}
	return samples
}

func TestRedis_MediansAndRatiosOfTheRounds(t *testing.T) {
	table := Redis(redisSamples())
	for _, want := range []string{
		"| **1 caller, 1 key** | | | | | | | | | | | |\n" +
			"| redislimit.Limiter | 4,000 | 2.00 | 3.00 us | 2,000 us | 20.0 us | 0.50 | - | - | 0.12 | 3.99 | 1.000 |\n" +
			"| redis_rate | 2,000 | 1.00 | 3.00 us | 2,000 us | 40.0 us | 1.00 | 1.00 us | 1.00 | 0.12 | 3.99 | 1.000 |\n",
	} {
		assert.Contains(t, table, want)
	}
	columns := strings.Count(strings.SplitN(table, "\n", 2)[0], "|")
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		assert.Equal(t, columns, strings.Count(line, "|"), line)
	}
}

func TestRedisRatios_ARowForEachWorkload(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(RedisRatios(redisSamples())), "\n")
	assert.Equal(t, "| decisions/s, x redis_rate | redislimit.Limiter | redislimit.Tier | redislimit.Tier, leading | redislimit.Tier, leases | redis_rate | throttled | rueidis |", lines[0])
	assert.Equal(t, "| 1 caller, 1 key | 2.00 | - | - | - | 2,000/s | - | - |", lines[2])
	assert.Len(t, lines, 2+len(remote.Workloads()))
	assert.Equal(t, []string{"2.00", "9.94", "10", "109"}, []string{multiple(2), multiple(9.94), multiple(9.96), multiple(108.81)})
}
