package rules

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// The model is written from upstream's documentation and behaviour, without looking at the engine: a
// tree that is searched from the top with regular expressions, and counts in a map by text.

// modelRule is a descriptor of the configuration.
type modelRule struct {
	key, value    string
	limited       bool
	unit          Unit
	requests      int
	unlimited     bool
	name          string
	replaces      []string
	shadow, quota bool
	share         bool
	children      []*modelRule
	valuePattern  *regexp.Regexp
	path          string
}

var modelUnits = []Unit{Second, Minute, Hour, Week}

// randomRules makes descriptors with keys and values from small alphabets, so that they meet.
func randomRules(r *rand.Rand, depth int, path string) []*modelRule {
	var out []*modelRule
	seen := map[string]bool{}
	for range 1 + r.IntN(5) {
		m := &modelRule{key: pick(r, "a", "b"), value: pick(r, "", "", "x", "y", "x*", "*y", "*")}
		if id := m.key + "_" + m.value; seen[id] {
			continue
		} else {
			seen[id] = true
		}
		m.path = path + "." + m.key
		if m.value != "" {
			m.path += "_" + m.value
		}
		if strings.Contains(m.value, "*") {
			m.valuePattern = regexp.MustCompile("^" + strings.ReplaceAll(m.value, "*", ".*") + "$")
			m.share = r.IntN(3) == 0
		}
		if r.IntN(4) != 0 {
			m.limited = true
			m.unit = modelUnits[r.IntN(len(modelUnits))]
			m.requests = r.IntN(12)
			m.unlimited = r.IntN(12) == 0
			m.name = pick(r, "", "", "n1", "n2", "n3")
			for _, n := range []string{"n1", "n2", "n3"} {
				if n != m.name && r.IntN(9) == 0 {
					m.replaces = append(m.replaces, n)
				}
			}
			m.shadow, m.quota = r.IntN(6) == 0, r.IntN(4) == 0
		}
		if depth < 2 && r.IntN(2) == 0 {
			m.children = randomRules(r, depth+1, m.path)
		}
		out = append(out, m)
	}
	return out
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// yaml writes descriptors as a file has them.
func (m *modelRule) yaml(b *strings.Builder, indent string) {
	fmt.Fprintf(b, "%s- key: %q\n%s  value: %q\n", indent, m.key, indent, m.value)
	fmt.Fprintf(b, "%s  shadow_mode: %t\n%s  quota_mode: %t\n%s  share_threshold: %t\n", indent, m.shadow, indent, m.quota, indent, m.share)
	if m.limited {
		fmt.Fprintf(b, "%s  rate_limit:\n", indent)
		if m.unlimited {
			fmt.Fprintf(b, "%s    unlimited: true\n", indent)
		} else {
			fmt.Fprintf(b, "%s    unit: %s\n%s    requests_per_unit: %d\n", indent, m.unit, indent, m.requests)
		}
		fmt.Fprintf(b, "%s    name: %q\n%s    replaces:\n", indent, m.name, indent)
		for _, n := range m.replaces {
			fmt.Fprintf(b, "%s    - name: %s\n", indent, n)
		}
	}
	if len(m.children) > 0 {
		fmt.Fprintf(b, "%s  descriptors:\n", indent)
		for _, c := range m.children {
			c.yaml(b, indent+"  ")
		}
	}
}

// find returns the descriptors along the way to the rule for these entries; nil if there is none.
func find(level []*modelRule, list []Entry) []*modelRule {
	var chosen *modelRule
	for _, m := range level {
		if m.key == list[0].Key && m.value == list[0].Value && m.value != "" {
			chosen = m
		}
	}
	for _, m := range level {
		if chosen == nil && m.key == list[0].Key && m.valuePattern != nil && m.valuePattern.MatchString(list[0].Value) {
			chosen = m
		}
	}
	for _, m := range level {
		if chosen == nil && m.key == list[0].Key && m.value == "" {
			chosen = m
		}
	}
	switch {
	case chosen == nil:
		return nil
	case len(list) > 1:
		if rest := find(chosen.children, list[1:]); rest != nil {
			return append([]*modelRule{chosen}, rest...)
		}
		return nil
	case chosen.limited:
		return []*modelRule{chosen}
	}
	return nil
}

// model is counts by domain, entries, unit and window. What refunds and denials do to counts is in countertest.
type model struct {
	rules  []*modelRule
	counts map[string]int
	stop   bool
}

type modelStatus struct {
	path      string
	over      bool
	shadow    bool
	quota     bool
	limited   bool
	limit     int
	unit      Unit
	remaining int64
	counter   string
	hits      int
}

func (m *model) decide(req *Request, now time.Time) (code Code, out []modelStatus) {
	out = make([]modelStatus, len(req.Descriptors))
	replaced := map[string]bool{}
	names := make([]string, len(out))
	for i, d := range req.Descriptors {
		st := &out[i]
		st.hits = max(1, int(req.Hits))
		if d.Hits != nil {
			st.hits = int(*d.Hits)
		}
		entries := d.Entries
		var marks string
		if d.Override != nil {
			st.limited, st.limit, st.unit = true, int(d.Override.Requests), d.Override.Unit
		} else if way := find(m.rules, d.Entries); way != nil {
			r := way[len(way)-1]
			st.path = r.path
			for _, n := range r.replaces {
				replaced[n] = true
			}
			if r.unlimited {
				st.remaining = math.MaxUint32
				continue
			}
			names[i] = r.name
			st.limited, st.limit, st.unit, st.shadow, st.quota = true, r.requests, r.unit, r.shadow, r.quota
			entries = slices.Clone(entries)
			for j, w := range way {
				if w.share {
					entries[j].Value = w.value
					marks += fmt.Sprint("shared ", j)
				}
			}
		} else {
			continue
		}
		window := now.Unix() / int64(st.unit.Period()/time.Second)
		st.counter = fmt.Sprintf("%q %s %v %d", entries, marks, st.unit, window)
	}
	for i := range out {
		if names[i] != "" && replaced[names[i]] {
			out[i] = modelStatus{path: out[i].path}
		}
	}
	anyOver := false
	over := make([]bool, len(out))
	for i, st := range out {
		over[i] = st.limited && m.counts[st.counter]+st.hits > st.limit
		anyOver = anyOver || over[i]
	}
	quotas, quotasOver, denied := 0, 0, false
	for i := range out {
		st := &out[i]
		if !st.limited {
			continue
		}
		if !m.stop || !anyOver || over[i] {
			m.counts[st.counter] += st.hits
		}
		st.over = m.counts[st.counter] > st.limit
		st.remaining = int64(max(0, st.limit-m.counts[st.counter]))
		if st.quota {
			quotas++
		}
		switch {
		case !st.over || st.shadow:
		case st.quota:
			quotasOver++
		default:
			denied = true
		}
	}
	if denied || quotas > 0 && quotas == quotasOver {
		return OverLimit, out
	}
	return OK, out
}

func randomRequest(r *rand.Rand) *Request {
	req := &Request{Domain: "d", Hits: uint32(r.IntN(3))}
	for range 1 + r.IntN(3) {
		var d Descriptor
		for range 1 + r.IntN(3) {
			d.Entries = append(d.Entries, Entry{pick(r, "a", "b"), pick(r, "x", "y", "xx", "xy", "z", "", "*", "x*", "*y")})
		}
		if r.IntN(4) == 0 {
			n := uint64(r.IntN(4))
			d.Hits = &n
		}
		if r.IntN(6) == 0 {
			d.Override = &Override{uint32(r.IntN(8)), modelUnits[r.IntN(len(modelUnits))]}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// TestModel: on random rules, which change now and then, random calls are decided as the model says.
func TestModel(t *testing.T) {
	r := seeded.Rand(t)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	overs, passes := 0, 0
	for round := range rounds {
		m := &model{counts: map[string]int{}, stop: round%3 == 0}
		clock := sluice.NewManualClock(start)
		var e *Engine
		var resp Response
		for i := range 600 {
			if i%200 == 0 {
				m.rules = randomRules(r, 0, "d")
				var b strings.Builder
				b.WriteString("domain: d\ndescriptors:\n")
				for _, c := range m.rules {
					c.yaml(&b, "")
				}
				set := mustLoad(t, b.String())
				var err error
				if e == nil {
					e, err = New(set, Config{Clock: clock, StopWhenOver: m.stop})
				} else {
					err = e.Swap(set)
				}
				require.NoError(t, err, b.String())
			}
			clock.Advance(time.Duration(r.Int64N(int64(400 * time.Millisecond))))
			req := randomRequest(r)
			code, want := m.decide(req, time.Unix(0, clock.Now()))
			require.NoError(t, e.Decide(req, &resp))
			require.Equal(t, code, resp.Code)
			for j, st := range resp.Statuses {
				w := want[j]
				if w.path != "" {
					require.Equal(t, w.path, pathOf(st, req.Descriptors[j], e))
				}
				wantCode := OK
				if w.over && !w.shadow {
					wantCode = OverLimit
					overs++
				} else if w.limited {
					passes++
				}
				require.Equal(t, wantCode, st.Code, "%+v %+v", req, w)
				require.Equal(t, w.limited, st.Limited)
				require.EqualValues(t, w.remaining, st.Remaining, "%+v %+v", req, w)
				if w.limited {
					require.EqualValues(t, w.limit, st.Requests)
					require.Equal(t, w.unit, st.Unit)
					n := int64(w.unit.Period() / time.Second)
					require.EqualValues(t, n-clock.Now()/1e9%n, st.ResetAfter/time.Second)
				}
			}
		}
	}
	require.Greater(t, overs, 500)
	require.Greater(t, passes, 500)
}

// pathOf is the path of a status's rule; of one that has been replaced, which a status does not
// name, that of the rule that fits.
func pathOf(st Status, d Descriptor, e *Engine) string {
	if st.Rule != nil {
		return st.Rule.Path()
	}
	set, _ := e.Set()
	return set.Match("d", d.Entries).Path()
}
