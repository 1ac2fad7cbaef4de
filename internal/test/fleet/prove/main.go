// Prove shows that a fleet of `sluiced serve` keeps its limits, whatever becomes of its store. From the root of the tree:
//
//	go run ./internal/test/fleet/prove pair -seconds 60      two gateways, 500 a second, 800 offered
//	go run ./internal/test/fleet/prove faults                the table of faults, for each kind of server that there is
//	go run ./internal/test/fleet/prove soak -minutes 30 -seed 1
//	go run ./internal/test/fleet/prove streams -seed 1       1,000 streams that hold; a third of them die
//
// It starts the redis-server or valkey-server in the PATH, and those that SLUICE_REDIS_SERVERS names.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/test/fleet"
	"github.com/sluice-go/sluice/internal/test/servers"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	commands := map[string]func(program string, binaries []string, args []string) error{"pair": pair, "faults": faults, "soak": soak, "streams": streams}
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("%q: want pair, faults, soak or streams", args)
	}
	binaries := servers.AllRedis()
	if len(binaries) == 0 {
		return servers.ErrNoRedis
	}
	dir, err := os.MkdirTemp("", "sluice-prove-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := servers.BuildSluiced(dir)
	if err != nil {
		return err
	}
	return commands[args[0]](program, binaries, args[1:])
}

// pair is the case of two gateways.
func pair(program string, binaries, args []string) error {
	flags := flag.NewFlagSet("pair", flag.ContinueOnError)
	seconds := flags.Int("seconds", 60, "how long")
	budget := flags.String("budget", "5ms", "--store-budget of the services")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server, err := servers.NewRedis(binaries[0])
	if err != nil {
		return err
	}
	defer server.Kill()
	p, err := fleet.RunPair(program, "redis://"+server.Addr, *seconds, "--store-budget", *budget)
	if err != nil {
		return err
	}
	longest, p99 := fleet.Longest(p.Calls)
	fmt.Printf("admitted each second: %v\noffered: %v\n%d calls, %d admitted, the least %d and the most %d in a second; longest answer %v, p99 %v; the store was lost %d times\n", p.Seconds, p.Tally.Offered,
		len(p.Calls), fleet.Admitted(p.Calls), slices.Min(p.Tally.Possible), slices.Max(p.Seconds), longest, p99, p.Lost)
	return p.Judge()
}

// faults prints the table of all faults.
func faults(program string, binaries, args []string) error {
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	lasts := flags.Duration("lasts", 2*time.Second, "how long a fault lasts")
	budget := flags.String("budget", "5ms", "--store-budget of the services")
	on := flags.String("on", "", "servers whose paths have this in them")
	only := flags.String("only", "", "those whose names have this in them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fmt.Println(fleet.Header)
	broken := 0
	for _, server := range binaries {
		if !strings.Contains(server, *on) {
			continue
		}
		for _, f := range fleet.Faults {
			if !strings.Contains(f.Kind+" "+f.Name, *only) {
				continue
			}
			if err := f.Can(server); err != nil {
				fmt.Fprintf(os.Stderr, "%s: not tried: %v\n", f.Name, err)
				continue
			}
			row, err := f.Try(program, server, *lasts, "--store-budget", *budget)
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			fmt.Println(row)
			if row.Broken != nil {
				broken++
			}
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d promises are broken", broken)
	}
	return nil
}

// soak loads three services for long.
func soak(program string, binaries, args []string) error {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	minutes := flags.Int("minutes", 30, "how long")
	seed := flags.Uint64("seed", 1, "chooses the faults, and the keys")
	every := flags.Duration("every", time.Minute, "how often a fault comes")
	rate := flags.Int("rate", 1000, "calls a second")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := fleet.Soak{Program: program, Server: binaries[0], Seed: *seed, Every: *every, Rounds: int(time.Duration(*minutes) * time.Minute / *every), Rate: *rate, Out: os.Stdout}
	return s.Run()
}

// streams loads three services with streams that hold, extend and settle, and accounts for each of their units.
func streams(program string, binaries, args []string) error {
	flags := flag.NewFlagSet("streams", flag.ContinueOnError)
	n := flags.Int("streams", 1000, "how many")
	atOnce := flags.Int("at-once", 120, "and how many at once")
	seed := flags.Uint64("seed", 1, "chooses what streams do, who dies, and the faults")
	forgets := flags.Bool("forgets", false, "Redis has no disk, so that it forgets all when it dies")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := fleet.Streams{Program: program, Server: binaries[0], Seed: *seed, Streams: *n, AtOnce: *atOnce, Forgets: *forgets, Out: os.Stdout}
	return s.Run()
}
