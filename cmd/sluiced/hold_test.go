package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// TestHold_Page: the rules and the commands of the page for language models do what it says, by curl.
func TestHold_Page(t *testing.T) {
	curl := servetest.Installed(t, "curl", "apt-get install curl")
	data, err := os.ReadFile("LLM.md")
	require.NoError(t, err)
	rules := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(data))
	require.NotNil(t, rules)
	p := startServe(t, nil, "--rules", servetest.Files(t, map[string]string{"llm.yaml": rules[1]}), "--manual-clock")
	run := func(command string) string {
		command = strings.ReplaceAll(command, "localhost:8080", p.addresses["http"]) + ` -w ' %{http_code}'`
		cmd := exec.Command("sh", "-c", command)
		cmd.Env = []string{"PATH=" + filepath.Dir(curl) + ":/bin:/usr/bin"}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
		return string(out)
	}
	commands := regexp.MustCompile(`(?s)    (curl -s \S+.*?')\n\n`).FindAllStringSubmatch(string(data), -1)
	require.Len(t, commands, 3)
	hold, extend, settle := commands[0][1], commands[1][1], commands[2][1]
	const left = `"rule":"llm.tokens","limit":100000,"remaining":`
	for range 2 { // and again, as if the answer had been lost
		assert.Contains(t, run(hold), left+`18500}`)
	}
	for range 2 {
		assert.Regexp(t, `(?s)"code":"OK".* 200$`, run(extend))
	}
	assert.Contains(t, run(strings.ReplaceAll(hold, "req-1", "req-2")), left+`16500}`, "2000 are held")
	for range 2 {
		assert.Regexp(t, `(?s)"code":"OK".* 200$`, run(settle))
	}
	assert.Regexp(t, ` 404$`, run(strings.ReplaceAll(settle, "812", "813")))
	assert.Contains(t, run(strings.ReplaceAll(hold, "req-1", "req-3")), left+`16188}`, "812, 1500 and 1500 are used or held")
	denied := run(strings.ReplaceAll(strings.ReplaceAll(hold, "req-1", "req-4"), "1500", "16189"))
	assert.Regexp(t, `"denied_by":"llm.tokens","retry_after":0.036,(?s:.*) 429$`, denied)
	release := strings.ReplaceAll(strings.ReplaceAll(settle, "req-1", "req-2"), "/settle", "/release")
	release = regexp.MustCompile(`, "hits": \d+`).ReplaceAllString(release, "")
	assert.Regexp(t, ` 200$`, run(release))
	assert.Contains(t, run(strings.ReplaceAll(hold, "req-1", "req-5")), left+`16188}`)
}
