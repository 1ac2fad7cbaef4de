package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// TestHTML_BesideTheReport: the page is one file more, and the report is the same.
func TestHTML_BesideTheReport(t *testing.T) {
	for _, command := range []string{"replay", "recommend"} {
		path := filepath.Join(t.TempDir(), "it's a report.html")
		_, want, _ := execute(nil, command)
		code, stdout, stderr := execute(nil, command, "--html", path)
		require.Equal(t, cli.ExitOK, code, stderr)
		assert.Empty(t, stderr)
		assert.Equal(t, want, stdout)
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Contains(t, string(page), "<code>sluice "+command+" --html &#39;")
		assert.Contains(t, string(page), "2583 requests of 71 clients, combined format")
		assert.Contains(t, string(page), "203.0.113.66")

		code, _, stderr = execute(nil, command, "--html", filepath.Join(path, "nowhere"))
		assert.Equal(t, cli.ExitFailed, code)
		assert.Contains(t, stderr, "sluice "+command+": --html: ")
	}
}

func TestShellLine(t *testing.T) {
	assert.Equal(t, `sluice replay a.log --rule 'gcra 5/m' 'it'\''s' ''`, shellLine([]string{"replay", "a.log", "--rule", "gcra 5/m", "it's", ""}))
}
