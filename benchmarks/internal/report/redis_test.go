package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice/benchmarks/internal/remote"
)

func TestRedis_MediansAndRatiosOfTheRounds(t *testing.T) {
	var samples []remote.Sample
	for round := range 3 {
		for i, name := range []string{"redistier.Limiter", remote.Base} {
			samples = append(samples, remote.Sample{
				Workload: "1 caller, 1 key", Subject: name,
				PerSecond: float64((round + 1) * 1000 * (2 - i)), P50: time.Duration(round+1) * 1500, P99: 2 * time.Millisecond,
				CPU: 20 * time.Microsecond * time.Duration(i+1), Script: time.Duration(i) * time.Microsecond, Scripts: 0.125, Commands: 3.98765, Admitted: 1,
			})
		}
	}
	table := Redis(samples)
	for _, want := range []string{
		"| **1 caller, 1 key** | | | | | | | | | | | |\n" +
			"| redistier.Limiter | 4,000 | 2.00 | 3.00 us | 2,000 us | 20.0 us | 0.50 | - | - | 0.12 | 3.99 | 1.000 |\n" +
			"| redis_rate | 2,000 | 1.00 | 3.00 us | 2,000 us | 40.0 us | 1.00 | 1.00 us | 1.00 | 0.12 | 3.99 | 1.000 |\n",
	} {
		assert.Contains(t, table, want)
	}
	columns := strings.Count(strings.SplitN(table, "\n", 2)[0], "|")
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		assert.Equal(t, columns, strings.Count(line, "|"), line)
	}
}
