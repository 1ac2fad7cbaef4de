package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// budget is how many values of a file are read, counted at each use: aliases of
// aliases can make a short file a very long one.
func budget(data []byte) int { return 100_000 + 10*len(data) }

// pathBudget is how many bytes the paths of a file's descriptors have together. Each path has the names of
// the descriptors above, so paths can make a short file a very long one, too.
func pathBudget(data []byte) int { return 64<<20 + 10*len(data) }

// field is a key of a mapping, and its value with aliases followed.
type field struct {
	key, value *yaml.Node
	name       string
}

// document parses the first document of a file; root is nil if there is none. Further documents are
// ignored, with a warning.
func (l *loader) document(data []byte) (root *yaml.Node, ok bool) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, true
		}
		l.syntaxError(err)
		return nil, false
	}
	switch err := dec.Decode(&next); {
	case err == nil:
		l.warnAt(&next, "", "a second document, which is not read; want one document a file")
	case !errors.Is(err, io.EOF):
		l.errorAt(&yaml.Node{Line: lastLine(&doc) + 1}, "", "what follows is neither part of the document above, by its indentation, nor another one (%s); want all of a file in one document",
			yamlLine.ReplaceAllString(err.Error(), ""))
		return nil, false
	}
	return doc.Content[0], true
}

// lastLine is the line in which the last value begins.
func lastLine(n *yaml.Node) int {
	line := n.Line
	for _, c := range n.Content {
		line = max(line, lastLine(c))
	}
	return line
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (l *loader) syntaxError(err error) {
	l.failed = true
	text := err.Error()
	line := 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		text = text[len(m[0]):]
	}
	l.add(Problem{File: l.file, Line: line, Column: 1, Message: "not YAML: " + text})
}

// follow returns the value that an alias stands for, and counts the visit.
func (l *loader) follow(n *yaml.Node) *yaml.Node {
	l.left--
	if l.left == 0 {
		l.errorAt(n, "", "aliases stand for too many values; want a file that spells out what it says")
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// exhausted reports whether a file has more values than its budget.
func (l *loader) exhausted() bool { return l.left <= 0 }

// fields lists the keys of a mapping in order; keys that "<<" merges are in the place of "<<". As for readers of
// YAML 1.1, the last of equal keys counts.
func (l *loader) fields(n *yaml.Node, path string) fieldList {
	return l.mergedFields(make(fieldList, 0, len(n.Content)/2), n, path, 0)
}

func (l *loader) mergedFields(out fieldList, n *yaml.Node, path string, depth int) fieldList {
	if depth > maxDepth || l.exhausted() {
		return out
	}
	var keys firsts
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := l.follow(n.Content[i]), l.follow(n.Content[i+1])
		if key.Tag == "!!merge" {
			out = l.merge(out, value, path, depth)
			continue
		}
		name, ok := l.fieldName(key, path)
		if !ok {
			continue
		}
		if depth == 0 {
			if first := keys.of(name, i); first < i {
				l.warnAt(n.Content[i], path, "%s is given twice, first in line %d; the last one counts: delete the other", name, n.Content[first].Line)
			}
		}
		out = append(out, field{key: key, value: value, name: name})
	}
	return out
}

func (l *loader) merge(out fieldList, value *yaml.Node, path string, depth int) fieldList {
	switch value.Kind {
	case yaml.MappingNode:
		return l.mergedFields(out, value, path, depth+1)
	case yaml.SequenceNode:
		// If several maps are merged, the first one has precedence.
		for i := len(value.Content) - 1; i >= 0; i-- {
			if m := l.follow(value.Content[i]); m.Kind == yaml.MappingNode {
				out = l.mergedFields(out, m, path, depth+1)
				continue
			}
			l.errorAt(value, path, "\"<<\" merges something other than a map; want an alias of a map")
		}
		return out
	}
	l.errorAt(value, path, "\"<<\" merges something other than a map; want an alias of a map")
	return out
}

// fieldName returns a key's text. Only text is a key.
func (l *loader) fieldName(key *yaml.Node, path string) (string, bool) {
	if key.Kind != yaml.ScalarNode || scalarKind(key) != textKind {
		l.errorAt(key, path, "key %s is not text; want one of the known keys", show(key))
		return "", false
	}
	return key.Value, true
}

// firsts finds where each name of a list came first. It compares a few names one by one, and uses a table for more,
// since the file decides how many names there are.
type firsts struct {
	few  [16]string
	at   [16]int
	n    int // number of names, while few
	many map[string]int
}

// of returns where a name came first, or i if it has not come yet.
func (f *firsts) of(name string, i int) int {
	for j := range f.few[:f.n] {
		if f.few[j] == name {
			return f.at[j]
		}
	}
	if f.n < len(f.few) {
		f.few[f.n], f.at[f.n] = name, i
		f.n++
		return i
	}
	if first, ok := f.many[name]; ok {
		return first
	}
	if f.many == nil {
		f.many = map[string]int{}
	}
	f.many[name] = i
	return i
}

// kind is the type that YAML 1.1, which upstream reads, gives a scalar.
type kind int

const (
	textKind kind = iota
	nullKind
	boolKind
	intKind
	otherKind // a fraction, a number beyond 64 bits, binary
)

var (
	yamlBools = map[string]bool{
		"y": true, "Y": true, "yes": true, "Yes": true, "YES": true,
		"true": true, "True": true, "TRUE": true, "on": true, "On": true, "ON": true,
		"n": false, "N": false, "no": false, "No": false, "NO": false,
		"false": false, "False": false, "FALSE": false, "off": false, "Off": false, "OFF": false,
	}
	yamlFloat = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	yamlInf   = regexp.MustCompile(`^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

func scalarKind(n *yaml.Node) kind {
	if n.Style&yaml.TaggedStyle == 0 {
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			return textKind
		}
		return plainKind(n.Value)
	}
	want, ok := map[string]kind{"!!bool": boolKind, "!!int": intKind, "!!null": nullKind}[n.ShortTag()]
	switch {
	case ok && plainKind(n.Value) == want:
		return want
	case ok, slices.Contains([]string{"!!binary", "!!timestamp", "!!float"}, n.ShortTag()):
		return otherKind
	}
	return textKind
}

// maps returns the maps of a list, and reports problems if a field is no list of maps. item shows how one of
// the maps looks.
func (l *loader) maps(f field, path, item string) iter.Seq[*yaml.Node] {
	return func(yield func(*yaml.Node) bool) {
		if f.value.Kind != yaml.SequenceNode {
			l.errorAt(f.value, path, "%s is %s; want a list of maps, - %s", f.name, show(f.value), item)
			return
		}
		for _, c := range f.value.Content {
			if n := l.follow(c); n.Kind != yaml.MappingNode {
				l.errorAt(n, path, "%s holds %s; want maps, - %s", f.name, show(n), item)
			} else if !yield(n) {
				return
			}
		}
	}
}

// isNull reports whether a value is null: nothing, ~ or null.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && scalarKind(n) == nullKind }

// plainKind returns the kind of a scalar that is neither quoted nor tagged.
func plainKind(s string) kind {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return nullKind
	}
	if _, ok := yamlBools[s]; ok {
		return boolKind
	}
	if c := s[0]; c != '+' && c != '-' && c != '.' && (c < '0' || c > '9') {
		return textKind // no other kind begins like this
	}
	if _, ok := yamlInt(s); ok {
		return intKind
	}
	digits := strings.ReplaceAll(s, "_", "")
	if _, err := strconv.ParseUint(digits, 0, 64); err == nil || yamlFloat.MatchString(digits) || yamlInf.MatchString(s) {
		return otherKind
	}
	return textKind
}

// yamlInt reads the integers of YAML 1.1: decimal, octal with a leading 0, hexadecimal, binary.
func yamlInt(s string) (int64, bool) {
	if s[0] != '+' && s[0] != '-' && (s[0] < '0' || s[0] > '9') {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 0, 64)
	return n, err == nil
}

// text reads a value as text, "" if there is none, as upstream does: an unquoted number or
// boolean of YAML is taken as it is written.
func (l *loader) text(f field, path string) string {
	if f.value.Kind != yaml.ScalarNode {
		l.errorAt(f.value, path, "%s is %s; want text", f.name, show(f.value))
		return ""
	}
	switch scalarKind(f.value) {
	case nullKind:
		return ""
	case otherKind:
		l.errorAt(f.value, path, "%s is %s, which is not text for YAML; want it in quotes: %q", f.name, f.value.Value, f.value.Value)
		return ""
	}
	return f.value.Value
}

func (l *loader) boolean(f field, path string) bool {
	if f.value.Kind == yaml.ScalarNode {
		switch scalarKind(f.value) {
		case boolKind:
			return yamlBools[f.value.Value]
		case nullKind:
			return false
		}
	}
	l.errorAt(f.value, path, "%s is %s; want true or false", f.name, show(f.value))
	return false
}

// number reads a whole number from least to most. ok is false after an error, and for null.
func (l *loader) number(f field, path string, least, most int64) (n int64, ok bool) {
	if f.value.Kind == yaml.ScalarNode {
		switch scalarKind(f.value) {
		case nullKind:
			return 0, false
		case intKind:
			n, _ = yamlInt(f.value.Value)
			if decimal, ok := octal(f.value.Value); ok {
				l.warnAt(f.value, path, "%s is %s, which is %d for YAML, as it begins with 0; want %s", f.name, f.value.Value, n, decimal)
			}
			if n >= least && n <= most {
				return n, true
			}
		}
	}
	l.errorAt(f.value, path, "%s is %s; want a whole number from %d to %d", f.name, show(f.value), least, most)
	return 0, false
}

// octal reports whether a number begins with 0, and so is not the decimal number that it looks like.
func octal(s string) (decimal string, ok bool) {
	digits := strings.ReplaceAll(strings.TrimPrefix(s, "+"), "_", "")
	decimal = strings.TrimLeft(digits, "0")
	return decimal, decimal != "" && decimal != digits && decimal[0] <= '9'
}

// show names a value in an error.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	if scalarKind(n) == nullKind {
		return "empty"
	}
	if len(n.Value) > 64 {
		return fmt.Sprintf("%.60q...", n.Value)
	}
	if scalarKind(n) == textKind {
		return strconv.Quote(n.Value)
	}
	return n.Value
}
