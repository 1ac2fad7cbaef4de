// Command sluiced serves rate limits to Envoy and other proxies. The tool for logs is sluice.
package main

import (
	"io"
	"os"
	"path/filepath"
	_ "time/tzdata" // for the calendars of rules, where there is no database of time zones, as in an image from scratch

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/service"
)

func main() {
	os.Exit(run(commandLine(os.Args), os.Stdin, os.Stdout, os.Stderr))
}

// commandLine is the part behind the program's name. Under the name of Envoy's service, which has no commands, it serves:
// Envoy Gateway starts /bin/ratelimit.
func commandLine(args []string) []string {
	if filepath.Base(args[0]) == "ratelimit" {
		return append([]string{"serve"}, args[1:]...)
	}
	return args[1:]
}

// run executes a command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(newRoot(), args, stdin, stdout, stderr, nil)
}

func newRoot() *cobra.Command {
	program := cli.Program{
		Name:  "sluiced",
		Short: "Serve rate limits to Envoy and other proxies",
		Long: `Sluiced serves rate limits to Envoy and other proxies, and asks such a service.
The tool that tries limits out on logs is sluice.`,
		Example: `  sluiced serve --rules rules/
  sluiced ask -d api client=ann
  sluiced check --store-keys sluice rules/`,
		Commands: []*cobra.Command{newServe(), newAsk(), cli.NewCheck("sluiced", &cli.Store{Keys: service.Words["store-keys"], Check: service.CheckStored})},

		Sibling: "sluice", SiblingCommands: []string{"replay", "recommend", "compare"},
	}
	return program.Root()
}
