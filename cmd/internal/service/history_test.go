package service

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/rules"
)

// TestHistory: rates are between two records, of a rule and of all together, and the oldest records go.
func TestHistory(t *testing.T) {
	l := newLive(newTestServer(t))
	begin := time.Unix(1_790_000_000, 0)
	assert.Equal(t, pastRates{[]float64{}, []*float64{}, []*float64{}}, l.history.rates(""))
	hits := uint64(3)
	call := rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "two", Value: "v"}}, Hits: &hits}}}
	var resp rules.Response
	l.record(begin)
	for i := range 2 { // the first call of 3 hits is denied, and so is the second one
		require.NoError(t, l.engine.Decide(&call, &resp))
		l.record(begin.Add(time.Duration(i+1) * historyEvery))
	}
	for _, name := range []string{"", "d.two"} {
		got := l.history.rates(name)
		assert.Equal(t, []float64{1_790_000_005, 1_790_000_010}, got.Time)
		assert.Equal(t, []float64{0.4, 0}, values(got.Admitted), name)
		assert.Equal(t, []float64{0.2, 0.6}, values(got.Denied), name)
	}
	unknown := l.history.rates("d.none")
	assert.Equal(t, []*float64{nil, nil}, unknown.Admitted)
	for i := range 2 * historyLen {
		l.record(begin.Add(time.Duration(i+3) * historyEvery))
	}
	assert.Len(t, l.history.moments, historyLen)
	assert.Len(t, l.history.rates("").Time, historyLen-1, "15 minutes")
}

func values(of []*float64) (out []float64) {
	for _, v := range of {
		out = append(out, *v)
	}
	return out
}

// TestHistory_Bounds: of many rules only some are kept, and a rule that begins anew has no rate.
func TestHistory_Bounds(t *testing.T) {
	text := "domain: d\ndescriptors:\n"
	for i := range liveRules + 50 {
		text += fmt.Sprintf("- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	c := configure(t, "--rules", rulesFile(t, text))
	require.NoError(t, c.Check())
	s, err := newServer(c, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	s.live.record(time.Unix(1, 0))
	assert.Len(t, s.live.history.moments[0].rules, liveRules)
	assert.Less(t, cap(s.live.history.moments[0].rules), liveRules+50, "the rest is no longer in memory")
	h := history{moments: []moment{{1, liveRule{Admitted: 5}, nil}, {6, liveRule{Admitted: 4, Denied: 5}, nil}}}
	got := h.rates("")
	assert.Nil(t, got.Admitted[0])
	assert.Equal(t, 1.0, *got.Denied[0])
}

// TestLive_Limits: each kind of limit in plain words.
func TestLive_Limits(t *testing.T) {
	c := configure(t, "--rules", rulesFile(t, `domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: b, rate_limit: {unlimited: true}}
- {key: c, shadow_mode: true, rate_limit: {period: 90s, requests_per_unit: 5}}
- {key: e, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: in-flight}}
- {key: f, rate_limit: {calendar: {unit: month, zone: Asia/Seoul, starts: 15}, requests_per_unit: 1000}}
`))
	require.NoError(t, c.Check())
	s, err := newServer(c, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	shown := []liveRule{{Name: "d.a"}, {Name: "d.b"}, {Name: "d.c"}, {Name: "d.e"}, {Name: "d.f"}, {Name: "d.gone"}}
	s.live.addLimits(shown)
	var got []string
	for _, r := range shown {
		got = append(got, r.Limit)
	}
	assert.Equal(t, []string{"5 per hour", "unlimited", "5 per 1m30s, in shadow mode", "3 at once, lease 1m", "1000 per month in Asia/Seoul starting 15", ""}, got)
}
