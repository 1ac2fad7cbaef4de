package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/progress"
	"github.com/sluice-go/sluice/cmd/internal/sample"
)

// sampleSource is the log that stands in for a FILE.
const sampleSource = "sample log"

// inputHelp says how commands read logs.
const inputHelp = `FILE is an access log, plain, gzip or zstd, or a pattern such as 'access.log*';
- is standard input. Several are read in the order of their first times.
--follow waits at the end of the last one for more, also when it is rotated,
until SIGINT. The first lines of each tell its format:

  combined        Common or Combined: Apache, nginx, Traefik, IIS in NCSA form
  vhost-combined  the same behind HOST:PORT
  s3, alb, cloudfront  of AWS; alb is of Classic Load Balancers, too
  w3c             IIS, and whatever names its fields in lines of #Fields:
  haproxy         option httplog
  envoy           the default text; JSON with downstream_remote_address, or else
                  x-forwarded-for, and start_time, as of Envoy Gateway and Istio
  nginx-json      remote_addr and time_iso8601 or time_local; remote_ip and time
  caddy           request.client_ip, remote_ip or remote_addr; ts
  traefik         ClientHost and StartUTC
  squid           its own
  lighttpd        its own, only by name: else its host could be a client
  logfmt          key=value, as of Heroku's router
  cloudflare, gcp, azure  Logpush; load balancers; Gateways, Front Door
  aws-waf, api-gateway, kong, apisix, ecs  JSON as they write it
  json            any other JSON: name the fields; dots lead into nested objects

A line can stand in an envelope: of syslog or journald, of Docker's json-file,
a container runtime (CRI), fluent-bit, compose or kubectl --prefix, or be an
element of an array. Each line is read by its own format if a file has several.

--client-field and --time-field name columns of w3c and keys of logfmt, too. Any
other text is a pattern in the notation of nginx's log_format, with one of
$time_local, $time_iso8601 and $msec, the client in $remote_addr, and whatever
else rules ask for: --format '$remote_addr $host [$time_local] "$request"'. Of a
list of forwarded addresses the client is the last, which the proxy has seen.

Times in JSON may be RFC 3339, 2006-01-02 15:04:05, 02/Jan/2006:15:04:05 -0700,
or Unix seconds, milliseconds, microseconds or nanoseconds. A time without a
zone is in UTC.`

// input is the flags of commands that read logs.
type input struct {
	format      string
	clientField string
	timeField   string
	follow      bool
	from, to    string
}

func (in *input) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&in.format, "format", accesslog.Auto, "`FORMAT` of the log, one of the above or a pattern")
	f.StringVar(&in.clientField, "client-field", "", "`NAME` of the client's field, of JSON or a pattern")
	f.StringVar(&in.timeField, "time-field", "", "`NAME` of the time's field, of JSON or a pattern")
	f.StringVar(&in.from, "from", "", "leave out requests before a `TIME`, in UTC unless it has a zone: 2026-01-24, '2026-01-24 13:00:00'")
	f.StringVar(&in.to, "to", "", "leave out requests from a `TIME` on")
	f.BoolVar(&in.follow, "follow", false, "wait at the end of the last FILE for more; on a\nterminal replay shows its report as it grows")
}

// open looks at the flags and finds the logs of a command line, the sample without one. An error is not a
// failure if the command line is at fault.
func (in *input) open(cmd *cobra.Command, args []string) (accesslog.Config, error) {
	parsers, err := accesslog.Select(in.format, in.clientField, in.timeField)
	if err != nil {
		return accesslog.Config{}, err
	}
	if in.follow && len(args) == 0 {
		return accesslog.Config{}, errors.New("--follow: want a FILE to follow")
	}
	c := accesslog.Config{Parsers: parsers, Follow: in.follow, Sources: []accesslog.Source{accesslog.Stream(sampleSource, sample.Open())}}
	if c.From, c.To, err = in.span(); err != nil {
		return c, err
	}
	if len(args) > 0 {
		if c.Sources, err = accesslog.Files(args, cmd.InOrStdin()); err != nil {
			return c, cli.Fail(err)
		}
	}
	if errs, ok := cmd.ErrOrStderr().(*os.File); ok && progress.Terminal(errs) && len(args) > 0 {
		bar := progress.New(errs)
		c.Progress = func(p accesslog.Progress) { bar.Show(p.Bytes, p.Total, p.Facts.Lines) }
	}
	return c, nil
}

// span reads --from and --to; 0 is none.
func (in *input) span() (from, to int64, err error) {
	for _, f := range []struct {
		name, text string
		at         *int64
	}{{"from", in.from, &from}, {"to", in.to, &to}} {
		if f.text == "" {
			continue
		}
		if *f.at, err = accesslog.ParseTime(f.text); err != nil {
			return 0, 0, fmt.Errorf("--%s %q: %w", f.name, f.text, err)
		}
	}
	if to > 0 && to <= from {
		return 0, 0, fmt.Errorf("--to %q is not after --from %q; want it later", in.to, in.from)
	}
	return from, to, nil
}

// readLogs hands the records of logs to each. SIGINT ends the logs, also while there is nothing to read, and so does ctx;
// the next one ends the process. facts are sound if an error comes behind some records.
func readLogs(ctx context.Context, c accesslog.Config, errs io.Writer, each func(accesslog.Record)) (accesslog.Facts, error) {
	stop := func() {}
	if !signal.Ignored(os.Interrupt) { // as of a job in the background of a script
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt)
		context.AfterFunc(ctx, stop)
	}
	defer stop()
	facts, err := accesslog.Read(ctx, c, each)
	if c.Progress != nil {
		progress.Clear(errs)
	}
	if errors.Is(err, accesslog.ErrUnknownJSON) {
		err = fmt.Errorf("%w; name the fields with --client-field and --time-field", err)
	}
	if err == nil || c.Follow && facts.Counted > 0 && errors.Is(err, accesslog.ErrInterrupted) {
		return facts, nil // a log that is followed has no other end
	}
	if facts.Counted > 0 {
		err = partly{err}
	}
	return facts, cli.Fail(err)
}

// partly is the error of logs that were not read to their end.
type partly struct{ error }

func (p partly) Error() string { return p.error.Error() + "; the report covers what comes before" }

func (p partly) Unwrap() error { return p.error }
