package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

func TestDocs_FlagsAndFiles(t *testing.T) {
	theProgram.Pages(t, []string{"descriptor", "against", "for"}, // of sluice replay and check
		"SERVE.md", "REFERENCE.md", "FLEET.md", "LLM.md", "../../deploy/PROXIES.md")
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
	code, stdout, stderr := execute("check", servetest.Files(t, map[string]string{"web.yaml": text}))
	assert.Equal(t, cli.ExitOK, code, stdout+stderr)
}
