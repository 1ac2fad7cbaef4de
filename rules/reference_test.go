package rules

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write REFERENCE.md")

// reference says what each field means.
var reference = []struct {
	level  level
	fields [][2]string
}{
	{inFile, [][2]string{
		{"file", "A file holds one YAML document, a map: one domain and its rules. A word without quotes means what YAML 1.1 makes of it: `on`, `yes` and `y` are true, `010` is 8."},
		{"domain", "Text, required. The domain that Envoy's rate limit filter sends. A domain is in one file, unless domains are merged."},
		{"descriptors", "A list of descriptors. Only patterns have an order: the first one that fits counts."},
		{"sluice", "A map with settings of the domain (ours): below."},
		{"http", "A list of maps with `actions` (ours), for requests over HTTP: each makes one descriptor of a request."},
	}},
	{inDescriptor, [][2]string{
		{"key", "Text, required. The key of an entry."},
		{"value", "Text. The value of the entry. Without it the descriptor is for every value of the key that no other descriptor takes, and each value is counted by itself. A `*` stands for any number of characters, also none, and there can be several. A request's value is looked for first as it is, then among the patterns in the order of the file, then by the key alone. The first descriptor that is found is the one that counts, even if it has no limit. A descriptor that another one takes all values of is a warning."},
		{"rate_limit", "A map: the limit. Without it, a request whose entries end at this descriptor is not limited. One with nothing after it is a warning and no error, since files that Envoy's service loads have to load."},
		{"descriptors", "A list of descriptors for the next entry."},
		{"shadow_mode", "true or false. The rule counts, and never denies: the status is OK, and the statistics show the hits that would have been denied."},
		{"quota_mode", "true or false. The rule denies only if all descriptors of the request with quota_mode are over their limits. A descriptor without it denies as ever."},
		{"detailed_metric", "true or false, at the descriptor that has the limit. The statistics name the values of requests, at all levels. The number of such lines is bounded, and the rest is counted as \"other\"."},
		{"value_to_metric", "true or false. The statistics name the value of requests at this level."},
		{"share_threshold", "true or false, for a value with a `*`. All values that fit the pattern share one counter."},
		{"metadata", "A map of anything, handed out with the rule (dynamic metadata of Envoy), unless that is unlimited."},
		{"enabled", "true or false (ours). With false the descriptor and those below it are checked, and then ignored."},
		{"description", "Text (ours). For people."},
	}},
	{inRateLimit, [][2]string{
		{"unit", "second, minute, hour, day, week, month (30 days) or year (365 days), in any case. Required without `unlimited`, `period` and `calendar`. Windows begin at multiples of the unit since 1970, weeks on Thursdays. Months of 28 to 31 days are a `calendar`."},
		{"requests_per_unit", "A whole number up to 4294967295. 0 denies everything. Hits that are denied count, too."},
		{"unlimited", "true or false. Nothing is denied, and hits are only counted for metrics."},
		{"name", "Text. Envoy gets it with the limit, and `replaces` of other rules can name it."},
		{"replaces", "A list of maps with a `name`. If this rule fits a descriptor of a request, rules with these names neither limit nor count its other descriptors."},
		{"unit_multiplier", "A whole number from 1 (ours, as proposed for Envoy). The window is that many units."},
		{"period", "A time such as 30s (ours), in the place of `unit`. Windows begin at multiples of it since 1970."},
		{"algorithm", "gcra, token-bucket, leaky-bucket, sliding-window, sliding-log, fixed-window or in-flight (ours). Without it the rule is a fixed window, as in Envoy's service. With another algorithm a denied call counts nothing, a look (0 hits) passes if one hit would, and the rule has counts of its own. Under in-flight (or in_flight) requests_per_unit is the number of hits at once: `at_once` says so in fewer words. Holds give hits back when they end, rules/httprules when a request ends, a call by is_negative_hits; /check answers 501, since it does not hear of the end."},
		{"at_once", "A whole number (ours), with `lease`: `at_once: 10, lease: 1m` says the same as `requests_per_unit: 10, period: 1m, algorithm: in-flight`."},
		{"lease", "A time such as 1m (ours), with `at_once`: hits that nobody gives back or renews come back by themselves after it, before two of it are over."},
		{"calendar", "A map (ours), in the place of `unit`: windows by the dates of a time zone, as long as their days and months are. Only for fixed windows, without offset. Below."},
		{"burst", "A whole number from 1 (ours), for gcra, token-bucket and leaky-bucket: how many hits pass at once. Without it that is requests_per_unit."},
		{"soft", "A whole number (ours): so many hits are admitted beyond the limit."},
		{"max_debt", "A whole number (ours): the most that a settlement charges beyond the units of its hold. Without it 10 times the larger of requests_per_unit and burst; 0 charges nothing beyond. So one wrong number cannot lock a key for longer than that takes to be paid off. The answer to a settlement that was cut says `capped`."},
		{"block_for", "A time such as 15m (ours). A call that is denied blocks its key for that long."},
		{"offset", "A time below the period (ours), for windows: they begin that much later. `offset: 96h` makes weeks begin on Mondays."},
		{"leases", "true or false (ours), with a store: whether a process may admit hits from units that the store has lent to it. Without it, it may. With false every call asks the store, and Remaining is exact."},
		{"count_denied", "true or false (ours), for windows: whether denied hits count. Without it the domain's setting holds, or else true for fixed windows and false for others. Denied hits that were counted stay counted when they are given back, under another algorithm than fixed-window, and with soft."},
		{"weights", "A map of kinds and decimal numbers, such as {input: 1, output: 5, cached: 0.1} (ours): the units that one of each kind costs, exactly. A descriptor names the counts behind the rule's entries: `client=ann, input=1000, output=200` costs 2,000. The sum is rounded up once, or down if it is given back. `output=hits_addend` takes the count from hits_addend, the only number that Envoy fills in. A descriptor without counts counts its hits as units. A count has at most 15 digits. A descriptor with a longer count, a kind twice, an unknown kind, or counts and hits, is denied and counts nothing."},
		{"scale", "A whole number from 1 to 1000000000 (ours): the units in one of requests_per_unit, burst, soft and max_debt. Hits and weights are in units: `requests_per_unit: 50, scale: 1000000` is 50 dollars, counted in millionths, and nothing is rounded. Answers are in requests_per_unit, rounded down. A window of a day has room for 2.8e14 units, of a month for 9e15; in a store requests_per_unit times scale is at most 4294967295. Counts stay when scale changes, unless the product passes 4294967295."},
		{"then", "The name of another rule of the domain (ours): a second budget. Hits that this rule has no room for are taken from the second, in one step; a call is denied only if both together have no room, and then counts in neither. The call is charged to the second rule by its own values; where that rule has a key without a value, by the value of the key in the call: `client` and `budget: plan` goes on to `client` and `budget: credits` of the same client. Hits that are given back go to the second budget first, as far as it was charged for the same entries in its present window. Remaining is the sum of both. The second rule can be asked directly. Both have the same `scale`, and neither has `soft`, `block_for` or `shadow_mode`; the second has no `then`. A store counts both exactly, without leases, in one slot of a cluster for each domain, and has no holds of two budgets. Counts of a fixed window begin at 0 when a rule gets its first `then`, or is named by the first."},
		{"counts_denials_of", "The name of other rules of the domain (ours), which throttle, and have this one ban: it counts no calls, but the hits of its own descriptor in calls that one of those rules has denied, as far as there is room; in shadow_mode also in calls that a rule in shadow_mode would have denied. Until it is full, calls only look at it; then they are denied, and with `block_for` for at least that long. A call needs a descriptor for each of the two rules: `client` and `ban`, say. No denials are: calls that pass since quotas deny only together, limits that come with a request, and a descriptor that gives hits back. The rules that are named have no `quota_mode` and are not of units in flight; this one has no `soft` and no `then`, and in an atomic domain a fixed window has `block_for`. A store is asked a second time for each denial, and lends no units of such a rule. A hold looks at the rule first, also if it repeats one, and so does an extension of more hits. A rule with an algorithm goes on from the calls that it has counted until a reload."},
	}},
	{inCalendar, [][2]string{
		{"unit", "day, week, month, quarter or year. Required."},
		{"zone", "A name of the IANA time zone database, such as Asia/Seoul. Without it UTC."},
		{"starts", "The first date: of a month the day, 1 to 28; of a quarter or a year month and day, such as 04-06; of a week the name of the day, such as sunday. Without it the first, January 1 and Monday."},
	}},
	{inDomainOptions, [][2]string{
		{"max_keys", "A whole number (ours): the keys that are tracked, for each unit and for each rule with an algorithm of its own. A change counts when the process starts again."},
		{"overflow", "evict-soonest, deny-new or admit-new (ours): what happens to new keys beyond max_keys. A change counts when the process starts again; a domain that then has its first deny-new or admit-new counts from 0, and the log says so."},
		{"atomic", "true or false (ours). All descriptors of a call are counted, or, if it is denied, none. That is exact also when calls come at the same time. Rules in shadow_mode do not deny, so they do not keep others from counting."},
		{"count_denied", "true or false (ours): the setting of rules that have none of their own."},
		{"max_retry_after", "A time in whole seconds, such as 1h (ours): the longest wait that Retry-After, and the answer to a hold, tell a client that is denied. It changes no decision: a client that comes back too early is denied again. The reset headers, RateLimit and their fields stay exact. With it or retry_jitter, denials by Envoy have Retry-After, too."},
		{"retry_jitter", "A time in whole seconds, up to 1h (ours): a random part of it is added to that wait, after max_retry_after, so that clients do not come back together."},
	}},
	{inHTTP, [][2]string{
		{"actions", "A list of maps with one action each, in the words of Envoy's routes. Each makes an entry of the descriptor, in order. A request that has no value for one of them has no descriptor by this list."},
	}},
	{inActions, [][2]string{
		{"remote_address", "An empty map. The entry is remote_address and the client's address."},
		{"request_headers", "A map with `header_name`, `descriptor_key` and perhaps `skip_if_absent`. The value is that of the header, or of `:method`, `:authority` and `:path`. Where it is absent `skip_if_absent: true` leaves out only the entry."},
		{"query_parameters", "A map with `query_parameter_name`, `descriptor_key` and perhaps `skip_if_absent`. The value is that of the parameter."},
		{"generic_key", "A map with `descriptor_value`, and `descriptor_key` if the key is another one than generic_key. The entry is always the same."},
		{"path", "A map, empty or with `descriptor_key` (ours; else the key is path). The value is the path in one spelling: unescaped, without the query, double slashes and dots. A path with both `..` and an escaped slash or `#` is refused with 400: handlers read it in different ways. `:path` is as the client spells it."},
		{"masked_remote_address", "A map, perhaps with `v4_prefix_mask_len` and `v6_prefix_mask_len` (else 32 and 128). The entry is masked_remote_address and the client's network, such as 192.0.2.0/24. Clients in IPv6 are networks of 64 bits already, so that no more bits than these are kept."},
		{"header_value_match", "A map with `descriptor_value`, `headers`, and perhaps `descriptor_key` (else header_match) and `expect_match`. Headers are a list of conditions: `name` and one of `exact_match`, `prefix_match`, `suffix_match`, `contains_match`, `safe_regex_match: {regex: E}`, `range_match: {start: N, end: N}`, `present_match` and `string_match` with the same names, and perhaps `ignore_case`; with `invert_match: true` the opposite. A request has the entry if all conditions hold, or with `expect_match: false` if one does not. Without the header only conditions on its presence can hold, also with invert_match, unless `treat_missing_header_as_empty: true` is there. Several values of a header are joined by commas."},
	}},
}

func referencePage() string {
	var b strings.Builder
	b.WriteString("# Rules: every field\n\n<!-- go test -run Reference -update writes this page. -->\n\n" +
		"Fields are those of Envoy's rate limit service, and its files load unchanged; \"ours\" marks the others.\n" +
		"A file with a mistake does not load, and all mistakes are reported at once. One with a warning loads. Both\n" +
		"are told with the place, and with what would be right:\n\n" +
		"    " + example().want + "\n")
	for _, section := range reference {
		fmt.Fprintf(&b, "\n## In %s\n\n| field | meaning |\n|---|---|\n", section.level)
		for _, f := range section.fields {
			fmt.Fprintf(&b, "| `%s` | %s |\n", f[0], strings.ReplaceAll(f[1], "|", `\|`))
		}
	}
	return b.String()
}

// example is the mistake that the page shows.
func example() mistake {
	i := slices.IndexFunc(loadErrors, func(m mistake) bool { return m.field == "requests_per_unit" })
	m := loadErrors[i]
	m.want = "rules.yaml:" + strings.ReplaceAll(m.want, maxRequestsText, "4294967295")
	return m
}

// TestReference: the page has every field that Load knows, and tests make a mistake with each.
func TestReference(t *testing.T) {
	page := referencePage()
	if *update {
		require.NoError(t, os.WriteFile("REFERENCE.md", []byte(page), 0o644))
	}
	written, err := os.ReadFile("REFERENCE.md")
	require.NoError(t, err)
	require.Equal(t, page, string(written), "go test -run Reference -update writes the page anew")

	documented := map[level][]string{}
	for _, s := range reference {
		for _, f := range s.fields {
			documented[s.level] = append(documented[s.level], f[0])
		}
	}
	mistaken := map[string]bool{}
	for _, m := range loadErrors {
		mistaken[m.field] = true
	}
	for _, at := range []level{inFile, inDescriptor, inRateLimit, inCalendar, inDomainOptions, inHTTP, inActions} {
		for _, name := range slices.Concat(known[at].upstream, known[at].own) {
			require.Contains(t, documented[at], name, at)
			require.True(t, mistaken[name], "no mistake is made with %s", name)
		}
	}
}
