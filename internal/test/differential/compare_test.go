//go:build !386

package differential

import (
	"fmt"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-go/sluice/rules"
)

// older turns an answer of ours into what it would be under the quotas of this upstream, which is
// older than those that we follow: a status of a quota that is over says OK and no reset, and
// quotas never deny. It also takes out the metadata that ours adds in shadow mode.
func older(resp *pb.RateLimitResponse, req *pb.RateLimitRequest, set *rules.Set, m modes) *pb.RateLimitResponse {
	delete(resp.DynamicMetadata.Fields, "sluice")
	resp.OverallCode = pb.RateLimitResponse_OK
	for i, st := range resp.Statuses {
		if st.Code != pb.RateLimitResponse_OVER_LIMIT {
			continue
		}
		if m.quota || quota(req, i, set) {
			st.Code, st.DurationUntilReset = pb.RateLimitResponse_OK, nil
		} else if !m.shadow {
			resp.OverallCode = pb.RateLimitResponse_OVER_LIMIT
		}
	}
	return resp
}

// quota reports whether the rule for a descriptor is a quota.
func quota(req *pb.RateLimitRequest, i int, set *rules.Set) bool {
	d := req.Descriptors[i]
	if d.Limit != nil {
		return false
	}
	var entries []rules.Entry
	for _, e := range d.Entries {
		entries = append(entries, rules.Entry{Key: e.Key, Value: e.Value})
	}
	r := set.Match(req.Domain, entries)
	return r != nil && r.Quota()
}

// stable takes out of upstream's metadata its older words on quotas, and the second of two spaces
// that protobuf writes or does not write from one program to the next.
func stable(resp *pb.RateLimitResponse) *pb.RateLimitResponse {
	delete(resp.DynamicMetadata.Fields, "quotaModeViolations")
	delete(resp.DynamicMetadata.Fields, "quotaModeEnabled")
	for _, d := range resp.DynamicMetadata.Fields["descriptors"].GetListValue().GetValues() {
		if limit, ok := d.GetStructValue().GetFields()["limit"]; ok {
			d.GetStructValue().Fields["limit"] = structpb.NewStringValue(strings.Join(strings.Fields(limit.GetStringValue()), " "))
		}
	}
	return resp
}

// same compares whole answers.
func same(t *testing.T, w *world, want, got *pb.RateLimitResponse, describe func() string) {
	t.Helper()
	if want = stable(want); !proto.Equal(want, got) {
		t.Fatalf("%+v\n%s\nupstream: %s\nours:     %s", w.modes, describe(), text(want), text(got))
	}
}

func text(m proto.Message) string { return protojson.MarshalOptions{}.Format(m) }

func describe(files []rules.File, req *pb.RateLimitRequest) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "--- %s\n%s", f.Name, f.Data)
	}
	return b.String() + text(req)
}

// since is what has come to statistics since before.
func since(now, before map[string]hits) map[string]hits {
	out := map[string]hits{}
	for path, h := range now {
		if d := h.minus(before[path]); d != (hits{}) {
			out[path] = d
		}
	}
	return out
}

// sameStats compares statistics line by line. Ours has the hits of overrides in a line of their
// own, so where there are any the sums by domain are compared.
func (w *world) sameStats(t *testing.T, want, got map[string]hits, files []rules.File) {
	t.Helper()
	if w.overrides {
		want, got = byDomain(want), byDomain(got)
	}
	for path, h := range want {
		if w.stop && got[path].near < h.near {
			h.near = got[path].near // the difference stop-near
		}
		if got[path] != h {
			t.Errorf("%s: upstream %+v, ours %+v", path, h, got[path])
		}
	}
	for path, h := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s: upstream nothing, ours %+v", path, h)
		}
	}
	if t.Failed() {
		t.Fatalf("%+v\n%s", w.modes, describe(files, nil))
	}
}

// sameCalls compares the statistics that belong to no rule.
func sameCalls(t *testing.T, theirs *recorder, us rules.Stats) {
	t.Helper()
	require.Equal(t, theirs.NewServiceStats().GlobalShadowMode.Value(), us.GlobalShadow)
	unknown := map[string]uint64{}
	for domain, s := range theirs.domains {
		unknown[domain] = s.NotFound.Value()
	}
	require.Equal(t, unknown, us.UnknownDomainsByName)
}

func byDomain(lines map[string]hits) map[string]hits {
	out := map[string]hits{}
	for path, h := range lines {
		domain := path[:strings.IndexAny(path, ". ")]
		out[domain] = out[domain].plus(h)
	}
	return out
}

// tally counts what random calls have met, so that a run that meets little fails.
type tally struct{ passed, over, denied, unlimited int }

func (c *tally) add(resp *pb.RateLimitResponse) {
	if resp.OverallCode == pb.RateLimitResponse_OVER_LIMIT {
		c.denied++
	}
	for _, st := range resp.Statuses {
		switch {
		case st.CurrentLimit == nil:
			if st.LimitRemaining != 0 {
				c.unlimited++
			}
		case st.Code == pb.RateLimitResponse_OVER_LIMIT:
			c.over++
		default:
			c.passed++
		}
	}
}

func (c *tally) enough(t *testing.T) {
	t.Helper()
	t.Logf("%+v", *c)
	require.Greater(t, min(c.passed, c.over, c.denied), 5000)
	require.Greater(t, c.unlimited, 1000)
}
