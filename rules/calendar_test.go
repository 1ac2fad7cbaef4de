package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

const calendarRules = `domain: d
descriptors:
- {key: k, rate_limit: {calendar: {unit: month, zone: Asia/Seoul, starts: 15}, requests_per_unit: 3}}
- {key: day, rate_limit: {calendar: {unit: day, zone: America/New_York}, requests_per_unit: 3}}
- {key: soft, rate_limit: {calendar: {unit: year, zone: Europe/London, starts: 04-06}, requests_per_unit: 3, soft: 1}}
- {key: week, rate_limit: {calendar: {unit: week, starts: sunday}, requests_per_unit: 3, algorithm: fixed-window, count_denied: false}}
- {key: month, rate_limit: {unit: month, requests_per_unit: 3}}
`

// at moves the clock.
func (w *world) at(text string) {
	when, err := time.Parse(time.RFC3339, text)
	require.NoError(w.tb, err)
	w.clock.Set(when)
}

func TestCalendar(t *testing.T) {
	w := newWorld(t, Config{}, calendarRules)
	w.at("2026-10-31T23:00:00Z")
	for key, ends := range map[string]string{
		"k": "2026-11-14T15:00:00Z", "day": "2026-11-01T04:00:00Z", "soft": "2027-04-05T23:00:00Z", "week": "2026-11-01T00:00:00Z",
		"month": "2026-11-03T00:00:00Z", // of 30 days since 1970, as upstream has it
	} {
		when, err := time.Parse(time.RFC3339, ends)
		require.NoError(t, err)
		require.Equal(t, when.Sub(time.Date(2026, 10, 31, 23, 0, 0, 0, time.UTC)), w.one(key+"=x").ResetAfter, key)
		w.ask(withHits(key+"=x", 2))
		st := w.ask(withHits(key+"=x", 3)).Statuses[0]
		require.Equal(t, OverLimit, st.Code, key)
		require.Equal(t, when.Sub(time.Date(2026, 10, 31, 23, 0, 0, 0, time.UTC)), st.RetryAfter, key)
	}
	w.at("2026-11-01T04:00:00Z")
	require.Equal(t, OK, w.one("day=x").Code)
	require.Equal(t, 25*time.Hour, w.one("day=x").ResetAfter, "the day when summer time ends")
	w.at("2026-11-14T14:59:59Z")
	require.Equal(t, OverLimit, w.one("k=x").Code)
	w.at("2026-11-14T15:00:00Z")
	require.Equal(t, OK, w.one("k=x").Code)
	w.at("2027-04-05T22:59:59Z")
	require.Equal(t, OverLimit, w.one("soft=x").Code)
	w.at("2027-04-05T23:00:00Z")
	require.Equal(t, OK, w.one("soft=x").Code)
}

// TestCalendar_Rule: how a rule with a calendar is shown.
func TestCalendar_Rule(t *testing.T) {
	set := mustLoad(t, calendarRules)
	k := set.Match("d", entries("k=x"))
	require.Equal(t, "d.k: calendar: {unit: month, zone: Asia/Seoul, starts: 15}, requests_per_unit: 3, shadow_mode: false, quota_mode: false", k.String())
	require.Equal(t, sluice.Calendar{Unit: sluice.CalendarMonth, Zone: "Asia/Seoul", Month: time.January, Day: 15}, k.Calendar())
	require.Equal(t, 31*24*time.Hour, k.Period())
	require.Equal(t, UnknownUnit, k.Unit())
	require.Equal(t, sluice.Calendar{}, set.Match("d", entries("month=x")).Calendar())
	require.Equal(t, Month, set.Match("d", entries("month=x")).Unit())
}

// TestCalendar_Reload: another number keeps the counts; other windows begin anew, or take the counts along where a rule has a limiter.
func TestCalendar_Reload(t *testing.T) {
	w := newWorld(t, Config{}, calendarRules)
	w.at("2026-10-31T23:00:00Z")
	w.ask(withHits("k=x", 2), withHits("soft=x", 2))
	more := `domain: d
descriptors:
- {key: k, rate_limit: {calendar: {unit: month, zone: Asia/Seoul, starts: 15}, requests_per_unit: 10}}
- {key: soft, rate_limit: {calendar: {unit: year, zone: Asia/Seoul}, requests_per_unit: 3, soft: 1}}
`
	w.swap(more)
	require.Equal(t, 8, w.left("k=x"))
	require.Equal(t, 1, w.left("soft=x"))
	again, err := w.restored(more, w.snapshot())
	require.NoError(t, err)
	require.Equal(t, 8, again.left("k=x"))
	require.Equal(t, 1, again.left("soft=x"))
	other := "domain: d\ndescriptors:\n- {key: k, rate_limit: {calendar: {unit: month, zone: Asia/Seoul}, requests_per_unit: 10}}\n"
	again, err = w.restored(other, w.snapshot())
	require.NoError(t, err)
	require.Equal(t, 10, again.left("k=x"), "other windows")
	w.swap(other)
	require.Equal(t, 10, w.left("k=x"), "other windows")
}
