package rules

import (
	"strconv"
	"strings"
)

// mistake is something in a file, and the problem that it gives: the text after "f:".
type mistake struct {
	field string // REFERENCE.md lists it there
	text  string // of a descriptor, or of a file if it begins with "domain"
	want  string
}

func (m mistake) document() string {
	if strings.HasPrefix(m.text, "domain") || m.field == "file" || m.field == "domain" {
		return m.text
	}
	return inDomain(m.text)
}

// maxRequestsText is the largest requests_per_unit in errors.
var maxRequestsText = strconv.FormatUint(uint64(maxRequests), 10)

const limit1 = "rate_limit: {unit: day, requests_per_unit: 1}"

// loadErrors are refused by upstream, too. It refuses all keys that only sluice knows.
var loadErrors = []mistake{
	{"file", "", "1:1: the file is empty; want domain and descriptors"},
	{"file", "# nothing\n", "1:1: the file is empty; want domain and descriptors"},
	{"file", "- domain: d", "1:1: the file is a list; want a map with domain and descriptors"},
	{"file", "text", `1:1: the file is "text"; want a map with domain and descriptors`},
	{"file", "domain: d\n\tx: y\n", "2:1: not YAML: found a tab character that violates indentation"},
	{"file", " domain: d\ndescriptors: []\n", "2:1: what follows is neither part of the document above, by its indentation, nor another one (did not find expected <document start>); want all of a file in one document"},
	{"file", "domain: d\ncolour: red\n", `2:1: d: a file's top level has no key "colour"; want one of domain, descriptors, sluice, http`},
	{"file", "domain: d\n1: x\n", "2:1: key 1 is not text; want one of the known keys"},
	{"domain", "descriptors: []\n", "1:1: the file names no domain; want domain: NAME, as Envoy's filter sends it"},
	{"domain", "domain: ''\n", "1:9: the file names no domain; want domain: NAME, as Envoy's filter sends it"},
	{"domain", "domain: [a]\n", "1:9: domain is a list; want text"},
	{"domain", "domain: 1.5\n", `1:9: domain is 1.5, which is not text for YAML; want it in quotes: "1.5"`},
	{"descriptors", "domain: d\ndescriptors: 5\n", "2:14: d: descriptors is 5; want a list of descriptors"},
	{"descriptors", "domain: d\ndescriptors: {key: k}\n", "2:14: d: descriptors is a map; want a list of descriptors"},
	{"descriptors", "domain: d\ndescriptors: [k]\n", `2:15: d: descriptors holds "k"; want descriptors, maps with a key`},
	{"descriptors", "domain: d\ndescriptors: [~]\n", "2:15: d: descriptors holds empty; want descriptors, maps with a key"},
	{"key", "domain: d\ndescriptors: [{value: v}]\n", "2:15: d: a descriptor without a key; want key: NAME"},
	{"key", "domain: d\ndescriptors: [{key: ''}]\n", "2:21: d: a descriptor without a key; want key: NAME"},
	{"key", "domain: d\ndescriptors: [{key: k}, {key: k}]\n", "2:25: d.k: the descriptor is already defined at f:2; want one descriptor for k at this level"},
	{"key", "domain: d\ndescriptors: [{key: a_b}, {key: a, value: b}]\n", "2:27: d.a_b: the descriptor is already defined at f:2; want one descriptor for a_b at this level"},
	{"value", "value: 1.5", `4:10: d: value is 1.5, which is not text for YAML; want it in quotes: "1.5"`},
	{"value", "value: !!binary eA==", `4:10: d: value is eA==, which is not text for YAML; want it in quotes: "eA=="`},
	{"value", "value: 18446744073709551615", `4:10: d: value is 18446744073709551615, which is not text for YAML; want it in quotes: "18446744073709551615"`},
	{"value", "value: {a: b}", "4:10: d: value is a map; want text"},
	{"shadow_mode", "shadow_mode: 1\n" + limit1, "4:16: d.k: shadow_mode is 1; want true or false"},
	{"shadow_mode", "shadow_mode: 'true'\n" + limit1, `4:16: d.k: shadow_mode is "true"; want true or false`},
	{"quota_mode", "quota_mode: maybe\n" + limit1, `4:15: d.k: quota_mode is "maybe"; want true or false`},
	{"detailed_metric", "detailed_metric: []\n" + limit1, "4:20: d.k: detailed_metric is a list; want true or false"},
	{"value_to_metric", "value_to_metric: {}\n" + limit1, "4:20: d.k: value_to_metric is a map; want true or false"},
	{"share_threshold", "share_threshold: true\n" + limit1, `4:20: d.k: share_threshold is true, but the value is missing; want a "*" in it, or no share_threshold`},
	{"share_threshold", "share_threshold: true\nvalue: v\n" + limit1, `4:20: d.k_v: share_threshold is true, but the value is "v"; want a "*" in it, or no share_threshold`},
	{"metadata", "metadata: text\n" + limit1, `4:13: d.k: metadata is "text"; want a map`},
	{"metadata", "metadata: {1: x}\n" + limit1, "4:14: d.k: key 1 is not text; want one of the known keys"},
	{"metadata", "metadata: {weight: !!float inf}\n" + limit1, "4:22: d.k: metadata has the number inf, which JSON has no word for; want a finite one, or text in quotes"},
	{"rate_limit", "rate_limit: 5", "4:15: d.k: rate_limit is 5; want a map with unit and requests_per_unit"},
	{"rate_limit", "ratelimit: {}", `4:3: d.k: a descriptor has no key "ratelimit" (is it rate_limit?); want one of key, value, rate_limit, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata, enabled, description`},
	{"unit", "rate_limit: {requests_per_unit: 1}", "4:15: d.k: unit is missing; want second, minute, hour, day, week, month or year, or period: a time"},
	{"unit", "rate_limit: {unit: unknown, requests_per_unit: 1}", `4:22: d.k: unit is "unknown"; want second, minute, hour, day, week, month or year, or period: a time`},
	{"unit", "rate_limit: {unit: 1.5, requests_per_unit: 1}", `4:22: d.k: unit is 1.5, which is not text for YAML; want it in quotes: "1.5"`},
	{"unit", "rate_limit: {unit: day, unlimited: true}", "4:22: d.k: unit is given, but the rule is unlimited; want one of unit and unlimited"},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: -1}", "4:46: d.k: requests_per_unit is -1; want a whole number from 0 to " + maxRequestsText},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: 4294967296}", "4:46: d.k: requests_per_unit is 4294967296; want a whole number from 0 to " + maxRequestsText},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: 1.5}", "4:46: d.k: requests_per_unit is 1.5; want a whole number from 0 to " + maxRequestsText},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: '5'}", `4:46: d.k: requests_per_unit is "5"; want a whole number from 0 to ` + maxRequestsText},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: 5, burts: 1}", `4:49: d.k: rate_limit has no key "burts" (is it burst?); want one of unit, requests_per_unit, unlimited, name, replaces, unit_multiplier, period, algorithm, burst, soft, block_for, offset, count_denied, leases, weights, scale`},
	{"unlimited", "rate_limit: {unit: day, requests_per_unit: 1, unlimited: 2}", "4:60: d.k: unlimited is 2; want true or false"},
	{"name", "rate_limit: {unit: day, requests_per_unit: 1, name: [x]}", "4:55: d.k: name is a list; want text"},
	{"replaces", "rate_limit: {unit: day, requests_per_unit: 1, replaces: x}", `4:59: d.k: replaces is "x"; want a list of maps, - name: NAME`},
	{"replaces", "rate_limit: {unit: day, requests_per_unit: 1, replaces: [x]}", `4:60: d.k: replaces holds "x"; want maps, - name: NAME`},
	{"replaces", "rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: ''}]}", "4:60: d.k: replaces has an entry without a name; want name: the rate_limit.name of another rule"},
	{"replaces", "rate_limit: {unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}", `4:69: d.k: replaces names "x", the rule itself; want the name of another rule`},
	{"replaces", "rate_limit: {unit: day, requests_per_unit: 1, replaces: [{nam: x}]}", `4:60: d.k: replaces has an entry without a name; want name: the rate_limit.name of another rule`},

	{"enabled", "enabled: 0", "4:12: d.k: enabled is 0; want true or false"},
	{"description", "description: [x]", "4:16: d.k: description is a list; want text"},
	{"unit_multiplier", "rate_limit: {unit: day, requests_per_unit: 1, unit_multiplier: 0}", "4:66: d.k: unit_multiplier is 0; want a whole number from 1 to 4294967295"},
	{"unit_multiplier", "rate_limit: {unit: year, requests_per_unit: 1, unit_multiplier: 300}", "4:67: d.k: unit_multiplier is 300, and 300 years do not fit in 292 years; want a smaller one"},
	{"unit_multiplier", "rate_limit: {period: 1s, requests_per_unit: 1, unit_multiplier: 2}", "4:50: d.k: unit_multiplier and period are both given; want unit_multiplier with a unit only"},
	{"period", "rate_limit: {unit: day, period: 30s, requests_per_unit: 1}", "4:27: d.k: unit and period are both given; want one of them"},
	{"period", "rate_limit: {period: 30, requests_per_unit: 1}", "4:24: d.k: period is 30; want a time of at least 1ns, such as 90s, 15m or 1h30m"},
	{"period", "rate_limit: {period: 0s, requests_per_unit: 1}", `4:24: d.k: period is "0s"; want a time of at least 1ns, such as 90s, 15m or 1h30m`},
	{"algorithm", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: magic}", `4:60: d.k: algorithm is "magic"; want gcra, token-bucket, leaky-bucket, sliding-window, sliding-log or fixed-window`},
	{"algorithm", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: token-bucket-interval}", `4:60: d.k: algorithm is "token-bucket-interval"; want gcra, token-bucket, leaky-bucket, sliding-window, sliding-log or fixed-window`},
	{"algorithm", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed-window-first-charge}", `4:60: d.k: algorithm is "fixed-window-first-charge"; want gcra, token-bucket, leaky-bucket, sliding-window, sliding-log or fixed-window`},
	{"burst", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra, burst: 0}", "4:73: d.k: burst is 0; want a whole number from 1 to 2147483647"},
	{"burst", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: sliding-window, burst: 7}", "4:83: d.k: burst: 7 with sliding-window; a window algorithm admits at most the rate at once, want 0 or 1"},
	{"soft", "rate_limit: {unit: day, requests_per_unit: 1, soft: -1}", "4:55: d.k: soft is -1; want a whole number from 0 to 2147483647"},
	{"block_for", "rate_limit: {unit: day, requests_per_unit: 1, block_for: -1s}", `4:60: d.k: block_for is "-1s"; want a time of at least 0s, such as 90s, 15m or 1h30m`},
	{"offset", "rate_limit: {unit: day, requests_per_unit: 1, offset: 24h}", "4:57: d.k: offset: 24h0m0s is not below the period of 24h0m0s; want 0s, which is the same"},
	{"offset", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra, offset: 1h}", "4:74: d.k: offset: 1h0m0s with gcra, which has no boundaries to move; want 0, or fixed-window, sliding-window or token-bucket-interval"},
	{"leases", "rate_limit: {unit: day, requests_per_unit: 1, leases: 1}", "4:57: d.k: leases is 1; want true or false"},
	{"count_denied", "rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra, count_denied: true}", "4:80: d.k: count_denied: true with gcra, which counts what is admitted; want false, or sliding-window, sliding-log, fixed-window or fixed-window-first-charge"},
	{"count_denied", "domain: d\nsluice: {atomic: true}\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1, count_denied: true}}\n", "4:72: d.k: count_denied is true, but the domain is atomic, where a call that is denied counts nothing; want it deleted"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: 5}", "4:58: d.k: weights is 5; want a map of kinds and weights, such as {input: 1, output: 5}"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {}}", "4:58: d.k: weights is an empty map; want a map of kinds and weights, such as {input: 1, output: 5}"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {input: -1}}", "4:66: d.k: the weight of input is -1; want a decimal number from 0 to 999999999.999999999, such as 5 or 0.1"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {input: 1e3}}", "4:66: d.k: the weight of input is 1e3; want a decimal number from 0 to 999999999.999999999, such as 5 or 0.1"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {input: 010}}", "4:66: d.k: the weight of input is 010; want a decimal number from 0 to 999999999.999999999, such as 5 or 0.1"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {input: [1]}}", "4:66: d.k: the weight of input is a list; want a decimal number from 0 to 999999999.999999999, such as 5 or 0.1"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {'': 1}}", "4:59: d.k: weights has a kind without a name; want the key of an entry, such as input"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {input: 0, output: 0.0}}", "4:58: d.k: weights are all 0, so nothing is counted; want at least one above 0"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1, j: 1, l: 1, m: 1, o: 1, p: 1, q: 1, r: 1, s: 1}}", "4:58: d.k: weights has 17 kinds; want at most 16"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {k: 1}}", "4:15: d.k: k is both one of the weights and the key of a descriptor; want different names"},
	{"weights", "rate_limit: {unit: day, requests_per_unit: 1, weights: {input: 1}}\ndescriptors: [{key: input}]", "4:15: d.k: input is both one of the weights and the key of a descriptor; want different names"},
	{"scale", "rate_limit: {unit: day, requests_per_unit: 1, scale: 0}", "4:56: d.k: scale is 0; want a whole number from 1 to 1000000000"},
	{"scale", "rate_limit: {unit: day, requests_per_unit: 1, scale: 0.5}", "4:56: d.k: scale is 0.5; want a whole number from 1 to 1000000000"},
	{"http", "domain: d\nhttp: yes\n", "2:7: d: http is yes; want a list of maps, - actions: [...]"},
	{"http", "domain: d\nhttp: [x]\n", `2:8: d: http holds "x"; want maps, - actions: [...]`},
	{"http", "domain: d\nhttp: [{}]\n", "2:8: d: http holds a map without actions; want actions: [...]"},
	{"http", "domain: d\nhttp: [{actions: [{remote_address: {}}], stage: 1}]\n", `2:42: d: http has no key "stage"; want one of actions`},
	{"actions", "domain: d\nhttp: [{actions: []}]\n", "2:18: d: actions is a list; want a list of at least one action, such as - remote_address: {}"},
	{"actions", "domain: d\nhttp: [{actions: [remote_address]}]\n", `2:19: d: an action is "remote_address" with 0 keys; want a map with one of them, such as remote_address: {}`},
	{"actions", "domain: d\nhttp: [{actions: [{path: {}, generic_key: {descriptor_value: x}}]}]\n", "2:19: d: an action is a map with 2 keys; want a map with one of them, such as remote_address: {}"},
	{"actions", "domain: d\nhttp: [{actions: [{source_cluster: {}}]}]\n", `2:20: d: actions has no key "source_cluster"; want one of remote_address, request_headers, query_parameters, generic_key, path`},
	{"remote_address", "domain: d\nhttp: [{actions: [{remote_address: ~}]}]\n", "2:36: d: remote_address is empty; want a map, remote_address: {}"},
	{"remote_address", "domain: d\nhttp: [{actions: [{remote_address: {descriptor_key: ip}}]}]\n", `2:37: d: remote_address has no key "descriptor_key"; want none, remote_address: {}`},
	{"request_headers", "domain: d\nhttp: [{actions: [{request_headers: {descriptor_key: k}}]}]\n", "2:37: d: request_headers has no header_name; want header_name: NAME"},
	{"request_headers", "domain: d\nhttp: [{actions: [{request_headers: {header_name: x-key}}]}]\n", "2:37: d: request_headers has no descriptor_key; want descriptor_key: KEY, the key of the entry"},
	{"request_headers", "domain: d\nhttp: [{actions: [{request_headers: {header_name: ':scheme', descriptor_key: k}}]}]\n", `2:37: d: header_name is ":scheme"; want the name of a header, or :method, :authority or :path`},
	{"query_parameters", "domain: d\nhttp: [{actions: [{query_parameters: {query_parameter_name: q, header_name: x, descriptor_key: k}}]}]\n", `2:64: d: query_parameters has no key "header_name"; want query_parameter_name, descriptor_key or skip_if_absent`},
	{"generic_key", "domain: d\nhttp: [{actions: [{generic_key: {}}]}]\n", "2:33: d: generic_key has no descriptor_value; want descriptor_value: VALUE, the value of the entry"},
	{"path", "domain: d\nhttp: [{actions: [{path: {descriptor_key: ''}}]}]\n", "2:26: d: path has no descriptor_key; want descriptor_key: KEY, the key of the entry"},
	{"sluice", "domain: d\nsluice: yes\n", "2:9: d: sluice is yes; want a map with max_keys, overflow, atomic or count_denied"},
	{"sluice", "domain: d\nsluice: {max_key: 1}\n", `2:10: d: sluice has no key "max_key" (is it max_keys?); want one of max_keys, overflow, atomic, count_denied`},
	{"max_keys", "domain: d\nsluice: {max_keys: 0}\n", "2:20: d: max_keys is 0; want a whole number from 1 to 2147483647"},
	{"overflow", "domain: d\nsluice: {overflow: panic}\n", `2:20: d: overflow is "panic"; want evict-soonest, deny-new or admit-new`},
	{"atomic", "domain: d\nsluice: {atomic: 1}\n", "2:18: d: atomic is 1; want true or false"},
	{"atomic", "domain: d\nsluice: {atomic: true, count_denied: true}\n", "2:9: d: atomic and count_denied are both true, but an atomic call that is denied counts nothing; want one of them"},
}

// loadWarnings are what upstream loads without a word.
var loadWarnings = []mistake{
	{"file", "domain: d\n---\ndomain: e\n", "2:1: warning: a second document, which is not read; want one document a file"},
	{"file", "domain: d\ndomain: e\n", "2:1: warning: domain is given twice, first in line 1; the last one counts: delete the other"},
	{"file", "domain: d\nunit: day\n", "2:1: warning: d: unit means nothing in a file's top level and is ignored; want it in rate_limit"},
	{"key", "domain: d\ndescriptors: [{key: k*}]\n", `2:21: warning: d: the key "k*" has a "*", which stands for itself: only values are patterns`},
	{"shadow_mode", "rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}", "4:49: warning: d.k: shadow_mode means nothing in rate_limit and is ignored; want it in a descriptor"},
	{"shadow_mode", "shadow_mode: true", "4:3: warning: d.k: shadow_mode means nothing without rate_limit; want both at the same descriptor"},
	{"quota_mode", "quota_mode: true", "4:3: warning: d.k: quota_mode means nothing without rate_limit; want both at the same descriptor"},
	{"detailed_metric", "detailed_metric: true", "4:3: warning: d.k: detailed_metric means nothing without rate_limit; want both at the same descriptor"},
	{"metadata", "metadata: {a: b}", "4:3: warning: d.k: metadata means nothing without rate_limit; want both at the same descriptor"},
	{"rate_limit", "rate_limit:", "4:3: warning: d.k: rate_limit is empty, so nothing is limited; want unit and requests_per_unit, or no rate_limit"},
	{"rate_limit", limit1 + "\n" + limit1, "5:3: warning: d: rate_limit is given twice, first in line 4; the last one counts: delete the other"},
	{"unit", "unit: day\n" + limit1, "4:3: warning: d.k: unit means nothing in a descriptor and is ignored; want it in rate_limit"},
	{"unit", "rate_limit: {unlimited: true, unit: never}", "4:33: warning: d.k: unit means nothing, since the rule is unlimited; want it deleted"},
	{"requests_per_unit", "rate_limit: {unit: day}", "4:15: warning: d.k: requests_per_unit is missing, which is 0: everything is denied; want requests_per_unit: 0 to say so, or a number"},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: }", "4:15: warning: d.k: requests_per_unit is missing, which is 0: everything is denied; want requests_per_unit: 0 to say so, or a number"},
	{"requests_per_unit", "rate_limit: {unit: day, requests_per_unit: 010}", "4:46: warning: d.k: requests_per_unit is 010, which is 8 for YAML, as it begins with 0; want 10"},
	{"unlimited", "rate_limit: {unlimited: true, requests_per_unit: 5}", "4:33: warning: d.k: requests_per_unit means nothing, since the rule is unlimited; want it deleted"},
	{"burst", "rate_limit: {unlimited: true, burst: 5}", "4:33: warning: d.k: burst means nothing, since the rule is unlimited; want it deleted"},
	{"value", "domain: d\ndescriptors:\n- {key: k, value: 'a*'}\n- {key: k, value: 'ab*c'}\n", `4:19: warning: d.k_ab*c: the value "ab*c" is never reached, since "a*" at f:3 is before it and fits all that it does; want the narrower one first`},
	{"value", "domain: d\ndescriptors:\n- {key: k, value: '*'}\n- {key: k}\n", `4:9: warning: d.k: k without a value is never reached, since value: "*" at f:3 fits all values; want one of the two`},
	{"value", "domain: d\ndescriptors:\n- {key: k}\n- {key: k, value: '*'}\n", `4:19: warning: d.k_*: value: "*" fits all values, so k without a value at f:3 is never reached; want one of the two`},
	{"replaces", "rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}", `4:60: warning: d.k: replaces names "x", which no rule of the domain has; want the rate_limit.name of another rule`},
	{"replaces", "replaces: [{name: x}]\n" + limit1, "4:3: warning: d.k: replaces means nothing in a descriptor and is ignored; want it in rate_limit"},
}
