package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// changed is what --against reports.
type changed struct {
	KeptOut         int64 `json:"kept_out"`
	LetIn           int64 `json:"let_in"`
	KeptOutClients  int   `json:"kept_out_clients"`
	LetInClients    int   `json:"let_in_clients"`
	NewlyLimited    int   `json:"newly_limited_clients"`
	NoLonger        int   `json:"no_longer_limited_clients"`
	Top             []changedClient
	KeptOutOverTime []int64 `json:"kept_out_over_time"`
	LetInOverTime   []int64 `json:"let_in_over_time"`
}

type changedClient struct {
	Client      string
	Requests    int64
	OldDenied   int64 `json:"denied_before"`
	NewDenied   int64 `json:"denied_after"`
	KeptOut     int64 `json:"kept_out"`
	LetIn       int64 `json:"let_in"`
	First, Last time.Time
}

// TestReplay_Against: changes that are counted by hand. Before, each client has 2 a day; after, each has 3, and 192.0.2.0 has none.
func TestReplay_Against(t *testing.T) {
	before := rulesFile(t, "- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 2}}\n")
	after := rulesFile(t, `
- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: remote_address, value: 192.0.2.0, rate_limit: {unit: day, requests_per_unit: 0}}
`)
	log := dayLog(t, 4, 4, 3, 2) // 192.0.2.0 to .3, each from 09:00:00 on
	out := replayJSON(t, nil, log, "--rules", before, "--against", after)
	require.Len(t, out.Rules, 2)
	assert.Equal(t, []string{"rules api", "against api"}, []string{out.Rules[0].Rule, out.Rules[1].Rule})
	at := func(second int) time.Time { return time.Date(2026, 3, 2, 9, 0, second, 0, time.UTC) }
	assert.Equal(t, changed{
		KeptOut: 2, KeptOutClients: 1, LetIn: 2, LetInClients: 2, NewlyLimited: 0, NoLonger: 1,
		Top: []changedClient{
			{"192.0.2.0", 4, 2, 4, 2, 0, at(0), at(1)},
			{"192.0.2.1", 4, 2, 1, 0, 1, at(3), at(3)}, // the clock of the log never goes back
			{"192.0.2.2", 3, 1, 0, 0, 1, at(3), at(3)},
		},
		KeptOutOverTime: []int64{1, 1, 0, 0}, LetInOverTime: []int64{0, 0, 0, 2},
	}, *out.Changes)

	code, stdout, _ := execute(nil, "replay", log, "--rules", after, "--against", before, "--top", "1")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, stdout, `
#2 in the place of #1

                                          requests  share  clients
  kept out: allowed before, denied after         2  15.4%        2
  let in: denied before, allowed after           2  15.4%        1
  denied something for the first time: 1 client; nothing any more: 0 clients

clients with the most changes, and when

  client     requests  kept out  let in  from      to
  192.0.2.0         4         0       2  09:00:00  09:00:01
`)
}

// TestReplay_AgainstItself: nothing changes. Two limits on the command line move the rules, and change nothing either.
func TestReplay_AgainstItself(t *testing.T) {
	rules := rulesFile(t, "- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}\n")
	out := replayJSON(t, nil, "--rules", rules, "--against", rules, "--limit", "3/m", "--limit", "9/m")
	require.Len(t, out.Rules, 4)
	require.Positive(t, out.Rules[2].Denied)
	assert.Equal(t, out.Rules[2].DecisionsSHA256, out.Rules[3].DecisionsSHA256)
	none := make([]int64, len(out.Log.Timeline.Requests))
	assert.Equal(t, changed{Top: []changedClient{}, KeptOutOverTime: none, LetInOverTime: none}, *out.Changes)
}

func TestReplay_AgainstRefuses(t *testing.T) {
	rules := rulesFile(t, "- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}\n")
	for want, args := range map[string][]string{
		"--against say how to use --rules: want --rules PATH": {"--against", rules},
		"nowhere.yaml: no such file":                          {"--rules", rules, "--against", "nowhere.yaml"},
		`--domain "web" has no rules: want api`:               {"--rules", rules, "--against", rules, "--domain", "web"},
	} {
		code, stdout, stderr := execute(nil, append([]string{"replay"}, args...)...)
		assert.NotEqual(t, cli.ExitOK, code)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want)
	}
}
