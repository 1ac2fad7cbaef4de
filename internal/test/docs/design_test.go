// Package docs checks that DESIGN.md and CONTRIBUTING.md speak of what there is.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// section returns the text of DESIGN.md under a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	data, err := os.ReadFile("../../../DESIGN.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(data), "\n## "+heading+"\n")
	require.True(t, ok, "DESIGN.md has no section %q", heading)
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// functions returns the names of the functions and methods that a file declares.
func functions(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			names[f.Name.Name] = true
		}
	}
	return names
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestDesign_JourneysAreWhatHappens: every file:function of a journey is there.
func TestDesign_JourneysAreWhatHappens(t *testing.T) {
	steps := regexp.MustCompile("`([a-z_/]+\\.go):([A-Za-z]+)`").FindAllStringSubmatch(section(t, "Journeys"), -1)
	require.Greater(t, len(steps), 30)
	for _, step := range steps {
		path := ""
		for _, folder := range []string{"../../..", "../../../httplimit", "../.."} {
			if path = filepath.Join(folder, step[1]); fileExists(path) {
				break
			}
		}
		assert.True(t, functions(t, path)[step[2]], "there is no %s", step[0])
	}
}

// TestDesign_JourneysDoNotReturn: a walk does not come back to a file that it has left, except
// for what it asks in brackets. A sentence is a walk.
func TestDesign_JourneysDoNotReturn(t *testing.T) {
	brackets, end, step := regexp.MustCompile(`\([^)]*\)`), regexp.MustCompile(`\.\s`), regexp.MustCompile("`([a-z_/]+\\.go):[A-Za-z]+`")
	walks := 0
	for _, walk := range end.Split(brackets.ReplaceAllString(section(t, "Journeys"), ""), -1) {
		var left []string
		for _, s := range step.FindAllStringSubmatch(walk, -1) {
			if n := len(left); n > 0 && left[n-1] == s[1] {
				continue
			}
			assert.NotContains(t, left, s[1], "a walk returns: %s", walk)
			left = append(left, s[1])
		}
		if len(left) > 0 {
			walks++
		}
	}
	assert.Greater(t, walks, 7)
}

// layersPicture returns the part of the section that has the files.
func layersPicture(t *testing.T) string {
	t.Helper()
	picture, _, ok := strings.Cut(section(t, "Layers"), "\nA file uses")
	require.True(t, ok)
	return picture
}

// TestDesign_LayersHaveAllFiles: each source file of the root has one layer.
func TestDesign_LayersHaveAllFiles(t *testing.T) {
	picture := layersPicture(t)
	paths, err := filepath.Glob("../../../*.go")
	require.NoError(t, err)
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "prefetch") || name == "doc.go" {
			continue
		}
		assert.Len(t, regexp.MustCompile(`\b`+regexp.QuoteMeta(name)).FindAllString(picture, -1), 1, name)
	}
	for _, name := range regexp.MustCompile(`[a-z]+\.go`).FindAllString(picture, -1) {
		assert.FileExists(t, filepath.Join("../../..", name))
	}
}

// TestContributing_TestsAreWhereItSays: a test file of the root begins with the name of a source
// file or with one of the kinds that CONTRIBUTING.md lists, and each kind has one.
func TestContributing_TestsAreWhereItSays(t *testing.T) {
	data, err := os.ReadFile("../../../CONTRIBUTING.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(data), "\n## Where tests are\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "\n## ")
	kinds := map[string]bool{}
	for _, kind := range regexp.MustCompile("`([a-z]+)`: ").FindAllStringSubmatch(text, -1) {
		kinds[kind[1]] = false
	}
	require.Greater(t, len(kinds), 8)
	paths, err := filepath.Glob("../../../*_test.go")
	require.NoError(t, err)
	for _, path := range paths {
		subject, _, _ := strings.Cut(filepath.Base(path), "_")
		if _, ok := kinds[subject]; ok {
			kinds[subject] = true
		} else {
			assert.FileExists(t, filepath.Join("../../..", subject+".go"), "%s tests neither a source file nor all of one kind", path)
		}
	}
	for kind, used := range kinds {
		assert.True(t, used, "no test is of kind %s", kind)
	}
}
