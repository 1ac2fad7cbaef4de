package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/sluice/internal/replay"
	"github.com/sluice-go/sluice/cmd/sluice/internal/report"
	"github.com/sluice-go/sluice/cmd/sluice/internal/sample"
	"github.com/sluice-go/sluice/cmd/sluice/internal/service"
	"github.com/sluice-go/sluice/rules"
)

// Names of logs that are no files.
const (
	sampleSource = "sample log"
	stdinSource  = "standard input"
)

// sampleNote tells a newcomer what to do next.
const sampleNote = " (made up; give a FILE to replay your own, - for standard input)"

// A rule has these where the command line names only its other part.
const defaultLimit = "30/m"

var defaultAlgorithm = sluice.GCRA.String()

// allAlgorithms is the name that stands for every algorithm.
const allAlgorithms = "all"

const replayLong = `Replay puts the requests of an access log through rate limits, one budget per
client, and reports what each limit would have denied.

FILE is an access log, plain or gzip; - is standard input. Without FILE a small
made-up log is replayed. The first readable line tells the format:

  combined        Common or Combined: Apache, nginx, Traefik, IIS in NCSA form
  vhost-combined  the same behind HOST:PORT
  s3              server access logs of S3
  nginx-json      remote_addr and time_iso8601 or time_local; remote_ip and time
  caddy           request.client_ip, remote_ip or remote_addr; ts
  traefik         ClientHost and StartUTC
  json            any other JSON: name the fields; dots lead into nested objects

Times in JSON may be RFC 3339, 02/Jan/2006:15:04:05 -0700, or Unix seconds,
milliseconds, microseconds or nanoseconds.

A client is an IPv4 address, an IPv6 network or a name, without a port: what
httplimit takes for a client.

A rule is an algorithm and a limit. The algorithms are gcra, token-bucket,
leaky-bucket, sliding-window, sliding-log and fixed-window. A limit is a count
per s, m, h, d or duration, with an optional burst: "100/s", "20/m burst 5",
"1000/24h". Give several to compare them in one pass over the log.

--rules decides by files of rules as "sluice serve" does; what each limit did
stands below. A request is described by the domain's "http", as for /check of
sluice serve, or else by remote_address={client}. The log has to say what an
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

The clock of the replay is the log's own: it stands at the latest time so far
and never goes back, so of several logs give the oldest first. Malformed lines
are counted and reported, but fatal only if no line is readable. Of a log that
cannot be read to its end, the report covers what could be; the exit code is 1.
SIGINT ends the log in the same way, with 130; a second one leaves no report.`

const replayExample = `  sluice replay
  sluice replay access.log.gz --limit 60/m
  sluice replay access.log --rule 'gcra 60/m burst 9' --rule 'fixed-window 60/m'
  cat access.log.2.gz access.log.1.gz | sluice replay - --algorithm all
  sluice replay access.log --rules rules/
  sluice replay access.log --rules rules/ --descriptor 'path={path},user={user}'
  sluice replay app.jsonl --client-field client.ip --time-field timestamp`

// replayFlags are the flags of the command as given.
type replayFlags struct {
	algorithms  []string
	limits      []string
	rules       []string
	files       []string
	domain      string
	descriptors []string
	ipv6Prefix  int
	top         int
	output      string
	format      string
	clientField string
	timeField   string
}

func newReplay() *cobra.Command {
	var flags replayFlags
	cmd := &cobra.Command{
		Use:     "replay [FILE]",
		Short:   "Replay an access log through rate limits",
		Long:    replayLong,
		Example: replayExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("want at most one FILE, got %d; to read several, pipe them in and name -", len(args))
			}
			return nil
		},
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
	f.StringVar(&flags.domain, "domain", "", "`DOMAIN` whose rules count (default the only one)")
	f.StringArrayVar(&flags.descriptors, "descriptor", nil, "`ENTRIES` that describe a request to the rules; repeatable")
	f.IntVar(&flags.ipv6Prefix, "ipv6-prefix", replay.IPv6Prefix, "an IPv6 client is its first `N` bits; 128 is an address")
	f.IntVar(&flags.top, "top", 5, "list the `N` most denied clients of each rule")
	f.StringVar(&flags.output, "output", "text", "`FORM` of the report: text or json")
	f.StringVar(&flags.format, "format", accesslog.Auto, "`FORMAT` of the log, one of the above")
	f.StringVar(&flags.clientField, "client-field", "", "`NAME` of the client's JSON field")
	f.StringVar(&flags.timeField, "time-field", "", "`NAME` of the time's JSON field")
	return cmd
}

// run is the command. It looks at the whole command line before it opens the log.
func (f *replayFlags) run(cmd *cobra.Command, args []string) error {
	write, ok := map[string]func(io.Writer, report.Report) error{
		"text": report.Text,
		"json": report.JSON,
	}[f.output]
	if !ok {
		return fmt.Errorf("unknown output %q: want text or json", f.output)
	}
	if f.top < 0 {
		return fmt.Errorf("--top %d is negative: want 0 or more", f.top)
	}
	if f.ipv6Prefix < replay.MinIPv6Prefix || f.ipv6Prefix > replay.MaxIPv6Prefix {
		return fmt.Errorf("--ipv6-prefix %d is not a length of prefix to limit by: want %d to %d",
			f.ipv6Prefix, replay.MinIPv6Prefix, replay.MaxIPv6Prefix)
	}
	parsers, err := accesslog.Select(f.format, f.clientField, f.timeField)
	if err != nil {
		return err
	}
	engine, err := f.newEngine(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	source, src, err := openLog(cmd.InOrStdin(), args)
	if err != nil {
		return failure{fmt.Errorf("%s: %w", source, err)}
	}
	defer src.Close()
	log, stop := interruptible(src)
	defer stop()
	rep, readErr := readLog(log, parsers, engine, f.top)
	if readErr != nil {
		readErr = failure{fmt.Errorf("%s: %w", source, readErr)}
	}
	if rep.Log.Counted == 0 {
		return readErr
	}
	rep.Source = source
	if len(args) == 0 {
		rep.Note = sampleNote
	}
	if err := write(cmd.OutOrStdout(), rep); err != nil {
		return failure{fmt.Errorf("writing the report: %w", err)}
	}
	return readErr
}

// newEngine makes a replay through all rules of the command line.
func (f *replayFlags) newEngine(errs io.Writer) (*replay.Replay, error) {
	list, err := f.selectRules()
	if err != nil {
		return nil, err
	}
	engine, err := replay.New(list, f.ipv6Prefix)
	if err != nil {
		return nil, err
	}
	file, err := f.readRules(errs)
	if err != nil || file == nil {
		return engine, err
	}
	return engine, engine.AddFile(*file)
}

// readRules reads what --rules, --domain and --descriptor say; nil without --rules. What is wrong
// with the rules goes to errs, a line each.
func (f *replayFlags) readRules(errs io.Writer) (*replay.File, error) {
	if len(f.files) == 0 {
		if f.domain != "" || len(f.descriptors) > 0 {
			return nil, errors.New("--domain and --descriptor say how to use --rules: want --rules PATH")
		}
		return nil, nil
	}
	out := &replay.File{Domain: f.domain}
	for _, text := range f.descriptors {
		d, err := replay.ParseDescriptor(text)
		if err != nil {
			return nil, err
		}
		out.Descriptors = append(out.Descriptors, d)
	}
	files, _, err := rules.Read(f.files)
	if err != nil {
		return nil, failure{err}
	}
	if out.Set, err = rules.Load(files, rules.Options{}); err != nil {
		fmt.Fprintln(errs, err)
		return nil, failure{errors.New("the rules do not load; sluice check says the same")}
	}
	domains := out.Set.Domains()
	switch {
	case len(domains) == 0:
		return nil, failure{service.NoFiles(f.files)}
	case out.Domain == "" && len(domains) == 1:
		out.Domain = domains[0]
	case out.Domain == "":
		return nil, fmt.Errorf("the rules are for the domains %s: want --domain with one of them", strings.Join(domains, ", "))
	case !slices.Contains(domains, out.Domain):
		return nil, fmt.Errorf("--domain %q has no rules: want %s", out.Domain, strings.Join(domains, ", or "))
	}
	return out, nil
}

// readLog replays a log from start to end. Where an error ends it after some requests,
// the report covers those.
func readLog(src io.Reader, parsers []accesslog.Parser, engine *replay.Replay, top int) (report.Report, error) {
	log, err := accesslog.NewReader(src, parsers...)
	if err != nil {
		return report.Report{}, err
	}
	for {
		rec, err := log.Next()
		if err == nil {
			engine.Add(rec.Client, rec.Time, log.Request)
			continue
		}
		if errors.Is(err, accesslog.ErrUnknownJSON) {
			err = fmt.Errorf("%w; name the fields with --client-field and --time-field", err)
		}
		facts := log.Facts()
		if facts.Counted == 0 {
			return report.Report{}, err
		}
		rep := report.Report{Log: facts, Result: engine.Result(top)}
		if errors.Is(err, io.EOF) {
			return rep, nil
		}
		rep.Incomplete = err.Error()
		return rep, fmt.Errorf("%w; the report covers what comes before", err)
	}
}

func openLog(stdin io.Reader, args []string) (string, io.ReadCloser, error) {
	switch {
	case len(args) == 0:
		return sampleSource, io.NopCloser(sample.Open()), nil
	case args[0] == "-":
		return stdinSource, io.NopCloser(pathless{stdin}), nil
	}
	file, err := os.Open(args[0])
	if err != nil {
		return args[0], nil, withoutPath(err)
	}
	return args[0], struct {
		io.Reader
		io.Closer
	}{pathless{file}, file}, nil
}

// errInterrupted is how a log ends that SIGINT has ended.
var errInterrupted = errors.New("interrupted")

// interruptible is src, and ends at SIGINT, also while src has nothing to read. The next SIGINT ends the
// process, and so does one after stop.
func interruptible(src io.Reader) (log io.Reader, stop func()) {
	if signal.Ignored(os.Interrupt) { // a job in the background of a script
		return src, func() {}
	}
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, src)
		_ = in.CloseWithError(err)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, func() {
		stop()
		_ = in.CloseWithError(errInterrupted)
	})
	return out, stop
}

// pathless is a reader whose errors do not name the file; the message has it already.
type pathless struct{ src io.Reader }

func (p pathless) Read(b []byte) (int, error) {
	n, err := p.src.Read(b)
	return n, withoutPath(err)
}

// withoutPath takes the path off an error of the file system.
func withoutPath(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// selectRules returns the rules of the command line, each once: those of --rule,
// then every --algorithm with every --limit. Without any, and without --rules, it
// returns three that show how algorithms differ under one limit.
func (f *replayFlags) selectRules() ([]replay.Rule, error) {
	algorithms, limits, texts := f.algorithms, f.limits, f.rules
	if len(algorithms)+len(limits)+len(texts)+len(f.files) == 0 {
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
