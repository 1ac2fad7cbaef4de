package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
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
	return theProgram.Execute(nil, args...)
}

var theProgram = clitest.Program{Root: newRoot, Run: run, Commands: "ask, check, completion, serve or version", Sibling: "sluice replay"}

func TestCommandLine(t *testing.T) {
	theProgram.Test(t)
	_, stdout, _ := execute()
	assert.Contains(t, stdout, "\n  sluiced serve --rules rules/\n")
}

// TestHelp_TheInterface: help lists the flags that scripts use, and no flag that only tests use.
func TestHelp_TheInterface(t *testing.T) {
	_, serve, _ := execute("serve", "--help")
	for _, flag := range []string{"--rules", "--grpc", "--http", "--debug", "--metrics", "--metrics-names", "--uds", "--state", "--drain", "--max-keys"} {
		assert.Contains(t, serve, flag+" ")
	}
	assert.NotContains(t, serve, "manual-clock")
}

// TestHelp_Groups: the flags of serve are listed by subject, each once, in help and on the page alike.
func TestHelp_Groups(t *testing.T) {
	_, serve, _ := execute("serve", "--help")
	_, list, _ := strings.Cut(serve, "\nRules:")
	var titles []string
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, " ") && line != "\n" {
			titles = append(titles, strings.TrimSuffix(line, ":\n"))
		}
	}
	assert.Equal(t, []string{"Rules from a management server", "Ports and connections", "Answers", "Proxies that ask /check", "Counts in memory",
		"Counts in Redis", "Sizes of requests", "Metrics, log and end", "Other flags"}, titles)
	_, other, _ := strings.Cut(serve, "\nOther flags:\n")
	assert.Equal(t, "  -h, --help   help for serve\n", other)
	serveCmd, _, err := newRoot().Find([]string{"serve"})
	require.NoError(t, err)
	dir := t.TempDir()
	code, _, stderr := execute("man", dir)
	require.Equal(t, cli.ExitOK, code, stderr)
	page, err := os.ReadFile(filepath.Join(dir, "sluiced-serve.1"))
	require.NoError(t, err)
	serveCmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			assert.Equal(t, 1, strings.Count(list, "\n      --"+f.Name+" "), f.Name)
			assert.Equal(t, 1, strings.Count(string(page), "\n      \\-\\-"+strings.ReplaceAll(f.Name, "-", `\-`)+" "), f.Name)
		}
	})
	for _, title := range titles[:len(titles)-1] {
		assert.Contains(t, string(page), "\n.SS "+title+"\n")
	}
}

// TestCompletion: shells are told the words that flags take.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"serve --log ":              "text\njson\n:4\n",
		"serve --log-level ":        "debug\ninfo\nwarn\nerror\n:4\n",
		"serve --metrics-names ":    "sluice\nupstream\n:4\n",
		"serve --store-keys ":       "sluice\nupstream\n:4\n",
		"serve --on-store-failure ": "local-share\nopen\nclosed\n:4\n",
		"serve --redis-type ":       "single\ncluster\nsentinel\n:4\n",
		"check --store-keys ":       "sluice\nupstream\n:4\n",
		"serve --rules ":            ":0\n", // files
		"ser":                       "serve\tServe rate limits to Envoy and other proxies\n:4\n",
	} {
		code, stdout, _ := execute(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		assert.Equal(t, cli.ExitOK, code)
		assert.Equal(t, want, stdout, line)
	}
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
