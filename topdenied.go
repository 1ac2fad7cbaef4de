package sluice

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// A DeniedKey is one of the keys that were denied most: see Limiter.TopDenied.
type DeniedKey struct {
	// Name is the key as it was given to a method that takes a string, or to the method that
	// made its Key: a string, the bytes, or the text of the address, cut to 256 bytes. It is
	// empty until the limiter gets a name, and for the Keys of KeyUint64 and KeyHash.
	//
	// A method that takes a string names the key that it denies. For a denied Key the limiter
	// has only its id, and the key gets its name when a Key for it is made the next time:
	// soon, if a Key is made for each request, as in a middleware.
	Name string
	// ID is the 64-bit hash by which the key is tracked: Limiter.KeyHash(ID) is the key, to
	// be blocked, say, or looked up in a map of Keys. With HashStable it is the xxHash64 of a key that is a string.
	ID uint64
	// Denied estimates how often the key was denied, as 64 times its samples. The standard
	// deviation for n denials is 8*sqrt(n): 25 % of 1,000, 2.5 % of 100,000.
	Denied uint64
	// Excess is by how much Denied may be too high: the key was denied Denied-Excess times
	// or more, with a chance of 999 in 1,000. It covers the chance of sampling, and the samples
	// that a key takes over from another key when it replaces that key in the list.
	Excess uint64
}

// denialsASample is how many denials one sample stands for. A sample takes a lock and
// a look into a map, and at worst a copy of the name, some 300 ns; sampling should add
// less than 10 ns to a denial.
const denialsASample = 64

// TopDenied returns the keys that were denied most, most often first, at most
// Config.TopDenied of them; nil if that is 0.
//
// One denial in 64, at random, is a sample. (If many calls are denied at once, some samples
// are dropped: a denial does not wait for statistics.) Each key that has more than one in
// Config.TopDenied of these samples is in the list (Metwally, Agrawal,
// El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
// 2005: the Space-Saving algorithm). Denials of cost 0 and of Peek are not counted.
//
// Names come from clients as they are. If keys are secrets, such as session cookies, make
// them with KeyHash.
func (l *Limiter) TopDenied() []DeniedKey {
	if l.made().top == nil {
		return nil
	}
	counters := l.top.List()
	all := make([]DeniedKey, len(counters))
	for i, c := range counters {
		denied := denialsASample * c.Count
		all[i] = DeniedKey{Name: c.Name, ID: l.hash.Hash(c.ID), Denied: denied, Excess: denied - atLeast(c.Count-c.Excess)}
	}
	slices.SortFunc(all, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// sampleDenial counts a denial, by chance one in denialsASample. l.top is not nil.
func (l *Limiter) sampleDenial(id uint64, name string) {
	if rand.Uint64()%denialsASample == 0 {
		l.top.Count(id, name)
	}
}

// atLeast returns how many denials there were at least, if so many of them were samples.
// The number of samples is a Poisson variable of mean denials/64, or narrower. The normal
// quantile of 99.9 % below it is a bound on the safe side of the exact bound. The result is
// at least the number of samples, each of which was a denial.
func atLeast(samples uint64) uint64 {
	n := float64(samples)
	return max(samples, uint64(max(0, denialsASample*(n-3.1*math.Sqrt(n)))))
}
