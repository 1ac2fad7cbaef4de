package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/sluice/internal/servetest"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestEnvoy_TokenBudgets: requests and tokens of a client are counted together by three replicas. Envoy looks before a request, and
// reports the tokens when its answer has ended.
func TestEnvoy_TokenBudgets(t *testing.T) {
	store := redistest.Start(t)
	data, err := os.ReadFile(deployDir + "/envoy/tokens-rules.yaml")
	require.NoError(t, err)
	// A year, so that no window ends within the test: with a store there is no clock of tests.
	rules := regexp.MustCompile(`unit: minute`).ReplaceAllString(string(data), "unit: year")
	dir := files(t, map[string]string{"rules.yaml": rules})
	var replicas []*program
	var services []string
	for range 3 {
		envoyPath(t)
		p := startServe(t, nil, "--rules", dir, "--redis", "redis://"+store.Addr, "--store-budget", "1m", "--leases=false", "--on-store-failure", "closed")
		replicas, services = append(replicas, p), append(services, p.addresses["grpc"])
	}
	app := startApplication(t)
	e := startEnvoyOf(t, "envoy/tokens.yaml", app, services, "X-TOKENS", "TOKENS")
	left := func(p *program, counts string) string {
		_, stdout, stderr := p.askFor("-d", "web", "remote_address=127.0.0.1,counts="+counts, "--hits", "0", "--timeout", "1m")
		require.Empty(t, stderr)
		return regexp.MustCompile(`(\d+) of`).FindStringSubmatch(stdout)[1]
	}
	for i, want := range []string{"7000", "4000", "1000", "0"} {
		resp, body := e.get("/tokens/3000")
		require.Equal(t, 200, resp.StatusCode, "%d %s", i, body)
		for _, p := range replicas {
			servetest.Eventually(t, "each replica knows the tokens", func() bool { return left(p, "tokens") == want })
		}
	}
	for range 3 {
		resp, _ := e.get("/tokens/1")
		assert.Equal(t, 429, resp.StatusCode, "no token is left")
	}
	assert.EqualValues(t, 4, app.calls.Load())
	assert.Equal(t, "53", left(replicas[0], "requests"))
}
