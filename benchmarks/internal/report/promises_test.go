package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice/benchmarks/internal/promises"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

func TestPromisesSection(t *testing.T) {
	all := []promises.Result{
		{Subject: "a", Says: "a bucket", Most: "burst", Runs: 1000, Admitted: 7},
		{Subject: "b", Module: "m/b", Says: "windows", Most: "limit", Runs: 1000, Admitted: 1500, Broken: 3, Smallest: &promises.Counterexample{
			Situation: "steady", Limit: "10/20ms", Admitted: 1234, Most: 1233, Span: 1500 * time.Microsecond,
		}},
	}
	m := results.Machine{CPU: "cpu", Cores: 2, OS: "linux", Arch: "amd64", Go: "go1", Date: "2026-11-24", Commit: "abc", Rounds: 5, Versions: map[string]string{"m/b": "v1.2.3"}}
	assert.Equal(t, `| limiter | version | its promise: most in a span d | kept | smallest counterexample |
|---|---|---|---|---|
| a | - | a bucket: burst | yes |  |
| b | v1.2.3 | windows: limit | broken in 3 of 1000 runs | 10/20ms, steady: 1,234 within 1.50 ms, promised 1,233 |

2,000 runs, 1,507 units admitted. cpu, 2 cores, linux/amd64, go1, 2026-11-24, commit abc, 5 rounds.
`, PromisesSection(all, m))
}
