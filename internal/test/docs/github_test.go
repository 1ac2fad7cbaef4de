package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDependabot_KnowsEveryModule: a module that the list lacks would keep its dependencies for good.
func TestDependabot_KnowsEveryModule(t *testing.T) {
	list, err := os.ReadFile("../../../.github/dependabot.yml")
	require.NoError(t, err)
	modules := 0
	require.NoError(t, filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && d.Name() == "go.mod" {
			modules++
			folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../..")
			assert.Contains(t, string(list), "\n      - /"+strings.TrimPrefix(folder, "/")+"\n", "%s", path)
		}
		return err
	}))
	assert.Equal(t, modules, strings.Count(string(list), "\n      - /"), "no folder without a module")
}
