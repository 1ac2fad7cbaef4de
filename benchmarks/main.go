// Command benchmarks measures sluice beside other limiters and writes the results:
// tables, charts and sections of the READMEs. Run it in its own folder.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/benchmarks/internal/guard"
	"github.com/sluice-go/sluice/benchmarks/internal/report"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // something could not be measured, read or written
	exitUsage  = 2 // the command line asks for something there is not
)

// failure is an error that is not the fault of the command line. All other errors are.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// errSilent is the failure of a command that has already said why.
var errSilent = errors.New("already reported")

// published is the folder of the results that are committed. Only they are in the
// READMEs.
const published = "results"

// pages are the READMEs with sections that are generated.
var pages = []struct {
	path, section string
	make          func(results.Results) string
}{
	{filepath.Join("..", "README.md"), report.Benchmarks, report.Readme},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code. An error is one line on
// stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errSilent) {
		return exitFailed
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), strings.Join(strings.Fields(err.Error()), " "))
	if errors.As(err, new(failure)) {
		return exitFailed
	}
	return exitUsage
}

func newRoot() *cobra.Command {
	p := plan{}
	root := &cobra.Command{
		Use:   "benchmarks",
		Short: "Measure sluice beside other limiters",
		Long: `Measures sluice beside other limiters and writes tables, charts and the sections
of the READMEs. A run of a part (--only, --workloads, --parts, --quick) never
replaces the published results: without --out it writes to a temporary folder.`,
		Args:          cobra.NoArgs,
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAll(cmd, p) },
	}
	f := root.Flags()
	f.IntVar(&p.rounds, "rounds", 5, "how often every subject has its turns")
	f.StringVar(&p.only, "only", "", "measure the subjects whose names match this regular expression")
	f.StringSliceVar(&p.workloads, "workloads", nil, "measure the speed of these workloads only: hot, thousand, ...")
	f.StringSliceVar(&p.parts, "parts", nil, "make these measurements only: "+strings.Join(partNames(), ", "))
	f.BoolVar(&p.quick, "quick", false, "small sizes and short samples, to try it out: the figures mean nothing")
	f.StringVar(&p.out, "out", "", "folder for the results (default "+published+", for a complete run)")
	root.AddCommand(newReport(), newGuard(), newRedis(), newPromises())
	return root
}

func newReport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write tables, charts and READMEs again from the recorded results",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r results.Results
			err := results.Load(filepath.Join(out, results.File), &r)
			if err == nil {
				err = write(out, r)
			}
			if err == nil && isPublished(out) {
				err = errors.Join(rewriteRedis(), rewritePromises())
			}
			if err != nil {
				return failure{err}
			}
			fmt.Fprintln(cmd.OutOrStdout(), report.Summary(r))
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", published, "folder of the results")
	return cmd
}

func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:   "guard",
		Short: "Fail if sluice is far slower than it should be beside what one would write oneself",
		Long: `Measures sluice beside 30 lines on xsync for 8 s and compares the ratios with
bounds that a busy machine does not break, but a lost fast path does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows, err := guard.Run(cmd.Context(), guard.Config)
			if err != nil {
				return failure{err}
			}
			return verdict(cmd.OutOrStdout(), cmd.ErrOrStderr(), rows)
		},
	}
}

// verdict prints all rows, and a line on stderr for each that is lost.
func verdict(stdout, stderr io.Writer, rows []guard.Row) error {
	lost := 0
	for _, r := range rows {
		fmt.Fprintln(stdout, r)
		if r.Lost() {
			lost++
			fmt.Fprintf(stderr, "benchmarks guard: too slow: %s\n", r)
		}
	}
	if lost > 0 {
		return failure{errSilent}
	}
	return nil
}

// runAll makes the planned measurements, writes them, and says where to.
func runAll(cmd *cobra.Command, p plan) error {
	m, err := p.resolve(progress(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	out, err := p.folder()
	if err != nil {
		return failure{err}
	}
	r, err := m.run(cmd.Context())
	if err == nil {
		err = write(out, r)
	}
	if err != nil {
		return failure{err}
	}
	m.log("done: %s", out)
	fmt.Fprintln(cmd.OutOrStdout(), report.Summary(r))
	return nil
}

// progress returns a log of lines that begin with the time since it was made.
func progress(w io.Writer) func(format string, args ...any) {
	start := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(w, "%7.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// write writes the results to a folder, the samples first: they took the longest.
// If it is the folder of the published ones, the READMEs follow.
func write(out string, r results.Results) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := results.Save(filepath.Join(out, results.File), r); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "results.txt"), []byte(report.Text(r)), 0o644); err != nil {
		return err
	}
	charts, err := report.Charts(r)
	if err != nil {
		return err
	}
	for _, c := range charts {
		if err := os.WriteFile(filepath.Join(out, c.File), c.SVG, 0o644); err != nil {
			return err
		}
	}
	if !isPublished(out) {
		return nil
	}
	for _, page := range pages {
		if err := rewrite(page.path, page.section, page.make(r)); err != nil {
			return err
		}
	}
	return nil
}

func rewrite(path, section, body string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := report.Replace(string(old), section, body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// checkPages finds out before the run whether its end can be written.
func checkPages() error {
	for _, page := range pages {
		text, err := os.ReadFile(page.path)
		if err != nil {
			return fmt.Errorf("%w (run it in the folder benchmarks, or give --out)", err)
		}
		if _, err := report.Section(string(text), page.section); err != nil {
			return fmt.Errorf("%s: %w", page.path, err)
		}
	}
	return nil
}
