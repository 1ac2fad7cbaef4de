package main

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestEnvoy_TokenBudgets: requests and tokens of a client are counted together by three replicas. Envoy looks before a request, and
// reports the tokens when its answer has ended.
func TestEnvoy_TokenBudgets(t *testing.T) {
	store := servers.StartRedis(t)
	data, err := os.ReadFile(deployDir + "/envoy/tokens-rules.yaml")
	require.NoError(t, err)
	// A year, so that no window ends within the test: with a store there is no clock of tests.
	rules := regexp.MustCompile(`unit: minute`).ReplaceAllString(string(data), "unit: year")
	dir := servetest.Files(t, map[string]string{"rules.yaml": rules})
	var replicas []*program
	var services []string
	for range 3 {
		servetest.EnvoyPath(t)
		p := startServe(t, nil, "--rules", dir, "--redis", "redis://"+store.Addr, "--store-budget", "1m", "--leases=false", "--on-store-failure", "closed")
		replicas, services = append(replicas, p), append(services, p.addresses["grpc"])
	}
	app := servetest.StartApplication(t)
	e := startEnvoyOf(t, "envoy/tokens.yaml", app, services, "X-TOKENS", "TOKENS")
	left := func(p *program, counts string) string {
		_, stdout, stderr := p.askFor("-d", "web", "masked_remote_address=127.0.0.1/32,counts="+counts, "--hits", "0", "--timeout", "1m")
		require.Empty(t, stderr)
		return regexp.MustCompile(`(\d+) of`).FindStringSubmatch(stdout)[1]
	}
	for i, want := range []string{"7000", "4000", "1000", "0"} {
		resp, body := e.Get("/tokens/3000")
		require.Equal(t, 200, resp.StatusCode, "%d %s", i, body)
		for _, p := range replicas {
			servetest.Eventually(t, "each replica knows the tokens", func() bool { return left(p, "tokens") == want })
		}
	}
	for range 3 {
		resp, _ := e.Get("/tokens/1")
		assert.Equal(t, 429, resp.StatusCode, "no token is left")
	}
	assert.EqualValues(t, 4, app.Calls.Load())
	assert.Equal(t, "53", left(replicas[0], "requests"))
}

// TestEnvoy_EstimatesAtOnce: of 60 calls at once, each of 30 tokens, a limit of 1,000 and an estimate of 100 admit exactly 10, and 300
// tokens are counted in the end. Where tokens are only counted when answers have ended, all are admitted.
func TestEnvoy_EstimatesAtOnce(t *testing.T) {
	rules, err := os.ReadFile(deployDir + "/envoy/estimates-rules.yaml")
	require.NoError(t, err)
	file, err := os.ReadFile(deployDir + "/envoy/estimates.yaml")
	require.NoError(t, err)
	readme, err := os.ReadFile(deployDir + "/envoy/README.md")
	require.NoError(t, err)
	limits := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(readme)[1]
	require.Contains(t, string(file), string(limits), "the page shows what is run here")
	const estimate = `
                  - actions: [{masked_remote_address: {v4_prefix_mask_len: 32, v6_prefix_mask_len: 64}}]
                    hits_addend: {number: 100}
                  - actions: [{masked_remote_address: {v4_prefix_mask_len: 32, v6_prefix_mask_len: 64}}]
                    hits_addend: {number: 100, is_negative_hits: true}
                    apply_on_stream_done: true`
	const over = `sluice_hits_total{domain="web",outcome="over",rule="web.masked_remote_address"} ` // what is counted beyond 1,000
	for _, c := range []struct {
		name, instead string
		admitted      int
		over, left    string
	}{
		{"estimate", estimate, 10, over + "5000\n", "700 of 1000"},
		{"afterwards", "\n                  - actions: [{masked_remote_address: {v4_prefix_mask_len: 32, v6_prefix_mask_len: 64}}]\n                    hits_addend: {number: 0}", 60, over + "800\n", "0 of 1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, app := serveEnvoy(t, string(rules)), servetest.StartApplication(t)
			e := startEnvoyOf(t, "envoy/estimates.yaml", app, []string{s.addresses["grpc"]}, estimate, c.instead)
			calls := callAtOnce(t, "http://"+e.Address+"/held/30", 60)
			servetest.Eventually(t, "all calls are judged", func() bool { return int(app.Calls.Load())+int(calls.denied.Load()) == 60 })
			close(app.Hold)
			calls.done.Wait()
			assert.EqualValues(t, c.admitted, calls.ok.Load())
			assert.EqualValues(t, c.admitted, app.Calls.Load())
			servetest.Eventually(t, "the tokens are counted", func() bool {
				metrics, err := plainGet("http://" + s.addresses["metrics"] + "/metrics")
				require.NoError(t, err)
				_, stdout, _ := s.askFor("-d", "web", "masked_remote_address=127.0.0.1/32", "--hits", "0")
				return strings.Contains(metrics, c.over) && strings.Contains(stdout, c.left)
			})
		})
	}
}

// calls are calls under way, and how those have ended that are done.
type calls struct {
	ok, denied atomic.Int64
	done       sync.WaitGroup
}

// callAtOnce sends n requests at once.
func callAtOnce(t *testing.T, url string, n int) *calls {
	c := new(calls)
	for range n {
		c.done.Go(func() {
			resp, err := servetest.PlainClient.Get(url)
			if !assert.NoError(t, err) {
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				c.ok.Add(1)
			} else {
				c.denied.Add(1)
			}
		})
	}
	return c
}

// TestEnvoy_EstimateOfAClientThatLeaves: Envoy gives the estimate back when a client goes away before the answer.
func TestEnvoy_EstimateOfAClientThatLeaves(t *testing.T) {
	rules, err := os.ReadFile(deployDir + "/envoy/estimates-rules.yaml")
	require.NoError(t, err)
	s, app := serveEnvoy(t, string(rules)), servetest.StartApplication(t)
	e := startEnvoyOf(t, "envoy/estimates.yaml", app, []string{s.addresses["grpc"]})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "GET", "http://"+e.Address+"/held/30", nil)
		if err == nil {
			_, err = servetest.PlainClient.Do(req) //nolint:bodyclose // there is no answer
		}
		left <- err
	}()
	has := func(what string) func() bool {
		return func() bool {
			_, stdout, _ := s.askFor("-d", "web", "masked_remote_address=127.0.0.1/32", "--hits", "0")
			return strings.Contains(stdout, what)
		}
	}
	servetest.Eventually(t, "the call is held", func() bool { return app.Calls.Load() == 1 })
	require.True(t, has("900 of 1000")())
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	servetest.Eventually(t, "the estimate is back", has("1000 of 1000"))
}

// TestEnvoy_InFlight: of 20 calls at once a rule with in-flight admits as many as it names, and none is left in flight when they have ended.
func TestEnvoy_InFlight(t *testing.T) {
	s, app := serveEnvoy(t, "domain: web\ndescriptors:\n- {key: masked_remote_address, rate_limit: {unit: day, requests_per_unit: 5, algorithm: in-flight}}\n"), servetest.StartApplication(t)
	e := startEnvoyOf(t, "envoy/estimates.yaml", app, []string{s.addresses["grpc"]}, "number: 100", "number: 1",
		"                  - actions: [{masked_remote_address: {v4_prefix_mask_len: 32, v6_prefix_mask_len: 64}}]\n                    hits_addend: {format: \"%RESP(X-TOKENS)%\"}\n                    apply_on_stream_done: true\n", "")
	calls := callAtOnce(t, "http://"+e.Address+"/held/1", 20)
	servetest.Eventually(t, "all calls are judged", func() bool { return app.Calls.Load()+calls.denied.Load() == 20 })
	assert.EqualValues(t, 5, app.Calls.Load())
	close(app.Hold)
	calls.done.Wait()
	assert.EqualValues(t, 5, calls.ok.Load())
	servetest.Eventually(t, "none is in flight", func() bool {
		_, stdout, _ := s.askFor("-d", "web", "masked_remote_address=127.0.0.1/32", "--hits", "0")
		return strings.Contains(stdout, "5 of 5")
	})
}
