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
	others := []*pflag.FlagSet{newAsk().Flags(), newReplay().Flags(), newCheck().Flags(), newRecommend().Flags(), newCompare().Flags()}
	for _, page := range []string{"README.md", "SERVE.md", "REFERENCE.md", "FLEET.md", "../../deploy/PROXIES.md"} {
		data, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, flag := range regexp.MustCompile(`--([a-z][a-z0-9-]+)`).FindAllStringSubmatch(string(data), -1) {
			known := func(f *pflag.FlagSet) bool { return f.Lookup(flag[1]) != nil }
			assert.True(t, known(flags) || slices.ContainsFunc(others, known) || flag[1] == "help", "%s: %s", page, flag[0])
		}
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(data), -1) {
			if file, heading, _ := strings.Cut(link[1], "#"); !strings.Contains(link[1], "://") {
				there, err := os.ReadFile(filepath.Join(filepath.Dir(page), file))
				if assert.NoError(t, err, page) && heading != "" {
					assert.Contains(t, headings(string(there)), heading, "%s: %s", page, link[1])
				}
			}
		}
	}
}

// headings are the names by which links reach the headings of a page.
func headings(page string) (out []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out = append(out, strings.ReplaceAll(name, " ", "-"))
	}
	return out
}

// TestDocs_Serve: the page that people begin with stays short.
func TestDocs_Serve(t *testing.T) {
	data, err := os.ReadFile("SERVE.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(data))), 1500, "REFERENCE.md has room")
}

// TestDocs_Metrics: the reference names all metrics of the service, with a store or without.
func TestDocs_Metrics(t *testing.T) {
	data, err := os.ReadFile("REFERENCE.md")
	require.NoError(t, err)
	p := startServe(t, nil, "--rules", "../../examples/rules", "--redis", "127.0.0.1:1")
	exposition, err := plainGet("http://" + p.addresses["metrics"] + "/metrics")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (sluice_\S+)`).FindAllStringSubmatch(exposition, -1) {
		assert.True(t, strings.Contains(string(data), "`"+m[1]+"`") || strings.Contains(string(data), "`"+m[1]+"{"), m[1])
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
