package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/message"
	"github.com/sluice-go/sluice/cmd/internal/progress"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/report"
	"github.com/sluice-go/sluice/rules"
)

// sampleNote tells a newcomer the next step.
const sampleNote = " (made up; give a FILE to replay your own, - for standard input)"

// A rule has these where the command line names only its other part.
const defaultLimit = "30/m"

var defaultAlgorithm = sluice.GCRA.String()

// allAlgorithms is the name that stands for every algorithm.
const allAlgorithms = "all"

const replayLong = `Replay puts the requests of an access log through rate limits, one budget per
client, and reports what each limit would have denied. Without FILE a small
made-up log is replayed.

` + inputHelp + `

A client is an IPv4 address, an IPv6 network or a name, without a port: what
httplimit takes for a client.
` + keyHelp + `

A rule is an algorithm and a limit. The algorithms are gcra, token-bucket,
leaky-bucket, sliding-window, sliding-log and fixed-window. A limit is a count
per s, m, h, d or duration, with an optional burst: "100/s", "20/m burst 5",
"1000/24h". Give several to compare them in one pass over the log.

--rules decides by files of rules as "sluiced serve" does; what each limit did
stands below. A request is described by the domain's "http", as for /check of
sluiced serve, or else by remote_address={client}. The log has to say what an
action asks for: combined logs have method, path, user, Referer and User-Agent,
vhost-combined and s3 the host as well; those in JSON whatever they name as
Caddy, nginx (http_x_api_key for X-Api-Key), Traefik or ECS do.

--descriptor describes a request in another way: entries KEY=VALUE with commas
between. In a value {client}, {method}, {path}, {host}, {user}, {agent} and
{status} stand for what the request has. A path is without its query, and in
one spelling; {status} is of the answer, which a service does not know yet. A
request that lacks one of them is not asked about by that descriptor. The flag
is repeatable: a request can have several. A client in IPv6 is a network;
--ipv6-prefix 128 makes it the address that Envoy sends.

--against compares the rules with others that would take their place: whose
requests they would deny that pass now, and let pass that are denied now.
Without --rules it compares them with the log: with the answers of status 429,
or of --denied-status, such as 503 for nginx without limit_req_status.

The clock of the replay is the log's own: it stands at the latest time so far
and never goes back. Malformed lines are counted and reported, but fatal only if
no line is readable. Of a log that cannot be read to its end, the report covers
what could be; the exit code is 1. SIGINT ends the log in the same way, with
130, or with 0 under --follow; a second one leaves no report.`

const replayExample = `  sluice replay
  sluice replay access.log.gz --limit 60/m
  sluice replay access.log --rule 'gcra 60/m burst 9' --rule 'fixed-window 60/m'
  sluice replay 'access.log*' --algorithm all
  sluice replay access.log --limit 10/m --key client,path-class
  sluice replay access.log --rules rules/
  sluice replay access.log --rules old.yaml --against new.yaml
  sluice replay access.log --against new.yaml
  sluice replay access.log --rules rules/ --descriptor 'path={path},user={user}'
  sluice replay app.jsonl --client-field client.ip --time-field timestamp`

// replayFlags are the flags of the command as given.
type replayFlags struct {
	algorithms  []string
	limits      []string
	rules       []string
	files       []string
	against     []string
	denied      int  // status of the log's answers to requests that were denied
	merge       bool // the rules may name a domain in several files
	domain      string
	descriptors []string
	key         keyFlag
	ipv6Prefix  int
	top         int
	output      string
	input       input
	html        htmlFlag
}

func newReplay() *cobra.Command {
	var flags replayFlags
	cmd := &cobra.Command{
		Use:     "replay [FILE]...",
		Short:   "Replay an access log through rate limits",
		Long:    replayLong,
		Example: replayExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&flags.algorithms, "algorithm", nil, "algorithm `NAME`, or all; repeatable (default "+defaultAlgorithm+")")
	f.StringArrayVar(&flags.limits, "limit", nil, "`LIMIT` of each --algorithm; repeatable (default "+defaultLimit+")")
	f.StringArrayVar(&flags.rules, "rule", nil, "`RULE`: an algorithm and its limit; repeatable")
	f.StringArrayVar(&flags.files, "rules", nil, "`PATH` of rules in YAML, a file or a directory; repeatable")
	f.StringArrayVar(&flags.against, "against", nil, "`PATH` of rules to compare --rules with, or the log; repeatable")
	flags.addDeniedStatus(f, "")
	f.StringVar(&flags.domain, "domain", "", "`DOMAIN` whose rules count (default the only one)")
	f.StringArrayVar(&flags.descriptors, "descriptor", nil, "`ENTRIES` that describe a request to the rules; repeatable")
	flags.key.add(cmd)
	f.IntVar(&flags.ipv6Prefix, "ipv6-prefix", replay.IPv6Prefix, "an IPv6 client is its first `N` bits; 128 is an address")
	f.IntVar(&flags.top, "top", 5, "list the `N` most denied clients of each rule")
	f.StringVar(&flags.output, "output", "text", "`FORM` of the report: text or json")
	flags.html.add(cmd)
	flags.input.add(cmd)
	return cmd
}

// addDeniedStatus adds a flag, which means something with others only.
func (f *replayFlags) addDeniedStatus(flags *pflag.FlagSet, with string) {
	flags.IntVar(&f.denied, "denied-status", http.StatusTooManyRequests, with+"the `STATUS` of the log's denials, for --against")
}

// textOrJSON returns the writer of a report that --output names.
func textOrJSON[T any](output string, text, json T) (write T, err error) {
	switch output {
	case "text":
		return text, nil
	case "json":
		return json, nil
	}
	return write, fmt.Errorf("unknown output %q: want text or json", output)
}

// run is the command. It looks at the whole command line before it opens the log.
func (f *replayFlags) run(cmd *cobra.Command, args []string) error {
	write, err := textOrJSON(f.output, report.Text, report.JSON)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("denied-status") && !f.logged() {
		return errors.New("--denied-status says which answers of a log are denials: want it with --against, without --rules")
	}
	if f.top < 0 {
		return fmt.Errorf("--top %d is negative: want 0 or more", f.top)
	}
	if f.ipv6Prefix < replay.MinIPv6Prefix || f.ipv6Prefix > replay.MaxIPv6Prefix {
		return badIPv6Prefix(f.ipv6Prefix)
	}
	key, clients, err := f.key.newKey(f.ipv6Prefix)
	if err != nil {
		return err
	}
	engine, err := f.newEngine(clients, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if f.html.path != "" {
		engine.Sparklines()
	}
	logs, err := f.input.open(cmd, args)
	if err != nil {
		return err
	}
	logs.Key = key
	logs.Requests = len(f.files)+len(f.against) > 0
	reported := func(facts accesslog.Facts, readErr error) report.Report {
		rep := newReport(logs, facts, readErr)
		rep.Key, rep.Result = f.key.reported(), engine.Result(f.top)
		return rep
	}
	clear := f.follow(cmd, &logs, reported)
	answers := 0 // that the log tells
	facts, readErr := readLogs(cmd.Context(), logs, cmd.ErrOrStderr(), func(rec accesslog.Record) {
		if rec.Request != nil && rec.Request.Status != "" {
			answers++
		}
		engine.Add(rec.Client, rec.Time, rec.Request)
	})
	clear()
	switch {
	case facts.Counted == 0:
		return readErr
	case answers == 0 && f.logged():
		return cli.Fail(errors.New("the log has no statuses, which tell whom it denied: want a format with them, or the rules so far by replay --rules PATH --against PATH"))
	}
	rep := reported(facts, readErr)
	if len(args) == 0 {
		rep.Note = sampleNote
	}
	if err := write(cmd.OutOrStdout(), rep); err != nil {
		return cli.Fail(fmt.Errorf("writing the report: %w", err))
	}
	if err := f.html.write(cmd, func(w io.Writer, command string) error { return report.HTML(w, rep, command) }); err != nil {
		return err
	}
	return readErr
}

// follow shows the report of a log that is followed as it grows, if that is to be text on a terminal. clear takes it off.
func (f *replayFlags) follow(cmd *cobra.Command, logs *accesslog.Config, reported func(accesslog.Facts, error) report.Report) (clear func()) {
	out, ok := cli.Unchecked(cmd.OutOrStdout()).(*os.File)
	if !ok || !f.input.follow || f.output != "text" || !progress.Terminal(out) {
		return func() {}
	}
	screen := progress.NewScreen(out)
	logs.Progress = func(p accesslog.Progress) {
		if p.Facts.Counted == 0 || !screen.Due(p.Idle) {
			return
		}
		var page bytes.Buffer
		_ = report.Text(&page, reported(p.Facts, nil))
		screen.Show(page.Bytes())
	}
	return screen.Clear
}

// newReport is a report of logs that have been read, as far as they could be, without its result.
func newReport(logs accesslog.Config, facts accesslog.Facts, readErr error) report.Report {
	rep := report.Report{Source: accesslog.Names(logs.Sources), Log: facts}
	if whole := (partly{}); errors.As(readErr, &whole) {
		rep.Incomplete = strings.TrimPrefix(whole.error.Error(), rep.Source+": ")
	}
	return rep
}

// newEngine makes a replay through all rules of the command line.
func (f *replayFlags) newEngine(clients *replay.Clients, errs io.Writer) (*replay.Replay, error) {
	list, err := f.selectRules()
	if err != nil {
		return nil, err
	}
	if len(f.files)+len(f.against) > 0 && f.key.text != defaultKey {
		return nil, errors.New("--key says what limits count by, and --rules say it themselves: want one of the two, or --descriptor")
	}
	engine, err := replay.New(list, clients)
	if err != nil {
		return nil, err
	}
	switch {
	case f.logged() && (f.denied < 400 || f.denied > 599):
		return nil, fmt.Errorf("--denied-status %d: want a status of an error, such as 429 or 503", f.denied)
	case f.logged():
		engine.AddLogged(strconv.Itoa(f.denied))
		engine.Compare(len(list), len(list)+1)
		return engine, f.addRules(engine, f.against, true, errs)
	case len(f.files) == 0:
		if f.domain != "" || len(f.descriptors) > 0 {
			return nil, errors.New("--domain and --descriptor say how to use rules: want --rules PATH, or --against PATH")
		}
		return engine, nil
	}
	if err := f.addRules(engine, f.files, false, errs); err != nil || len(f.against) == 0 {
		return engine, err
	}
	engine.Compare(len(list), len(list)+1)
	return engine, f.addRules(engine, f.against, true, errs)
}

// logged reports whether rules are compared with the log.
func (f *replayFlags) logged() bool { return len(f.files) == 0 && len(f.against) > 0 }

// addRules makes files of rules another rule of the replay.
func (f *replayFlags) addRules(engine *replay.Replay, paths []string, against bool, errs io.Writer) error {
	file, err := f.readRules(paths, errs)
	if err != nil {
		return err
	}
	file.Against = against
	return engine.AddFile(*file)
}

// readRules reads files of rules, with --domain and --descriptor. A mistake
// in the rules goes to errs, a line each.
func (f *replayFlags) readRules(paths []string, errs io.Writer) (*replay.File, error) {
	out := &replay.File{Domain: f.domain}
	for _, text := range f.descriptors {
		d, err := replay.ParseDescriptor(text)
		if err != nil {
			return nil, err
		}
		out.Descriptors = append(out.Descriptors, d)
	}
	files, _, err := rules.Read(paths)
	if err != nil {
		return nil, cli.Fail(err)
	}
	if out.Set, err = rules.Load(files, rules.Options{MergeDomains: f.merge}); err != nil {
		fmt.Fprintln(errs, err)
		return nil, cli.Fail(errors.New("the rules do not load; sluice check says the same"))
	}
	domains := out.Set.Domains()
	switch {
	case len(domains) == 0:
		return nil, cli.Fail(message.NoRules(paths))
	case out.Domain == "" && len(domains) == 1:
		out.Domain = domains[0]
	case out.Domain == "":
		return nil, fmt.Errorf("the rules are for the domains %s: want --domain with one of them", strings.Join(domains, ", "))
	case !slices.Contains(domains, out.Domain):
		return nil, fmt.Errorf("--domain %q has no rules: want %s", out.Domain, strings.Join(domains, ", or "))
	}
	return out, nil
}

// selectRules returns the rules of the command line, each once: the rules of --rule,
// then every --algorithm with every --limit. Without any, and without --rules, it
// returns three that show how algorithms differ under one limit.
func (f *replayFlags) selectRules() ([]replay.Rule, error) {
	algorithms, limits, texts := f.algorithms, f.limits, f.rules
	if len(algorithms)+len(limits)+len(texts)+len(f.files)+len(f.against) == 0 {
		algorithms = []string{sluice.GCRA.String(), sluice.SlidingWindow.String(), sluice.FixedWindow.String()}
	}
	if len(algorithms)+len(limits) > 0 {
		algorithms = orDefault(algorithms, defaultAlgorithm)
		limits = orDefault(limits, defaultLimit)
	}
	var selected []replay.Rule
	for _, text := range texts {
		rule, err := replay.ParseRule(text)
		if err != nil {
			return nil, err
		}
		selected = append(selected, rule)
	}
	product, err := productOf(algorithms, limits)
	if err != nil {
		return nil, err
	}
	return distinct(append(selected, product...)), nil
}

// productOf returns a rule for every limit with every algorithm, the rules of one
// limit side by side.
func productOf(algorithmNames, limitTexts []string) ([]replay.Rule, error) {
	var algorithms []sluice.Algorithm
	for _, name := range algorithmNames {
		if name == allAlgorithms {
			algorithms = append(algorithms, replay.Algorithms()...)
			continue
		}
		algorithm, err := replay.ParseAlgorithm(name)
		if err != nil {
			return nil, fmt.Errorf("%w, or %s", err, allAlgorithms)
		}
		algorithms = append(algorithms, algorithm)
	}
	var rules []replay.Rule
	for _, text := range limitTexts {
		limit, err := replay.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		for _, algorithm := range algorithms {
			rules = append(rules, replay.Rule{Algorithm: algorithm, Limit: limit})
		}
	}
	return rules, nil
}

func distinct(rules []replay.Rule) []replay.Rule {
	var kept []replay.Rule
	for _, r := range rules {
		if !slices.Contains(kept, r) {
			kept = append(kept, r)
		}
	}
	return kept
}

func orDefault(given []string, fallback string) []string {
	if len(given) == 0 {
		return []string{fallback}
	}
	return given
}
