package stall

import (
	"cmp"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
	"github.com/sluice-go/sluice/benchmarks/internal/workload"
)

// TailConfig is how much is measured of the situations in which a limiter has as much to
// move as it can get to.
type TailConfig struct {
	Keys     int // of the default algorithm
	LogKeys  int // of the sliding log
	LogUnits int // that the log keeps for each of its keys
	Repeats  int
	Idle     time.Duration // see Config
}

// FullTails has the settings of the published tables: ten million keys, and a log that
// comes to 512 MB.
var FullTails = TailConfig{Keys: 1e7, LogKeys: 1 << 16, LogUnits: 1000, Repeats: 3, Idle: Full.Idle}

// Needs is about how much memory the measurement takes, in bytes: the keys of its calls, and
// tables of which two are there while one is moved.
func (c TailConfig) Needs() int64 {
	return max(160*int64(c.Keys), 20*int64(c.LogUnits)*int64(c.LogKeys))
}

// A tail is a situation, and who is in it.
type tail struct {
	name string
	log  bool // the sliding log; else the default algorithm
	once timed
}

var tails = []tail{
	{"growth", false, growth},
	{"sweep", false, sweep},
	{"flood", false, flood},
	{"set-limit", false, setLimit},
	{"snapshot", false, snapshot},
	{"log", true, growth},
}

// has reports whether a subject is in it. Other limiters make objects, and ten million
// of them take gigabytes.
func (t tail) has(s peers.Subject) bool {
	return s.Kind == peers.Ours && s.Clock == peers.System && s.PerUnit == t.log && (t.log || s.Stands())
}

// RunTails returns a row for each situation: of the repeats, the run whose longest call is
// the least, and likewise for its baseline. A limiter does its own work in every run;
// the machine can only add to it. It measures sluice under the system
// clock.
func RunTails(subjects []peers.Subject, c TailConfig, log func(format string, args ...any)) ([]results.Stall, []results.Omission, error) {
	large := newSetup(Config{Keys: c.Keys, Repeats: c.Repeats, Idle: c.Idle, Turnover: max(c.Keys/2, 1), AsLong: true})
	logs := newSetup(Config{Keys: c.LogKeys, Repeats: c.Repeats, AsLong: true})
	logs.fresh.Options.Rate, logs.fresh.Options.Burst = c.LogUnits, c.LogUnits
	rows := collection{measurement: "tails", pick: calmestRun, log: log}
	for _, t := range tails {
		with := large
		if t.log {
			with = logs
		}
		for _, s := range subjects {
			if !t.has(s) {
				continue
			}
			if err := rows.add(t.name, s, t.once, with); err != nil {
				return nil, nil, err
			}
		}
	}
	return rows.measured, rows.left, nil
}

// setLimit times calls on keys in use while all keys move to another limit.
func setLimit(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	// Keys that are not idle before the limit changes, and are not spent before it has.
	o := workload.Once
	o.Rate, o.Burst = 1<<20, 1<<20
	l, changes, err := filled[peers.Changer](s, o, c, "its limit cannot be changed")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	key := c.fresh.Calls.Key
	o.Rate, o.Burst = o.Rate/2, o.Burst/2
	run, baseline = c.timesBeside(func() { err = changes.SetLimit(o) }, l, func(i int) string { return key(i % liveKeys) })
	return run, baseline, cmp.Or(err, checkKeys(l, c.fresh, c.Keys))
}

// snapshot times calls on new keys while those that are there are written down. Calls on keys that are
// there do not wait for a Snapshot.
func snapshot(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	o := workload.Once
	o.Stable = true
	l, writes, err := filled[peers.Snapshotter](s, o, c, "it cannot be written down")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var written size
	run, baseline = c.timesBeside(func() { err = writes.Snapshot(&written) }, l, c.flood.Calls.Key)
	if want := 16 * size(c.Keys); err == nil && written < want {
		err = fmt.Errorf("it wrote %d bytes, want %d or more", written, want)
	}
	return run, baseline, err
}

// filled makes a limiter that can do T, and shows it all keys.
func filled[T any](s peers.Subject, o peers.Options, c setup, cannot omitted) (l peers.Limiter, can T, err error) {
	if l, err = s.New(o); err != nil {
		return nil, can, err
	}
	can, ok := l.(T)
	if !ok {
		l.Close()
		return nil, can, cannot
	}
	c.fill(l)
	return l, can, nil
}

// size is a Writer that counts bytes.
type size int64

func (n *size) Write(p []byte) (int, error) {
	*n += size(len(p))
	return len(p), nil
}
