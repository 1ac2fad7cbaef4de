package rules

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// level is a kind of map in a file.
type level int

const (
	inFile level = iota
	inDescriptor
	inRateLimit
	inReplaces
	inCalendar
	inDomainOptions
	inHTTP
	inActions
)

func (v level) String() string {
	return [...]string{"a file's top level", "a descriptor", "rate_limit", "replaces", "calendar", "sluice", "http", "actions"}[v]
}

// known lists the keys of each level, first upstream's keys, then the keys that only sluice reads.
var known = map[level]struct{ upstream, own []string }{
	inFile: {[]string{"domain", "descriptors"}, []string{"sluice", "http"}},
	inDescriptor: {[]string{"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric",
		"value_to_metric", "share_threshold", "metadata"}, []string{"enabled", "description"}},
	inRateLimit: {[]string{"unit", "requests_per_unit", "unlimited", "name", "replaces"},
		[]string{"unit_multiplier", "period", "algorithm", "burst", "soft", "block_for", "offset", "count_denied", "leases",
			"at_once", "lease", "calendar", "weights", "scale", "then", "max_debt", "counts_denials_of"}},
	inReplaces:      {[]string{"name"}, nil},
	inCalendar:      {nil, []string{"unit", "zone", "starts"}},
	inDomainOptions: {nil, []string{"max_keys", "overflow", "atomic", "count_denied", "max_retry_after", "retry_jitter"}},
	inHTTP:          {nil, []string{"actions"}},
	inActions:       {nil, actionNames[:]},
}

// upstreamKey reports whether upstream knows the key, at any level: upstream ignores such keys
// at levels where they mean nothing.
func upstreamKey(name string) bool {
	for v := range known {
		if slices.Contains(known[v].upstream, name) {
			return true
		}
	}
	return false
}

// unknown deals with a key that means nothing at its level. If upstream reads files with such a key, sluice
// does so, too, with a warning.
func (l *loader) unknown(f field, path string, here level) {
	if !upstreamKey(f.name) {
		keys := slices.Concat(known[here].upstream, known[here].own)
		hint := ""
		if near := nearest(f.name, keys); near != "" {
			hint = fmt.Sprintf(" (is it %s?)", near)
		}
		l.errorAt(f.key, path, "%s has no key %q%s; want one of %s", here, f.name, hint, strings.Join(keys, ", "))
		return
	}
	l.warnAt(f.key, path, "%s means nothing in %s and is ignored; want it in %s", f.name, here, homes(f.name))
	l.ignored(f.value, path, 0)
}

// homes lists the levels that a key belongs to.
func homes(name string) string {
	var out []string
	for v := inFile; v <= inActions; v++ {
		if slices.Contains(known[v].upstream, name) {
			out = append(out, v.String())
		}
	}
	return strings.Join(out, " or ")
}

// ignored checks a value that means nothing, as upstream checks any value: it must have text keys that
// upstream knows, and lists of maps, and no fractions, dates or huge numbers.
func (l *loader) ignored(n *yaml.Node, path string, depth int) {
	if depth > maxDepth || l.exhausted() {
		return
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if scalarKind(n) == otherKind {
			l.errorAt(n, path, "%s is neither text nor a whole number nor true or false; want it in quotes", n.Value)
		}
	case yaml.SequenceNode:
		for _, c := range n.Content {
			if c = l.follow(c); c.Kind != yaml.MappingNode {
				l.errorAt(c, path, "a list holds %s; want maps only", show(c))
				continue
			}
			l.ignored(c, path, depth+1)
		}
	case yaml.MappingNode:
		for _, f := range l.fields(n, path) {
			if !upstreamKey(f.name) {
				l.errorAt(f.key, path, "unknown key %q; want it deleted: it is where nothing is read", f.name)
				continue
			}
			if f.name != "metadata" {
				l.ignored(f.value, path, depth+1)
			}
		}
	}
}

// nearest returns the name that takes the fewest edits, or "" if it takes many.
func nearest(name string, names []string) string {
	best, edits := "", 3
	for _, n := range names {
		if d := distance(strings.ReplaceAll(strings.ToLower(name), "-", "_"), n); d < edits {
			best, edits = n, d
		}
	}
	return best
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
