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
	gcraCoarse = "sluice GCRA, coarse clock"
	window     = "sluice sliding window"
	logName    = "sluice sliding log"
	throttled  = "throttled"
	juju       = "juju/ratelimit in xsync.MapOf"
	bare       = "x/time/rate, bare"
	diy        = "mutex and map"
	sketched   = "sketch"
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
			{Name: gcraCoarse, Kind: string(peers.Ours), Clock: coarse},
			{Name: window, Kind: string(peers.Ours), Clock: system},
			{Name: logName, Kind: string(peers.Ours), Clock: system, PerUnit: true},
			{Name: juju, Kind: string(peers.Keyed)},
			{Name: bare, Kind: string(peers.Bare)},
			{Name: diy, Kind: string(peers.Baseline)},
			{Name: sketched, Kind: string(peers.Baseline), Clock: system},
		},
	}
	for subject, ns := range map[string][10]float64{
		// hot, thousand, zipf, uniform, denied, new, 2 hot, 2 zipf, flood, 2 denied
		throttled:  {120, 140, 300, 700, 110, 900, 150, 260, 0, 100},
		juju:       {100, 130, 400, 800, 100, 1000, 120, 280, 0, 90},
		gcraSystem: {50, 55, 90, 200, 45, 200, 70, 60, 300, 23},
		gcraCoarse: {25, 26, 60, 150, 22, 180, 40, 30, 280, 11},
		window:     {60, 66, 100, 220, 50, 220, 80, 70, 330, 26},
		logName:    {150, 160, 300, 400, 60, 500, 180, 150, 900, 31},
		bare:       {40, 0, 0, 0, 40, 0, 60, 0, 0, 70},
		diy:        {80, 85, 250, 500, 70, 300, 300, 400, 0, 200},
		sketched:   {45, 48, 70, 140, 40, 150, 65, 50, 0, 21},
	} {
		addSpeed(&r, subject, ns)
	}
	addFloorAndScaling(&r)
	millis := func(n int) []time.Duration { return []time.Duration{time.Duration(n) * time.Millisecond} }
	r.Memory = []results.Memory{
		{Subject: throttled, Keys: 1e6, BytesPerKey: 180, ObjectsPerKey: 3, GC: millis(60), GCWithout: millis(1)},
		{Subject: gcraSystem, Keys: 1e6, BytesPerKey: 33.56, ObjectsPerKey: 0.00006, GC: millis(1), GCWithout: millis(1)},
		{Subject: logName, Keys: 1e6, BytesPerKey: 140, ObjectsPerKey: 0.1, GC: millis(9), GCWithout: millis(1)},
	}
	for _, situation := range []string{"growth", "sweep", "flood"} {
		for _, s := range []string{gcraSystem, gcraCoarse} {
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

func addFloorAndScaling(r *results.Results) {
	for part, ns := range map[string]float64{
		floor.Driver: 2, floor.SystemClock: 34, floor.CoarseClock: 4, floor.Maphash: 8,
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
		r.Speed = append(r.Speed, results.Speed{Subject: subject, Workload: c.workload, Mode: c.mode, Keys: 1, Samples: rounds(ns[i])})
		if c.mode == twoCPU {
			one := rounds(ns[i] * 1.9)
			r.Speed = append(r.Speed, results.Speed{Subject: subject, Workload: c.workload, Mode: oneCPU, Keys: 1, Samples: one})
		}
	}
}

func rounds(ns float64) []float64 { return []float64{ns, 2 * ns, ns} }
