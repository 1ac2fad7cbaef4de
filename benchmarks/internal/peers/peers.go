// Package peers puts every limiter that is measured behind one small interface:
// one adapter a file. An adapter does as the limiter's own documentation tells
// its users to do, and nothing that a user would not.
package peers

import (
	"io"
	"strings"
	"time"
)

// A Kind is the role of a subject.
type Kind string

const (
	Ours     Kind = "ours"     // sluice
	Library  Kind = "library"  // a published limiter that takes a key
	Keyed    Kind = "keyed"    // a published limiter of one key, one of them a key in a concurrent map
	Bare     Kind = "bare"     // a published limiter of one key, without a map: no keys at all
	Baseline Kind = "baseline" // code that one would write oneself

	Approximate Kind = "approximate" // keys that collide are one to it: no limiter of keys
)

// Options are the settings that every subject is made with.
type Options struct {
	Rate    int           // units per Period
	Period  time.Duration //
	Burst   int           // most units at once; subjects without a burst of their own use Rate
	MaxKeys int           // 0: no bound. Only subjects with Bounded take another value.
	Expect  int           // how many keys will come, for what cannot grow; 0: 1<<20
	DenyNew bool          // at MaxKeys new keys are denied, and no other is dropped. Only subjects with DeniesNew take it.
	Stable  bool          // keys are hashed as a Snapshotter asks; other limiters ignore it
}

// A Limiter is one limiter under test.
type Limiter interface {
	// Allow charges one unit to key and reports whether it passed.
	Allow(key string) bool
	// Keys returns the number of tracked keys, or -1 where the limiter cannot tell.
	Keys() int
	// Sweep makes the limiter drop the state of idle keys, if it can be made to.
	Sweep()
	// Close ends the background work of the limiter.
	Close()
}

// A Batcher is a Limiter that decides on many keys in one call.
type Batcher interface{ Batch(n int) Batch }

// A Batch is up to n keys, which one goroutine puts together.
type Batch interface {
	Add(key string)
	// Allow does as Limiter.Allow for each of the keys, in one call, and returns how
	// many have passed. The batch is empty then.
	Allow() (admitted int)
	// AllowSingly is Allow in a call for each key.
	AllowSingly() (admitted int)
}

// A Snapshotter is a Limiter that can write down its state while it is in use.
type Snapshotter interface{ Snapshot(io.Writer) error }

// A Changer is a Limiter whose limit can be changed while it is in use.
type Changer interface{ SetLimit(Options) error }

// A Subject is a limiter that can be made.
type Subject struct {
	Name   string // as in the tables: "throttled", "x/time/rate in sync.Map", "sluice GCRA"
	Module string // its module path, to look up the version; empty for baselines
	Kind   Kind
	Clock  string // System, Fast or Coarse for Ours, Runtime for Approximate; else empty

	Bounded   bool // honours Options.MaxKeys: Keys() <= MaxKeys at any time
	DeniesNew bool // honours Options.DenyNew
	Blocks    bool // does not deny but makes the caller wait, so it has no denied row
	Sweeps    bool // drops idle keys: by Sweep, or by itself
	Batches   bool // its limiters are Batchers
	PerUnit   bool // keeps every unit that it admits: memory is burst x keys

	// Note has in one sentence the knowledge that a reader needs for the subject's row
	// rightly ("ids only", "one mutex", ...). May be empty.
	Note string

	New func(Options) (Limiter, error)
}

// The clocks of Subject.Clock.
const (
	System  = "system"
	Fast    = "fast"
	Coarse  = "coarse"
	Runtime = "runtime" // the monotonic clock of Go's runtime, by linkname
)

// HasKeys reports whether the subject keeps keys apart, each with a state of its own.
func (s Subject) HasKeys() bool { return s.Kind != Bare && s.Kind != Approximate }

// Stands reports whether the subject is measured and shown where there is no room for
// all of sluice's algorithms: all peers are, and GCRA, the default, for the six.
func (s Subject) Stands() bool { return s.Kind != Ours || strings.Contains(s.Name, "GCRA") }
