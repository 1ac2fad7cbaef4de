// Package cli has the parts that the command lines of sluice and sluiced share: exit codes, errors of one line, help for 80 columns, and the commands that
// both have.
package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/internal/message"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // a file cannot be read, a port cannot be opened, the answer is no, and the like
	ExitUsage  = 2 // the command line asks for something there is not

	ExitInterrupted = 130 // as shells say of a command that SIGINT has ended
)

// failure is an error that is not the fault of the command line. All other
// errors are.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Fail marks an error that is not the fault of the command line.
func Fail(err error) error { return failure{err} }

// ErrDenied is the failure of a command whose output says all.
var ErrDenied = errors.New("denied")

// A Program is a command with commands.
type Program struct {
	Name, Short, Long, Example string
	Commands                   []*cobra.Command // besides version and man

	// Sibling is the other program, and its commands: who types one of them is told where it is.
	Sibling         string
	SiblingCommands []string
}

// Root makes the root of the program's commands.
func (p *Program) Root() *cobra.Command {
	root := &cobra.Command{
		Use:                p.Name,
		Short:              p.Short,
		Long:               p.Long,
		Example:            p.Example,
		Version:            versionLine(p.Name, buildInfo()),
		Args:               p.wantCommand,
		RunE:               func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // they take more than one line
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(usageTemplate(root))
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(p.Commands...)
	root.AddCommand(newVersion(p.Name, root.Version), newMan(p.Name))
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err != nil || !cmd.HasAvailableSubCommands() {
			return err
		}
		return p.wantCommand(cmd, rest)
	}
	return root
}

// wantCommand refuses an argument of a command that has commands: it is the name of one
// that there is not.
func (p *Program) wantCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	for _, name := range p.SiblingCommands {
		if !cmd.HasParent() && args[0] == name {
			return fmt.Errorf("%s is a command of %s: want %s %s", name, p.Sibling, p.Sibling, name)
		}
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := nearest(args[0], names); near != "" {
		return fmt.Errorf("unknown command %q: did you mean %s?", args[0], near)
	}
	return fmt.Errorf("unknown command %q: want %s", args[0], message.Or(names))
}

// Run executes a command line and returns the exit code. An error is one line on stderr. stopped is the error of a command that a signal has
// ended, or nil.
func Run(root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer, stopped error) int {
	root.SetArgs(args)
	root.SetIn(stdin)
	out := &checkedOutput{Writer: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil && out.err != nil {
		err = Fail(fmt.Errorf("writing: %w", out.err))
	}
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, ErrDenied) {
		return ExitFailed
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), message.OneLine(err.Error()))
	if stopped != nil && errors.Is(err, stopped) {
		return ExitInterrupted
	}
	if errors.As(err, new(failure)) || errors.As(err, new(*fs.PathError)) { // cobra's commands return errors of writing as they are
		return ExitFailed
	}
	return ExitUsage
}

// checkedOutput remembers the first error of writing. Cobra drops the errors of writing its help.
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

// Unchecked returns a command's output whose errors are no failure of the command.
func Unchecked(w io.Writer) io.Writer {
	if o, ok := w.(*checkedOutput); ok {
		return o.Writer
	}
	return w
}

// flagWants are the values of flags, by their types.
var flagWants = map[string]string{
	"bool":     "true or false",
	"duration": "a duration such as 30s or 1h",
	"float32":  "a number",
	"int":      fmt.Sprint("a whole number of at most ", math.MaxInt),
	"uint32":   fmt.Sprint("a whole number from 0 to ", uint32(math.MaxUint32)),
}

// flagError names the values that a flag takes, or the flag that is nearest to an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		if want := flagWants[bad.GetFlag().Value.Type()]; want != "" {
			return fmt.Errorf("--%s %q: want %s", bad.GetFlag().Name, bad.GetValue(), want)
		}
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if near := nearest(unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Errorf("unknown flag --%s: did you mean --%s?", unknown.GetSpecifiedName(), near)
		}
	}
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// usageTemplate is cobra's with flags in groups and 80 columns, and does not say that a command which has
// commands can be run without: then it prints help.
func usageTemplate(cmd *cobra.Command) string {
	return strings.NewReplacer(
		"Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}", "{{flagHelp .LocalFlags}}",
		"{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}",
	).Replace(cmd.UsageTemplate())
}
