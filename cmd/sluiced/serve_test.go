package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// TestServe_Newcomer is the way of the README: the rules of the examples, and a question.
func TestServe_Newcomer(t *testing.T) {
	p := startServe(t, nil, "--rules", "../../examples/rules", "--manual-clock")
	code, stdout, stderr := p.askFor("-d", "api", "client=ann")
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Equal(t, "OK\n  client=ann: OK, 59 of 60 per minute left, reset in 1m0s\n", stdout)
	code, stdout, stderr = p.askFor("-d", "api", "client=ann", "client=internal-a", "unknown=x", "--hits", "60")
	require.Equal(t, cli.ExitFailed, code)
	assert.Empty(t, stderr)
	assert.Equal(t, `OVER_LIMIT
  client=ann: OVER_LIMIT, 0 of 60 per minute left, reset in 1m0s
  client=internal-a: OK, no limit
  unknown=x: OK, no limit
`, stdout)
}

func TestServe_Signals(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"rules/a.yaml": goodRules})
	state := filepath.Join(dir, "state")
	args := []string{"--rules", dir + "/rules", "--state", state, "--manual-clock", "--log-level", "info"}
	p := startServe(t, nil, append(args, "--drain", "1h")...)
	code, _, stderr := p.askFor("-d", "d", "k=x")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	servetest.Eventually(t, "rules loaded again", func() bool { return strings.Contains(p.log.String(), "generation=2") })
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	servetest.Eventually(t, "the drain", func() bool { return strings.Contains(p.log.String(), "draining") })
	code, _, stderr = p.askFor("-d", "d", "k=x")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, 0, p.end(syscall.SIGINT), p.log.String())

	p = startServe(t, nil, append(args, "--drain", "0")...)
	_, stdout, _ := p.askFor("-d", "d", "k=x")
	assert.Contains(t, stdout, "2 of 5 per minute left")
	require.Equal(t, 0, p.end(syscall.SIGTERM))
}

// TestServe_Upstream starts with nothing that envoyproxy/ratelimit does not know, beside ports and the
// clock of tests.
func TestServe_Upstream(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"runtime/ratelimit/config/a.yaml": goodRules})
	p := startServe(t, []string{
		"RUNTIME_ROOT=" + dir + "/runtime", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"MEMCACHE_HOST_PORT=m:1", "USE_STATSD=false", "LOG_LEVEL=WARN", "SHADOW_MODE=true",
	}, "--manual-clock")
	code, stdout, stderr := p.askFor("-d", "d", "k=x", "--hits", "9")
	require.Equal(t, cli.ExitOK, code, stderr)
	assert.Equal(t, "OK", lines(stdout)[0], "in shadow mode")
	assert.Contains(t, stdout, "0 of 5 per minute left, reset in 1m0s", "it is 1970")
	assert.Len(t, lines(p.log.String()), 1)
	assert.Contains(t, p.log.String(), `these variables mean nothing here" names="MEMCACHE_HOST_PORT RUNTIME_WATCH_ROOT USE_STATSD"`)
}

func TestServe_Refusals(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"bad/a.yaml": "domain: d\ndescriptors:\n- {value: v}\n- {key: k, unit: x}\n", "good/a.yaml": goodRules, "other/a.txt": goodRules})
	require.NoError(t, os.Mkdir(dir+"/socket", 0o755))
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{cli.ExitUsage, nil, "sluiced serve: no rules: want --rules with files or directories, or RUNTIME_ROOT and RUNTIME_SUBDIRECTORY, or --xds\n"},
		{cli.ExitUsage, []string{"rules"}, `sluiced serve: "rules" is no flag: want --rules rules` + "\n"},
		{cli.ExitUsage, []string{"--rules", "x", "--log", "xml"}, `sluiced serve: --log "xml": want text or json` + "\n"},
		{cli.ExitFailed, []string{"--rules", dir + "/none"}, "sluiced serve: --rules: stat " + dir + "/none: no such file or directory\n"},
		{cli.ExitFailed, []string{"--rules", dir + "/other"}, fmt.Sprintf("sluiced serve: --rules: no file of rules in [%q]: want names that end in .yaml or .yml\n", dir+"/other")},
		{cli.ExitFailed, []string{"--rules", dir + "/bad"}, "/bad/a.yaml:3:3: d: a descriptor without a key; want key: NAME\n" + dir + "/bad/a.yaml:4:"},
		{cli.ExitFailed, []string{"--rules", dir + "/bad"}, "\nsluiced serve: the rules are refused\n"},
		{cli.ExitFailed, []string{"--rules", dir + "/good", "--state", dir + "/none/state"}, "sluiced serve: --state: "},
		{cli.ExitFailed, []string{"--rules", dir + "/good", "--grpc=", "--uds", dir + "/socket"}, "sluiced serve: --uds: "},
	} {
		code, stdout, stderr := execute(append(append([]string{"serve"}, anyPort...), c.args...)...)
		assert.Equal(t, c.code, code, c.args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, c.want, c.args)
	}
}

func TestServe_LogOfJSONIsJSONOnly(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a.yaml": "domain: d\n---\n"})
	_, stdout, stderr := execute(append(append([]string{"serve"}, anyPort...), "--rules", dir, "--log", "json", "--grpc=", "--uds", dir)...)
	assert.Empty(t, stdout)
	assert.True(t, strings.HasPrefix(stderr, `{"time":`), stderr)
}
