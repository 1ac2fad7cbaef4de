package sluice

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/test/depth"
)

// The tests in this file are about facts that the speed of a decision relies on and
// that no result shows: what the compiler inlines, where it checks bounds, what it
// puts on the heap, and how memory is laid out.

// A diagnostic is what the compiler says of a place in the source.
type diagnostic struct {
	file      string
	line, col int
	text      string
}

var diagnosticLine = regexp.MustCompile(`^(?:\./)?((?:internal/\w+/)?\w+\.go):(\d+):(\d+): (.*)$`)

// hotArchs are the architectures whose code is looked at: this machine's, and at full depth all that
// programs run on. On 32 bits, atomic words are function calls, and nothing of this holds.
func hotArchs(t *testing.T) []string {
	t.Helper()
	all := []string{"amd64", "arm64"}
	switch {
	case crowded():
		t.Skip("the run without -homes looks at the code that programs have")
	case depth.Full():
		return all
	case !slices.Contains(all, runtime.GOARCH):
		t.Skipf("only at full depth the code for other machines is looked at, and %s has none to look at", runtime.GOARCH)
	}
	return []string{runtime.GOARCH}
}

// said is what the compiler said, by architecture. No two tests of this file run at once.
var said = map[string][]diagnostic{}

// compile builds the package for an architecture, once, and returns what the compiler says of inlining,
// of the heap and of bounds. The go command keeps that in its cache and repeats it.
func compile(t *testing.T, arch string) []diagnostic {
	t.Helper()
	if all := said[arch]; all != nil {
		return all
	}
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command here to ask the compiler with")
	}
	cmd := exec.Command(goCommand, "build", "-gcflags=-m=2 -d=ssa/check_bce", ".", "./internal/tsc", "./internal/keyid")
	// Neither the race detector nor anything else in GOFLAGS is asked about.
	cmd.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var all []diagnostic
	for line := range bytes.Lines(out) {
		if m := diagnosticLine.FindStringSubmatch(strings.TrimSpace(string(line))); m != nil {
			row, _ := strconv.Atoi(m[2]) // digits
			col, _ := strconv.Atoi(m[3])
			all = append(all, diagnostic{m[1], row, col, m[4]})
		}
	}
	require.NotEmpty(t, all, "the compiler says nothing: %s", out)
	said[arch] = all
	return all
}

// A source is the package, and the leaves that it calls for each decision, as the parser sees them,
// without their tests. No two have a method of one name.
type source struct {
	fset  *token.FileSet
	funcs map[string]*ast.FuncDecl // by the compiler's names: (*table).lookup, Key.Allow
}

func parse(t *testing.T) source {
	t.Helper()
	s := source{token.NewFileSet(), map[string]*ast.FuncDecl{}}
	var paths []string
	for _, pattern := range []string{"*.go", "internal/tsc/*.go", "internal/keyid/*.go"} {
		some, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, some)
		paths = append(paths, some...)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				s.funcs[compilerName(f)] = f
			}
		}
	}
	return s
}

func compilerName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	switch r := f.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if id, ok := r.X.(*ast.Ident); ok {
			return "(*" + id.Name + ")." + f.Name.Name
		}
	case *ast.Ident:
		return r.Name + "." + f.Name.Name
	}
	return f.Name.Name // of a generic type; there is none on the hot path
}

// in returns the diagnostics between the first and the last line of a node.
func (s source) in(all []diagnostic, n ast.Node) []diagnostic {
	from, to := s.fset.Position(n.Pos()), s.fset.Position(n.End())
	var found []diagnostic
	for _, d := range all {
		if d.file == from.Filename && from.Line <= d.line && d.line <= to.Line {
			found = append(found, d)
		}
	}
	return found
}

// at reports whether a diagnostic is about a place within a node.
func (s source) at(d diagnostic, n ast.Node) bool {
	from, to := s.fset.Position(n.Pos()), s.fset.Position(n.End())
	return d.file == from.Filename && d.line == from.Line && d.line == to.Line && from.Column <= d.col && d.col < to.Column
}

// fn returns a function by its name; a test about one that is gone must not pass.
func (s source) fn(t *testing.T, name string) *ast.FuncDecl {
	t.Helper()
	f := s.funcs[name]
	require.NotNil(t, f, "there is no %s any more: this test is about nothing", name)
	return f
}

// A call of a function costs 1 to 2 ns and the registers. These are small enough for
// the compiler to put their code in place of the call, some by a hair (the budget is
// 80, and (*store).now takes 79).
func TestHotPath_SmallFunctionsAreInlined(t *testing.T) {
	src := parse(t)
	for _, arch := range hotArchs(t) {
		all := compile(t, arch)
		says := func(n ast.Node, text string) bool {
			return slices.ContainsFunc(src.in(all, n), func(d diagnostic) bool {
				return d.text == text || strings.HasPrefix(d.text, text+" ")
			})
		}
		for _, name := range []string{
			"(*table).lookup", "(*guide).tableOf", "(*store).now", "(*store).ahead", "(*Hasher).Seeded",
			"(*schedule).tick", "(*CoarseClock).Now", "(*systemClock).Now", "(*Clock).Read", "(*table).state",
			"(*Hasher).ID", "(*Hasher).Number", "(*window).since", "(*owned).take", "(*awaiting).wake",
			"(*Limiter).Acquire", "Key.Acquire", // which make the permit in the caller's frame
		} {
			assert.True(t, says(src.fn(t, name), "can inline "+name), "%s: %s can no longer be inlined", arch, name)
		}
		for _, c := range []struct{ callee, caller string }{
			{"(*table).lookup", "(*Limiter).allowAt"},
			{"(*guide).tableOf", "(*Limiter).allowAt"},
			{"(*table).lookup", "(*Permit).acquire"}, // which decides in its frame, as allowAt does
			{"(*guide).tableOf", "(*Permit).acquire"},
			{"(*store).now", "(*Permit).acquire"},
			{"(*store).ahead", "(*Permit).acquire"},
			{"(*table).lookup", "(*Permit).change"},
			{"(*guide).tableOf", "(*Permit).change"},
			{"(*store).now", "(*Permit).change"},
			{"(*window).since", "(*inFlight).charge"},
			{"(*window).since", "(*slidingWindow).moveOut"},
			{"(*owned).take", "(*Permit).Release"},
			{"(*awaiting).wake", "(*Permit).Release"},
			{"(*schedule).tick", "(*gcra).charge"},
			{"(*store).now", "(*Limiter).Allow"},
			{"(*store).ahead", "(*Limiter).Allow"},
			{"keyid.(*Hasher).Seeded", "(*Limiter).Allow"},
			{"(*store).now", "(*Limiter).Take"},
			{"(*store).now", "Key.AllowN"},
			{"tsc.(*Clock).Read", "(*FastClock).Now"},
		} {
			assert.True(t, says(src.fn(t, c.caller), "inlining call to "+c.callee), "%s: %s is no longer inlined into %s", arch, c.callee, c.caller)
		}
	}
}

// A lock that nobody holds costs no more than a tenth of a decision, so that no
// measurement on a shared machine shows it, and then everybody waits for it.
func TestHotPath_TakesNoLock(t *testing.T) {
	src := parse(t)
	for _, name := range []string{
		"(*Limiter).Allow", "(*Limiter).AllowN", "(*Limiter).allowAt", "(*Limiter).Take", "Key.decide", "Key.AllowN", "Key.Take",
		"(*Limiter).Acquire", "Key.Acquire", "(*Permit).acquire", "(*Permit).change", "(*Permit).Release", "(*Permit).Renew", "(*inFlight).charge",
		"(*table).lookup", "(*guide).tableOf", "(*store).now", "(*store).ahead", "(*store).prefetch", "(*store).charge",
		"(*Hasher).Seeded", "(*Hasher).String", "(*schedule).tick", "(*gcra).charge", "(*systemClock).Now", "(*CoarseClock).Now",
		"(*FastClock).Now", "(*Clock).Read",
	} {
		ast.Inspect(src.fn(t, name), func(n ast.Node) bool {
			if f, ok := n.(*ast.SelectorExpr); ok {
				assert.NotContains(t, f.Sel.Name, "Lock", "%s, line %d", name, src.fset.Position(f.Pos()).Line)
			}
			return true
		})
	}
}

// A probe compares ids and nothing else. Where the compiler cannot know that an index is in range,
// as in find, it says so.
func TestHotPath_ProbesCheckNoBounds(t *testing.T) {
	src := parse(t)
	for _, arch := range hotArchs(t) {
		all := compile(t, arch)
		checks := func(f *ast.FuncDecl) []diagnostic {
			return slices.DeleteFunc(src.in(all, f), func(d diagnostic) bool {
				return !strings.Contains(d.text, "InBounds")
			})
		}
		assert.Empty(t, checks(src.fn(t, "(*table).lookup")), arch)
		require.NotEmpty(t, checks(src.fn(t, "(*table).put")), "%s: or the compiler says it in other words now", arch)

		for _, name := range []string{"(*Limiter).allowAt", "(*Permit).change"} { // acquire counts, which checks
			assert.Empty(t, checks(src.fn(t, name)), "%s: %s", arch, name)
		}
	}
}

// decisionParams are the parameters that a caller may have on its stack: keys, as
// strings or bytes, and the Decision that is filled in.
func decisionParams(f *ast.FuncDecl) []*ast.Ident {
	var names []*ast.Ident
	for _, field := range f.Type.Params.List {
		switch p := field.Type.(type) {
		case *ast.Ident:
			if p.Name == "string" {
				names = append(names, field.Names...)
			}
		case *ast.ArrayType:
			if id, ok := p.Elt.(*ast.Ident); ok && id.Name == "byte" && p.Len == nil {
				names = append(names, field.Names...)
			}
		case *ast.StarExpr:
			if id, ok := p.X.(*ast.Ident); ok && id.Name == "Decision" {
				names = append(names, field.Names...)
			}
		}
	}
	return names
}

// TestAllocs_NoneOnAnyDecisionPath shows that the paths it takes do not allocate.
// This shows it of all paths, and that a caller's key need not be on the heap.
func TestHotPath_KeysAndDecisionsStayOnTheStack(t *testing.T) {
	src := parse(t)
	makers := []string{"New", "newLimiter", "newAlgorithm", "(*store).init", "newTable"}
	for _, arch := range hotArchs(t) {
		all := compile(t, arch)
		params := 0
		for name, f := range src.funcs {
			if file := src.fset.Position(f.Pos()).Filename; !slices.Contains([]string{"limiter.go", "decide.go", "peek.go", "lookup.go", "update.go", "shard.go", "directory.go", "table.go", "internal/keyid/keyid.go"}, file) {
				continue
			}
			about := src.in(all, f)
			for _, d := range about {
				assert.NotContains(t, d.text, "moved to heap", "%s: %s:%d", arch, d.file, d.line)
			}
			for _, p := range decisionParams(f) {
				params++
				stays := slices.ContainsFunc(about, func(d diagnostic) bool {
					return src.at(d, p) && d.text == p.Name+" does not escape"
				})
				assert.True(t, stays, "%s: %s of %s may escape", arch, p.Name, name)
			}
		}
		assert.Greater(t, params, 15, "or the parameters have other types now")
		for _, name := range []string{
			"(*Limiter).Allow", "(*Limiter).AllowN", "(*Limiter).Take", "Key.AllowN", "Key.Take", "Key.Peek",
			"Key.AllowAt", "Key.TakeAt", "(*Limiter).allowAt", "Key.decide", "Key.peekAt",
			"Key.glance", "Key.edge", "(*store).charge", "(*store).locate", "(*table).lookup",
			"(*store).insert", "(*store).chargeWord", "(*policy).peekTail", "(*gcra).charge", "(*store).now",
		} {
			for _, d := range src.in(all, src.fn(t, name)) {
				assert.NotContains(t, d.text, "escapes to heap", "%s: %s, %s:%d", arch, name, d.file, d.line)
			}
		}
		// The same words are found where something is on the heap.
		made := slices.ContainsFunc(makers, func(name string) bool {
			return slices.ContainsFunc(src.in(all, src.fn(t, name)), func(d diagnostic) bool { return strings.Contains(d.text, "escapes to heap") })
		})
		require.True(t, made, "%s: the compiler says it in other words now", arch)
	}
}

// cacheLine is the size of a cache line on all machines that sluice is built for, but
// for some that have twice that.
const cacheLine = 64

// The fields that a decision reads lie apart from those that are written meanwhile. The Limiter's
// address is a multiple of no more than its size class gives, so that only the
// distance counts.
func TestHotPath_ReadMostlyFieldsAreFarFromCounters(t *testing.T) {
	var st store
	counters := unsafe.Offsetof(st.counters)
	for name, end := range map[string]uintptr{
		"guide":  unsafe.Offsetof(st.guide) + unsafe.Sizeof(st.guide),
		"shards": unsafe.Offsetof(st.shards) + unsafe.Sizeof(st.shards),
		"shift":  unsafe.Offsetof(st.shift) + unsafe.Sizeof(st.shift),
		"clock":  unsafe.Offsetof(st.clock) + unsafe.Sizeof(st.clock),
		"cached": unsafe.Offsetof(st.cached) + unsafe.Sizeof(st.cached),
		"far":    unsafe.Offsetof(st.far) + unsafe.Sizeof(st.far),
	} {
		assert.LessOrEqual(t, end+cacheLine, counters, "store.%s can share a cache line with the counters", name)
	}
	var l Limiter
	written := counters + unsafe.Sizeof(st.counters) // the store comes first in a Limiter
	require.Zero(t, unsafe.Offsetof(l.store))
	for name, begin := range map[string]uintptr{
		"hash":   unsafe.Offsetof(l.hash),
		"direct": unsafe.Offsetof(l.direct),
	} {
		assert.GreaterOrEqual(t, begin, written+cacheLine, "Limiter.%s can share a cache line with the counters", name)
	}
}

// A Decision is returned through memory: each word of it is a store and a load.
func TestHotPath_DecisionHasNoMoreThanItsFields(t *testing.T) {
	const word, duration = unsafe.Sizeof(int(0)), unsafe.Sizeof(time.Duration(0))
	require.LessOrEqual(t, unsafe.Sizeof(Decision{}), 3*word+2*duration, "a flag, two numbers and two durations")
}
