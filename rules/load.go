package rules

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A File is a file of rules: one domain.
type File struct {
	Name string // for errors
	Data []byte
}

// Options say how files make a Set.
type Options struct {
	// MergeDomains lets several files name the same domain: their rules add up. Without
	// it that is an error.
	MergeDomains bool
}

// A Problem is something wrong with a file.
type Problem struct {
	File         string
	Line, Column int    // from 1
	Path         string // the rule, "domain.key_value.key"; empty outside of rules
	Message      string // the mistake, and a value that would be accepted
	Warning      bool   // the file loads all the same
}

// String is one line: FILE:LINE:COLUMN, the rule and the message.
func (p Problem) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(oneLine(p.Path) + ": ")
	}
	b.WriteString(oneLine(p.Message))
	return b.String()
}

// oneLine writes line breaks and other control characters as escapes, since problems are lines.
func oneLine(s string) string {
	if !strings.ContainsFunc(s, isControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isControl(r) {
			fmt.Fprintf(&b, "\\x%02x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 }

// comparePlaces orders the problems of a file.
func comparePlaces(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

// LoadError is the error of Load: all problems of the files, warnings included, by file
// and place. It is also the error of New and Swap for rules that a Store cannot keep.
type LoadError struct{ Problems []Problem }

// maxLines is how many problems the text of an error has.
const maxLines = 1000

// Error returns the problems, a line each: the first 1,000, and how many more there are.
func (e *LoadError) Error() string {
	told := e.Problems[:min(len(e.Problems), maxLines)]
	lines := make([]string, len(told), len(told)+1)
	for i, p := range told {
		lines[i] = p.String()
	}
	if more := len(e.Problems) - len(told); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Load reads files of rules, and checks all of them to the end. The error is a *LoadError; there
// is no Set then. Files without a rule, and no files at all, are accepted. Requests without a rule
// are not limited.
func Load(files []File, o Options) (*Set, error) {
	return load(files, o, pieceSize)
}

// load is Load with lists of descriptors cut into pieces of a size.
func load(files []File, o Options, size int) (*Set, error) {
	l := newLoader(o, size)
	for _, f := range files {
		before := len(l.problems)
		if !l.load(f) {
			return load(files, o, math.MaxInt)
		}
		slices.SortStableFunc(l.problems[before:], comparePlaces)
	}
	known := len(l.problems)
	named := l.named()
	l.unnamed(named)
	l.linkSeconds(named)
	l.linkDenials(named)
	for _, r := range l.set.rules { // a rule with an error has no config
		r.domain.inFlight = r.domain.inFlight || r.config != nil && r.inFlight()
	}
	if len(l.problems) > known {
		l.sortProblems(files)
	}
	if l.failed {
		return nil, &LoadError{l.problems}
	}
	l.set.warnings = l.problems
	l.set.digest = digest(files)
	return l.set, nil
}

// sortProblems orders the problems by file and place.
func (l *loader) sortProblems(files []File) {
	order := map[string]int{}
	for i, f := range files {
		order[f.Name] = i
	}
	slices.SortStableFunc(l.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), comparePlaces(a, b))
	})
}

// digest identifies the content of files, in any order.
func digest(files []File) string {
	sums := make([]string, len(files))
	for i, f := range files {
		sum := sha256.Sum256(f.Data)
		sums[i] = hex.EncodeToString(sum[:])
	}
	slices.Sort(sums)
	sum := sha256.Sum256([]byte(strings.Join(sums, "\n")))
	return hex.EncodeToString(sum[:8])
}

// loader reads files into a set.
type loader struct {
	options  Options
	set      *Set
	problems []Problem
	failed   bool

	nodes map[nodeName]place // where each descriptor is defined
	keep  keeper
	size  int // of pieces

	replaced []replacement
	compared int // pairs of patterns so far

	file   string
	within bool // a ConfigMap
	left   int  // how many more values of the file may be read
	paths  int  // how many more bytes the paths of its descriptors may have
}

// nodeName must be unique for each descriptor: "a_b" is both the key a_b, and the key a with
// the value b.
type nodeName struct {
	parent *node
	name   string
}

func newLoader(o Options, size int) *loader {
	return &loader{
		options: o,
		set:     &Set{domains: map[string]*domain{}, names: map[string]int{}},
		nodes:   map[nodeName]place{},
		size:    size,
	}
}

// place is where something is defined.
type place struct {
	file         string
	line, column int32
}

func (l *loader) place(n *yaml.Node) place {
	return place{l.file, int32(max(n.Line, 1)), int32(max(n.Column, 1))}
}

func (p place) problem(path, message string) Problem {
	return Problem{File: p.file, Line: int(p.line), Column: int(p.column), Path: path, Message: message}
}

func (l *loader) add(p Problem) { l.problems = append(l.problems, p) }

func (l *loader) errorAt(n *yaml.Node, path, format string, args ...any) {
	l.failed = true
	l.add(l.problem(n, path, false, fmt.Sprintf(format, args...)))
}

func (l *loader) warnAt(n *yaml.Node, path, format string, args ...any) {
	l.add(l.problem(n, path, true, fmt.Sprintf(format, args...)))
}

func (l *loader) problem(n *yaml.Node, path string, warning bool, message string) Problem {
	return Problem{File: l.file, Line: max(n.Line, 1), Column: max(n.Column, 1), Path: path, Message: message, Warning: warning}
}

// load reads a file, or the files within a ConfigMap. It returns false if the file has to be read in one piece.
func (l *loader) load(f File) bool {
	l.file, l.left, l.paths = f.Name, budget(f.Data), pathBudget(f.Data)
	c := cut(f.Data, l.size)
	root, ok := l.document(c.rest)
	if !ok {
		return c.pieces == nil
	}
	if root == nil {
		l.errorAt(&yaml.Node{}, "", "the file is empty; want domain and descriptors")
		return true
	}
	root = l.follow(root)
	if root.Kind != yaml.MappingNode {
		l.errorAt(root, "", "the file is %s; want a map with domain and descriptors", show(root))
		return c.pieces == nil
	}
	if kind, ok := kubernetes(root); ok {
		return l.manifest(f, root, kind)
	}
	return l.root(root, c)
}

// root reads a file's top level. It returns false if the file has to be read in one piece.
func (l *loader) root(n *yaml.Node, c cuts) bool {
	fields := l.fields(n, "")
	if !c.fits(fields) {
		return false
	}
	name, at := "", n
	for _, f := range fields {
		if f.name == "domain" {
			name, at = l.text(f, ""), f.value
		}
	}
	if name == "" {
		l.errorAt(at, "", "the file names no domain; want domain: NAME, as Envoy's filter sends it")
	}
	d := l.domain(name, at)
	for _, f := range last(fields) {
		switch f.name {
		case "domain", "descriptors":
		case "sluice": // rules below depend on it
			l.domainOptions(f, d, name)
		case "http":
			l.httpLists(f, d, name)
		default:
			l.unknown(f, name, inFile)
		}
	}
	for _, f := range last(fields) {
		if f.name == "descriptors" {
			l.descriptors(f, d, d.root, name, nil)
		}
	}
	for _, p := range c.pieces {
		items, ok := p.parse()
		if !ok {
			return false
		}
		l.items(items, d, d.root, name, nil)
	}
	return true
}

// domain returns the domain that a file adds to: a new one, or with MergeDomains an earlier one.
func (l *loader) domain(name string, at *yaml.Node) *domain {
	d := &domain{name: name, root: &node{}, at: l.place(at)}
	d.hint.Unit = time.Second
	if name == "" {
		return d
	}
	if known := l.set.domains[name]; known != nil {
		if l.options.MergeDomains {
			return known
		}
		l.errorAt(at, name, "the domain is already defined at %s:%d; want each domain in one file, or domains merged",
			known.at.file, known.at.line)
		return d
	}
	l.set.domains[name] = d
	return d
}

// fieldList is fields in the order of a file.
type fieldList []field

// get returns the first field of a name.
func (fs fieldList) get(name string) (field, bool) {
	for _, f := range fs {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

// at returns the field, or a field without nodes if it is not there.
func (fs fieldList) at(name string) field {
	f, _ := fs.get(name)
	return f
}

// last returns the fields that count: of equal keys the last one, in the order of the first.
func last(fields fieldList) fieldList {
	var out fieldList // nil as long as no key comes again
	var keys firsts
	n := 0 // number of different keys
	for i, f := range fields {
		j := keys.of(f.name, n)
		switch {
		case j < n:
			if out == nil {
				out = slices.Clone(fields[:i])
			}
			out[j] = f
			continue
		case out != nil:
			out = append(out, f)
		}
		n++
	}
	if out == nil {
		return fields
	}
	return out
}
