package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/promises"
	"github.com/sluice-go/sluice/benchmarks/internal/report"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// TestPromises_ThePageShowsThePublishedResults: of all limiters, none of sluice's with a counterexample.
func TestPromises_ThePageShowsThePublishedResults(t *testing.T) {
	var r promisesResults
	require.NoError(t, results.Load(promisesFile, &r))
	page, err := os.ReadFile(promisesPage)
	require.NoError(t, err)
	section, err := report.Section(string(page), promisesSection)
	require.NoError(t, err)
	assert.Equal(t, r.section(), section)
	assert.Len(t, r.Results, len(promises.Subjects()))
	for _, result := range r.Results {
		if result.Module == "github.com/sluice-go/sluice" {
			assert.Nil(t, result.Smallest, result.Subject)
		}
	}
}

func TestPromises_Usage(t *testing.T) {
	for _, args := range [][]string{
		{"promises", "--rounds", "0"}, {"promises", "--span", "0s"}, {"promises", "now"}, {"promises", "--only", "("},
		{"promises", "--only", "nobody"}, {"promises", "--only", "sluice", "--publish"},
	} {
		code, _, stderr := command(t, args...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, stderr, "benchmarks promises: ")
	}
}

// TestPromises_OfOneLimiter: the table, without publishing it.
func TestPromises_OfOneLimiter(t *testing.T) {
	benchmarksFolder(t)
	code, stdout, stderr := command(t, "promises", "--only", "sluice GCRA", "--rounds", "1", "--span", "1ms")
	require.Equal(t, exitOK, code, stderr)
	assert.Contains(t, stdout, "| sluice GCRA | - | WorstCase: Limiter.WorstCase(d) | yes |  |")
	assert.NoFileExists(t, promisesFile)
}
