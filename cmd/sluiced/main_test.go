package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice/cmd/internal/cli/clitest"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(servetest.AsProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// execute runs a command line.
func execute(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, nil, &out, &errs)
	return code, out.String(), errs.String()
}

var theProgram = clitest.Program{Root: newRoot, Run: run, Commands: "ask, check, completion, serve or version", Sibling: "sluice replay"}

func TestCommandLine(t *testing.T) {
	theProgram.Test(t)
	_, stdout, _ := execute()
	assert.Contains(t, stdout, "\n  sluiced serve --rules rules/\n")
}

// TestHelp_TheInterface: what scripts go by is in the help, and what is for tests only is not.
func TestHelp_TheInterface(t *testing.T) {
	_, serve, _ := execute("serve", "--help")
	for _, flag := range []string{"--rules", "--grpc", "--http", "--debug", "--metrics", "--metrics-names", "--uds", "--state", "--drain", "--max-keys"} {
		assert.Contains(t, serve, flag+" ")
	}
	assert.NotContains(t, serve, "manual-clock")
}

// TestCommandLine_Ratelimit: under the name of Envoy's service the program serves.
func TestCommandLine_Ratelimit(t *testing.T) {
	for _, c := range [][2][]string{
		{{"/bin/ratelimit"}, {"serve"}},
		{{"ratelimit", "--headers"}, {"serve", "--headers"}},
		{{"/bin/sluiced", "check", "x"}, {"check", "x"}},
		{{"sluiced"}, {}},
		{{"/ratelimit/sluiced", "serve"}, {"serve"}},
	} {
		assert.Equal(t, c[1], commandLine(c[0]), c[0])
	}
}
