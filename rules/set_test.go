package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRule_String: what upstream does not have comes last, and only what the file gives.
func TestRule_String(t *testing.T) {
	for given, want := range map[string]string{
		"unlimited: true":                                   "unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited: true",
		"requests_per_unit: 5, unit: minute":                "unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false",
		"requests_per_unit: 5, unit: day, offset: 2h":       "unit=DAY requests_per_unit=5, shadow_mode: false, quota_mode: false, offset: 2h0m0s",
		"requests_per_unit: 5, period: 90s":                 "unit=UNKNOWN requests_per_unit=5, shadow_mode: false, quota_mode: false, period: 1m30s",
		"requests_per_unit: 5, unit: minute, block_for: 5m": "unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false, algorithm: fixed-window, block_for: 5m0s",
		"requests_per_unit: 5, period: 90s, algorithm: gcra, burst: 7, soft: 2, max_debt: 3, block_for: 1h": "unit=UNKNOWN requests_per_unit=5, shadow_mode: false, quota_mode: false, " +
			"period: 1m30s, algorithm: gcra, burst: 7, soft: 2, max_debt: 3, block_for: 1h0m0s",
	} {
		rule := mustLoad(t, "domain: d\ndescriptors:\n- {key: k, rate_limit: {"+given+"}}\n").Match("d", entries("k=x"))
		require.NotNil(t, rule, given)
		assert.Equal(t, "d.k: "+want, rule.String(), given)
	}
}
