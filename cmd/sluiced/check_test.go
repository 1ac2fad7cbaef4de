package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

const goodRules = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"

// TestCheck_Stored: check says of a store what serve says, with its place and beside all that loads with a warning.
func TestCheck_Stored(t *testing.T) {
	dir := servetest.Files(t, map[string]string{
		"a.yaml": "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5, soft: 1}}\n- {key: l, rate_limit: }\n",
		"b.yaml": "domain: e\nsluice: {atomic: true}\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding-window}}\n",
		"c.yaml": "domain: f\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding-log, count_denied: true}}\n",
	})
	soft := dir + "/a.yaml:3:24: d.k: soft: 1 is not supported with a store; want it deleted, or counts in memory\n"
	denied := dir + "/c.yaml:3:24: f.k: count_denied: true with sliding-log, of which a store counts what is admitted; want it deleted, or counts in memory\n"
	atomic := dir + "/b.yaml:1:9: e: atomic or then: keys under upstream's names are in many places, and cannot be counted all or none; want the store's own names\n"
	for keys, want := range map[string]string{"sluice": soft + denied, "upstream": soft + atomic + denied} {
		code, stdout, stderr := execute("check", "--store-keys", keys, dir)
		require.Equal(t, cli.ExitFailed, code)
		require.Equal(t, dir+"/a.yaml:4:12: warning: d.l: rate_limit is empty, so nothing is limited; want unit and requests_per_unit, or no rate_limit\n"+want, stdout)
		require.Contains(t, stderr, "and 1 warning in 3 files")
		code, _, stderr = execute("serve", "--redis", "127.0.0.1:1", "--store-keys", keys, "--rules", dir, "--log-level", "error")
		require.Equal(t, cli.ExitFailed, code)
		require.Equal(t, want+"sluiced serve: the rules are refused\n", stderr, "serve says the same")
	}
	code, _, _ := execute("check", dir)
	require.Equal(t, cli.ExitFailed, code, "for the warning")
	good := servetest.Files(t, map[string]string{"a.yaml": goodRules})
	code, stdout, stderr := execute("check", "--store-keys", "upstream", good)
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, "1 rule in 1 domain of 1 file\n", stdout)
}

func TestCheck_StoreNames(t *testing.T) {
	code, _, stderr := execute("check", "--store-keys", "x", servetest.Files(t, map[string]string{"a.yaml": goodRules}))
	require.Equal(t, cli.ExitUsage, code)
	require.Equal(t, "sluiced check: --store-keys \"x\": want sluice or upstream\n", stderr)
}
