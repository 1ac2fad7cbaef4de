package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/sluice/internal/report"
	"github.com/sluice-go/sluice/cmd/sluice/internal/service"
	"github.com/sluice-go/sluice/rules"
)

func newCheck() *cobra.Command {
	var merge bool
	cmd := &cobra.Command{
		Use:   "check [--merge] PATH...",
		Short: "Check files of rules",
		Long: `Check reads files of rules, and directories of them, as one set, and prints all
that is wrong with them: a line each, with the file, the line and the column,
what is wrong and what would be accepted.

It exits with 0 if the files are fine, 1 if there are errors or warnings, and 2
if the command line is wrong. Files with warnings load all the same.`,
		Example: `  sluice check rules/
  sluice check --merge a.yaml b.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no path: want files of rules, or directories")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return check(cmd.OutOrStdout(), args, rules.Options{MergeDomains: merge})
		},
	}
	cmd.Flags().BoolVar(&merge, "merge", false, "let several files name the same domain")
	return cmd
}

// check loads the files at the paths and reports on them.
func check(out io.Writer, paths []string, o rules.Options) error {
	files, other, err := rules.Read(paths)
	if err != nil {
		return failure{err}
	}
	if len(files) == 0 {
		return failure{service.NoFiles(paths)}
	}
	set, err := rules.Load(files, o)
	var problems []rules.Problem
	var failed *rules.LoadError
	switch {
	case err == nil:
		problems = set.Warnings()
	case errors.As(err, &failed):
		problems = failed.Problems
	default:
		return failure{err}
	}
	for _, name := range other {
		fmt.Fprintf(out, "%s: not read: its name does not end in .yaml or .yml\n", name)
	}
	faults := 0
	for _, p := range problems {
		fmt.Fprintln(out, p)
		if !p.Warning {
			faults++
		}
	}
	if len(problems) > 0 {
		return failure{fmt.Errorf("%s and %s in %s", report.Count(faults, "error"), report.Count(len(problems)-faults, "warning"), report.Count(len(files), "file"))}
	}
	if _, err := fmt.Fprintf(out, "%s in %s of %s\n", report.Count(set.Len(), "rule"), report.Count(len(set.Domains()), "domain"), report.Count(len(files), "file")); err != nil {
		return failure{err}
	}
	return nil
}
