// Command fleet shows that a limit holds for a fleet: three replicas of `sluiced serve` with one Redis or Valkey
// keep the limit together, while one of them is killed, and then the store.
//
//	go run ./examples/fleet
//
// It ends with a verdict, and with code 1 if the limit was exceeded by more than cmd/sluiced/FLEET.md promises.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sluice-go/sluice/internal/test/servers"
)

const (
	replicas = 3
	limit    = 300 // a second, for all replicas together
	offered  = 2 * limit
)

// shortest is a run in which everything that happens has a second of its own.
const shortest = 6

func main() {
	seconds := flag.Int("seconds", 20, fmt.Sprintf("how long it takes, at least %d", shortest))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Stdout, *seconds, coloured(os.Stdout))
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; everything that it had started has ended")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		stop()
		os.Exit(1)
	}
}

// coloured reports whether a file is a terminal whose user has nothing against colours.
func coloured(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// run is the whole of it. An error is a limit that did not hold, too.
func run(ctx context.Context, out io.Writer, seconds int, colour bool) error {
	if seconds < shortest {
		return fmt.Errorf("-seconds %d: want at least %d", seconds, shortest)
	}
	server, err := servers.FindRedis()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Building sluice, and starting %d replicas and %s.\n", replicas, server)
	f, err := start(ctx, server)
	if f != nil {
		defer f.end()
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The limit is %d calls a second for all together. %d are offered, and each call goes to the next replica.\n\n", limit, offered)
	t := &table{out: out, colour: colour}
	t.header()
	l := newLoad(f)
	defer l.stop()
	if err := watch(ctx, f, l, t, seconds); err != nil {
		return err
	}
	return t.verdict()
}

// event happens at half past a second.
type event struct {
	at   int // seconds since the first
	what string
	do   func(context.Context) error
}

// events are the events of a run, at a fifth, two, three and four fifths of it.
func (f *fleet) events(seconds int) []event {
	at := func(fifth int) int { return seconds * fifth / 5 }
	return []event{
		{at(1), "replica 2 is killed", func(context.Context) error { f.replicas[1].kill(); return nil }},
		{at(2), "replica 2 is started", func(ctx context.Context) error { return f.serve(ctx, 1) }},
		{at(3), "the store is killed", func(context.Context) error { f.store.Kill(); return nil }},
		{at(4), "the store is started, empty", func(context.Context) error { return f.store.Restart() }},
	}
}

// watch makes things happen, and adds a row to the table for each second.
func watch(ctx context.Context, f *fleet, l *load, t *table, seconds int) error {
	events := f.events(seconds)
	begin := time.Now().Truncate(time.Second).Add(time.Second)
	l.start(begin)
	for s := range seconds {
		middle := begin.Add(time.Duration(s)*time.Second + time.Second/2)
		if err := until(ctx, middle); err != nil {
			return err
		}
		row := row{number: s + 1}
		for _, e := range events {
			if e.at != s {
				continue
			}
			row.event = e.what
			if err := e.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", e.what, err)
			}
		}
		// All answers of this second are there, or late enough to be errors, when the next one is half over.
		if err := until(ctx, middle.Add(time.Second-100*time.Millisecond)); err != nil {
			return err
		}
		for i := range f.replicas {
			row.modes[i], row.degraded[i] = f.replicas[i].modeSince(begin.Add(time.Duration(s) * time.Second))
		}
		row.window = begin.Unix() + int64(s)
		t.add(row, l.take(row.window))
	}
	return nil
}

// until waits for a time, or for the end of ctx, of which it returns the error.
func until(ctx context.Context, at time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(at)):
		return nil
	}
}
