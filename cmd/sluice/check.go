package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/replay"
	"github.com/sluice-go/sluice/cmd/internal/trial"
	"github.com/sluice-go/sluice/rules"
)

// newCheck makes the command that checks files of rules, and what they would change.
func newCheck() *cobra.Command {
	cmd := cli.NewCheck("sluice", nil)
	flags := replayFlags{output: "text", top: 5, ipv6Prefix: replay.IPv6Prefix, key: keyFlag{text: defaultKey}, input: input{format: accesslog.Auto}}
	var against []string
	length := time.Minute
	f := cmd.Flags()
	f.StringArrayVar(&against, "against", nil, "`LOG` of requests that the rules would change sides of, repeatable;\nor URL of the debug port of a service")
	f.DurationVar(&length, "for", length, "with a URL of --against: how long the service tries the rules")
	f.StringVar(&flags.domain, "domain", "", "with a log: `DOMAIN` whose rules count (default the only one)")
	f.StringArrayVar(&flags.descriptors, "descriptor", nil, "with a log: `ENTRIES` that describe a request; repeatable")
	flags.addDeniedStatus(f, "with a log: ")
	cmd.Use = strings.Replace(cmd.Use, "PATH...", "[--against LOG|URL] PATH...", 1)
	cmd.Long += `

--against says who would change sides under rules that are fine. Of an access
log: whose requests have passed by the log, and would be denied, and whose were
answered with 429 (--denied-status), and would pass. "sluice replay LOG
--against PATH" says the same, as JSON too, and of logs whose fields have to be
named; with --rules it compares with rules instead of with the log.

Of a running service, by its debug port: which calls of the next minute (--for)
it answers otherwise than these rules would, from the service's own counts on.
The service judges these calls twice meanwhile, and its answers stay as they
are. Calls about holds are no part of it. A service with --redis tries the rules
in memory, from counts of 0 on. Clients have names with its --live-keys only.`
	cmd.Example += "\n  sluice check --against access.log rules/\n  sluice check --against http://127.0.0.1:6070 --for 5m rules/"
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		service, err := checkAgainst(against, f, length)
		if err != nil {
			return err
		}
		if err := check(cmd, args); err != nil || len(against) == 0 {
			return err
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout()); err != nil {
			return cli.Fail(err)
		}
		flags.merge, _ = f.GetBool("merge") // there is one
		if service {
			return try(cmd, against[0], args, trial.Order{For: trial.Duration(length), Merge: flags.merge})
		}
		flags.against = args
		return flags.run(cmd, against)
	}
	return cmd
}

// checkAgainst looks at the command line of check. service reports whether --against is a running service.
func checkAgainst(against []string, f *pflag.FlagSet, length time.Duration) (service bool, err error) {
	service = slices.ContainsFunc(against, func(s string) bool { return strings.Contains(s, "://") })
	forLogs := f.Changed("domain") || f.Changed("descriptor") || f.Changed("denied-status")
	switch {
	case service && len(against) > 1:
		return service, errors.New("--against is the URL of a service, and more; want logs, or one URL")
	case service && !strings.HasPrefix(against[0], "http://") && !strings.HasPrefix(against[0], "https://"):
		return service, fmt.Errorf("--against %q: want a log, or the debug port of a service, as http://127.0.0.1:6070", against[0])
	case service && forLogs:
		return service, errors.New("--domain, --descriptor and --denied-status say how to read a log, and --against is a service; want none of them")
	case service:
		if err := trial.CheckFor(length); err != nil {
			return service, fmt.Errorf("--for: %w", err)
		}
	case f.Changed("for"):
		return service, errors.New("--for says how long a service tries the rules; want --against URL")
	case len(against) == 0 && forLogs:
		return service, errors.New("--domain, --descriptor and --denied-status say how to read a log: want --against LOG")
	}
	return service, nil
}

// try has a service try rules that are fine, and writes its result.
func try(cmd *cobra.Command, service string, paths []string, order trial.Order) error {
	files, _, err := rules.Read(paths)
	if err != nil {
		return cli.Fail(err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s tries the rules for %v\n", service, time.Duration(order.For))
	result, err := trial.Ask(cmd.Context(), service, files, order)
	if err != nil {
		return cli.Fail(err)
	}
	if err := result.Text(cmd.OutOrStdout(), service); err != nil {
		return cli.Fail(err)
	}
	return nil
}
