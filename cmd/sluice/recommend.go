package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/cmd/internal/recommend"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/report"
)

const recommendLong = `Recommend reads an access log once, and says which limits would have denied
nothing to --clients of the clients. Without FILE a small made-up log is read.
` + inputHelp + `
A client is an IPv4 address, an IPv6 network or a name, and the clock is the
log's own, as for sluice replay.
` + keyHelp + `

The report has what one client asked for at most in any second, ten seconds,
minute and hour; for each of a row of rates the smallest burst that denies
something to nobody, to 0.1% and to 1% of the clients; and for each algorithm
the smallest limit for the goal. With one unit less at once it would deny
something to more clients than the goal allows. Of the rates that one is taken
under which a client is admitted the least in any --per, and of equal ones the
highest; --rate takes another. Beside it stands what it would have denied: few
clients with long streaks, and most denials with five of them, are robots; many
clients with short streaks are everybody, and the limit is too low.

A log with times in whole seconds makes all requests of a second come at once,
so bursts are larger than they were. A limit holds for this log: leave room, or
see with --check whether it holds for another day.

--output serve, nginx, envoy, haproxy or go prints the limit for that program
alone. nginx and HAProxy count in their own ways, and get numbers of their own.
With another --key there is go, and serve if its rules can count by that.

Requests are kept in a temporary file of a few bytes each, and clients in
memory, at most --max-clients of them. With --max-denied-clients the exit code
is 1 if a recommended limit denies something to more clients of --check, or of
the log without that.`

const recommendExample = `  sluice recommend
  sluice recommend access.log.gz --clients 99.5%
  sluice recommend monday.log --check tuesday.log --max-denied-clients 1%
  sluice recommend 'access.log*' --rate 60/m --algorithm gcra
  sluice recommend access.log --key client,path-class
  sluice recommend access.log --output nginx`

// recommendFlags are the flags of the command as given.
type recommendFlags struct {
	clients    string
	per        time.Duration
	rate       string
	algorithms []string
	check      []string
	maxDenied  string
	maxClients int
	key        keyFlag
	ipv6Prefix int
	top        int
	output     string
	input      input
	html       htmlFlag
}

func newRecommend() *cobra.Command {
	var flags recommendFlags
	cmd := &cobra.Command{
		Use:     "recommend [FILE]...",
		Short:   "Recommend limits for the clients of an access log",
		Long:    recommendLong,
		Example: recommendExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&flags.clients, "clients", "99.9%", "`SHARE` of the clients that is to be denied nothing")
	f.DurationVar(&flags.per, "per", time.Minute, "`TIME` in which a client is to be admitted the least; the period of windows")
	f.StringVar(&flags.rate, "rate", "", "`RATE` of buckets, as in 60/m (default the best of a row)")
	f.StringSliceVar(&flags.algorithms, "algorithm", nil, "algorithm `NAME`; repeatable (default all)")
	f.StringArrayVar(&flags.check, "check", nil, "`FILE` of a second log, to try the limits on; repeatable")
	f.StringVar(&flags.maxDenied, "max-denied-clients", "", "exit with 1 if more than `N` clients, or N%, are denied something")
	f.IntVar(&flags.maxClients, "max-clients", 1<<20, "give up at more than `N` clients")
	flags.key.add(cmd)
	f.IntVar(&flags.ipv6Prefix, "ipv6-prefix", replay.IPv6Prefix, "an IPv6 client is its first `N` bits; 128 is an address")
	f.IntVar(&flags.top, "top", 5, "list the `N` most denied clients of each rule")
	f.StringVar(&flags.output, "output", "text", "`FORM` of the report: text, json or, only of the rule, "+targetNames())
	flags.html.add(cmd)
	flags.input.add(cmd)
	return cmd
}

func targetNames() string {
	var names []string
	for _, t := range recommend.Targets {
		names = append(names, t.Name)
	}
	return message.Or(names)
}

// writer returns the writer of the report.
func (f *recommendFlags) writer() (func(io.Writer, report.Recommendation) error, error) {
	switch f.output {
	case "text":
		return report.RecommendText, nil
	case "json":
		return report.RecommendJSON, nil
	}
	for _, t := range recommend.Targets {
		if t.Name == f.output {
			if able := (recommend.Result{Config: recommend.Config{Key: f.key.parts()}}).TargetsFor(); !slices.ContainsFunc(able, func(o recommend.Target) bool { return o.Name == t.Name }) {
				return nil, fmt.Errorf("--output %s has no words for --key %s: want text, json or go", t.Name, f.key.text)
			}
			return func(w io.Writer, rep report.Recommendation) error {
				_, err := io.WriteString(w, t.Write(rep.Found))
				return err
			}, nil
		}
	}
	return nil, fmt.Errorf("unknown output %q: want text, json, %s", f.output, targetNames())
}

// config checks the question to the log.
func (f *recommendFlags) config() (c recommend.Config, err error) {
	clients, err := recommend.ParseShare(f.clients)
	if err != nil {
		return c, fmt.Errorf("--clients %w", err)
	}
	c = recommend.Config{Denied: clients.Rest(), Per: f.per, Key: f.key.parts(), IPv6Prefix: f.ipv6Prefix, Top: f.top, Sparklines: f.html.path != "", Algorithms: replay.Algorithms()}
	if _, err := accesslog.ParseKey(f.key.text, nil); err != nil {
		return c, err
	}
	if err := recommend.CheckPeriod(f.per); err != nil {
		return c, fmt.Errorf("--per %w", err)
	}
	if f.rate != "" {
		if c.Rate, err = parseRate(f.rate); err != nil {
			return c, err
		}
	}
	if len(f.algorithms) > 0 {
		c.Algorithms = nil
	}
	for _, name := range f.algorithms {
		algorithm, err := replay.ParseAlgorithm(name)
		if err != nil {
			return c, err
		}
		if !slices.Contains(c.Algorithms, algorithm) {
			c.Algorithms = append(c.Algorithms, algorithm)
		}
	}
	switch {
	case f.top < 0:
		err = fmt.Errorf("--top %d is negative: want 0 or more", f.top)
	case f.maxClients < 1:
		err = fmt.Errorf("--max-clients %d: want 1 or more", f.maxClients)
	case f.ipv6Prefix < replay.MinIPv6Prefix || f.ipv6Prefix > replay.MaxIPv6Prefix:
		err = badIPv6Prefix(f.ipv6Prefix)
	}
	return c, err
}

func badIPv6Prefix(bits int) error {
	return fmt.Errorf("--ipv6-prefix %d is not a length of prefix to limit by: want %d to %d", bits, replay.MinIPv6Prefix, replay.MaxIPv6Prefix)
}

// parseRate reads a limit without a burst, which limiters and programs can tell.
func parseRate(text string) (sluice.Limit, error) {
	limit, err := replay.ParseLimit(text)
	if err != nil {
		return limit, fmt.Errorf("--rate: %w", err)
	}
	if limit.Burst != 0 || limit == sluice.DenyAll || limit == sluice.Unlimited {
		return limit, fmt.Errorf("--rate %q: want a count per time and no burst, as in 60/m: the burst is what is looked for", text)
	}
	if err := recommend.CheckLimit(limit); err != nil {
		return limit, fmt.Errorf("--rate %q: %w", text, err)
	}
	if _, err := sluice.New(sluice.Config{Limit: limit.WithBurst(1), MaxKeys: 1}); err != nil {
		return limit, fmt.Errorf("--rate: %w", replay.Refusal(replay.Rule{Limit: limit}, err))
	}
	return limit, nil
}

// maxDeniedOf returns how many of n clients may be denied something.
func (f *recommendFlags) maxDeniedOf(n int) (int, error) {
	if strings.HasSuffix(f.maxDenied, "%") {
		share, err := recommend.ParseShare(f.maxDenied)
		if err != nil {
			return 0, fmt.Errorf("--max-denied-clients %w", err)
		}
		return share.Of(n), nil
	}
	most, err := strconv.ParseUint(f.maxDenied, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("--max-denied-clients %q: want a number of clients, or a percentage of them, as in 1%%", f.maxDenied)
	}
	return int(most), nil
}

// run is the command. It looks at the whole command line before it opens a log.
func (f *recommendFlags) run(cmd *cobra.Command, args []string) error {
	c, err := f.config()
	if err != nil {
		return err
	}
	write, err := f.writer()
	if err != nil {
		return err
	}
	if f.maxDenied != "" {
		if _, err := f.maxDeniedOf(0); err != nil {
			return err
		}
	}
	logs, err := f.input.open(cmd, args)
	if err != nil {
		return err
	}
	var check accesslog.Config
	if len(f.check) > 0 {
		second := f.input
		second.follow = false
		if check, err = second.open(cmd, f.check); err != nil {
			return fmt.Errorf("--check: %w", err)
		}
	}
	rep, readErr := f.recommend(cmd.ErrOrStderr(), logs, c)
	if rep.Log.Counted == 0 || readErr != nil && !errors.As(readErr, new(partly)) {
		return readErr
	}
	if len(args) == 0 {
		rep.Note = sampleNote
	}
	if len(f.check) > 0 && !errors.Is(readErr, accesslog.ErrInterrupted) {
		second, err := f.try(cmd.ErrOrStderr(), check, rep.Found)
		if second.Log.Counted == 0 {
			return fmt.Errorf("--check: %w", err)
		}
		rep.Check, readErr = &second, cmp.Or(readErr, err)
	}
	rep.Gate = f.gate(rep)
	if err := write(cmd.OutOrStdout(), rep); err != nil {
		return cli.Fail(fmt.Errorf("writing the report: %w", err))
	}
	if err := f.html.write(cmd, func(w io.Writer, command string) error { return report.RecommendHTML(w, rep, command) }); err != nil {
		return err
	}
	if readErr == nil && rep.Gate != nil && len(rep.Gate.Exceeds) > 0 {
		return cli.Fail(fmt.Errorf("%d recommended limits deny something to more than %d of %d clients, which is --max-denied-clients %s",
			len(rep.Gate.Exceeds), rep.Gate.Denied, rep.Gate.Of, f.maxDenied))
	}
	return readErr
}

// recommend reads the log and looks for limits. The report is whole unless the error is a failure that is not partly.
func (f *recommendFlags) recommend(errs io.Writer, logs accesslog.Config, c recommend.Config) (rep report.Recommendation, err error) {
	key, clients, err := f.key.newKey(f.ipv6Prefix)
	if err != nil {
		return rep, err
	}
	logs.Key = key
	log := recommend.NewLog(clients, f.maxClients)
	defer func() {
		if closeErr := log.Close(); err == nil && closeErr != nil {
			err = cli.Fail(closeErr)
		}
	}()
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	facts, readErr := readLogs(ctx, logs, errs, func(rec accesslog.Record) {
		if err := log.Add(rec.Client, rec.Time); err != nil {
			stop(err)
		}
	})
	if err := context.Cause(ctx); err != nil {
		return rep, cli.Fail(err)
	}
	if facts.Counted == 0 {
		return rep, readErr
	}
	found, err := log.Recommend(c)
	if err != nil {
		return rep, cli.Fail(err)
	}
	rep = report.Recommendation{Report: newReport(logs, facts, readErr), Found: found}
	rep.Key = f.key.reported()
	rep.Result = found.Evidence
	return rep, readErr
}

// try replays a second log through the limits that the first one asks for.
func (f *recommendFlags) try(errs io.Writer, logs accesslog.Config, found recommend.Result) (report.Report, error) {
	key, clients, err := f.key.newKey(f.ipv6Prefix)
	if err != nil {
		return report.Report{}, err
	}
	logs.Key = key
	var rules []replay.Rule
	for _, r := range found.Evidence.Rules {
		rules = append(rules, r.Rule)
	}
	engine, err := replay.New(rules, clients)
	if err != nil {
		return report.Report{}, err
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	facts, readErr := readLogs(ctx, logs, errs, func(rec accesslog.Record) {
		if engine.Add(rec.Client, rec.Time, nil); clients.Len() > f.maxClients {
			stop(recommend.TooManyClients(f.maxClients))
		}
	})
	if err := context.Cause(ctx); err != nil {
		return report.Report{}, cli.Fail(err)
	}
	if facts.Counted == 0 {
		return report.Report{}, readErr
	}
	rep := newReport(logs, facts, readErr)
	rep.Key, rep.Result = f.key.reported(), engine.Result(f.top)
	return rep, readErr
}

// gate looks whether the limits keep to --max-denied-clients.
func (f *recommendFlags) gate(rep report.Recommendation) *report.Gate {
	if f.maxDenied == "" {
		return nil
	}
	res := rep.Result
	if rep.Check != nil {
		res = rep.Check.Result
	}
	most, err := f.maxDeniedOf(res.Clients)
	if err != nil {
		panic(err) // run has looked at it
	}
	g := &report.Gate{Most: f.maxDenied, Denied: most, Of: res.Clients}
	for _, r := range res.Rules {
		if r.LimitedClients > most {
			g.Exceeds = append(g.Exceeds, r.Rule)
		}
	}
	return g
}
