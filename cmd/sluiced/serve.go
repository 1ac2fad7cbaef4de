package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/service"
	"github.com/sluice-go/sluice/rules"
)

func newServe() *cobra.Command {
	var c service.Config
	cmd := &cobra.Command{
		Use:   "serve --rules PATH...",
		Short: "Serve rate limits to Envoy and other proxies",
		Long: `Serve is Envoy's rate limit service, with nothing to run beside it: it reads
rules in the format of envoyproxy/ratelimit, answers over gRPC and as JSON, and
counts in memory. It reads the rules again when their files change. With --redis
all replicas count together.

With --xds the rules come from a management server, such as Envoy Gateway's.

Where a flag is not given, the variable of envoyproxy/ratelimit counts that
means the same, such as RUNTIME_ROOT, GRPC_PORT or SHADOW_MODE.

SIGTERM and SIGINT end it, after a drain; a second one ends the drain. SIGHUP
makes it read the rules again.`,
		Example: `  sluiced serve --rules rules/
  sluiced serve --rules rules/ --redis redis://localhost:6379
  sluiced serve --rules rules/ --state counts.bin --metrics-names upstream`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q is no flag: want --rules %s", args[0], args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ignored, err := c.Environment(cmd.Flags(), os.Environ())
			if err == nil {
				err = c.Check()
			}
			if err != nil {
				return err
			}
			log := logger(cmd.ErrOrStderr(), &c)
			if len(ignored) > 0 {
				log.Warn("these variables mean nothing here", "names", strings.Join(ignored, " "))
			}
			stdout := cli.Unchecked(cmd.OutOrStdout()) // a service that cannot write its one line serves all the same
			return serve(stdout, cmd.ErrOrStderr(), &c, log)
		},
	}
	c.Flags(cmd.Flags())
	cli.Complete(cmd, service.Words)
	return cmd
}

func logger(w io.Writer, c *service.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // Check has accepted it
	o := &slog.HandlerOptions{Level: level}
	if c.Log == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// heapRoom is taken, and never touched, so that it is no memory of the machine's: the garbage collector
// thinks the heap that much larger, and lets the garbage of calls grow to about as much before it runs.
const heapRoom = 32 << 20

// roomyHeap returns a value that has to stay alive for that; nil if the environment says how collections should
// be.
func roomyHeap() []byte {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, heapRoom)
}

// serve runs the service until signals end it.
func serve(stdout, stderr io.Writer, c *service.Config, log *slog.Logger) error {
	stop, hup := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(stop)
	defer signal.Stop(hup)
	hooks := service.Hooks{Stop: stop, Reload: hup}
	if c.Log == "text" {
		hooks.Ready = func(addresses map[string]net.Addr) { fmt.Fprintln(stdout, "serving", where(addresses)) }
		hooks.Draining = func(d time.Duration) {
			fmt.Fprintf(stdout, "draining for %v; another signal ends it sooner\n", d)
		}
	}
	room := roomyHeap()
	err := service.Run(c, log, hooks)
	runtime.KeepAlive(room)
	var bad *rules.LoadError
	if errors.As(err, &bad) {
		fmt.Fprintln(stderr, bad)
		err = errors.New("the rules are refused")
	}
	if err != nil {
		return cli.Fail(err)
	}
	return nil
}

// where lists addresses in the order of their flags.
func where(addresses map[string]net.Addr) string {
	var out []string
	for _, name := range []string{"grpc", "http", "debug", "metrics"} {
		if a := addresses[name]; a != nil {
			out = append(out, name+" on "+a.String())
		}
	}
	if a := addresses["debug"]; a != nil {
		out = append(out, "live page http://"+a.String()+"/live")
	}
	return strings.Join(out, ", ")
}
