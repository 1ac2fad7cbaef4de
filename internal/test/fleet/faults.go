package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// A Fault is one of those that a store can have, while a fleet of two is loaded.
type Fault struct {
	Name       string
	Kind       string // of the store
	Begin, End func(*bench) error
	// Apart says that some services are without the store while others have it: these admit their share besides.
	Apart bool
	// Clock says that the store's clock steps by a second: units that come back in it are admitted besides.
	Clock bool
	// Silent says that no service need notice.
	Silent bool
	// Forgets is how many units a store may forget that only one of the services has seen.
	Forgets int
}

// bench is the fleet that a fault is tried on.
type bench struct {
	store  *Store
	fleet  *Fleet
	target *servers.Redis // that has the key of the load
	clock  string         // a file: the error of the servers' clock
	rules  string
}

func (b *bench) proxies(f func(*Proxy)) error {
	for _, p := range b.store.Proxies {
		f(p)
	}
	return nil
}

func (b *bench) config(name, value string) error {
	return Do(b.target.Addr, "CONFIG", "SET", name, value)
}

func nothing(*bench) error { return nil }

func kill(b *bench) error    { b.target.Kill(); return nil }
func restart(b *bench) error { return b.target.Restart() }
func stop(b *bench) error    { return b.target.Stop() }

// Faults are all of them.
var Faults = []Fault{
	{Name: "kill, then an empty server", Kind: Single, Begin: kill, End: restart},
	{Name: "stop (hang)", Kind: Single, Begin: stop, End: func(b *bench) error { return b.target.Continue() }},
	{Name: "empty (FLUSHALL)", Kind: Single, Silent: true, Forgets: workers, Begin: func(b *bench) error { return Do(b.target.Addr, "FLUSHALL") }, End: nothing},
	{Name: "slow by 200 ms", Kind: Single,
		Begin: func(b *bench) error { return b.proxies(func(p *Proxy) { p.Slow(200 * time.Millisecond) }) },
		End:   func(b *bench) error { return b.proxies(func(p *Proxy) { p.Slow(0) }) }},
	{Name: "cut in mid-call", Kind: Single,
		Begin: func(b *bench) error { return b.proxies(func(p *Proxy) { p.Lose(true) }) },
		End:   func(b *bench) error { return b.proxies(func(p *Proxy) { p.Lose(false) }) }},
	{Name: "noeviction, no memory", Kind: Single, Silent: true, // denials need no memory
		Begin: func(b *bench) error { return b.config("maxmemory", "1") }, End: func(b *bench) error { return b.config("maxmemory", "0") }},
	{Name: "read only", Kind: Single,
		Begin: func(b *bench) error { return Do(b.target.Addr, "REPLICAOF", "127.0.0.1", "1") },
		End:   func(b *bench) error { return Do(b.target.Addr, "REPLICAOF", "NO", "ONE") }},
	{Name: "wrong password", Kind: Single, Begin: func(b *bench) error {
		if err := b.config("requirepass", "other"); err != nil {
			return err
		}
		return b.proxies((*Proxy).Cut) // connections there are stay what they are
	}, End: func(b *bench) error {
		c := redis.NewClient(&redis.Options{Addr: b.target.Addr, Password: "other"})
		defer c.Close()
		return c.ConfigSet(context.Background(), "requirepass", "").Err()
	}},
	{Name: "half of the fleet without it", Kind: Single, Apart: true,
		Begin: func(b *bench) error { b.store.Proxies[0].Hole(true); return nil },
		End:   func(b *bench) error { b.store.Proxies[0].Hole(false); return nil }},
	{Name: "reload while it is down", Kind: Single, Begin: func(b *bench) error {
		b.target.Kill()
		return b.reload(b.rules + "- {key: more, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	}, End: restart},
	{Name: "its clock a second ahead, and back", Kind: Single, Clock: true, Silent: true,
		Begin: func(b *bench) error { return b.step("+1s") }, End: func(b *bench) error { return b.step("+0") }},
	{Name: "kill, failover", Kind: Sentinel, Begin: kill, End: nothing},
	{Name: "stop (hang), failover", Kind: Sentinel, Begin: stop, End: nothing},
	{Name: "kill, failover to a clock a second ahead", Kind: Sentinel, Clock: true, Begin: jump("+1s"), End: nothing},
	{Name: "kill, failover to a clock a second behind", Kind: Sentinel, Clock: true, Begin: jump("-1s"), End: nothing},
	{Name: "kill, failover", Kind: Cluster, Begin: kill, End: nothing},
	{Name: "stop (hang), failover", Kind: Cluster, Begin: stop, End: nothing},
}

// jump kills the primary; the clock of the replica is another one.
func jump(by string) func(*bench) error {
	return func(b *bench) error {
		b.target.Kill()
		return b.step(by)
	}
}

// step changes the error of the servers' clock.
func (b *bench) step(by string) error { return os.WriteFile(b.clock, []byte(by+"\n"), 0o600) }

// reload changes the rules, and waits until all services have them.
func (b *bench) reload(rules string) error {
	if err := b.fleet.SetRules(rules); err != nil {
		return err
	}
	for _, s := range b.fleet.Services {
		if err := s.Reload(); err != nil {
			return err
		}
		err := eventually("a service has the new rules", func() bool {
			n, err := s.Metric("sluice_config_generation")
			return err == nil && n >= 2
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Row has the effects of a fault.
type Row struct {
	Fault          Fault
	Version        string
	Calls, Errors  int
	Longest, P99   time.Duration
	Day, DayLimit  int           // admitted by the limit of a day, in all
	Second         int           // admitted by the bucket,
	SecondWorst    int           // and WorstCase of the time that that took
	Failover       time.Duration // from the beginning of the fault until a replica is a primary
	Heal           time.Duration // from then, or from the end of the fault, until all services count in the store, and in it alone
	Lost           int           // how often services have lost the store
	Broken         error         // of a promise
	FirstError     error
	SecondDuration time.Duration
}

// The limits that faults are tried on: both are offered twice as much, or more.
var (
	dayLimit    = Limit{Name: "day", Algorithm: sluice.FixedWindow, Requests: 300, Unit: "day"}
	secondLimit = Limit{Name: "bucket", Algorithm: sluice.GCRA, Requests: 100, Unit: "second"}
)

const faultServices, faultRate = 2, 400

// faketime is where the library is that gives a server another clock, if the server runs with it: one with
// jemalloc in it may not.
func faketime(server string) (string, error) {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(found) == 0 {
		return "", errors.New("there is no libfaketime; want it: apt-get install faketime")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, server, "--version")
	cmd.Env = []string{"LD_PRELOAD=" + found[0], "FAKETIME=+1s"}
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "libfaketime") {
		return "", fmt.Errorf("%s does not run with libfaketime", server)
	}
	return found[0], nil
}

// Can says whether the fault can be tried on a server here.
func (f Fault) Can(server string) error {
	if !f.Clock {
		return nil
	}
	_, err := faketime(server)
	return err
}

// otherClock returns a server like binary whose clock is off by the number in a file. A Sentinel's clock is right: one whose
// clock goes back does nothing for 30 s, and then refuses a replica that has been without its primary for as long.
func (b *bench) otherClock(binary, dir string) (string, error) {
	library, err := faketime(binary)
	if err != nil {
		return "", err
	}
	b.clock = filepath.Join(dir, "clock")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--sentinel*) exec %[3]s \"$@\";; esac\nLD_PRELOAD=%[1]s FAKETIME_TIMESTAMP_FILE=%[2]s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 exec %[3]s \"$@\"\n", library, b.clock, binary)
	path := filepath.Join(dir, "server")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		return "", err
	}
	return path, b.step("+0")
}

// Try breaks a store of some server while a fleet is loaded, and mends it.
func (f Fault) Try(program, server string, lasts time.Duration, args ...string) (*Row, error) {
	dir, err := os.MkdirTemp("", "sluice-fault-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &bench{rules: Rules(dayLimit, secondLimit)}
	if f.Clock {
		if server, err = b.otherClock(server, dir); err != nil {
			return nil, err
		}
	}
	if b.store, err = Open(server, f.Kind, faultServices); err != nil {
		return nil, err
	}
	defer b.store.Close()
	args = append([]string{"--replicas", fmt.Sprint(faultServices), "--redis-type", f.Kind}, args...)
	if b.fleet, err = New(program, b.rules, faultServices, b.store.URLs, args...); err != nil {
		return nil, err
	}
	defer b.fleet.Close()
	row := &Row{Fault: f, Version: b.store.Version, DayLimit: dayLimit.Requests}
	calls, err := f.load(b, row, lasts)
	if err != nil {
		return nil, err
	}
	return row, row.judge(calls)
}

// load loads the fleet before, in and after the fault.
func (f Fault) load(b *bench, row *Row, lasts time.Duration) ([]Call, error) {
	b.fleet.Warm()
	end := make(chan struct{})
	loaded := make(chan []Call, 1)
	load := Load{Rate: faultRate, Next: func(i int) (string, string) {
		return []string{dayLimit.Name, secondLimit.Name}[i/faultServices%2], "key"
	}}
	began := time.Now()
	go func() {
		loaded <- load.While(b.fleet.Services, func(time.Time) bool {
			select {
			case <-end:
				return false
			default:
				return true
			}
		}, began)
	}()
	err := f.run(b, row, lasts)
	close(end)
	return <-loaded, err
}

// steady is for how long a fleet is loaded before a fault and after it.
const steady = time.Second

func (f Fault) run(b *bench, row *Row, lasts time.Duration) error {
	time.Sleep(steady)
	var err error
	if b.target, err = b.holder(); err != nil {
		return err
	}
	began, successor := time.Now(), b.watchReplicas()
	if err := f.Begin(b); err != nil {
		return fmt.Errorf("to begin: %w", err)
	}
	time.Sleep(lasts)
	if err := f.End(b); err != nil {
		return fmt.Errorf("to end: %w", err)
	}
	ended := time.Now()
	if successor != nil {
		ended = <-successor
		row.Failover = ended.Sub(began)
	}
	if err := b.fleet.Healed(); err != nil {
		return err
	}
	for _, s := range b.fleet.Services {
		if at := s.healed(); !at.IsZero() {
			row.Heal = max(row.Heal, at.Sub(ended))
		}
	}
	for _, s := range b.fleet.Services {
		lost, _ := s.Modes()
		row.Lost += lost
	}
	time.Sleep(steady)
	return nil
}

// watchReplicas returns a function that tells when a replica has become a primary, or nil without replicas.
func (b *bench) watchReplicas() <-chan time.Time {
	replicas := b.store.Replicas()
	if len(replicas) == 0 {
		return nil
	}
	moved := make(chan time.Time, 1)
	go func() {
		defer close(moved)
		for began := time.Now(); time.Since(began) < patience; time.Sleep(5 * time.Millisecond) {
			for _, s := range replicas {
				c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
				info := c.Info(context.Background(), "replication").Val()
				_ = c.Close()
				if strings.Contains(info, "role:master") {
					moved <- time.Now()
					return
				}
			}
		}
		moved <- time.Now()
	}()
	return moved
}

// holder returns the server that has the key of the day.
func (b *bench) holder() (*servers.Redis, error) {
	if b.store.Kind != Cluster {
		return b.store.Servers[0], nil
	}
	for _, s := range b.store.Servers[:3] {
		c := redis.NewClient(&redis.Options{Addr: s.Addr})
		keys := c.Keys(context.Background(), "*").Val()
		_ = c.Close()
		if strings.Contains(strings.Join(keys, " "), dayLimit.Name) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("no primary has the key of the day")
}

// judge fills in the row, and the broken promise.
func (r *Row) judge(calls []Call) error {
	r.Calls = len(calls)
	r.Errors, r.FirstError = Errors(calls)
	r.Longest, r.P99 = Longest(calls)
	r.Day = Admitted(Of(calls, dayLimit.Name, ""))
	worst, err := secondLimit.worst()
	if err != nil {
		return err
	}
	seconds := Of(calls, secondLimit.Name, "")
	r.Second = Admitted(seconds)
	first, last := seconds[0].Sent, seconds[0].Back
	for _, c := range seconds {
		if c.Sent.Before(first) {
			first = c.Sent
		}
		if c.Back.After(last) {
			last = c.Back
		}
	}
	r.SecondDuration = last.Sub(first)
	r.SecondWorst = worst(r.SecondDuration)
	r.Broken = r.promise(seconds, worst)
	return nil
}

// healed is how long services may take to find the store again, after the fault or the failover: 1.9 s at most in 48 runs on a busy machine, and 5 s with a
// client that waits as long for the reply of a node that hangs.
const healed = 4500 * time.Millisecond

// promise returns the documented promise that is broken: without a store the shares admit a burst more at most; services
// that are alone without it admit their shares besides; and a clock that jumps brings back the units of that time.
func (r *Row) promise(seconds []Call, worst func(time.Duration) int) error {
	day, second := dayLimit.Requests, secondLimit.Requests
	if r.Lost == 0 && (r.Fault.Clock || r.Fault.Forgets > 0) { // nobody has done without the store
		day, second = 0, 0
	}
	day, second = day+r.Fault.Forgets, second+r.Fault.Forgets
	more := worst
	if r.Fault.Apart {
		half := Limit{Algorithm: secondLimit.Algorithm, Requests: secondLimit.Requests / faultServices, Unit: secondLimit.Unit}
		share, err := half.worst()
		if err != nil {
			return err
		}
		more = func(d time.Duration) int { return worst(d) + share(d) }
		day += dayLimit.Requests / faultServices
	}
	if r.Fault.Clock {
		second += secondLimit.Requests
	}
	switch {
	case r.Errors > 0:
		return fmt.Errorf("%d calls failed: %w", r.Errors, r.FirstError)
	case r.Day > dayLimit.Requests+day:
		return fmt.Errorf("the day admitted %d, and at most %d may be", r.Day, dayLimit.Requests+day)
	case r.Day < dayLimit.Requests*99/100:
		return fmt.Errorf("the day admitted %d of %d", r.Day, dayLimit.Requests)
	case !r.Fault.Silent && r.Lost == 0:
		return fmt.Errorf("no service has noticed")
	case r.Heal > healed:
		return fmt.Errorf("the store was found again after %v; want %v", r.Heal, healed)
	}
	return Spans(seconds, second, more)
}

// String is a line of the table.
func (r *Row) String() string {
	broken := "kept"
	if r.Broken != nil {
		broken = "BROKEN: " + r.Broken.Error()
	}
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	failover := "-"
	if r.Failover > 0 {
		failover = fmt.Sprint(round(r.Failover))
	}
	return fmt.Sprintf("| %s | %s | %s | %v | %v | %d of %d | %d of %d | %d | %s | %v | %d | %d | %s |", r.Version, r.Fault.Kind, r.Fault.Name,
		round(r.Longest), round(r.P99), r.Day, r.DayLimit, r.Second, r.SecondWorst, r.Errors, failover, round(r.Heal), r.Lost, max(0, r.Day-r.DayLimit), broken)
}

// Header begins the table.
const Header = `| server | kind | fault | longest answer | p99 | admitted of a day's limit | by a bucket, of WorstCase | errors | failover after | heals in | outages seen | forgiven | the promise |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|`
