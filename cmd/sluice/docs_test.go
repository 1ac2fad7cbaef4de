package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/sluice/internal/service"
)

// TestDocs_FlagsAndFiles: what the pages name is there.
func TestDocs_FlagsAndFiles(t *testing.T) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	new(service.Config).Flags(flags)
	others := []*pflag.FlagSet{newAsk().Flags(), newReplay().Flags(), newRecommend().Flags(), newCompare().Flags()}
	for _, page := range []string{"README.md", "SERVE.md", "../../deploy/PROXIES.md"} {
		data, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, flag := range regexp.MustCompile(`--([a-z][a-z0-9-]+)`).FindAllStringSubmatch(string(data), -1) {
			known := func(f *pflag.FlagSet) bool { return f.Lookup(flag[1]) != nil }
			assert.True(t, known(flags) || slices.ContainsFunc(others, known) || flag[1] == "help", "%s: %s", page, flag[0])
		}
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(data), -1) {
			if !strings.Contains(link[1], "://") {
				assert.FileExists(t, filepath.Join(filepath.Dir(page), link[1]), page)
			}
		}
	}
}

// TestDocs_Rules: the rules of the page for proxies load without a warning.
func TestDocs_Rules(t *testing.T) {
	data, err := os.ReadFile("../../deploy/PROXIES.md")
	require.NoError(t, err)
	text := string(data)
	begin := strings.Index(text, "```yaml\ndomain")
	require.Positive(t, begin)
	text, _, _ = strings.Cut(text[begin+len("```yaml\n"):], "```")
	code, stdout, stderr := execute(nil, "check", files(t, map[string]string{"web.yaml": text}))
	assert.Equal(t, exitOK, code, stdout+stderr)
}
