package docs

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exports returns where the compiler has left what the packages that the root imports export.
func exports(t *testing.T) map[string]string {
	t.Helper()
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command here to ask for the packages that the root imports")
	}
	cmd := exec.Command(goCommand, "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".")
	cmd.Dir = "../../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return files
}

// uses returns for each source file of the root the ones whose declarations, methods and
// fields it uses, each with one such name.
func uses(t *testing.T) map[string]map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	paths, err := filepath.Glob("../../../*.go")
	require.NoError(t, err)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	exported := exports(t)
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exported[path])
	})}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := config.Check("github.com/sluice-go/sluice", fset, files, info)
	require.NoError(t, err)
	all := map[string]map[string]string{}
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		field, isVar := object.(*types.Var)
		_, isFunc := object.(*types.Func)
		if object.Parent() != pkg.Scope() && !isFunc && !(isVar && field.IsField()) {
			continue // a local variable
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(object.Pos()).Filename)
		if from == to {
			continue
		}
		if all[from] == nil {
			all[from] = map[string]string{}
		}
		all[from][to] = max(all[from][to], object.Name())
	}
	return all
}

var fileName = regexp.MustCompile(`[a-z]+\.go`)

// TestDesign_NothingPointsUp: a file uses no file of a line above its own.
func TestDesign_NothingPointsUp(t *testing.T) {
	line := map[string]int{}
	for i, text := range strings.Split(layersPicture(t), "\n") {
		for _, name := range fileName.FindAllString(text, -1) {
			line[name] = i
		}
	}
	n := 0
	for from, to := range uses(t) {
		for file, name := range to {
			assert.GreaterOrEqual(t, line[file], line[from], "%s uses %s of %s, which is above it", from, name, file)
			n++
		}
	}
	require.Greater(t, n, 200)
}

// TestDesign_CirclesAreNamed: files that use each other, directly or not, are those that the
// section says so of.
func TestDesign_CirclesAreNamed(t *testing.T) {
	all := uses(t)
	reached := map[string]map[string]bool{}
	var reach func(from, file string)
	reach = func(from, file string) {
		for next := range all[file] {
			if !reached[from][next] {
				reached[from][next] = true
				reach(from, next)
			}
		}
	}
	for from := range all {
		reached[from] = map[string]bool{}
		reach(from, from)
	}
	circling := []string{}
	for _, file := range slices.Sorted(maps.Keys(all)) {
		if reached[file][file] {
			circling = append(circling, file)
		}
	}
	_, text, ok := strings.Cut(section(t, "Layers"), "use each other:")
	require.True(t, ok)
	named := fileName.FindAllString(text, -1)
	slices.Sort(named)
	assert.Equal(t, named, circling)
}
