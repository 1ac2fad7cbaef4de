package clitest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Pages: the flags that the pages name are flags of the program, or of another one, and the files and headings that they link to are there.
func (p *Program) Pages(t *testing.T, others []string, pages ...string) {
	known := map[string]bool{"help": true}
	for _, name := range others {
		known[name] = true
	}
	flag := regexp.MustCompile(`--([a-z][a-z0-9-]+)`)
	for _, c := range p.Root().Commands() {
		for _, m := range flag.FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
			known[m[1]] = true
		}
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range flag.FindAllStringSubmatch(string(data), -1) {
			assert.True(t, known[m[1]], "%s: %s", page, m[0])
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
