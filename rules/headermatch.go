package rules

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A HeaderMatcher is a condition on a header of a request, in the words of Envoy's HeaderMatcher.
type HeaderMatcher struct {
	// Name is the header, or :method, :authority or :path.
	Name string

	fits           func(value string) bool // nil for present
	present        bool                    // for a matcher without a condition on the value
	invert         bool
	missingIsEmpty bool
}

// Matches reports whether a request fits. there says whether it has the header, and value is the header's value: several
// values of one header are joined by commas, as Envoy does. Without the header no condition on the value holds, also
// no inverted one, unless treat_missing_header_as_empty is set.
func (m *HeaderMatcher) Matches(value string, there bool) bool {
	switch {
	case m.fits == nil:
		return (there == m.present) != m.invert
	case !there && !m.missingIsEmpty:
		return false
	}
	return m.fits(value) != m.invert
}

// valueMatches are the conditions on a text, by their names in string_match.
var valueMatches = map[string]func(value, want string) bool{
	"exact": func(value, want string) bool { return value == want }, "prefix": strings.HasPrefix, "suffix": strings.HasSuffix, "contains": strings.Contains,
}

// matcherFields lists the fields of a header matcher.
const matcherFields = "name, one of exact_match, prefix_match, suffix_match, contains_match, safe_regex_match, range_match, string_match and present_match, invert_match or treat_missing_header_as_empty"

// headerMatcher reads a map of "headers".
func (l *loader) headerMatcher(n *yaml.Node, path string) HeaderMatcher {
	m := HeaderMatcher{present: true}
	conditions := 0
	for _, f := range last(l.fields(n, path)) {
		switch f.name {
		case "name":
			m.Name = l.text(f, path)
		case "invert_match":
			m.invert = l.boolean(f, path)
		case "treat_missing_header_as_empty":
			m.missingIsEmpty = l.boolean(f, path)
		default:
			if l.condition(f, &m, path) {
				conditions++
			}
		}
	}
	switch {
	case m.Name == "":
		l.errorAt(n, path, "a header matcher has no name; want name: HEADER")
	case !isHeader(m.Name):
		l.errorAt(n, path, "name is %q; want the name of a header, or :method, :authority or :path", m.Name)
	case conditions > 1:
		l.errorAt(n, path, "a header matcher has %d conditions; want one of them a header", conditions)
	}
	return m
}

// condition reads the condition of a matcher on the header, and reports whether the field is one.
func (l *loader) condition(f field, m *HeaderMatcher, path string) bool {
	switch f.name {
	case "present_match":
		m.present = l.boolean(f, path)
	case "safe_regex_match":
		m.fits = l.regexMatch(f, path)
	case "range_match":
		m.fits = l.rangeMatch(f, path)
	case "string_match":
		m.fits = l.stringMatch(f, path)
	default:
		name, isMatch := strings.CutSuffix(f.name, "_match")
		if !isMatch || valueMatches[name] == nil {
			l.errorAt(f.key, path, "a header matcher has no key %q; want %s", f.name, matcherFields)
			return false
		}
		m.fits = l.textMatch(f, name, path, false)
	}
	return true
}

// textMatch reads a condition on a text. The empty text is of use to exact alone.
func (l *loader) textMatch(f field, name, path string, ignoreCase bool) func(string) bool {
	want, test := l.text(f, path), valueMatches[name]
	if want == "" && name != "exact" {
		l.errorAt(f.value, path, "%s is empty, which fits every value; want text, or present_match: true", f.name)
	}
	if ignoreCase {
		want = lower(want)
		return func(value string) bool { return test(lower(value), want) }
	}
	return func(value string) bool { return test(value, want) }
}

// lower makes letters of ASCII small, as Envoy does, and leaves all other bytes: strings.ToLower would make k of the Kelvin sign.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// stringMatch reads Envoy's StringMatcher.
func (l *loader) stringMatch(f field, path string) (fits func(string) bool) {
	if f.value.Kind != yaml.MappingNode {
		l.errorAt(f.value, path, "string_match is %s; want a map, such as string_match: {prefix: TEXT}", show(f.value))
		return nil
	}
	fields := last(l.fields(f.value, path))
	ignoreCase := false
	if i := slices.IndexFunc(fields, func(g field) bool { return g.name == "ignore_case" }); i >= 0 {
		ignoreCase = l.boolean(fields[i], path)
		fields = slices.Delete(fields, i, i+1)
	}
	if len(fields) != 1 {
		l.errorAt(f.value, path, "string_match has %d conditions; want one of exact, prefix, suffix, contains and safe_regex", len(fields))
		return nil
	}
	g := fields[0]
	_, ofText := valueMatches[g.name]
	switch {
	case ofText:
		return l.textMatch(g, g.name, path, ignoreCase)
	case g.name == "safe_regex" && ignoreCase:
		l.errorAt(g.value, path, "ignore_case means nothing for safe_regex; want (?i) at the beginning of the expression")
	case g.name == "safe_regex":
		return l.regexMatch(g, path)
	default:
		l.errorAt(g.key, path, "string_match has no key %q; want exact, prefix, suffix, contains or safe_regex, and perhaps ignore_case", g.name)
	}
	return nil
}

// regexMatch reads an expression that the whole value has to fit. RE2's syntax is Go's.
func (l *loader) regexMatch(f field, path string) func(string) bool {
	text := ""
	if f.value.Kind == yaml.MappingNode {
		for _, g := range last(l.fields(f.value, path)) {
			switch g.name {
			case "regex":
				text = l.text(g, path)
			case "google_re2": // of older versions: the only engine
			default:
				l.errorAt(g.key, path, "%s has no key %q; want regex: EXPRESSION", f.name, g.name)
			}
		}
	}
	if text == "" {
		l.errorAt(f.value, path, "%s has no regex; want regex: EXPRESSION", f.name)
		return nil
	}
	e, err := regexp.Compile(`\A(?:` + text + `)\z`)
	if err != nil {
		l.errorAt(f.value, path, "%s: %v; want an expression in the syntax of RE2", f.name, err)
		return nil
	}
	return e.MatchString
}

// rangeMatch reads a range of whole numbers, without its end.
func (l *loader) rangeMatch(f field, path string) func(string) bool {
	var bounds [2]int64
	if f.value.Kind == yaml.MappingNode {
		for _, g := range last(l.fields(f.value, path)) {
			if i := slices.Index([]string{"start", "end"}, g.name); i >= 0 {
				bounds[i], _ = l.number(g, path, math.MinInt64, math.MaxInt64)
			} else {
				l.errorAt(g.key, path, "range_match has no key %q; want start and end", g.name)
			}
		}
	}
	if bounds[0] >= bounds[1] {
		l.errorAt(f.value, path, "range_match is from %d to below %d, which no number fits; want start: N, and a larger end", bounds[0], bounds[1])
	}
	return func(value string) bool {
		n, err := strconv.ParseInt(value, 10, 64)
		return err == nil && n >= bounds[0] && n < bounds[1]
	}
}
