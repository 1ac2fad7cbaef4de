package report

import (
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/floor"
	"github.com/sluice-go/sluice/benchmarks/internal/peers"
	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// Names as in the tables.
const (
	gcraSystem = "sluice GCRA"
	gcraFast   = "sluice GCRA, fast clock"
	gcraCoarse = "sluice GCRA, coarse clock"
	window     = "sluice sliding window"
	logName    = "sluice sliding log"
	throttled  = "throttled"
	juju       = "juju/ratelimit in xsync.MapOf"
	bare       = "x/time/rate, bare"
	diy        = "mutex and map"
	hashedName = "hashed buckets (approximate)"
)

// fixture is a small run that meets every budget but those that tests break.
// Every other round the machine is twice as slow, for everybody.
func fixture() results.Results {
	r := results.Results{
		Machine: results.Machine{
			Date: "2026-01-02", Commit: "abc1234", Go: "go1.26", OS: "linux", Arch: "amd64",
			CPU: "Example CPU", Cores: 2, Rounds: 3,
			Versions: map[string]string{"github.com/throttled/throttled/v2": "v2.15.0"},
		},
		Subjects: []results.Subject{
			{Name: throttled, Module: "github.com/throttled/throttled/v2", Kind: string(peers.Library), Note: "One mutex."},
			{Name: gcraSystem, Kind: string(peers.Ours), Clock: system},
			{Name: gcraFast, Kind: string(peers.Ours), Clock: fast},
			{Name: gcraCoarse, Kind: string(peers.Ours), Clock: coarse},
			{Name: window, Kind: string(peers.Ours), Clock: system},
			{Name: logName, Kind: string(peers.Ours), Clock: system, PerUnit: true},
			{Name: juju, Kind: string(peers.Keyed)},
			{Name: bare, Kind: string(peers.Bare)},
			{Name: diy, Kind: string(peers.Baseline)},
			{Name: hashedName, Kind: string(peers.Approximate), Clock: peers.Runtime},
		},
	}
	for subject, ns := range map[string][10]float64{
		// hot, thousand, zipf, uniform, denied, new, 2 hot, 2 zipf, flood, 2 denied
		throttled:  {120, 140, 300, 700, 110, 900, 150, 260, 0, 100},
		juju:       {100, 130, 400, 800, 100, 1000, 120, 280, 0, 90},
		gcraSystem: {50, 55, 90, 200, 45, 200, 70, 60, 240, 23},
		gcraFast:   {38, 50, 80, 170, 40, 190, 55, 60, 290, 20},
		gcraCoarse: {25, 26, 60, 150, 22, 180, 40, 30, 280, 11},
		window:     {60, 66, 100, 220, 50, 220, 80, 70, 330, 26},
		logName:    {150, 160, 300, 400, 60, 500, 180, 150, 900, 31},
		bare:       {40, 0, 0, 0, 40, 0, 60, 0, 0, 70},
		diy:        {80, 85, 250, 500, 70, 300, 300, 400, 0, 200},
		hashedName: {52, 67, 80, 180, 54, 0, 65, 55, 0, 21},
	} {
		addSpeed(&r, subject, ns)
	}
	addFloorAndScaling(&r)
	addMore(&r)
	millis := func(n int) []time.Duration { return []time.Duration{time.Duration(n) * time.Millisecond} }
	r.Memory = []results.Memory{
		{Subject: throttled, Keys: 1e6, BytesPerKey: 180, ObjectsPerKey: 3, GC: millis(60), GCWithout: millis(1)},
		{Subject: gcraSystem, Keys: 1e6, BytesPerKey: 23.56, ObjectsPerKey: 0.00006, GC: millis(1), GCWithout: millis(1)},
		{Subject: logName, Keys: 1e6, BytesPerKey: 140, ObjectsPerKey: 0.1, GC: millis(9), GCWithout: millis(1)},
	}
	for _, situation := range []string{"growth", "sweep", "flood"} {
		for _, s := range []string{gcraSystem, gcraFast, gcraCoarse} {
			r.Stall = append(r.Stall, results.Stall{
				Subject: s, Situation: situation, Calls: 1 << 20,
				P50: 90, P99: 400, P999: 2000, P9999: 80_000, Max: 3_000_000, BaselineP9999: 20_000, BaselineMax: 2_000_000,
			})
		}
	}
	r.Allocs = []results.Allocs{{Subject: gcraSystem, Workload: "hot"}, {Subject: throttled, Workload: "hot", PerCall: 2}}
	r.Omitted = []results.Omission{{Subject: bare, Measurement: "stall, growth", Reason: "it has no keys"}}
	return r
}

// addMore adds batches, refusals, the curves and the tails.
func addMore(r *results.Results) {
	for _, s := range []struct {
		subject, workload string
		ns                float64
	}{
		{gcraSystem, "full", 110}, {gcraSystem, "refused", 100}, {gcraCoarse, "singly", 150}, {gcraCoarse, "each-1", 150}, {gcraCoarse, "each-16", 29},
		{gcraSystem, "zipf-made", 101}, {gcraSystem, "uniform-stored", 433}, {hashedName, "uniform-stored", 356},
	} {
		r.Speed = append(r.Speed, results.Speed{Subject: s.subject, Workload: s.workload, Mode: serial, Keys: 1e6, Samples: rounds(s.ns)})
	}
	sizes := []int{1000, 20_000, 30_000, 40_000}
	r.Curve = []results.Curve{
		{Subject: throttled, Keys: sizes[:2], Bytes: []float64{78, 81}},
		{Subject: gcraSystem, Keys: sizes, Bytes: []float64{51, 29, 22, 18}},
		{Subject: window, Keys: sizes, Bytes: []float64{50, 22, 28, 17}},
		{Subject: logName, Keys: sizes, Bytes: []float64{150, 140, 130, 120}},
	}
	r.Full = []results.Memory{
		{Subject: gcraSystem, MaxKeys: 1e6, Keys: 900_000, BytesPerKey: 22},
		{Subject: window, MaxKeys: 1e6, Keys: 900_000, BytesPerKey: 23},
		{Subject: logName, MaxKeys: 1e6, Keys: 900_000, BytesPerKey: 120},
	}
	for _, t := range tails {
		subject := gcraSystem
		if t.situation == "log" {
			subject = logName
		}
		r.Tails = append(r.Tails, results.Stall{
			Subject: subject, Situation: t.situation, Keys: 1e7, Calls: 1e7,
			P50: 90, P99: 400, P999: 2000, P9999: 80_000, Max: 130_000, BaselineP9999: 20_000, BaselineMax: 40_000,
		})
	}
	r.Machine.FastClock = map[string]int{"TSC": 12}
}

func addFloorAndScaling(r *results.Results) {
	for part, ns := range map[string]float64{
		floor.Driver: 2, floor.SystemClock: 34, floor.FastClock: 15, floor.CoarseClock: 4, floor.Maphash: 8,
		floor.NanoTime: 31, floor.Strings("hot"): 2, floor.Strings("zipf-made"): 17, floor.Strings("uniform-stored"): 77,
		floor.Load: 0.5, floor.CAS: 5, floor.Miss16: 20,
	} {
		r.Floor = append(r.Floor, results.Floor{Part: part, Samples: rounds(ns)})
	}
	for _, s := range []string{gcraSystem, throttled} {
		for i, factor := 0, 1.0; i < 5; i, factor = i+1, factor*1.6 {
			keys := []int{1e3, 1e4, 1e5, 1e6, 1e7}[i]
			ns := map[string]float64{gcraSystem: 50, throttled: 120}[s]
			r.Scaling = append(r.Scaling, results.Speed{Subject: s, Workload: "uniform", Mode: serial, Keys: keys, Samples: rounds(ns * factor)})
		}
	}
}

func addSpeed(r *results.Results, subject string, ns [10]float64) {
	cols := append(append([]column{}, columns...), column{"", "flood", serial}, column{"", "denied", twoCPU})
	for i, c := range cols {
		if ns[i] == 0 {
			continue
		}
		keys := map[string]int{"hot": 1, "denied": 1, "thousand": 1000}[c.workload]
		if keys == 0 {
			keys = 1e6
		}
		r.Speed = append(r.Speed, results.Speed{Subject: subject, Workload: c.workload, Mode: c.mode, Keys: keys, Samples: rounds(ns[i])})
		if c.mode == twoCPU {
			one := rounds(ns[i] * 1.9)
			r.Speed = append(r.Speed, results.Speed{Subject: subject, Workload: c.workload, Mode: oneCPU, Keys: keys, Samples: one})
		}
	}
}

func rounds(ns float64) []float64 { return []float64{ns, 2 * ns, ns} }
