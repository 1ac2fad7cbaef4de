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
	var o rules.Options
	var store string
	cmd := &cobra.Command{
		Use:   "check [--merge] [--store-keys NAMES] PATH...",
		Short: "Check files of rules",
		Long: `Check reads files of rules, and directories of them, as one set, and prints all
that is wrong with them: a line each, with the file, the line and the column,
what is wrong and what would be accepted.

Of rules with weights, scale or then it says what a request costs, with an
example.

With --store-keys it also says what "serve --redis" would refuse, since a store
does not keep it. It asks no store.

It exits with 0 if the files are fine, 1 if there are errors or warnings, and 2
if the command line is wrong. Files with warnings load all the same.`,
		Example: `  sluice check rules/
  sluice check --merge a.yaml b.yaml
  sluice check --store-keys sluice rules/`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no path: want files of rules, or directories")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if store != "" {
				if err := service.CheckKeys(store); err != nil {
					return err
				}
			}
			return check(cmd.OutOrStdout(), args, o, store)
		},
	}
	cmd.Flags().BoolVar(&o.MergeDomains, "merge", false, "let several files name the same domain")
	cmd.Flags().StringVar(&store, "store-keys", "", "check for a store, too, as serve has it: sluice, or\nupstream; empty for counts in memory")
	return cmd
}

// check loads the files at the paths and reports on them, for a store if there are names of its keys.
func check(out io.Writer, paths []string, o rules.Options, store string) error {
	files, other, err := rules.Read(paths)
	if err != nil {
		return failure{err}
	}
	if len(files) == 0 {
		return failure{service.NoFiles(paths)}
	}
	set, problems, err := loadFor(files, o, store)
	if err != nil {
		return failure{err}
	}
	for _, name := range other {
		fmt.Fprintf(out, "%s: not read: its name does not end in .yaml or .yml\n", report.OneLine(name))
	}
	if set != nil {
		for _, r := range set.Rules() {
			if text := r.Explain(); text != "" {
				fmt.Fprintln(out, report.OneLine(text))
			}
		}
	}
	faults := 0
	for _, p := range problems {
		fmt.Fprintln(out, report.OneLine(p.String())) // a terminal may obey what a file has
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

// loadFor returns the rules, and what is wrong with them: by file, and what a store does not keep behind the rest.
func loadFor(files []rules.File, o rules.Options, store string) (*rules.Set, []rules.Problem, error) {
	var failed *rules.LoadError
	set, err := rules.Load(files, o)
	if errors.As(err, &failed) {
		return nil, failed.Problems, nil
	}
	if err != nil || store == "" {
		return set, set.Warnings(), err
	}
	problems := set.Warnings()
	err = service.CheckStored(set, store)
	if errors.As(err, &failed) {
		return set, append(problems, failed.Problems...), nil
	}
	return set, problems, err
}
