//go:build !386

package differential

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rules"
)

// data holds upstream's own examples and test files.
const data = "../../../../shared/data/envoy-ratelimit"

// sameFiles loads files in both, and compares what becomes of them; difference is the name of the one that
// makes only one of them load.
func sameFiles(t *testing.T, files []rules.File, merge bool) (difference string, upstream error) {
	t.Helper()
	theirs, upstream := parse(files, newRecorder(), merge)
	set, ours := rules.Load(files, rules.Options{MergeDomains: merge})
	switch {
	case (upstream == nil) != (ours == nil):
		if difference = explained(files, upstream, set, ours); difference == "" {
			t.Fatalf("upstream: %v\nours:     %v\n%s", upstream, ours, describe(files, nil))
		}
	case ours == nil:
		require.Equal(t, sorted(theirs.Dump()), dump(set), "%s", describe(files, nil))
	}
	return difference, upstream
}

// TestLoad_Data: upstream's files load or not as there, alone and merged.
func TestLoad_Data(t *testing.T) {
	if _, err := os.Stat(data); err != nil {
		t.Skipf("upstream's own files are not here: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(data, "*", "*.yaml"))
	require.NoError(t, err)
	require.Greater(t, len(names), 15)
	accepted, known := 0, map[string]int{}
	count := func(difference string, upstream error) {
		known[difference]++
		if upstream == nil {
			accepted++
		}
	}
	var all []rules.File
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		f := rules.File{Name: filepath.Base(name), Data: b}
		all = append(all, f)
		count(sameFiles(t, []rules.File{f}, false))
	}
	for _, merge := range []bool{false, true} {
		for i := range all {
			for j := range i {
				count(sameFiles(t, []rules.File{all[i], all[j]}, merge))
			}
		}
	}
	t.Logf("%d load, differences %v", accepted, known)
	require.Greater(t, accepted, 20)
	require.Less(t, known["metadata"]+known["middle"], 60)
}

// scalars are values to put in the place of others.
var scalars = []string{
	"", "~", "null", "x", "y", "'x'", `"x*"`, "'*'", "x*y", "5", "'5'", "0", "-1", "010", "0x10", "0b11", "0o17", "1_000", "5.0", "1e3", ".5",
	"4294967295", "4294967296", "18446744073709551615", "99999999999999999999", "true", "yes", "on", "y", "off", "NO", "'true'",
	"2026-01-01", "1:30", ".inf", "minute", "MONTH", "fortnight", "unknown", "[]", "{}", "[x]", "[{}]", "{key: x}", "{unit: day}", "&a x", "*a",
	"!!str 5", "!!int '5'", "!!bool 'on'", "!!float 5", "a_b", "|\n          x", "# nothing", "'", "x: y", "@", "%x", "- x",
}

var keys = []string{
	"domain", "descriptors", "key", "value", "rate_limit", "unit", "requests_per_unit", "unlimited", "name", "replaces", "shadow_mode",
	"quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "colour", "5", "on", "'key'", "? key", "<<", "~", "",
}

// mutate changes a line or a few of a file.
func mutate(r *rand.Rand, text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for range 1 + r.IntN(2) {
		i := r.IntN(len(lines))
		line := lines[i]
		start := len(line) - len(strings.TrimLeft(line, " -"))
		colon := strings.Index(line, ":")
		switch {
		case r.IntN(8) == 0:
			lines = slices.Delete(lines, i, i+1)
			if len(lines) == 0 {
				return ""
			}
		case r.IntN(8) == 0:
			lines = slices.Insert(lines, r.IntN(len(lines)+1), line)
		case r.IntN(10) == 0:
			lines[i] = " " + line
		case r.IntN(10) == 0:
			lines[i] = strings.TrimPrefix(line, "  ")
		case colon > start && r.IntN(3) == 0:
			lines[i] = line[:start] + keys[r.IntN(len(keys))] + line[colon:]
		case colon > 0:
			lines[i] = line[:colon+1] + " " + scalars[r.IntN(len(scalars))]
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestLoad_Mutated: files with random mistakes load or not as they do upstream. explained
// names the exceptions.
func TestLoad_Mutated(t *testing.T) {
	r := seeded.Rand(t)
	loaded, refused := 0, 0
	known := map[string]int{}
	for range 12_000 {
		w := newWorld(r)
		w.merge = false
		text := mutate(r, "domain: d\ndescriptors:\n"+w.descriptors("", 1, "a", "b"))
		files := []rules.File{{Name: "f", Data: []byte(text)}}
		difference, upstream := sameFiles(t, files, false)
		if upstream == nil {
			loaded++
		} else {
			refused++
		}
		if difference != "" {
			known[difference]++
		}
	}
	t.Logf("%d loaded, %d refused, differences %v", loaded, refused, known)
	require.Greater(t, min(loaded, refused), 2000)
}

// sorted is the lines of upstream's dump, which come in random order.
func sorted(dump string) []string {
	lines := strings.Split(strings.TrimSuffix(dump, "\n"), "\n")
	slices.Sort(lines)
	return lines
}

// dump is the same of ours, which says more of a rule that is unlimited.
func dump(set *rules.Set) []string {
	var out strings.Builder
	for _, r := range set.Rules() {
		line, _, _ := strings.Cut(r.String(), ", unlimited: true")
		out.WriteString(line + "\n")
	}
	return sorted(out.String())
}

// twice reports whether a problem is a key that is given twice: which of the two is looked at, and
// how closely, differs.
func twice(p rules.Problem) bool { return strings.Contains(p.Message, "is given twice") }

// explained names the difference that makes one of the two refuse a file that the other loads; empty
// if there is none.
func explained(files []rules.File, upstream error, set *rules.Set, ours error) string {
	if ours == nil {
		text := string(files[0].Data)
		switch err := upstream.Error(); {
		case strings.Contains(err, "unknown key 'metadata'"):
			return "metadata"
		case strings.Contains(err, "share_threshold can only be used with wildcard values"):
			return "middle"
		case strings.Contains(text, "<<:") && strings.Contains(err, "cannot unmarshal"), slices.ContainsFunc(set.Warnings(), twice):
			return "twice"
		}
		return ""
	}
	var problems *rules.LoadError
	if !errors.As(ours, &problems) {
		return ""
	}
	if slices.ContainsFunc(problems.Problems, twice) {
		return "twice"
	}
	name := ""
	for _, p := range problems.Problems {
		switch {
		case p.Warning:
		case strings.Contains(p.Message, "neither part of the document above"):
			name = "tail"
		case strings.Contains(p.Message, "share_threshold is true, but the value") && strings.Contains(p.Path, "*"):
			name = "pattern-key"
		default:
			return ""
		}
	}
	return name
}
