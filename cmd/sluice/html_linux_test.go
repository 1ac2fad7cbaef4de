package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// browse opens a page in a browser without a screen, and returns what it has become and what the console says.
func browse(t *testing.T, path string, flags ...string) (dom, console string) {
	t.Helper()
	chromium := servetest.Installed(t, "chromium", "apt-get install chromium")
	ctx, cancel := context.WithTimeout(t.Context(), servetest.Patience)
	defer cancel()
	flags = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--enable-logging=stderr", "--user-data-dir=" + t.TempDir(), "--virtual-time-budget=3000", "--dump-dom"}, flags...)
	cmd := exec.CommandContext(ctx, chromium, append(flags, "file://"+path)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, errs.String())
	for line := range strings.Lines(errs.String()) {
		if strings.Contains(line, "CONSOLE") {
			console += line
		}
	}
	return string(out), console
}

// hostile is a log whose clients are markup.
func hostile(t *testing.T) string {
	var log strings.Builder
	for _, client := range []string{`</script><script>document.title='taken'</script>`, `<img src=x onerror=document.title='taken'>`, `"]]}}-->`, "{{.}}", "\u202egnitirw"} {
		for range 40 {
			log.WriteString(`{"client":"` + strings.ReplaceAll(client, `"`, `\"`) + `","ts":"2026-03-02T09:00:00Z"}` + "\n")
		}
	}
	return writeFile(t, log.String())
}

// pages are the command lines whose pages a browser opens, and how many charts these have.
func pages(t *testing.T) map[string][]string {
	if testing.Short() {
		return map[string][]string{"3 recommend": {"recommend"}}
	}
	rules := rulesFile(t, "- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 20}}\n")
	return map[string][]string{
		"3 recommend": {"recommend", "--client-field", "client", "--time-field", "ts", hostile(t), "--clients", "70%"},
		"3 check":     {"recommend", dayLog(t, 1, 2, 30), "--check", dayLog(t, 4, 40), "--max-clients", "9"},
		"3 denied":    {"recommend", "--clients", "90%"},
		"1 replay":    {"replay", "--client-field", "client", "--time-field", "ts", hostile(t), "--limit", "20/m"},
		"2 against":   {"replay", "--rules", rules, "--against", rules, "--limit", "5/m"},
		"2 compare":   {"compare", "--pattern", "diurnal"},
		"2 flood":     {"compare", "--pattern", "flood"},
	}
}

// TestHTML_Browser opens each page in Chromium: all charts are drawn, the console says nothing, and names of clients stay text. With axe-core, whose
// axe.min.js SLUICE_AXE names, it is asked for what keeps people out.
func TestHTML_Browser(t *testing.T) {
	servetest.Installed(t, "chromium", "apt-get install chromium")
	sparks := 0
	for name, args := range pages(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "report.html")
			code, _, stderr := execute(nil, append(args, "--html", path)...)
			require.Equal(t, cli.ExitOK, code, stderr)
			addAxe(t, path)
			for scheme, number := range map[string]string{"light": "1", "dark": "0"} {
				if scheme == "dark" && name[2:] != "recommend" && name[2:] != "denied" && name[2:] != "compare" {
					continue // it has nothing that is not there, too
				}
				dom, console := browse(t, path, "--blink-settings=preferredColorScheme="+number)
				assert.Empty(t, console)
				charts := name[:1]
				assert.Contains(t, dom, ` data-charts="`+charts+`"`)
				result := regexp.MustCompile(` data-axe="([^"]*)"`).FindStringSubmatch(dom)
				dom = regexp.MustCompile(`(?s)<script.*?</script>`).ReplaceAllString(dom, "")
				assert.Equal(t, charts, strconv.Itoa(strings.Count(dom, "<canvas")))
				if strings.Contains(dom, ">Clients with the most denials<") {
					sparks++
					assert.Regexp(t, `<svg class="spark" role="img" aria-label="denials of [^"]*, at most [0-9]+, in [0-9]+ equal parts of the time: [0-9, ]+" [^>]*><path d="M`, dom)
				}
				assert.NotContains(t, dom, "<img")
				assert.NotContains(t, dom, "<title>taken")
				assert.Contains(t, html.UnescapeString(dom), "sluice "+args[0])
				if os.Getenv("SLUICE_AXE") != "" {
					require.NotNil(t, result, "axe-core has not run")
					assert.Regexp(t, `^[1-9][0-9]+ passed;$`, html.UnescapeString(result[1]), scheme)
				}
			}
		})
	}
	assert.True(t, sparks > 0 || testing.Short(), "no page has had sparklines")
}

// addAxe puts axe-core into a page, if there is one, and into the list of scripts that the page lets run.
func addAxe(t *testing.T, path string) {
	t.Helper()
	script := os.Getenv("SLUICE_AXE")
	if script == "" {
		t.Log("without axe-core: npm install axe-core, and name its axe.min.js in SLUICE_AXE")
		return
	}
	axe, err := os.ReadFile(script)
	require.NoError(t, err)
	addScript(t, path, "</html>", `axe.run().then(r => document.documentElement.dataset.axe = r.passes.length + " passed;" + r.violations.map(v => v.id + ": " + v.nodes[0].html).join("; "))`)
	addScript(t, path, "</html>", string(axe)) // in front of that
}

// addScript puts a script into a page, behind a tag, and into the list of scripts that the page lets run.
func addScript(t *testing.T, path, behind, script string) {
	t.Helper()
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	hash := sha256.Sum256([]byte(script))
	for old, new := range map[string]string{
		"script-src ": "script-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "' ",
		behind:        behind + "<script>" + script + "</script>",
	} {
		require.Contains(t, string(page), old)
		page = bytes.Replace(page, []byte(old), []byte(new), 1)
	}
	require.NoError(t, os.WriteFile(path, page, 0o600))
}
