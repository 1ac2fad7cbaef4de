//go:build !386

package differential

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// difference is a case in which the two differ. DIFFERENCES.md has a section for each name.
type difference struct {
	name           string
	descriptors    string   // of domain d; a whole file, if it begins with a space
	then           string   // other descriptors, put into force behind the first call
	modes          modes    //
	calls          []string // as request reads them
	lines          bool     // add the lines of the statistics to what is seen
	upstream, ours []string // an answer a call
}

const limit2 = "rate_limit: {unit: hour, requests_per_unit: 2}"

var differences = []difference{
	{name: "quotas",
		descriptors: "[{key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}, {key: b, quota_mode: true, " + limit2 + "}]",
		calls:       []string{"a=x b=x", "a=x"},
		upstream:    []string{"OK [OK 0/0 with no reset, OK 1/2]", "OK [OK 0/0 with no reset]"},
		ours:        []string{"OK [OVER_LIMIT 0/0, OK 1/2]", "OVER_LIMIT [OVER_LIMIT 0/0]"}},
	{name: "middle",
		descriptors: "[{key: a, value: x*y, " + limit2 + "}]",
		calls:       []string{"a=x1y", "a=x*y"},
		upstream:    []string{"OK [OK]", "OK [OK 1/2]"},
		ours:        []string{"OK [OK 1/2]", "OK [OK 1/2]"}},
	{name: "middle",
		descriptors: "[{key: a, value: x*y, share_threshold: true, " + limit2 + "}]",
		upstream:    []string{"refused"}},
	{name: "metadata",
		descriptors: "[{key: a, metadata: {b: c}, " + limit2 + "}]",
		upstream:    []string{"refused"}},
	{name: "negative-hits", lines: true,
		descriptors: "[{key: a, " + limit2 + "}]",
		calls:       []string{"a=x#2", "a=x#-1", "a=x#-9"},
		upstream:    []string{"OK [OK 0/2]", "OVER_LIMIT [OVER_LIMIT 0/2]", "OVER_LIMIT [OVER_LIMIT 0/2]", "d.a: total 12, within 2, near 1, over 10, shadow 0"},
		ours:        []string{"OK [OK 0/2]", "OK [OK 1/2]", "OK [OK 2/2]", "d.a: total 2, within 2, near 1, over 0, shadow 0"}},
	{name: "own-fields",
		descriptors: "[{key: a, rate_limit: {period: 30s, requests_per_unit: 2, algorithm: gcra}}]",
		upstream:    []string{"refused"}},
	{name: "joined-keys",
		descriptors: "[{key: user, " + limit2 + "}, {key: user_id, " + limit2 + "}]",
		calls:       []string{"user=id_42#2", "user_id=42"},
		upstream:    []string{"OK [OK 0/2]", "OVER_LIMIT [OVER_LIMIT 0/2]"},
		ours:        []string{"OK [OK 0/2]", "OK [OK 1/2]"}},
	{name: "joined-rules",
		descriptors: "[{key: a_b, " + limit2 + "}]",
		calls:       []string{"a_b=x", "a=b"},
		upstream:    []string{"OK [OK 1/2]", "OK [OK 1/2]"},
		ours:        []string{"OK [OK 1/2]", "OK [OK]"}},
	{name: "joined-units",
		descriptors: "[{key: a, " + limit2 + "}]",
		calls:       []string{"a=x#2", "a=x@5/SECOND"},
		upstream:    []string{"OK [OK 0/2]", "OK [OK 2/5]"},
		ours:        []string{"OK [OK 0/2]", "OK [OK 4/5]"}},
	{name: "pattern-key",
		descriptors: "[{key: a*, " + limit2 + "}]",
		calls:       []string{"abc=x", "a*=x"},
		upstream:    []string{"OK [OK 1/2]", "OK [OK 1/2]"},
		ours:        []string{"OK [OK]", "OK [OK 1/2]"}},
	{name: "pattern-key",
		descriptors: "[{key: a*, share_threshold: true, " + limit2 + "}]",
		ours:        []string{"refused"}},
	{name: "pattern-value",
		descriptors: "[{key: a, value: x*, share_threshold: true, " + limit2 + "}]",
		calls:       []string{"a=x1#2", "a=x*@5/HOUR"},
		upstream:    []string{"OK [OK 0/2]", "OK [OK 2/5]"},
		ours:        []string{"OK [OK 0/2]", "OK [OK 4/5]"}},
	{name: "pattern-value",
		descriptors: "[{key: a, value: x*, share_threshold: true, " + limit2 + "}]",
		then:        "[{key: a, " + limit2 + "}]",
		calls:       []string{"a=x1#2", "a=x*"},
		upstream:    []string{"OK [OK 0/2]", "OVER_LIMIT [OVER_LIMIT 0/2]"},
		ours:        []string{"OK [OK 0/2]", "OK [OK 1/2]"}},
	{name: "no-unit",
		descriptors: "[{key: a, " + limit2 + "}]",
		calls:       []string{"a=x@5/UNKNOWN", "a=x"},
		upstream:    []string{"panic: should not get here", "OK [OK 1/2]"},
		ours:        []string{"rpc error: code = InvalidArgument desc = descriptor 0: limit.unit is UNKNOWN; want SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR", "OK [OK 1/2]"}},
	{name: "many-hits",
		descriptors: "[{key: a, " + limit2 + "}]",
		calls:       []string{"a=x#9223372036854775807", "a=x#1"},
		upstream:    []string{"OVER_LIMIT [OVER_LIMIT 0/2]", "ERR value is not an integer or out of range"},
		ours:        []string{"OVER_LIMIT [OVER_LIMIT 0/2]", "OVER_LIMIT [OVER_LIMIT 0/2]"}},
	{name: "full-second", lines: true,
		descriptors: "[{key: a, rate_limit: {unit: second, requests_per_unit: 3}}]",
		calls:       []string{"a=x", "a=x#4294967296"},
		upstream:    []string{"OK [OK 2/3]", "OVER_LIMIT [OVER_LIMIT 0/3]", "d.a: total 4294967297, within 1, near 1, over 4294967294, shadow 0"},
		ours:        []string{"OK [OK 2/3]", "OVER_LIMIT [OVER_LIMIT 0/3]", "d.a: total 4294967297, within 1, near 0, over 4294967296, shadow 0"}},
	{name: "stop-near", lines: true, modes: modes{stop: true, near: 0.25},
		descriptors: "[{key: a, " + limit2 + "}, {key: b, rate_limit: {unit: hour, requests_per_unit: 8}}]",
		calls:       []string{"b=x#3", "a=x#3 b=x#5"},
		upstream:    []string{"OK [OK 5/8]", "OVER_LIMIT [OVER_LIMIT 0/2, OK 5/8]", "d.a: total 3, within 0, near 2, over 1, shadow 0", "d.b: total 8, within 8, near 6, over 0, shadow 0"},
		ours:        []string{"OK [OK 5/8]", "OVER_LIMIT [OVER_LIMIT 0/2, OK 5/8]", "d.a: total 3, within 0, near 2, over 1, shadow 0", "d.b: total 8, within 8, near 1, over 0, shadow 0"}},
	{name: "override-lines", lines: true,
		descriptors: "[{key: a, " + limit2 + "}]",
		calls:       []string{"a=x@5/HOUR", "b=y@5/HOUR"},
		upstream:    []string{"OK [OK 4/5]", "OK [OK 4/5]", "d.a_x: total 1, within 1, near 0, over 0, shadow 0", "d.b_y: total 1, within 1, near 0, over 0, shadow 0"},
		ours:        []string{"OK [OK 4/5]", "OK [OK 4/5]", "d override: total 2, within 2, near 0, over 0, shadow 0"}},
	{name: "twice",
		descriptors: "[{key: a, shadow_mode: 5, shadow_mode: false, " + limit2 + "}]",
		upstream:    []string{"refused"}},
	{name: "twice",
		descriptors: "[{key: a, rate_limit: {colour: red}, " + limit2 + "}]",
		ours:        []string{"refused"}},
	{name: "tail",
		descriptors: " domain: d\ndescriptors: [{key: a, " + limit2 + "}]\n",
		ours:        []string{"refused"}},
	{name: "binary",
		descriptors: "[{key: !!binary eA==, " + limit2 + "}]",
		ours:        []string{"refused"}},
}

// request reads descriptors like "a=x,b=y#3@5/HOUR": entries, hits, given back below 0, and an override.
func request(t *testing.T, text string) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: "d"}
	for _, part := range strings.Fields(text) {
		var d ratelimit.RateLimitDescriptor
		entries, override, _ := strings.Cut(part, "@")
		entries, hits, _ := strings.Cut(entries, "#")
		for _, e := range strings.Split(entries, ",") {
			key, value, _ := strings.Cut(e, "=")
			d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		if hits != "" {
			hits, d.IsNegativeHits = strings.CutPrefix(hits, "-")
			n, err := strconv.ParseUint(hits, 10, 64)
			require.NoError(t, err)
			d.HitsAddend = wrapperspb.UInt64(n)
		}
		if override != "" {
			requests, unit, _ := strings.Cut(override, "/")
			n, err := strconv.ParseUint(requests, 10, 32)
			require.NoError(t, err)
			d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[unit])}
		}
		req.Descriptors = append(req.Descriptors, &d)
	}
	return req
}

// brief writes an answer.
func brief(resp *pb.RateLimitResponse, err error) string {
	if err != nil {
		return err.Error()
	}
	var list []string
	for _, st := range resp.Statuses {
		s := st.Code.String()
		if l := st.CurrentLimit; l != nil {
			s += fmt.Sprintf(" %d/%d", st.LimitRemaining, l.RequestsPerUnit)
			if st.DurationUntilReset == nil {
				s += " with no reset"
			}
		}
		list = append(list, s)
	}
	return fmt.Sprintf("%v [%s]", resp.OverallCode, strings.Join(list, ", "))
}

// either is one of the two services.
type either interface {
	ask(*pb.RateLimitRequest) (*pb.RateLimitResponse, error)
	byPath() map[string]hits
}

func (u *upstream) byPath() map[string]hits { return u.stats.byPath() }

// see asks a service what a case asks.
func (d *difference) see(t *testing.T, s either, swap func()) (out []string) {
	for i, call := range d.calls {
		if i == 1 && d.then != "" {
			swap()
		}
		out = append(out, brief(s.ask(request(t, call))))
	}
	if d.lines {
		lines := since(s.byPath(), nil)
		for _, path := range slices.Sorted(maps.Keys(lines)) {
			h := lines[path]
			out = append(out, fmt.Sprintf("%s: total %d, within %d, near %d, over %d, shadow %d", path, h.total, h.within, h.near, h.over, h.shadow))
		}
	}
	return out
}

// TestDifferences: where the two differ, both do what is listed.
func TestDifferences(t *testing.T) {
	for _, d := range differences {
		t.Run(d.name, func(t *testing.T) {
			if d.modes.near == 0 {
				d.modes.near = 0.8
			}
			// A second in which the windows of hours and seconds begin together.
			clock := sluice.NewManualClock(start.Truncate(time.Hour))
			file := func(descriptors string) []rules.File {
				if descriptors[0] == ' ' {
					return []rules.File{{Name: "f", Data: []byte(descriptors)}}
				}
				return []rules.File{{Name: "f", Data: []byte("domain: d\ndescriptors: " + descriptors + "\n")}}
			}
			theirs := newUpstream(t, clock, d.modes)
			var seen []string
			if err := theirs.load(file(d.descriptors)); err != nil {
				seen = []string{"refused"}
			} else {
				seen = d.see(t, theirs, func() { require.NoError(t, theirs.load(file(d.then))) })
			}
			require.Equal(t, d.upstream, seen, "upstream")

			set, err := rules.Load(file(d.descriptors), rules.Options{})
			if err != nil {
				require.Equal(t, d.ours, []string{"refused"}, "%v", err)
				return
			}
			us := newOurs(t, clock, d.modes, set)
			require.Equal(t, d.ours, d.see(t, us, func() {
				set, err := rules.Load(file(d.then), rules.Options{})
				require.NoError(t, err)
				require.NoError(t, us.engine.Swap(set))
			}), "ours")
			require.NotEqual(t, d.upstream, d.ours)
		})
	}
}

// TestDifferences_Listed: DIFFERENCES.md has a section for each case, and no other.
func TestDifferences_Listed(t *testing.T) {
	page, err := os.ReadFile("DIFFERENCES.md")
	require.NoError(t, err)
	var listed, tested []string
	for _, m := range regexp.MustCompile(`(?m)^### (\S+)$`).FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1])
	}
	for _, d := range differences {
		if !slices.Contains(tested, d.name) {
			tested = append(tested, d.name)
		}
	}
	slices.Sort(listed)
	slices.Sort(tested)
	require.Equal(t, tested, listed)
}
