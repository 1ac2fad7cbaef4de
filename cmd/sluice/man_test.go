package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMan: there is a page for each command, the same each time, with the text of its help; and groff, where there is one, has nothing to say.
func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1772442000")
	dir, again := filepath.Join(t.TempDir(), "man1"), t.TempDir()
	for _, d := range []string{dir, again} {
		code, stdout, stderr := execute(nil, "man", d)
		require.Equal(t, exitOK, code, stderr)
		assert.Empty(t, stdout)
	}
	groff, _ := exec.LookPath("groff")
	for _, c := range append(newRoot().Commands(), newRoot()) {
		if c.Hidden || c.Name() == "help" {
			continue
		}
		page, err := os.ReadFile(filepath.Join(dir, manName(c)+".1"))
		require.NoError(t, err)
		other, err := os.ReadFile(filepath.Join(again, manName(c)+".1"))
		require.NoError(t, err)
		assert.Equal(t, string(other), string(page))
		assert.True(t, strings.HasPrefix(string(page), `.TH SLUICE`), c.Name())
		assert.Contains(t, string(page), ` 1 "2026-03-02" "sluice"`)
		if groff == "" {
			continue
		}
		cmd := exec.Command(groff, "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=100n")
		cmd.Stdin = strings.NewReader(string(page))
		var warnings strings.Builder
		cmd.Stderr = &warnings
		text, err := cmd.Output()
		require.NoError(t, err)
		assert.Empty(t, warnings.String(), c.Name())
		for line := range strings.Lines(c.Example + "\n") { // as it is typed
			assert.Contains(t, string(text), strings.TrimSpace(line), c.Name())
		}
	}
	if groff == "" {
		t.Log("without groff: apt-get install groff-base")
	}
}

func TestMan_Refuses(t *testing.T) {
	for want, args := range map[string][]string{"want one directory": {"man"}, "not a directory": {"man", filepath.Join(writeFile(t, ""), "x")}} {
		code, _, stderr := execute(nil, args...)
		assert.NotEqual(t, exitOK, code)
		assert.Contains(t, stderr, want)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	code, _, stderr := execute(nil, "man", t.TempDir())
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, `SOURCE_DATE_EPOCH "yesterday": want Unix seconds`)
}

func TestRoff(t *testing.T) {
	assert.Equal(t, "\\&.so x\na \\e \\-\\-b\n\\&.x \\(aqq\\(aq", roff(".so x\na \\ --b\n.x 'q'"))
}
