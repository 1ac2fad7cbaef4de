package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/benchmarks/internal/report"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// redislimit's REFERENCE.md and the table show the results that were measured.
func TestRedis_ThePagesShowTheResults(t *testing.T) {
	var r redisResults
	require.NoError(t, results.Load(redisFile, &r))
	full, err := os.ReadFile(redisTable)
	require.NoError(t, err)
	assert.Equal(t, r.full(), string(full))
	page, err := os.ReadFile(redisPage)
	require.NoError(t, err)
	section, err := report.Section(string(page), redisSection)
	require.NoError(t, err)
	assert.Equal(t, r.section(), section)
}

func TestRedis_AskingForWhatThereIsNot(t *testing.T) {
	for _, args := range [][]string{{"redis", "--rounds", "0"}, {"redis", "--sample", "0s"}, {"redis", "now"}} {
		code, stdout, stderr := command(t, args...)
		assert.Equal(t, exitUsage, code, args)
		assert.NotEmpty(t, stderr)
		assert.Empty(t, stdout)
	}
}
