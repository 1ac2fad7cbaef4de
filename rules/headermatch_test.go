package rules

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeaderMatcher: each condition with a header that fits, one that does not, an empty one and none, as it is and inverted.
// A missing header fits no condition on the value, inverted or not, as in Envoy.
func TestHeaderMatcher(t *testing.T) {
	const yes, no = true, false
	for _, c := range []struct {
		condition      string
		value          string
		want, inverted bool
	}{
		{"exact_match: abc", "abc", yes, no}, {"exact_match: abc", "abcd", no, yes}, {"exact_match: abc", "ABC", no, yes},
		{"exact_match: ''", "", yes, no}, {"exact_match: ''", "a", no, yes},
		{"prefix_match: ab", "abc", yes, no}, {"prefix_match: ab", "cab", no, yes}, {"prefix_match: ab", "", no, yes},
		{"suffix_match: bc", "abc", yes, no}, {"suffix_match: bc", "bcd", no, yes},
		{"contains_match: b", "abc", yes, no}, {"contains_match: b", "ac", no, yes},
		{"safe_regex_match: {regex: 'a|bc'}", "bc", yes, no}, {"safe_regex_match: {regex: 'a|bc'}", "abc", no, yes}, {"safe_regex_match: {regex: 'a', google_re2: {}}", "a\n", no, yes},
		{"range_match: {start: -10, end: 0}", "-1", yes, no}, {"range_match: {start: -10, end: 0}", "0", no, yes}, {"range_match: {start: -10, end: 0}", "-10", yes, no},
		{"range_match: {start: -10, end: 0}", "-1a", no, yes}, {"range_match: {start: -10, end: 0}", "", no, yes}, {"range_match: {end: 5}", "0", yes, no},
		{"present_match: true", "", yes, no}, {"present_match: false", "x", no, yes}, {"invert_match: false", "x", yes, no},
		{"string_match: {exact: AbC, ignore_case: true}", "aBc", yes, no}, {"string_match: {exact: k, ignore_case: true}", "\u212a", no, yes}, {`string_match: {exact: "\ufffd", ignore_case: true}`, "\xff", no, yes},
		{"string_match: {prefix: A, ignore_case: false}", "a", no, yes}, {"string_match: {suffix: C, ignore_case: true}", "abc", yes, no},
		{"string_match: {contains: b}", "abc", yes, no}, {"string_match: {safe_regex: {regex: '[a-c]+'}}", "abc", yes, no},
	} {
		for _, inverted := range []bool{false, true} {
			condition, want := c.condition, c.want
			if inverted {
				if condition == "invert_match: false" {
					continue
				}
				condition, want = condition+", invert_match: true", c.inverted
			}
			m := matcherOf(t, condition)
			require.Equal(t, want, m.Matches(c.value, true), "%s: %q", condition, c.value)
			missing := false
			if m.fits == nil {
				missing = m.present == inverted // the opposite of a header that is there
			}
			require.Equal(t, missing, m.Matches("", false), "%s, without the header", condition)
			if m.fits != nil {
				empty := matcherOf(t, condition+", treat_missing_header_as_empty: true")
				require.Equal(t, m.Matches("", true), empty.Matches("", false), condition)
			}
		}
	}
}

func matcherOf(t *testing.T, condition string) HeaderMatcher {
	t.Helper()
	set := mustLoad(t, "domain: d\nhttp: [{actions: [{header_value_match: {descriptor_value: v, headers: [{name: x, "+condition+"}]}}]}]\n")
	return set.Actions("d")[0][0].Headers[0]
}

func TestActions_Envoys(t *testing.T) {
	actions := mustLoad(t, `
domain: d
http:
- actions: [{masked_remote_address: {v4_prefix_mask_len: 24}}, {masked_remote_address: {}}]
- actions: [{header_value_match: {descriptor_value: bots, expect_match: false, headers: [{name: user-agent}, {name: ':method', exact_match: GET}]}}]
- actions: [{header_value_match: {descriptor_key: k, descriptor_value: v, expect_match: ~, headers: [{name: x}]}}]
`).Actions("d")
	require.Equal(t, []Action{
		{Kind: MaskedRemoteAddress, Key: "masked_remote_address", Bits: [2]int{24, 128}}, {Kind: MaskedRemoteAddress, Key: "masked_remote_address", Bits: [2]int{32, 128}},
	}, actions[0])
	match := actions[1][0]
	require.Len(t, match.Headers, 2)
	match.Headers = nil
	require.Equal(t, Action{Kind: HeaderValueMatch, Key: "header_match", Value: "bots", ExpectMismatch: true}, match)
	require.False(t, actions[2][0].ExpectMismatch)
	require.Equal(t, "k", actions[2][0].Key)
}
