package groundtruth

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestParseRule_RefusesWhatItDoesNotKnow, so that no rule is guessed at.
func TestParseRule_RefusesWhatItDoesNotKnow(t *testing.T) {
	for _, rule := range []string{
		"", "fixed_window_5_per_61s", "sliding_window_5_per_60s", "gcra_5_per_60s",
		"gcra_5_per_60s_burst_6", "token_bucket_5_refill_6_per_60s", "fixed_window_0_per_60s",
	} {
		_, err := parseRule(rule)
		assert.Error(t, err, rule)
	}
}

func TestReplay_SumsUp(t *testing.T) {
	lines := []Line{{"a", 1}, {"b", 1}, {"a", 2}, {"c", 3}, {"a", 4}}
	got := Replay(lines, func(client string, _ int64) bool { return client == "c" })
	assert.Equal(t, Outcome{
		Allowed: 1, Denied: 4, LimitedClients: 2, FirstDenied: 1,
		Top5:   []Client{{"a", 3}, {"b", 1}},
		SHA256: "e9beba29679602d4dadb86f5609317778607ed496d3b415bdbdc9b849eb6c572",
	}, got)
}
