package stall

import (
	"cmp"
	"fmt"
	"slices"
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

// FullTails is what the published tables are made with: ten million keys, and a log that
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
	once func(peers.Subject, setup) (run, baseline *hdrhistogram.Histogram, err error)
}

var tails = []tail{
	{"growth", false, growth},
	{"sweep", false, sweep},
	{"flood", false, flood},
	{"set-limit", false, setLimit},
	{"snapshot", false, snapshot},
	{"log", true, growth},
}

// RunTails returns a row for each situation: of the repeats, the run whose longest call is
// the least, and likewise for its baseline. What a limiter has to do it does in every run;
// what the machine does meanwhile can only add to it. It measures sluice under the system
// clock: the others make objects, and ten million of them take gigabytes.
func RunTails(subjects []peers.Subject, c TailConfig, log func(format string, args ...any)) ([]results.Stall, []results.Omission, error) {
	large := newSetup(Config{Keys: c.Keys, Idle: c.Idle, Turnover: max(c.Keys/2, 1), AsLong: true})
	logs := newSetup(Config{Keys: c.LogKeys, AsLong: true})
	logs.fresh.Options.Rate, logs.fresh.Options.Burst = c.LogUnits, c.LogUnits
	var rows []results.Stall
	var left []results.Omission
	for _, t := range tails {
		for _, s := range subjects {
			if s.Kind != peers.Ours || s.Clock != peers.System || s.PerUnit != t.log || !t.log && !s.Stands() {
				continue
			}
			with := large
			if t.log {
				with = logs
			}
			r, err := t.calmest(s, with, c.Repeats)
			if why, ok := err.(omitted); ok {
				log("tails: %s, %s: left out: %s", t.name, s.Name, why)
				left = append(left, results.Omission{Subject: s.Name, Measurement: "tails, " + t.name, Reason: string(why)})
				continue
			}
			if err != nil {
				return nil, nil, fmt.Errorf("tails of %s, %s: %w", s.Name, t.name, err)
			}
			log("tails: %s, %s: longest %v, of which the machine %v", t.name, s.Name, time.Duration(r.Max), time.Duration(r.BaselineMax))
			rows = append(rows, r)
		}
	}
	return rows, left, nil
}

func (t tail) calmest(s peers.Subject, c setup, repeats int) (results.Stall, error) {
	runs, baselines, err := again(repeats, t.once, s, c)
	if err != nil {
		return results.Stall{}, err
	}
	shortest := func(a, b *hdrhistogram.Histogram) int { return cmp.Compare(a.Max(), b.Max()) }
	r := row(t.name, s, slices.MinFunc(runs, shortest), slices.MinFunc(baselines, shortest))
	r.Keys = c.Keys
	return r, nil
}

// setLimit times calls on keys in use while all keys move to another limit.
func setLimit(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	// Keys that are not idle before the limit changes, and are not spent before it has.
	o := workload.Once
	o.Rate, o.Burst = 1<<20, 1<<20
	l, err := s.New(o)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	changes, ok := l.(peers.Changer)
	if !ok {
		return nil, nil, omitted("its limit cannot be changed")
	}
	c.fill(l)
	key := c.fresh.Calls.Key
	o.Rate, o.Burst = o.Rate/2, o.Burst/2
	run, baseline = c.timesBeside(func() { err = changes.SetLimit(o) }, l, func(i int) string { return key(i % liveKeys) })
	if want := c.fresh.CheckKeys(l.Keys(), c.Keys); err == nil && want != "" {
		err = fmt.Errorf("it holds %d keys, want %s", l.Keys(), want)
	}
	return run, baseline, err
}

// snapshot times calls on new keys while those that are there are written down. Calls on keys that are
// there do not wait for a Snapshot.
func snapshot(s peers.Subject, c setup) (run, baseline *hdrhistogram.Histogram, err error) {
	o := workload.Once
	o.Stable = true
	l, err := s.New(o)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	writes, ok := l.(peers.Snapshotter)
	if !ok {
		return nil, nil, omitted("it cannot be written down")
	}
	c.fill(l)
	var written size
	run, baseline = c.timesBeside(func() { err = writes.Snapshot(&written) }, l, c.flood.Calls.Key)
	if want := 16 * size(c.Keys); err == nil && written < want {
		err = fmt.Errorf("it wrote %d bytes, want %d or more", written, want)
	}
	return run, baseline, err
}

// size is a Writer that counts bytes.
type size int64

func (n *size) Write(p []byte) (int, error) {
	*n += size(len(p))
	return len(p), nil
}
