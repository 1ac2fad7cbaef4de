package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const configMap = `apiVersion: v1
kind: ConfigMap
metadata:
  name: ratelimit-config
data:
  notes.txt: nothing
  config.yaml: |
    domain: edge
    descriptors:
    - key: remote_address
      rate_limit: {unit: %s, requests_per_unit: 5}
`

func problemsOf(t *testing.T, text string) (set *Set, problems []string) {
	t.Helper()
	set, err := Load([]File{{Name: "f.yaml", Data: []byte(text)}}, Options{})
	if err != nil {
		for _, p := range err.(*LoadError).Problems {
			problems = append(problems, p.String())
		}
		return nil, problems
	}
	for _, p := range set.Warnings() {
		problems = append(problems, p.String())
	}
	return set, problems
}

func TestLoad_ConfigMap(t *testing.T) {
	set, problems := problemsOf(t, fmt.Sprintf(configMap, "minute"))
	require.NotNil(t, set)
	require.Equal(t, []string{"edge"}, set.Domains())
	require.Equal(t, []string{`f.yaml:6:3: warning: data has notes.txt, which is not read; want names of rules to end in .yaml or .yml`}, problems)

	_, problems = problemsOf(t, fmt.Sprintf(configMap, "fortnight"))
	require.Len(t, problems, 2)
	require.Contains(t, problems[1], "f.yaml:11:", "the line in the file, not within the ConfigMap")
	require.Contains(t, problems[1], "fortnight")

	_, problems = problemsOf(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
	require.Equal(t, []string{"f.yaml:1:1: the ConfigMap has no rules; want data with a name that ends in .yaml or .yml"}, problems)
	_, problems = problemsOf(t, "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: BackendTrafficPolicy\nspec: {}\n")
	require.Equal(t, []string{"f.yaml:2:7: the file is a Kubernetes BackendTrafficPolicy; want a file of rules, or a ConfigMap of them: a policy of a gateway is translated by its controller"}, problems)
	nested := "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    apiVersion: v1\n    kind: ConfigMap\n"
	_, problems = problemsOf(t, nested)
	require.Equal(t, []string{"f.yaml:6:7: the file is a Kubernetes ConfigMap within another; want a file of rules"}, problems)
}

// TestLoad_NullLimitAboveOthers: tools write the null at levels that only lead to limits.
func TestLoad_NullLimitAboveOthers(t *testing.T) {
	const text = "domain: d\ndescriptors:\n- key: a\n  rate_limit: null\n  descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]\n"
	_, problems := problemsOf(t, text)
	require.Empty(t, problems)
	_, problems = problemsOf(t, "domain: d\ndescriptors:\n- key: a\n  rate_limit: null\n  descriptors: []\n")
	require.Len(t, problems, 1)
}

func TestLoad_NetworkAsAddress(t *testing.T) {
	text := "domain: d\ndescriptors:\n- {key: remote_address, value: %q, rate_limit: {unit: minute, requests_per_unit: 1}}\n"
	_, problems := problemsOf(t, fmt.Sprintf(text, "10.0.0.0/8"))
	require.Equal(t, []string{`f.yaml:3:32: warning: d.remote_address_10.0.0.0/8: the value of remote_address is an address, so a network fits none; want masked_remote_address, whose value is the network that Envoy's action makes`}, problems)
	_, problems = problemsOf(t, fmt.Sprintf(text, "10.0.0.1"))
	require.Empty(t, problems)
}

// TestLoad_Cases has files as people keep them.
func TestLoad_Cases(t *testing.T) {
	const dir = "../../shared/cases"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("there is no ../shared/cases beside the checkout")
	}
	for name, warnings := range map[string]int{"rules-configmap.yaml": 0, "rules-null-limit.yaml": 0, "rules-cidr-value.yaml": 1} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		set, problems := problemsOf(t, string(data))
		require.NotNil(t, set, name)
		require.Len(t, problems, warnings, name)
	}
}
