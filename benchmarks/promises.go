package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/benchmarks/internal/machine"
	"github.com/sluice-go/sluice/benchmarks/internal/promises"
	"github.com/sluice-go/sluice/benchmarks/internal/report"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// The promises that were kept and broken in the committed run, and the page that shows them.
var (
	promisesFile = filepath.Join(published, "promises.json")
	promisesPage = "README.md"
)

const promisesSection = "promises"

// promisesResults are the content of promisesFile.
type promisesResults struct {
	Machine results.Machine
	Results []promises.Result
}

func newPromises() *cobra.Command {
	c, only, publish := promises.Config{}, "", false
	cmd := &cobra.Command{
		Use:   "promises",
		Short: "Find out which limiters keep what they promise",
		Long: `Drives every limiter through patterns of traffic in real time, and looks for a span in which it
admitted more than its documentation promises. A call counts at some instant between the readings of the clock before
and after it: only what is too much wherever the instants were is a counterexample.
With --publish it replaces results/promises.json and the section of README.md.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			subjects, err := promisesSubjects(only)
			switch {
			case err != nil:
				return err
			case c.Rounds < 1 || c.Span <= 0:
				return fmt.Errorf("--rounds %d --span %v: want 1 or more, for some time", c.Rounds, c.Span)
			case publish && only != "":
				return fmt.Errorf("--publish --only %s: want all limiters, to replace the published results", only)
			}
			c.Log = progress(cmd.ErrOrStderr())
			if err := runPromises(cmd, c, subjects, publish); err != nil {
				return failure{err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Rounds, "rounds", 5, "how often each limiter meets each situation")
	f.DurationVar(&c.Span, "span", 200*time.Millisecond, "how long a pattern takes")
	f.Uint64Var(&c.Seed, "seed", 1, "of all that is drawn")
	f.StringVar(&only, "only", "", "the limiters whose names match this regular expression")
	f.BoolVar(&publish, "publish", false, "replace the published results")
	return cmd
}

func promisesSubjects(only string) ([]promises.Subject, error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	var subjects []promises.Subject
	for _, s := range promises.Subjects() {
		if pattern.MatchString(s.Name) {
			subjects = append(subjects, s)
		}
	}
	if len(subjects) == 0 {
		return nil, fmt.Errorf("--only %s: matches no limiter", only)
	}
	return subjects, nil
}

func runPromises(cmd *cobra.Command, c promises.Config, subjects []promises.Subject, publish bool) error {
	all, err := promises.Run(cmd.Context(), c, subjects)
	if err != nil {
		return err
	}
	var modules []string
	for _, s := range subjects {
		modules = append(modules, s.Module)
	}
	r := promisesResults{machine.Describe(time.Now(), c.Rounds, modules), all}
	fmt.Fprint(cmd.OutOrStdout(), r.section())
	if !publish {
		return nil
	}
	if err := results.Save(promisesFile, r); err != nil {
		return err
	}
	return rewrite(promisesPage, promisesSection, r.section())
}

// rewritePromises makes the section again from the recorded results.
func rewritePromises() error {
	var r promisesResults
	if err := results.Load(promisesFile, &r); err != nil {
		return err
	}
	return rewrite(promisesPage, promisesSection, r.section())
}

func (r promisesResults) section() string { return report.PromisesSection(r.Results, r.Machine) }
