// Command sluice tries rate limits out on real traffic, before a server has to live with them. The service is sluiced.
package main

import (
	"io"
	"os"
	_ "time/tzdata" // for calendars, where there is no database of time zones

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.Annotations = map[string]string{asTyped: shellLine(args)}
	return cli.Run(root, args, stdin, stdout, stderr, accesslog.ErrInterrupted)
}

func newRoot() *cobra.Command {
	program := cli.Program{
		Name:  "sluice",
		Short: "Try rate limits out on real traffic",
		Long: `Sluice tries rate limits out on real traffic before a server has to live with
them. The service for Envoy and other proxies is sluiced.`,
		Example: `  sluice replay
  sluice replay access.log --limit 60/m
  sluice recommend access.log
  sluice check rules/`,
		Commands: []*cobra.Command{newReplay(), newRecommend(), newCompare(), newCheck()},

		Sibling: "sluiced", SiblingCommands: []string{"serve", "ask"},
	}
	root := program.Root()
	completeFlags(root)
	return root
}
