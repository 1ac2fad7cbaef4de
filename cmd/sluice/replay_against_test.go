package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/cmd/internal/trial"
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

// TestReplay_AgainstTheLog: before, the server of the log has denied the requests that it answered with 429, and no others; after, each client has
// 3 a day. The changes are counted by hand.
func TestReplay_AgainstTheLog(t *testing.T) {
	after := rulesFile(t, "- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 3}}\n")
	log := answersLog(t, map[int][]int{0: {200, 200, 429, 429}, 1: {200, 200, 200, 503}, 2: {429, 200}})
	out := replayJSON(t, nil, log, "--against", after, "--limit", "9/d")
	require.Len(t, out.Rules, 3)
	assert.Equal(t, []string{"log status 429", "against api"}, []string{out.Rules[1].Rule, out.Rules[2].Rule})
	assert.EqualValues(t, 3, out.Rules[1].Denied)
	assert.EqualValues(t, 2, out.Rules[2].Denied)
	at := func(second int) time.Time { return time.Date(2026, 3, 2, 9, 0, second, 0, time.UTC) }
	assert.Equal(t, []changedClient{
		{"192.0.2.0", 4, 2, 1, 0, 1, at(2), at(2)},
		{"192.0.2.1", 4, 0, 1, 1, 0, at(3), at(3)},
		{"192.0.2.2", 2, 1, 0, 0, 1, at(3), at(3)}, // the clock of the log never goes back
	}, out.Changes.Top)
	assert.Equal(t, []int64{1, 2}, []int64{out.Changes.KeptOut, out.Changes.LetIn})

	out = replayJSON(t, nil, answersLog(t, map[int][]int{0: {200, 503, 503}, 1: {200, 200, 429}}), "--against", after, "--denied-status", "503")
	assert.Equal(t, "log status 503", out.Rules[0].Rule)
	assert.EqualValues(t, 2, out.Rules[0].Denied, "a 429 of the program behind the proxy is none")

	code, stdout, stderr := execute(nil, "check", "--against", log, after)
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Contains(t, stdout, "1 rule in 1 domain of 1 file\n\n")
	assert.Contains(t, stdout, `
#2 in the place of #1

                                          requests  share  clients
  kept out: allowed before, denied after         1  10.0%        1
  let in: denied before, allowed after           2  20.0%        2
  denied something for the first time: 1 client; nothing any more: 1 client
`)
}

// answersLog is a log of requests of clients, with the statuses of their answers, each from 09:00:00 on.
func answersLog(t *testing.T, answers map[int][]int) string {
	var b strings.Builder
	for client := range len(answers) {
		for i, status := range answers[client] {
			fmt.Fprintf(&b, "192.0.2.%d - - [02/Mar/2026:09:00:%02d +0000] \"GET / HTTP/1.1\" %d 1\n", client, i, status)
		}
	}
	return writeFile(t, b.String())
}

// TestCheck_Against: rules of a domain in several files, or of several domains, and what it refuses.
func TestCheck_Against(t *testing.T) {
	log := answersLog(t, map[int][]int{0: {200, 429, 200}})
	limit := "descriptors:\n- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	dir := servetest.Files(t, map[string]string{"a/1.yaml": "domain: a\n" + limit, "b/1.yaml": "domain: b\n", "a/2.yaml": "domain: a\n", "bad.yaml": "domain: d\nunit: x\n"})
	for _, args := range [][]string{{"--merge", dir + "/a"}, {"--domain", "a", dir + "/a/1.yaml", dir + "/b"}, {"--descriptor", "remote_address={client}", dir + "/a/1.yaml"}} {
		code, stdout, stderr := execute(nil, append([]string{"check", "--against", log}, args...)...)
		require.Equal(t, cli.ExitOK, code, stderr)
		require.Contains(t, stdout, "192.0.2.0         3         1       0  09:00:02  09:00:02\n")
	}
	for want, args := range map[string][]string{
		"--domain, --descriptor and --denied-status say how to read a log: want --against LOG": {"--domain", "a", dir + "/a/1.yaml"},
		"nowhere.log": {"--against", "nowhere.log", dir + "/a/1.yaml"},
		`--against "ftp://host": want a log, or the debug port of a service, as http://127.0.0.1:6070`:                    {"--against", "ftp://host", dir + "/a/1.yaml"},
		"--against is the URL of a service, and more; want logs, or one URL":                                              {"--against", "http://h", "--against", log, dir + "/a/1.yaml"},
		"--domain, --descriptor and --denied-status say how to read a log, and --against is a service; want none of them": {"--against", "http://h", "--domain", "a", dir + "/a/1.yaml"},
		"--for says how long a service tries the rules; want --against URL":                                               {"--against", log, "--for", "1m", dir + "/a/1.yaml"},
		"--for: 1ms is no time for a trial; want 1s to 1h0m0s":                                                            {"--against", "http://h", "--for", "1ms", dir + "/a/1.yaml"},
		"is no address of a debug port; want one as http://127.0.0.1:6070":                                                {"--against", "http://h/x", dir + "/a/1.yaml"},
		"1 warning": {"--against", log, dir + "/bad.yaml"},
		"the rules are for the domains a, b: want --domain with one of them": {"--against", log, dir + "/a/1.yaml", dir + "/b"},
	} {
		code, stdout, stderr := execute(nil, append([]string{"check"}, args...)...)
		assert.NotEqual(t, cli.ExitOK, code, want)
		assert.NotContains(t, stdout, "kept out")
		assert.Contains(t, stderr, want)
	}
}

// TestCheck_AgainstService: the files go to the service, and its result is written. Rules with mistakes go nowhere.
func TestCheck_AgainstService(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a/1.yaml": "domain: a\n", "a/2.yaml": "domain: a\n", "bad.yaml": "domain: d\nunit: x\n"})
	var got []trial.Order
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var order trial.Order
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&order))
		assert.Equal(t, "POST /trial", r.Method+" "+r.URL.Path)
		got = append(got, order)
		_ = json.NewEncoder(w).Encode(trial.Result{Calls: 7, KeptOut: 2, Fresh: true})
	}))
	defer service.Close()
	code, stdout, stderr := execute(nil, "check", "--against", service.URL, "--for", "90s", "--merge", dir+"/a")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, service.URL+" tries the rules for 1m30s\n", stderr)
	require.Contains(t, stdout, service.URL+" answered 7 calls in 0s, and denied 0. These rules would have denied 0, from counts of 0 on: those of the service are in its store.\n")
	require.Equal(t, []trial.Order{{For: trial.Duration(90 * time.Second), Merge: true, Files: []trial.File{{Name: dir + "/a/1.yaml", Data: "domain: a\n"}, {Name: dir + "/a/2.yaml", Data: "domain: a\n"}}}}, got)
	code, _, _ = execute(nil, "check", "--against", service.URL, dir+"/bad.yaml")
	require.Equal(t, cli.ExitFailed, code)
	require.Len(t, got, 1)
}

func TestReplay_AgainstRefuses(t *testing.T) {
	statusless := writeFile(t, "192.0.2.0 [02/Mar/2026:09:00:00 +0000] \"GET / HTTP/1.1\"\n")
	rules := rulesFile(t, "- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}\n")
	for want, args := range map[string][]string{
		"--domain and --descriptor say how to use rules": {"--domain", "api"},
		"--key says what limits count by":                {"--against", rules, "--key", "path"},
		"the log has no statuses":                        {statusless, "--against", rules, "--format", `$remote_addr [$time_local] "$request"`},
		"nowhere.yaml: no such file":                     {"--rules", rules, "--against", "nowhere.yaml"},
		`--domain "web" has no rules: want api`:          {"--rules", rules, "--against", rules, "--domain", "web"},
		"--denied-status says which answers of a log are denials: want it with --against, without --rules": {"--rules", rules, "--against", rules, "--denied-status", "503"},
		"--denied-status 42: want a status of an error, such as 429 or 503":                                {"--against", rules, "--denied-status", "42"},
	} {
		code, stdout, stderr := execute(nil, append([]string{"replay"}, args...)...)
		assert.NotEqual(t, cli.ExitOK, code)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want)
	}
}
