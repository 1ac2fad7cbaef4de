package metamorphic

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestTraces_ByHand plays the traces of testdata/traces.txt, each on one key, from a minute's edge, and
// compares every call with the outcome that was worked out by hand, and with the model.
func TestTraces_ByHand(t *testing.T) {
	data, err := os.ReadFile("testdata/traces.txt")
	require.NoError(t, err)
	played := 0
	for _, text := range strings.Split(string(data), "\n\n") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		rows := strings.Split(strings.TrimSpace(rest), "\n")
		for len(rows) > 0 && strings.HasPrefix(rows[0], "with ") {
			c := configOf(t, strings.TrimPrefix(rows[0], "with "))
			rows = rows[1:]
			calls := rows
			for len(calls) > 0 && strings.HasPrefix(calls[0], "with ") {
				calls = calls[1:]
			}
			require.NotEmpty(t, calls, name)
			t.Run(fmt.Sprint(name, "/", c.Algorithm), func(t *testing.T) { playByHand(t, c, calls) })
			played++
		}
	}
	require.Greater(t, played, 15)
}

// configOf reads "gcra 2/s burst 4 offset 15s".
func configOf(t *testing.T, text string) (c sluice.Config) {
	algorithm, limit, _ := strings.Cut(text, " ")
	limit, offset, moved := strings.Cut(limit, " offset ")
	require.NoError(t, c.Algorithm.UnmarshalText([]byte(algorithm)), text)
	require.NoError(t, c.Limit.UnmarshalText([]byte(limit)), text)
	if moved {
		c.Offset = durationOf(t, offset)
	}
	return c
}

func durationOf(t *testing.T, text string) time.Duration {
	if text == "never" {
		return sluice.Never
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// playByHand plays rows such as "500ms take 1: admitted 0 0s 2s": the time, the call and its cost, the
// outcome, Remaining, RetryAfter and ResetAfter.
func playByHand(t *testing.T, c sluice.Config, rows []string) {
	t0 := time.Unix(1_790_000_100, 0)
	clock := &toldClock{ManualClock: sluice.NewManualClock(t0)}
	c.Clock = clock
	k, model := mustNew(t, c).Key("k"), newOracle(c)
	for _, row := range rows {
		row, _, _ = strings.Cut(row, " #")
		var at, call, outcome, retry, reset string
		var cost, remaining int
		_, err := fmt.Sscanf(row, "%s %s %d: %s %d %s %s", &at, &call, &cost, &outcome, &remaining, &retry, &reset)
		require.NoError(t, err, row)
		want := sluice.Decision{Allowed: outcome == "admitted", Limit: c.Limit.Capacity(), Remaining: remaining,
			RetryAfter: durationOf(t, retry), ResetAfter: durationOf(t, reset)}
		since := durationOf(t, at)
		now := t0.Add(since).UnixNano()
		if call == "take" {
			require.Equal(t, want, k.TakeAt(now, cost), row)
			require.Equal(t, want, fromOracle(model.Take("k", now, int64(cost))), "the model: %s", row)
			continue
		}
		require.Equal(t, "charge", call)
		var got sluice.Decision
		clock.earlier(-int64(since), func() { got = k.Charge(cost) })
		require.Equal(t, want, got, row)
		require.Equal(t, want, fromOracle(model.Charge("k", now, int64(cost))), "the model: %s", row)
	}
}
