package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// part is the text of a file between two others.
func part(t *testing.T, text, begin, end string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, begin)
	require.True(t, ok, begin)
	inside, _, ok := strings.Cut(rest, end)
	require.True(t, ok, end)
	return inside
}

// TestEnvoy_Istio: Envoy with what Istio's gateway gets from the EnvoyFilters of deploy/istio limits by the rules of
// deploy/kubernetes: the filter is put before the router, and the actions into the virtual host.
func TestEnvoy_Istio(t *testing.T) {
	const begin, actions = "          http_filters:\n", "              rate_limits:\n"
	docs := documents(t, "istio/istio.yaml")
	require.Len(t, docs, 2)
	patches := map[string]string{}
	for _, d := range docs {
		require.Equal(t, "networking.istio.io/v1alpha3", d["apiVersion"])
		require.Equal(t, "EnvoyFilter", d["kind"])
		require.Equal(t, "istio-system", at(t, d, "metadata", "namespace"))
		require.Equal(t, map[string]any{"istio": "ingressgateway"}, at(t, d, "spec", "workloadSelector", "labels"))
		require.Equal(t, "GATEWAY", at(t, d, "spec", "configPatches", "match", "context"))
		value, err := json.Marshal(at(t, d, "spec", "configPatches", "patch", "value"))
		require.NoError(t, err)
		patches[at(t, d, "spec", "configPatches", "applyTo").(string)+" "+at(t, d, "spec", "configPatches", "patch", "operation").(string)] = string(value)
	}
	filter, host := patches["HTTP_FILTER INSERT_BEFORE"], patches["VIRTUAL_HOST MERGE"]
	require.Contains(t, filter, "envoy.filters.http.ratelimit")
	const cluster = `"cluster_name":"outbound|8081||sluice.default.svc.cluster.local"` // of the Service below, as Istio names it
	require.Contains(t, filter, cluster)
	filter = strings.NewReplacer(cluster, `"cluster_name":"sluice"`, `"timeout":"0.1s"`, `"timeout":"60s"`).Replace(filter)
	var limits struct {
		Limits json.RawMessage `json:"rate_limits"`
	}
	require.NoError(t, json.Unmarshal([]byte(host), &limits))
	service := ofKind(t, documents(t, "kubernetes/fleet.yaml"), "Service", "sluice")
	require.EqualValues(t, 8081, at(t, service, "spec", "ports", "port"))
	require.Equal(t, "grpc", at(t, service, "spec", "ports", "appProtocol"))

	rules := at(t, ofKind(t, documents(t, "kubernetes/fleet.yaml"), "ConfigMap", "sluice-rules"), "data", "web.yaml").(string)
	s, app := serveEnvoy(t, rules), servetest.StartApplication(t)
	text := deployed(t, "envoy/envoy.yaml")
	was := part(t, text, begin, "          - name: envoy.filters.http.router\n")
	wasLimits := part(t, text, actions, "              routes:\n")
	e := startEnvoy(t, app, []string{s.addresses["grpc"]},
		begin+was, begin+"          - "+filter+"\n",
		actions+wasLimits, "              rate_limits: "+string(limits.Limits)+"\n")
	for i := range 7 {
		resp, _ := e.Get("/login?try=" + string(rune('a'+i)))
		assert.Equal(t, map[bool]int{true: 200, false: 429}[i < 5], resp.StatusCode, i)
		assert.Contains(t, resp.Header.Get("X-Ratelimit-Limit"), "5, 600;w=60, 5;w=60")
	}
	resp, _ := e.Get("/")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "592", resp.Header.Get("X-Ratelimit-Remaining"))
}
