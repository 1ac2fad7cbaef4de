//go:build !386

package differential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rules"
)

// world is what random rules and requests are made of. Keys and values have no underscores, and
// patterns end with their asterisk: DIFFERENCES.md says what happens otherwise.
type world struct {
	*rand.Rand
	modes
	units     []rules.Unit
	overrides bool
	merge     bool
	literal   bool // values of requests are spelled like patterns, and rules stay as they are
}

var allUnits = []rules.Unit{rules.Second, rules.Minute, rules.Hour, rules.Day, rules.Week, rules.Month, rules.Year}

func newWorld(r *rand.Rand) *world {
	w := &world{Rand: r, overrides: r.IntN(2) == 0, merge: r.IntN(4) == 0, literal: r.IntN(3) == 0}
	w.shadow, w.stop = r.IntN(8) == 0, r.IntN(3) == 0
	w.quota = !w.shadow && r.IntN(8) == 0
	w.near = []float32{0.8, 0.8, 0.5, 1.0 / 3, 1, 0}[r.IntN(6)]
	w.units = []rules.Unit{allUnits[r.IntN(len(allUnits))]}
	if r.IntN(2) == 0 {
		w.units = allUnits
	}
	return w
}

func (w *world) pick(of ...string) string { return of[w.IntN(len(of))] }

// chance is true once in n times.
func (w *world) chance(n int) bool { return w.IntN(n) == 0 }

// files makes the rules of two domains.
func (w *world) files() []rules.File {
	var out []rules.File
	for _, domain := range []string{"d", "e"} {
		out = append(out, rules.File{Name: domain, Data: []byte("domain: " + domain + "\ndescriptors:\n" + w.descriptors("", 0, "a", "b"))})
	}
	if w.merge {
		out = append(out, rules.File{Name: "f", Data: []byte("domain: d\ndescriptors:\n" + w.descriptors("", 0, "c"))})
	}
	return out
}

// descriptors writes a list of them.
func (w *world) descriptors(indent string, depth int, keys ...string) string {
	var b strings.Builder
	seen := map[[2]string]bool{}
	for range 1 + w.IntN(5) {
		key, value := w.pick(keys...), w.pick("", "", "x", "y", "x*", "xy*", "*")
		if seen[[2]string{key, value}] {
			continue
		}
		seen[[2]string{key, value}] = true
		fmt.Fprintf(&b, "%s- key: %s\n%s  value: %q\n", indent, key, indent, value)
		for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"} {
			quotas := flag == "quota_mode" && w.shadow // upstream's shadow mode tells nothing of them
			fmt.Fprintf(&b, "%s  %s: %t\n", indent, flag, w.chance(5) && !quotas)
		}
		if strings.HasSuffix(value, "*") {
			fmt.Fprintf(&b, "%s  share_threshold: %t\n", indent, w.chance(3))
		}
		if !w.chance(4) {
			w.rateLimit(&b, indent)
		}
		if depth < 2 && w.chance(2) {
			fmt.Fprintf(&b, "%s  descriptors:\n%s", indent, w.descriptors(indent+"  ", depth+1, "a", "b"))
		}
	}
	return b.String()
}

func (w *world) rateLimit(b *strings.Builder, indent string) {
	fmt.Fprintf(b, "%s  rate_limit:\n", indent)
	if w.chance(12) {
		fmt.Fprintf(b, "%s    unlimited: true\n", indent)
	} else {
		fmt.Fprintf(b, "%s    unit: %s\n%s    requests_per_unit: %d\n", indent, w.units[w.IntN(len(w.units))], indent, w.requests())
	}
	name := w.pick("", "", "n1", "n2", "n3")
	fmt.Fprintf(b, "%s    name: %q\n%s    replaces:\n", indent, name, indent)
	for _, n := range []string{"n1", "n2", "n3"} {
		if n != name && w.chance(9) {
			fmt.Fprintf(b, "%s    - name: %s\n", indent, n)
		}
	}
}

func (w *world) requests() uint32 {
	switch w.IntN(10) {
	case 0:
		return []uint32{1 << 24, 1<<24 + 1, 100_000_007, 1<<32 - 1}[w.IntN(4)]
	case 1:
		return 0
	}
	return uint32(w.IntN(12))
}

func (w *world) request() *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: w.pick("d", "d", "d", "e", "e", "unknown"), HitsAddend: uint32(w.IntN(3))}
	if w.chance(100) && !slices.Contains(w.units, rules.Second) { // the difference full-second
		req.HitsAddend = 1<<32 - 1
	}
	values := []string{"x", "y", "xx", "xy", "xyz", "z", ""}
	if w.literal {
		values = append(values, "x*")
	}
	for range 1 + w.IntN(4) {
		d := &ratelimit.RateLimitDescriptor{}
		for range w.depth() {
			d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{
				Key:   w.pick("a", "a", "b", "b", "c"),
				Value: w.pick(values...),
			})
		}
		if w.chance(4) {
			d.HitsAddend = wrapperspb.UInt64(uint64(w.IntN(6)))
		}
		if w.overrides && w.chance(5) {
			w.override(d)
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	if w.chance(8) {
		req.Descriptors = append(req.Descriptors, req.Descriptors[0])
	}
	return req
}

func (w *world) depth() int {
	if w.chance(50) {
		return 0
	}
	return 1 + w.IntN(3)
}

// override adds a limit to a descriptor. The protocol knows no WEEK there. An override for a
// value that is spelled like a pattern is one of the differences.
func (w *world) override(d *ratelimit.RateLimitDescriptor) {
	for _, e := range d.Entries {
		e.Value = strings.ReplaceAll(e.Value, "*", "x")
	}
	u := w.units[w.IntN(len(w.units))]
	if u == rules.Week {
		return
	}
	d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: w.requests(), Unit: typev3.RateLimitUnit(u)}
}

// advance moves the clock: mostly a bit, at times to a boundary. Where several units are used it
// goes on to a time at which no two of their windows have begun together: upstream would count
// these as one.
func (w *world) advance(clock *sluice.ManualClock) {
	d := time.Duration(w.Int64N(int64(800 * time.Millisecond)))
	if w.chance(40) {
		period := int64(w.units[w.IntN(len(w.units))].Period())
		d = time.Duration(period - clock.Now()%period)
		if w.chance(2) {
			d--
		}
	}
	clock.Advance(d)
	for len(w.units) > 1 && w.together(clock.Now()) {
		clock.Advance(13 * time.Hour / 7)
	}
}

// together reports whether windows of two units have begun at the same time.
func (w *world) together(now int64) bool {
	var begins []int64
	for _, u := range w.units {
		period := int64(u.Period())
		begin := now - now%period
		if slices.Contains(begins, begin) {
			return true
		}
		begins = append(begins, begin)
	}
	return false
}

// TestRandom: random calls under random rules get the same answers and leave the same statistics,
// once older has undone what DIFFERENCES.md lists.
func TestRandom(t *testing.T) {
	r := seeded.Rand(t)
	const worlds, sets, calls = 120, 3, 300 // 108,000 calls
	var seen tally
	for range worlds {
		w := newWorld(r)
		clock := sluice.NewManualClock(start)
		w.advance(clock)
		var theirs *upstream
		var us *ours
		for range sets {
			files := w.files()
			if theirs == nil || w.literal {
				theirs, us = newUpstream(t, clock, w.modes), nil
				theirs.merge = w.merge
			}
			set, err := rules.Load(files, rules.Options{MergeDomains: w.merge})
			require.NoError(t, err)
			require.NoError(t, theirs.load(files))
			if us == nil {
				us = newOurs(t, clock, w.modes, set)
			} else {
				require.NoError(t, us.engine.Swap(set))
			}
			theirsBefore, oursBefore := theirs.stats.byPath(), us.byPath()
			for range calls {
				w.advance(clock)
				req := w.request()
				want, err := theirs.ask(req)
				require.NoError(t, err)
				got, err := us.ask(req)
				require.NoError(t, err)
				seen.add(got)
				same(t, w, want, older(got, req, set, w.modes), func() string { return describe(files, req) })
			}
			w.sameStats(t, since(theirs.stats.byPath(), theirsBefore), since(us.byPath(), oursBefore), files)
			sameCalls(t, theirs.stats, us.engine.Stats())
		}
	}
	seen.enough(t)
}
