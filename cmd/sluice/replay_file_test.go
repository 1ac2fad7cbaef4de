package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// rulesFile writes rules for domain api.
func rulesFile(t *testing.T, descriptors string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.yaml")
	require.NoError(t, os.WriteFile(path, []byte("domain: api\ndescriptors:\n"+descriptors), 0o600))
	return path
}

// TestReplay_RulesFile: a limit in a file decides every request of a log as the same limit on the
// command line.
func TestReplay_RulesFile(t *testing.T) {
	for limit, rule := range map[string]string{
		"{unit: minute, requests_per_unit: 20}":                              "fixed-window 20/m",
		"{unit: minute, requests_per_unit: 20, algorithm: gcra, burst: 5}":   "gcra 20/m burst 5",
		"{period: 90s, requests_per_unit: 7, algorithm: sliding-log}":        "sliding-log 7/90s",
		"{unit: minute, requests_per_unit: 30, algorithm: sliding-window}":   "sliding-window 30/m",
		"{unit: minute, unit_multiplier: 5, requests_per_unit: 60}":          "fixed-window 60/5m",
		"{unit: hour, requests_per_unit: 60, algorithm: token-bucket}":       "token-bucket 60/h",
		"{unit: second, requests_per_unit: 1, algorithm: fixed-window}":      "fixed-window 1/s",
		"{period: 1h, requests_per_unit: 0, algorithm: sliding-window}":      "sliding-window 0/h",
		"{unit: day, requests_per_unit: 4294967, algorithm: leaky-bucket}":   "leaky-bucket 4294967/24h",
		"{unit: minute, requests_per_unit: 20, count_denied: false}":         "fixed-window 20/m",
		"{unit: minute, requests_per_unit: 5, algorithm: leaky-bucket}":      "leaky-bucket 5/m",
		"{unit: minute, requests_per_unit: 30, algorithm: gcra, burst: 100}": "gcra 30/m burst 100",
	} {
		t.Run(rule, func(t *testing.T) {
			out := replayJSON(t, nil, "--rules", rulesFile(t, "- {key: remote_address, rate_limit: "+limit+"}\n"), "--rule", rule)
			require.Len(t, out.Rules, 2)
			want, got := out.Rules[0], out.Rules[1]
			assert.Equal(t, []string{"rules api", "rules", "api"}, []string{got.Rule, got.Algorithm, got.Limit})
			assert.Equal(t, want.DecisionsSHA256, got.DecisionsSHA256)
			assert.Equal(t, []limitData{{"api.remote_address", out.Log.Counted, got.Limits[0].Near, got.Denied}}, got.Limits)
			assert.Empty(t, want.Limits)
		})
	}
}

// TestReplay_Descriptors: a request is described by what the command line says, and each limit has
// its own line.
func TestReplay_Descriptors(t *testing.T) {
	path := rulesFile(t, `
- key: client
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: client
  value: 192.0.2.2
  rate_limit: {unlimited: true}
- key: plan
  value: free
  descriptors:
  - {key: client, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`)
	out := replayJSON(t, strings.NewReader(smallLog), "-", "--rules", path, "--descriptor", "client={client}", "--descriptor", "plan=free,client=<{client}>")
	require.Len(t, out.Rules, 1)
	assert.EqualValues(t, 1, out.Rules[0].Denied, "the third of 192.0.2.1")
	assert.Equal(t, []limitData{{"api.client", 3, 1, 1}, {"api.client_192.0.2.2", 1, 0, 0}, {"api.plan_free.client", 4, 2, 2}}, out.Rules[0].Limits)

	code, stdout, stderr := execute(strings.NewReader(smallLog), "replay", "-", "--rules", path, "--descriptor", "client={client}")
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Contains(t, stdout, "\nlimits of #1, in hits\n\n  limit                 hits  near  over  share\n  api.client               3     1     1  33.3%\n  api.client_192.0.2.2     1     0     0   0.0%\n")
	code, stdout, _ = execute(strings.NewReader(smallLog), "replay", "-", "--rules", path)
	require.Equal(t, cli.ExitOK, code)
	assert.Contains(t, stdout, "\nno limit of #1 fits: name the entries of requests with --descriptor\n")
}

// TestReplay_RulesFileHTTP: "http" of the domain describes requests, --descriptor does in its place, and
// what no descriptor could be made of is told.
func TestReplay_RulesFileHTTP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
domain: api
http:
- actions: [{path: {}}, {request_headers: {header_name: ":method", descriptor_key: method}}]
- actions: [{query_parameters: {query_parameter_name: token, descriptor_key: token}}]
descriptors:
- {key: path, value: /login, descriptors: [{key: method, value: POST, rate_limit: {unit: hour, requests_per_unit: 1}}]}
- {key: token, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: site, value: www.example.org, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: failed, value: 'POST 401 curl/8 192.0.2.1', rate_limit: {unit: hour, requests_per_unit: 0}}
`), 0o600))
	line := func(user, request string, rest ...string) string {
		return fmt.Sprintf("www.example.org:80 192.0.2.1 - %s [17/May/2015:10:05:03 +0000] \"%s\" %s\n", user, request, strings.Join(rest, " "))
	}
	log := line("-", "POST /login HTTP/1.1", "200", "1") +
		line("ann", "POST //x/../login?token=a HTTP/1.1", "401", "1", `"-"`, `"curl/8"`) +
		line("ann", "GET /login?token=b HTTP/1.1") +
		line("-", "GET /?token=b HTTP/1.1") +
		line("-", "GET /?token=c&token=d HTTP/1.1") +
		line("bob", `\x16\x03`)
	for descriptor, want := range map[string]struct {
		decisions            string
		undescribed, refused int64
	}{
		"":            {"ADADDA", 1, 1},
		"user={user}": {"AADAAA", 3, 0},
		"site={host}": {"DDDDDD", 0, 0},
		"failed={method} {status} {agent} {client}": {"ADAAAA", 5, 0},
		"token={path}":      {"ADDADA", 1, 0},
		"site={host}{host}": {"AAAAAA", 0, 0},
	} {
		args := []string{"-", "--rules", path}
		if descriptor != "" {
			args = append(args, "--descriptor", descriptor)
		}
		got := replayJSON(t, strings.NewReader(log), args...).Rules[0]
		assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte(want.decisions))), got.DecisionsSHA256, "%q: %d denied", descriptor, got.Denied)
		assert.Equal(t, []int64{want.undescribed, want.refused}, []int64{got.Undescribed, got.Refused}, descriptor)
	}
	_, stdout, _ := execute(strings.NewReader(log), "replay", "-", "--rules", path)
	assert.Contains(t, stdout, "\n1 requests of #1 passed without a descriptor: the log lacks what \"http\" or --descriptor asks for\n")
	assert.Contains(t, stdout, "\n1 requests of #1 were denied for what \"http\" cannot use: a header or a parameter that is there twice, or too long\n")
}

// TestReplay_RulesFileHostile: names in rules do not reach a terminal as they are.
func TestReplay_RulesFileHostile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(path, []byte("domain: \"a\\e[31m\\n\"\ndescriptors:\n- {key: remote_address, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 0}}\n"), 0o600))
	code, stdout, stderr := execute(strings.NewReader(smallLog), "replay", "-", "--rules", path)
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.NotContains(t, stdout, "\x1b")
	assert.Contains(t, stdout, "192.0.2.1")
}

func TestReplay_RulesFileErrors(t *testing.T) {
	good := rulesFile(t, "- {key: a}\n")
	other := filepath.Join(t.TempDir(), "b.yaml")
	require.NoError(t, os.WriteFile(other, []byte("domain: web\n"), 0o600))
	bad := rulesFile(t, "- {key: a, rate_limit: {unit: moon, requests_per_unit: 1}}\n- {key: a}\n")
	empty := t.TempDir()
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no rules":     {[]string{"--domain", "api"}, cli.ExitUsage, "--domain and --descriptor say how to use rules: want --rules PATH, or --against PATH"},
		"two domains":  {[]string{"--rules", good, "--rules", other}, cli.ExitUsage, "the rules are for the domains api, web: want --domain with one of them"},
		"other domain": {[]string{"--rules", good, "--rules", other, "--domain", "x"}, cli.ExitUsage, `--domain "x" has no rules: want api, or web`},
		"no key":       {[]string{"--rules", good, "--descriptor", "a=b,=c"}, cli.ExitUsage, `descriptor "a=b,=c": want entries KEY=VALUE with commas between; {client}, {method}, {path}, {host}, {user}, {agent}, {status} stand for what a request has`},
		"no such part": {[]string{"--rules", good, "--descriptor", "a=b{uri}"}, cli.ExitUsage, `descriptor "a=b{uri}": {uri} stands for nothing; want one of {client}, {method}, {path}, {host}, {user}, {agent}, {status}`},
		"bad rules": {[]string{"--rules", bad}, cli.ExitFailed, bad + ":3:31: api.a: unit is \"moon\"; want second, minute, hour, day, week, month or year, or period: a time, or calendar\n" +
			bad + ":4:3: api.a: the descriptor is already defined at " + bad + ":3; want one descriptor for a at this level\nsluice replay: the rules do not load; sluice check says the same\n"},
		"empty folder":  {[]string{"--rules", empty}, cli.ExitFailed, fmt.Sprintf("no file of rules in [%q]: want names that end in .yaml or .yml", empty)},
		"missing rules": {[]string{"--rules", filepath.Join(empty, "x")}, cli.ExitFailed, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := execute(nil, append([]string{"replay"}, c.args...)...)
			assert.Equal(t, c.code, code)
			assert.Empty(t, stdout)
			assert.Contains(t, stderr, c.want)
		})
	}
}
