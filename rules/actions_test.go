package rules

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestActions(t *testing.T) {
	set := mustLoad(t, `
domain: d
http:
- actions:
  - remote_address: {}
  - request_headers: {header_name: x-api-key, descriptor_key: client, skip_if_absent: true}
- actions: [{generic_key: {descriptor_value: web}}, {generic_key: {descriptor_key: k, descriptor_value: v}}]
- actions: [{path: {}}, {query_parameters: {query_parameter_name: q, descriptor_key: search}}]
`)
	require.Equal(t, [][]Action{
		{{Kind: RemoteAddress, Key: "remote_address"}, {Kind: RequestHeaders, Key: "client", Name: "x-api-key", SkipIfAbsent: true}},
		{{Kind: GenericKey, Key: "generic_key", Value: "web"}, {Kind: GenericKey, Key: "k", Value: "v"}},
		{{Kind: Path, Key: "path"}, {Kind: QueryParameter, Key: "search", Name: "q"}},
	}, set.Actions("d"))
	require.Nil(t, set.Actions("e"))
	require.Nil(t, mustLoad(t, "domain: d\n").Actions("d"))
	require.Equal(t, "query_parameters", QueryParameter.String())
}

// TestActions_Merged: files of one domain add up.
func TestActions_Merged(t *testing.T) {
	set, err := Load([]File{
		{"a", []byte("domain: d\nhttp: [{actions: [{path: {}}]}]\n")},
		{"b", []byte("domain: d\nhttp: [{actions: [{remote_address: {}}]}]\n")},
	}, Options{MergeDomains: true})
	require.NoError(t, err)
	require.Len(t, set.Actions("d"), 2)
}
