// Package results has the measurements: the one form in which they are
// handed to the tables, the charts and the README.
package results

import (
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
)

// Results is one complete run.
type Results struct {
	Machine  Machine
	Subjects []Subject // every subject of the run, in the order of the tables
	Speed    []Speed
	Scaling  []Speed // own and a few other subjects over the number of keys
	Memory   []Memory
	Curve    []Curve  `json:",omitempty"` // memory over the number of keys
	Full     []Memory `json:",omitempty"` // limiters that are full at MaxKeys, without times of collections
	Stall    []Stall
	Tails    []Stall `json:",omitempty"` // the situations with the most to move
	Floor    []Floor
	Allocs   []Allocs
	Omitted  []Omission // rows that a reader would look for and not find
}

// Subject describes a subject in tables beside its figures: peers.Subject
// without the code.
type Subject struct {
	Name, Module, Kind, Clock, Note string
	PerUnit                         bool
}

// Stands is peers.Subject's.
func (s Subject) Stands() bool {
	return peers.Subject{Name: s.Name, Kind: peers.Kind(s.Kind)}.Stands()
}

// Describe describes a subject in tables.
func Describe(s peers.Subject) Subject {
	return Subject{Name: s.Name, Module: s.Module, Kind: string(s.Kind), Clock: s.Clock, Note: s.Note, PerUnit: s.PerUnit}
}

// Machine has the place, the time and the commit of a run.
type Machine struct {
	Date     string // 2006-01-02
	Commit   string // of sluice; ends in "+changes" if the tree was not clean
	Go       string
	OS, Arch string
	CPU      string
	Cores    int
	Rounds   int
	// FastClock has the sources of the fast clocks of this run, and in how many limiters, as
	// peers.FastSources says it.
	FastClock map[string]int    `json:",omitempty"`
	Versions  map[string]string // module path -> version
}

// Speed is one subject under one workload.
type Speed struct {
	Subject  string
	Workload string // as in package workload
	Mode     string // serial, parallel-1, parallel-2: goroutines on as many processors
	Keys     int    // distinct keys
	// Samples are ns a call, in the order in which they were taken. Sample i of one subject
	// and sample i of another lie seconds apart at most, and up to minutes where each sample or
	// round needs a limiter with a million keys of its own. In parallel, the time in which any of
	// the goroutines finishes a call.
	Samples []float64
}

// Memory is one subject that holds Keys keys.
type Memory struct {
	Subject       string
	Keys          int
	MaxKeys       int `json:",omitempty"`
	BytesPerKey   float64
	ObjectsPerKey float64
	GC            []time.Duration // each runtime.GC with it resident
	GCWithout     []time.Duration // the same with it gone, right after
}

// Curve is the weight of a subject that is filled on and on: Bytes[i] is the heap for each of
// Keys[i] keys.
type Curve struct {
	Subject string
	Keys    []int
	Bytes   []float64
}

// Stall is the latency of single calls in one situation, in ns.
type Stall struct {
	Subject                    string
	Situation                  string // growth, sweep, flood; of Tails also set-limit, snapshot, log
	Keys                       int    `json:",omitempty"`
	Calls                      int64
	P50, P99, P999, P9999, Max int64
	// Baseline is the same loop around an empty call: the time that the machine adds by itself.
	// It is made as often, of Tails for as long.
	BaselineP9999, BaselineMax int64
}

// Own is the longest call without the machine's part.
func (s Stall) Own() int64 { return max(s.Max-s.BaselineMax, 0) }

// Floor is the cost of one part of a decision alone, in ns.
type Floor struct {
	Part    string
	Samples []float64
}

// Allocs are the heap allocations of a subject's calls, after the first ones.
type Allocs struct {
	Subject  string
	Workload string
	PerCall  float64
}

// Omission is a measurement that was not made of a subject, and why.
type Omission struct {
	Subject, Measurement, Reason string
}
