// Command sluice tries rate limits out before a server has to live with them.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/sluice/internal/report"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the log cannot be read, or the report cannot be written
	exitUsage  = 2 // the command line asks for something there is not
)

// failure is an error that is not the fault of the command line. All other
// errors are.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code. An error is one line on
// stderr.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), report.OneLine(err.Error()))
	if errors.As(err, new(failure)) {
		return exitFailed
	}
	return exitUsage
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:                "sluice",
		Short:              "Try rate limits out on real traffic",
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // they take more than one line
	}
	root.Version = versionLine(buildInfo())
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newReplay(), newVersion(root.Version))
	return root
}
