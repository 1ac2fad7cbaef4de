package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/compare"
	"github.com/sluice-go/sluice/cmd/internal/recommend"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/report"
	"github.com/sluice-go/sluice/limittest"
)

func compareLong() string {
	text := `Compare lets the algorithms decide the same requests under one limit, in the
requests' own time: those of a --pattern, or of an access log.

`
	for _, p := range compare.Patterns {
		text += fmt.Sprintf("  %-9s %s\n", p.Name, p.About)
	}
	return text + `
The report has what each admits, of the requests and of what the rate comes to
in the time of each key; the most that a key was admitted in any span of a tenth
of the period, of one, and of ten, beside what the algorithm promises; and the
memory of a limiter, measured with many keys. A span is without its end, so what
is promised for a minute is Limiter.WorstCase of a minute less 1 ns.

` + inputHelp
}

const compareExample = `  sluice compare
  sluice compare --pattern bursty --limit '100/s burst 20'
  sluice compare access.log --limit 60/m --algorithm gcra,fixed-window`

// compareFlags are the flags of the command as given.
type compareFlags struct {
	pattern    string
	limit      string
	algorithms []string
	seed       uint64
	requests   int
	output     string
	input      input
	html       htmlFlag
}

func newCompare() *cobra.Command {
	var flags compareFlags
	cmd := &cobra.Command{
		Use:     "compare [FILE]...",
		Short:   "Compare algorithms under one limit, on a pattern or an access log",
		Long:    compareLong(),
		Example: compareExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&flags.pattern, "pattern", "boundary", "`PATTERN` of requests, without FILE")
	f.StringVar(&flags.limit, "limit", defaultLimit, "`LIMIT` of each key; windows have no burst")
	f.StringSliceVar(&flags.algorithms, "algorithm", nil, "algorithm `NAME`; repeatable (default all)")
	f.Uint64Var(&flags.seed, "seed", 1, "`SEED` of what is drawn by chance")
	f.IntVar(&flags.requests, "requests", 0, "`N` requests (default what the pattern has)")
	f.StringVar(&flags.output, "output", "text", "`FORM` of the report: text or json")
	flags.html.add(cmd)
	flags.input.add(cmd)
	return cmd
}

// run is the command. It looks at the whole command line before it opens the log.
func (f *compareFlags) run(cmd *cobra.Command, args []string) error {
	write, err := textOrJSON(f.output, report.CompareText, report.CompareJSON)
	if err != nil {
		return err
	}
	engine, limit, clients, err := f.engine()
	if err != nil {
		return err
	}
	var rep report.Comparison
	var readErr error
	if len(args) == 0 {
		arrivals, err := f.arrivals(cmd, limit)
		if err != nil {
			return err
		}
		for a := range arrivals {
			engine.Decide(clients.ID([]byte(a.Key)), a.At)
		}
		rep.Source = f.pattern
		rep.Note = fmt.Sprintf(" (made up; --seed %d makes the same again)", f.seed)
	} else {
		if cmd.Flags().Changed("pattern") || f.requests != 0 {
			return errors.New("--pattern and --requests say what to make up: want them without FILE")
		}
		if rep.Report, readErr = f.readLog(cmd, args, engine, clients); rep.Log.Counted == 0 {
			return readErr
		}
	}
	if rep.Found, err = engine.Result(5); err != nil {
		return err
	}
	rep.Result = rep.Found.Replay
	if err := write(cmd.OutOrStdout(), rep); err != nil {
		return cli.Fail(fmt.Errorf("writing the report: %w", err))
	}
	if err := f.html.write(cmd, func(w io.Writer, command string) error { return report.CompareHTML(w, rep, command) }); err != nil {
		return err
	}
	return readErr
}

// engine makes the comparison of the command line.
func (f *compareFlags) engine() (*compare.Comparison, sluice.Limit, *replay.Clients, error) {
	limit, err := replay.ParseLimit(f.limit)
	if err != nil {
		return nil, limit, nil, fmt.Errorf("--limit: %w", err)
	}
	if limit == sluice.DenyAll || limit == sluice.Unlimited {
		return nil, limit, nil, fmt.Errorf("--limit %q leaves nothing to compare: want a count per time, as in 60/m", f.limit)
	}
	if err := recommend.CheckLimit(limit); err != nil {
		return nil, limit, nil, fmt.Errorf("--limit %q: %w", f.limit, err)
	}
	algorithms := replay.Algorithms()
	if len(f.algorithms) > 0 {
		algorithms = nil
	}
	for _, name := range f.algorithms {
		a, err := replay.ParseAlgorithm(name)
		if err != nil {
			return nil, limit, nil, err
		}
		if !slices.Contains(algorithms, a) {
			algorithms = append(algorithms, a)
		}
	}
	clients, err := replay.NewClients(replay.IPv6Prefix)
	if err != nil {
		return nil, limit, nil, err
	}
	engine, err := compare.New(limit, algorithms, clients)
	return engine, limit, clients, err
}

func (f *compareFlags) arrivals(cmd *cobra.Command, limit sluice.Limit) (iter.Seq[limittest.Arrival], error) {
	if f.requests < 0 || f.requests > compare.MaxRequests || f.requests == 0 && cmd.Flags().Changed("requests") {
		return nil, fmt.Errorf("--requests %d: want 1 to %d", f.requests, compare.MaxRequests)
	}
	if f.input != (input{format: accesslog.Auto}) {
		return nil, errors.New("the flags for logs say how to read a FILE: want one")
	}
	return compare.Arrivals(f.pattern, limit, f.seed, f.requests)
}

// readLog lets a log be decided.
func (f *compareFlags) readLog(cmd *cobra.Command, args []string, engine *compare.Comparison, clients *replay.Clients) (report.Report, error) {
	logs, err := f.input.open(cmd, args)
	if err != nil {
		return report.Report{}, err
	}
	var clock replay.Clock
	facts, readErr := readLogs(context.Background(), logs, cmd.ErrOrStderr(), func(rec accesslog.Record) {
		engine.Decide(clients.ID(rec.Client), clock.Advance(rec.Time))
	})
	return newReport(logs, facts, readErr), readErr
}
