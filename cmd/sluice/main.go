// Command sluice serves rate limits, and tries them out before a server has to live with them.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/sluice/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/sluice/internal/report"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a file cannot be read, a port cannot be opened, the answer is no, and the like
	exitUsage  = 2 // the command line asks for something there is not

	exitInterrupted = 130 // as shells say of a command that SIGINT has ended
)

// failure is an error that is not the fault of the command line. All other
// errors are.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// errDenied is the failure of a command whose output says all.
var errDenied = errors.New("denied")

func main() {
	os.Exit(run(commandLine(os.Args), os.Stdin, os.Stdout, os.Stderr))
}

// commandLine is what follows the program's name. Under the name of Envoy's service, which has no commands, it serves:
// Envoy Gateway starts /bin/ratelimit.
func commandLine(args []string) []string {
	if filepath.Base(args[0]) == "ratelimit" {
		return append([]string{"serve"}, args[1:]...)
	}
	return args[1:]
}

// run executes a command line and returns the exit code. An error is one line on
// stderr.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.Annotations = map[string]string{asTyped: shellLine(args)}
	root.SetIn(stdin)
	out := &checkedOutput{Writer: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil && out.err != nil {
		err = failure{fmt.Errorf("writing: %w", out.err)}
	}
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errDenied) {
		return exitFailed
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), report.OneLine(err.Error()))
	if errors.Is(err, accesslog.ErrInterrupted) {
		return exitInterrupted
	}
	if errors.As(err, new(failure)) || errors.As(err, new(*fs.PathError)) { // cobra's commands return errors of writing as they are
		return exitFailed
	}
	return exitUsage
}

// checkedOutput remembers the first error of writing. Cobra says nothing of those of its help.
type checkedOutput struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (o *checkedOutput) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Serve rate limits, and try them out on real traffic",
		Long: `Sluice serves rate limits to Envoy and other proxies, and tries them out on real
traffic before a server has to live with them.`,
		Example: `  sluice replay
  sluice replay access.log --limit 60/m
  sluice recommend access.log
  sluice serve --rules rules/`,
		Version:            versionLine(buildInfo()),
		Args:               wantCommand,
		RunE:               func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // they take more than one line
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(usageTemplate(root))
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newReplay(), newRecommend(), newCompare(), newCheck(), newServe(), newAsk(), newVersion(root.Version), newMan())
	completeFlags(root)
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err != nil || !cmd.HasAvailableSubCommands() {
			return err
		}
		return wantCommand(cmd, rest)
	}
	return root
}

// flagWants is what flags take, by their types.
var flagWants = map[string]string{
	"bool":     "true or false",
	"duration": "a duration such as 30s or 1h",
	"float32":  "a number",
	"int":      fmt.Sprint("a whole number of at most ", math.MaxInt),
	"uint32":   fmt.Sprint("a whole number from 0 to ", uint32(math.MaxUint32)),
}

// flagError says what a flag takes that cannot take its value.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		if want := flagWants[bad.GetFlag().Value.Type()]; want != "" {
			return fmt.Errorf("--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), want)
		}
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// wantCommand refuses an argument of a command that has commands: it is the name of one
// that there is not.
func wantCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	last := len(names) - 1
	return fmt.Errorf("unknown command %q: want %s or %s", args[0], strings.Join(names[:last], ", "), names[last])
}

// usageTemplate is cobra's for 80 columns, and does not say that a command which has
// commands can be run without: then it prints help.
func usageTemplate(cmd *cobra.Command) string {
	return strings.NewReplacer(
		".FlagUsages", ".FlagUsagesWrapped 80",
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}",
	).Replace(cmd.UsageTemplate())
}
