package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCommandLine_Ratelimit: under the name of Envoy's service the program serves.
func TestCommandLine_Ratelimit(t *testing.T) {
	for _, c := range [][2][]string{
		{{"/bin/ratelimit"}, {"serve"}},
		{{"ratelimit", "--headers"}, {"serve", "--headers"}},
		{{"/bin/sluice", "check", "x"}, {"check", "x"}},
		{{"sluice"}, {}},
		{{"/ratelimit/sluice", "serve"}, {"serve"}},
	} {
		assert.Equal(t, c[1], commandLine(c[0]), c[0])
	}
}
