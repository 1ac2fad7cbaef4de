package grpclimit_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The README has the beginning of Example, word for word.
func TestREADME_HasTheExample(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, body, ok := strings.Cut(string(source), "func Example() {\n")
	require.True(t, ok)
	body, _, ok = strings.Cut(body, "\n\tdefer")
	require.True(t, ok)
	shown := strings.ReplaceAll(strings.TrimPrefix(body, "\t"), "\n\t", "\n")
	assert.Equal(t, 6, 1+strings.Count(shown, "\n"))
	assert.Contains(t, string(readme), "```go\n"+shown+"\n```\n")
}
