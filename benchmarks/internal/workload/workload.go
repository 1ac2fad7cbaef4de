// Package workload holds the calls that subjects are measured with: the same keys
// in the same order for all, under limits that decide every call alike, so that
// nobody is faster for having denied more.
package workload

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/benchmarks/internal/peers"
)

// A Workload is a series of calls and their due outcome.
type Workload struct {
	Name       string
	Keys       int           // distinct keys that a subject tracks during the calls
	Options    peers.Options // of the subjects; see OptionsFor
	AdmitRatio float64       // of the calls: 1 or 0, exactly

	// Population is called for once before anything is measured, and all of it is
	// admitted. It has no repetitions; its first PopulationLen keys count.
	Population    Sequence
	PopulationLen int
	// Calls are measured, with Strings.
	Calls   Sequence
	Strings Strings
	stored  *store // of Strings that are Stored
	// Unique workloads never call for a key twice: a sample is one pass over Calls,
	// and ends the use of the limiter.
	Unique bool
	// Batch is how many keys a call is about; 0: one, by Allow.
	Batch int
	// Singly has the keys of such a call decided one by one, in the same loop.
	Singly bool
}

// lifetime is 2^62 ns, 146 years: longer than any run, and short enough for peers that
// add it to the Unix time in nanoseconds.
const lifetime = time.Duration(1 << 62)

// The limits.
var (
	// generous is not spent by all calls that one limiter gets: the driver keeps count.
	// An hour would do, but windows that are aligned to the epoch end at the full hour
	// and take their keys along. These end in 2116, so that the number of a window and
	// two counts fit into one word, and every algorithm of sluice's is on its fast path.
	generous = peers.Options{Rate: 1 << 30, Period: lifetime, Burst: 1 << 30}
	// spent is one unit that does not come back. It takes a century: where a second unit
	// is judged by the time at which it would come back, twice the period is added.
	spent = peers.Options{Rate: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 1}
	// Once is for keys that are charged once, and that are not idle before the run ends.
	Once = peers.Options{Rate: 8, Period: lifetime, Burst: 8}
)

// batch is how many keys a call of the workload "each-16" is about.
const batch = 16

// unhurried takes the place of generous for subjects that make the caller wait for a unit's
// turn, which would be 4 s, for those that write every unit down, and for hashed buckets, which hold few: it returns a unit
// faster than anybody can ask for it.
func unhurried(o peers.Options) peers.Options {
	o.Rate, o.Period, o.Burst = 1_000_000_000, time.Second, 1_000_000_000
	return o
}

// OptionsFor returns the options of a subject for the workload: the same for all
// that can represent it.
func (w Workload) OptionsFor(s peers.Subject) peers.Options {
	if w.Options.Rate != generous.Rate || !s.Blocks && !s.PerUnit && s.Kind != peers.Approximate {
		return w.Options
	}
	o := unhurried(w.Options)
	if s.Kind == peers.Approximate {
		o.Burst = peers.HashedBurst
	}
	return o
}

// Sizes scale the workloads; tests use small ones.
type Sizes struct {
	Million int // keys of zipf and uniform
	New     int // keys of new and flood, a power of two; also flood's MaxKeys
}

// Full returns the sizes that are published.
func Full() Sizes { return Sizes{Million: 1_000_000, New: 1 << 20} }

// All returns the workloads in the order of the tables:
//
//	hot       one key                                  all admitted
//	thousand  1,000 keys, uniform                      all admitted
//	zipf      1,000,000 keys, Zipf 1.1                 all admitted
//	uniform   1,000,000 keys, uniform                  all admitted
//	*-made    zipf and uniform, with strings just made all admitted
//	*-stored  the same, with stored strings            all admitted
//	singly    uniform, handed over as to AllowEach     all admitted
//	each-1    the same, one key a call of AllowEach    all admitted
//	each-16   the same, 16 keys a call                 all admitted
//	denied    one key, its limit spent                 all denied
//	new       new keys only, into an empty limiter     all admitted
//	flood     new keys only, into one full at MaxKeys  all admitted
//	full      keys of one that is full, all spent      all denied
//	refused   new keys only, which that one refuses    all denied
func All(z Sizes) []Workload {
	r := newRand()
	ids := r.Perm(z.Million)
	million := population(z.Million, ids)
	draw := rand.NewZipf(r, 1.1, 1, uint64(z.Million-1))
	zipf := newSequence(2*z.Million, func(int) int { return ids[draw.Uint64()] })

	hot := Uniform(1)
	hot.Name = "hot"
	thousand := Uniform(1000)
	thousand.Name = "thousand"
	denied := Workload{Name: "denied", Keys: 1, Options: spent, Population: hot.Population, PopulationLen: 1, Calls: hot.Calls}
	denied.Options.Expect = 1
	heavy := tracked("zipf", z.Million, million, zipf)
	uniform := tracked("uniform", z.Million, million, newSequence(2*z.Million, func(int) int { return r.IntN(z.Million) }))
	singly, one, many := uniform, uniform, uniform
	singly.Name, singly.Batch, singly.Singly = "singly", 1, true
	one.Name, one.Batch = "each-1", 1
	many.Name, many.Batch = fmt.Sprintf("each-%d", batch), batch
	full, refused := denyNew(z, r)
	return []Workload{
		hot,
		thousand,
		heavy,
		uniform,
		heavy.made(),
		uniform.made(),
		heavy.kept(),
		uniform.kept(),
		singly,
		one,
		many,
		denied,
		Fill(z.New),
		Flood(z.New),
		full,
		refused,
	}
}

// Uniform returns the workload on a number of keys of at most 10^7, for looking at
// how the cost of a call grows with it. Its calls repeat after twice the keys, at
// most after 2^23: far more than any cache holds.
func Uniform(keys int) Workload {
	r := newRand()
	// The calls of a small population stay in the second level cache.
	calls := min(max(2*keys, 1<<12), 1<<23)
	if keys == 1000 {
		calls = 1 << 14 // enough draws to meet each of them
	}
	return tracked(fmt.Sprintf("uniform-%d", keys), keys, population(keys, r.Perm(keys)),
		newSequence(calls, func(int) int { return r.IntN(keys) }))
}

// tracked is a workload whose keys are all known before it is measured.
func tracked(name string, keys int, known, calls Sequence) Workload {
	o := generous
	o.Expect = keys
	return Workload{
		Name: name, Keys: keys, Options: o, AdmitRatio: 1,
		Population: known, PopulationLen: keys, Calls: calls,
	}
}

// population holds each id once, in an order that has nothing to do with how often
// it is called for: a limiter that makes an object a key would otherwise have the
// busy ones side by side. A power of two is filled up with the first.
func population(keys int, ids []int) Sequence {
	return newSequence(keys, func(i int) int { return ids[i%keys] })
}

// Fill returns the workload "new" with so many keys.
func Fill(keys int) Workload {
	o := Once
	o.Expect = keys
	return Workload{
		Name: "new", Keys: keys, Options: o, AdmitRatio: 1, Unique: true,
		Calls: Distinct(keys),
	}
}

// Flood returns the workload "flood" with room for so many keys. It first shows a quarter
// more. How many of those are tracked is then up to the subject, and never more than
// MaxKeys.
func Flood(room int) Workload {
	o := Once
	o.MaxKeys = room
	known := room + room/4
	return Workload{
		Name: "flood", Keys: room, Options: o, AdmitRatio: 1, Unique: true,
		Population: Distinct(known), PopulationLen: known,
		Calls: strangers(room),
	}
}

// strangers are as many keys as there is room for, and none of those that a limiter with
// that room was shown before.
func strangers(room int) Sequence {
	return newSequence(room, func(i int) int { return 2*room + i })
}

// denyNew returns two workloads on a limiter that is full and whose keys are all spent:
// its denials because they are, and its denials because there is no room. The keys
// of the former are from the first half of its keys, for which every shard had
// room. Both are spread over the whole table alike.
func denyNew(z Sizes, r *rand.Rand) (full, refused Workload) {
	o := spent
	o.MaxKeys, o.DenyNew = z.New, true
	known := z.New + z.New/4
	full = Workload{
		Name: "full", Keys: z.New, Options: o, Population: Distinct(known), PopulationLen: known,
		Calls: newSequence(z.New, func(int) int { return r.IntN(z.New / 2) }),
	}
	refused = full
	refused.Name, refused.Calls = "refused", strangers(z.New)
	return full, refused
}

// Excludes returns why the workload has no row for the subject, or "" if it has.
func (w Workload) Excludes(s peers.Subject) string {
	switch {
	case w.AdmitRatio == 0 && s.Blocks:
		return "it denies nobody: the call would wait"
	case w.Options.MaxKeys > 0 && !s.Bounded:
		return "it has no bound on its keys"
	case w.Options.DenyNew && !s.DeniesNew:
		return "it cannot keep the keys it has and deny new ones"
	case w.Batch > 0 && !s.Batches:
		return "it has no call that decides on many keys"
	case (w.Options.DenyNew || w.Batch > 0) && !s.Stands():
		return "GCRA stands for the other algorithms"
	case w.Keys > 1 && s.Kind == peers.Bare:
		return "it does not tell keys apart"
	case w.Unique && !s.HasKeys():
		return "no key is new to it"
	case w.Strings != Streamed && !s.Stands():
		return "GCRA stands for the other algorithms"
	case w.Keys > 1 && s.PerUnit && w.Options.Burst > 1<<10:
		return "it keeps every unit: limits that are never spent, for many keys, do not fit into memory"
	case w.Keys >= 1e7 && s.Kind != peers.Ours && s.Kind != peers.Baseline:
		return "ten million objects take gigabytes, and half a minute to make"
	}
	return ""
}

// Admits returns how many of a number of calls are admitted.
func (w Workload) Admits(calls int) int { return int(w.AdmitRatio) * calls }

// CheckKeys compares the number of keys that a limiter tracks after a number of
// calls with the declared one, and returns the declared share if they differ. Limiters
// that cannot tell (-1) pass: the tests of package peers have shown that they track
// keys apart.
func (w Workload) CheckKeys(tracked, calls int) (want string) {
	keys := w.Keys
	switch {
	case tracked == -1:
		return ""
	case w.Options.MaxKeys > 0:
		// A bound that is kept shard by shard, in batches, is never quite reached.
		if low := keys / 4 * 3; tracked < low || tracked > keys {
			return fmt.Sprintf("%d to %d", low, keys)
		}
		return ""
	case w.Unique:
		keys = calls
	}
	if tracked != keys {
		return fmt.Sprint(keys)
	}
	return ""
}
