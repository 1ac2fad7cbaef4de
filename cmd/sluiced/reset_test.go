package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestAsk_Reset: ask --reset frees a key that one settlement has locked, in memory and in Redis; a mistake is said, and other sites reach
// nothing.
func TestAsk_Reset(t *testing.T) {
	dir := servetest.Files(t, map[string]string{"a.yaml": "domain: d\ndescriptors: [{key: tokens, rate_limit: {unit: month, requests_per_unit: 100, algorithm: token-bucket}}]\n"})
	run := func(t *testing.T, args ...string) {
		p := startServe(t, nil, append([]string{"--rules", dir}, args...)...)
		post := func(port, path, kind, body string) int {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.addresses[port]+path, strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Content-Type", kind)
			if kind == "" {
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Sec-Fetch-Site", "cross-site")
			}
			resp, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			resp.Body.Close()
			return resp.StatusCode
		}
		const ann = `{"domain":"d","descriptors":[{"entries":[{"key":"tokens","value":"ann"}]}]`
		require.Equal(t, 200, post("http", "/hold", "text/plain", ann+`,"id":"1","hits":10}`))
		require.Equal(t, 200, post("http", "/settle", "text/plain", ann+`,"id":"1","hits":1000000000000000000}`))
		require.Equal(t, 429, post("http", "/hold", "text/plain", ann+`,"id":"2","hits":1}`))
		require.Equal(t, 404, post("http", "/reset", "application/json", ann+`}`), "it is on the debug port only")
		require.Equal(t, 415, post("debug", "/reset", "text/plain", ann+`}`))
		require.Equal(t, 403, post("debug", "/reset", "", ann+`}`))
		require.Equal(t, 400, post("debug", "/reset", "application/json", ann+`,"id":"1"}`))
		require.Equal(t, 429, post("http", "/hold", "text/plain", ann+`,"id":"2","hits":1}`))
		reset := func(args ...string) (int, string, string) {
			return execute(append([]string{"ask", "--reset", "--debug", p.addresses["debug"], "-d", "d"}, args...)...)
		}
		code, stdout, stderr := reset("tokens=ann")
		require.Equal(t, cli.ExitOK, code, stderr)
		require.Equal(t, "tokens=ann: reset\n", stdout)
		require.Equal(t, 200, post("http", "/hold", "text/plain", ann+`,"id":"2","hits":100}`))
		code, _, stderr = reset("token=ann")
		require.Equal(t, cli.ExitFailed, code)
		require.Contains(t, stderr, "400 Bad Request: descriptor 0: no rule limits it; want the entries of a rule that has a limit")
		code, _, stderr = reset("tokens=ann", "--hits", "3")
		require.Equal(t, cli.ExitUsage, code)
		require.Contains(t, stderr, "--hits and --reset: want one of them")
		code, _, stderr = p.askFor("-d", "d", "tokens=ann", "--debug", "x")
		require.Equal(t, cli.ExitUsage, code)
		require.Contains(t, stderr, "--debug without --reset")
	}
	t.Run("memory", func(t *testing.T) { run(t) })
	t.Run("Redis", func(t *testing.T) {
		run(t, "--redis", servers.StartRedis(t).Addr, "--store-budget", "1m", "--replicas", "1")
	})
	code, _, stderr := execute("ask", "--reset", "--debug", "127.0.0.1:1", "-d", "d", "k=v")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, stderr, "127.0.0.1:1: ")
}
