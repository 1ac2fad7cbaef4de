package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestThen_Fleet: processes that share a Redis take from a plan and from the credits behind it exactly what they answer for, and
// all that there is; one that comes later knows it, and gives back to the credits what came from them.
func TestThen_Fleet(t *testing.T) {
	server := servers.StartRedis(t)
	rules := servetest.Files(t, map[string]string{"llm.yaml": `
domain: llm
descriptors:
- key: client
  descriptors:
  - {key: budget, value: plan, rate_limit: {unit: year, requests_per_unit: 1000, name: plan, weights: {input: 1, output: 5}, then: credits}}
  - {key: budget, value: credits, rate_limit: {unit: year, requests_per_unit: 3000, name: credits}}
`})
	serve := func() *program {
		return startServe(t, nil, "--rules", rules, "--redis", server.Addr, "--store-budget", "10s")
	}
	replicas := []*program{serve(), serve()}
	// One input and one output are 6 units.
	const plan = `{"entries": [{"key": "client", "value": "ann"}, {"key": "budget", "value": "plan"}, {"key": "input", "value": "%d"}, {"key": "output", "value": "%d"}], "isNegativeHits": %t}`
	call := func(p *program, input, output int, back bool) (ok bool, left int) {
		body := `{"domain": "llm", "descriptors": [` + fmt.Sprintf(plan, input, output, back) + `]}`
		resp, err := http.Post("http://"+p.addresses["http"]+"/json", "application/json", strings.NewReader(body))
		if !assert.NoError(t, err) {
			return false, 0
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		var got struct {
			Statuses []struct{ LimitRemaining int }
		}
		assert.NoError(t, json.Unmarshal(data, &got), "%s", data)
		if !assert.Len(t, got.Statuses, 1, "%s", data) {
			return false, 0
		}
		return resp.StatusCode == http.StatusOK, got.Statuses[0].LimitRemaining
	}
	var units, denied atomic.Int64
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := 0; ; i++ {
				input, output := 1+(i+g)%20, (i*g)%10
				ok, _ := call(replicas[g%2], input, output, false)
				if !ok {
					denied.Add(int64(input + 5*output))
					input, output = 1, 0
					ok, _ = call(replicas[g%2], input, output, false)
				}
				if !ok {
					denied.Add(1)
					return
				}
				units.Add(int64(input + 5*output))
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 4000, units.Load())
	late := serve()
	for _, step := range []struct{ back, both int }{{int(denied.Load()), 0}, {500, 500}, {2600, 3100}} { // what was denied comes first
		_, left := call(late, step.back, 0, true)
		require.Equal(t, step.both, left)
	}
	ok, left := call(replicas[0], 5, 19, false)
	require.True(t, ok)
	require.Equal(t, 3000, left, "the plan had 100 back, and the credits all")
}
