package rules

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	set := mustLoad(t, `domain: d
descriptors:
- {key: a, rate_limit: {unit: day, requests_per_unit: 100000, weights: {input: 1, output: 5}, then: credits}}
- {key: a, value: x, rate_limit: {unit: month, requests_per_unit: 1000000, name: credits}}
- {key: b, rate_limit: {period: 90m, requests_per_unit: 50, scale: 10000, weights: {in: 0.5, out: 1, cached: 0.001}}}
- {key: c, rate_limit: {unit: day, requests_per_unit: 2, scale: 1000}}
- {key: d, rate_limit: {calendar: {unit: month, zone: Asia/Seoul, starts: 15}, requests_per_unit: 1000}}
- {key: e, rate_limit: {unit: day, requests_per_unit: 7}}
- {key: f, rate_limit: {unlimited: true}}
- {key: g, value: z, rate_limit: {unit: day, requests_per_unit: 9, weights: {input: 2}}}
- {key: h, rate_limit: {unit: hour, requests_per_unit: 3, block_for: 24h, counts_denials_of: credits}}
`)
	want := []string{
		`test.yaml:3: d.a: a request of 1,000 input and 200 output costs 2,000 units of 100,000 a day; what does not fit is taken from "credits", d.a_x (1,000,000 a month)`,
		"",
		"test.yaml:5: d.b: 50 is 500,000 units, counted one by one; a request of 1,000 in, 200 out and 200 cached costs 701 units of 500,000 units a period of 1h30m0s",
		"test.yaml:6: d.c: 2 is 2,000 units, counted one by one",
		"test.yaml:7: d.d: 1,000 per month in Asia/Seoul starting 15, by the clocks there; around the start of a window up to twice as many pass",
		"",
		"",
		"test.yaml:10: d.g_z: a request of 1,000 input costs 2,000 units of 9 a day",
		`test.yaml:11: d.h: counts what "credits" denies, up to 3 an hour; then it denies the client's calls for at least 24h0m0s`,
	}
	for i, r := range set.Rules() {
		require.Equal(t, want[i], r.Explain())
	}
}
