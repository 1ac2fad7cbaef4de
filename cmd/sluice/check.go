package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// newCheck makes the command that checks files of rules, and what they would change.
func newCheck() *cobra.Command {
	cmd := cli.NewCheck("sluice", nil)
	flags := replayFlags{output: "text", top: 5, ipv6Prefix: replay.IPv6Prefix, key: keyFlag{text: defaultKey}, input: input{format: accesslog.Auto}}
	var logs []string
	f := cmd.Flags()
	f.StringArrayVar(&logs, "against", nil, "`LOG` of requests that the rules would change sides of; repeatable")
	f.StringVar(&flags.domain, "domain", "", "with --against: `DOMAIN` whose rules count (default the only one)")
	f.StringArrayVar(&flags.descriptors, "descriptor", nil, "with --against: `ENTRIES` that describe a request; repeatable")
	cmd.Use = strings.Replace(cmd.Use, "PATH...", "[--against LOG] PATH...", 1)
	cmd.Long += `

--against replays an access log through rules that are fine, and says who would
change sides: whose requests have passed by the log, and would be denied, and
whose were answered with 429, and would pass. "sluice replay LOG --against PATH"
says the same, as JSON too, and of logs whose fields have to be named; with
--rules it compares with rules instead of with the log.`
	cmd.Example += "\n  sluice check --against access.log rules/"
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkAgainst(logs, &flags); err != nil {
			return err
		}
		if err := check(cmd, args); err != nil || len(logs) == 0 {
			return err
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout()); err != nil {
			return cli.Fail(err)
		}
		flags.against = args
		flags.merge, _ = f.GetBool("merge") // there is one
		return flags.run(cmd, logs)
	}
	return cmd
}

// checkAgainst looks at the command line of check.
func checkAgainst(logs []string, flags *replayFlags) error {
	if len(logs) == 0 && (flags.domain != "" || len(flags.descriptors) > 0) {
		return errors.New("--domain and --descriptor say how to use --against: want --against LOG")
	}
	for _, log := range logs {
		if strings.HasPrefix(log, "http://") || strings.HasPrefix(log, "https://") {
			return fmt.Errorf("--against %q: a service keeps no requests: want the access log of the service, or of the proxy in front of it", log)
		}
	}
	return nil
}
