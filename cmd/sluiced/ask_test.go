package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

func TestAsk_Refusals(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"x": "x"})
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{cli.ExitUsage, []string{"-d", "d"}, "no descriptor: want KEY=VALUE"},
		{cli.ExitUsage, []string{"k=v"}, "no domain: want --domain NAME"},
		{cli.ExitUsage, []string{"-d", "d", "k"}, `descriptor "k": "k" is no entry: want KEY=VALUE`},
		{cli.ExitUsage, []string{"-d", "d", "k=v,"}, `descriptor "k=v,": "" is no entry: want KEY=VALUE`},
		{cli.ExitUsage, []string{"-d", "d", "=v"}, `"=v" is no entry`},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--hits", "-1"}, `sluiced ask: --hits "-1": want a whole number from 0 to 4294967295` + "\n"},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--hits", "4294967296"}, `--hits "4294967296": want a whole number from 0 to 4294967295` + "\n"},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--timeout", "5"}, `--timeout "5": want a duration such as 30s or 1h` + "\n"},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--json=maybe"}, `--json "maybe": want true or false` + "\n"},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--timeout", "0"}, "--timeout 0s: want more than 0"},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--tls-cert", "x"}, "one of --tls-cert and --tls-key is missing"},
		{cli.ExitUsage, []string{"-d", "d", "k=v", "--tls-cert", "x", "--tls-key", "x"}, "--tls-cert without --tls-ca"},
		{cli.ExitFailed, []string{"-d", "d", "k=v", "--tls-ca", dir + "/none"}, "--tls-ca: "},
		{cli.ExitFailed, []string{"-d", "d", "k=v", "--tls-ca", dir + "/x"}, "no certificate in it; want one in PEM form"},
		{cli.ExitFailed, []string{"-d", "d", "k=v", "--address", "unix:" + dir + "/none"}, "/none: Unavailable: "},
	} {
		code, stdout, stderr := execute(append([]string{"ask"}, c.args...)...)
		assert.Equal(t, c.code, code, c.args)
		assert.Empty(t, stdout, c.args)
		assert.Contains(t, stderr, c.want, c.args)
	}
}

func TestAsk(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a.yaml": `
domain: d
descriptors:
- {key: k, value: 'a,b\c', rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: own, rate_limit: {period: 90s, requests_per_unit: 3}}
- {key: login, rate_limit: {period: 30s, requests_per_unit: 5, algorithm: sliding-log, block_for: 15m}}
- {key: banned, rate_limit: {unit: day, requests_per_unit: 1, block_for: 2562047h}}
`})
	p := startServe(t, nil, "--rules", dir, "--manual-clock")
	code, stdout, stderr := p.askFor("-d", "d", `k=a\,b\\c`, "--hits", "0")
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Equal(t, "OK\n"+`  k=a\,b\\c: OK, 5 of 5 per minute left, reset in 1m0s`+"\n", stdout, "a look")
	code, stdout, _ = p.askFor("-d", "d", `k=a\,b\\c`, "--hits", "4", "--json")
	require.Equal(t, cli.ExitOK, code)
	var resp pb.RateLimitResponse
	require.NoError(t, protojson.Unmarshal([]byte(stdout), &resp))
	assert.EqualValues(t, 1, resp.Statuses[0].LimitRemaining)
	_, stdout, _ = p.askFor("-d", "d", `k=a\,b\\c`, "--hits", "3", "--refund")
	assert.Equal(t, "OK\n"+`  k=a\,b\\c: OK, 4 of 5 per minute left, reset in 1m0s`+"\n", stdout)
	_, stdout, _ = p.askFor("-d", "d", `k=a\,b\\c`, "--hits", "9", "--refund")
	assert.Equal(t, "OK\n"+`  k=a\,b\\c: OK, 5 of 5 per minute left, reset in 1m0s`+"\n", stdout, "no more than was counted")
	_, stdout, _ = p.askFor("-d", "d", "own=x")
	assert.Equal(t, "OK\n  own=x: OK, 2 of 3 left, reset in 1m30s\n", stdout)
	code, stdout, _ = p.askFor("-d", "d", "login=x", "--hits", "6")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Equal(t, "OVER_LIMIT\n  login=x: OVER_LIMIT, 5 of 5 left, never enough for 6\n", stdout, "which blocks nobody")
	_, stdout, _ = p.askFor("-d", "d", "login=x", "--hits", "4")
	assert.Equal(t, "OK\n  login=x: OK, 1 of 5 left, reset in 30s\n", stdout)
	_, stdout, _ = p.askFor("-d", "d", "login=x", "--hits", "2")
	assert.Equal(t, "OVER_LIMIT\n  login=x: OVER_LIMIT, 0 of 5 left, reset in 15m0s\n", stdout, "it is blocked for so long")
	_, stdout, _ = p.askFor("-d", "d", "banned=x")
	assert.Equal(t, "OK\n  banned=x: OK, 0 of 1 per day left, reset in 24h0m0s\n", stdout)
	_, stdout, _ = p.askFor("-d", "d", "banned=x")
	assert.Equal(t, "OVER_LIMIT\n  banned=x: OVER_LIMIT, 0 of 1 per day left, never reset\n", stdout)
	code, _, stderr = p.askFor("-d", "d", "k=\xff")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "UTF-8")
}
