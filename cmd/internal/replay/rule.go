package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-go/sluice"
)

// A Rule is a limit for each client and the
// algorithm that enforces it; or the rules of a File for a domain.
type Rule struct {
	Algorithm sluice.Algorithm
	Limit     sluice.Limit

	Domain string // of a File; empty for a limit
	// Against tells the File that would take the place of another one, of the same domain, from that.
	Against bool
	// Logged, unless it is empty, stands for whatever has decided when the log was written: it denies the requests that the log
	// has answered with this status. It has no other field.
	Logged string
}

// String returns the form that ParseRule reads, as in "gcra 20/m burst 5"; or, of a File, AlgorithmText and
// the domain.
func (r Rule) String() string { return r.AlgorithmText() + " " + r.LimitText() }

// AlgorithmText is the name of the algorithm; of a File "rules", or "against"; or "log".
func (r Rule) AlgorithmText() string {
	if r.Logged != "" {
		return "log"
	}
	if r.Against {
		return "against"
	}
	if r.Domain != "" {
		return "rules"
	}
	return r.Algorithm.String()
}

// LimitText is the limit; the domain of a File; or the status that a log has for denials.
func (r Rule) LimitText() string {
	if r.Logged != "" {
		return "status " + r.Logged
	}
	if r.Domain != "" {
		return r.Domain
	}
	return r.Limit.String()
}

// Algorithms returns all algorithms, in the order of the library.
func Algorithms() []sluice.Algorithm {
	return []sluice.Algorithm{
		sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket,
		sluice.SlidingWindow, sluice.SlidingLog, sluice.FixedWindow,
	}
}

// ParseRule reads an algorithm and a limit with a blank between them.
func ParseRule(s string) (Rule, error) {
	name, limit, ok := strings.Cut(strings.TrimSpace(s), " ")
	if !ok {
		return Rule{}, fmt.Errorf(`rule %q: want an algorithm and a limit, as in "gcra 20/m burst 5"`, s)
	}
	algorithm, err := ParseAlgorithm(name)
	if err != nil {
		return Rule{}, err
	}
	parsed, err := ParseLimit(limit)
	return Rule{Algorithm: algorithm, Limit: parsed}, err
}

// ParseAlgorithm reads the name of an algorithm.
func ParseAlgorithm(name string) (sluice.Algorithm, error) {
	var names []string
	for _, a := range Algorithms() {
		if a.String() == name {
			return a, nil
		}
		names = append(names, a.String())
	}
	return 0, fmt.Errorf("unknown algorithm %q: want one of %s", name, strings.Join(names, ", "))
}

// ParseLimit is sluice.ParseLimit with an error that leaves it to the caller to
// say who speaks. It refuses limits of units in use, since logs do not tell how long requests ran.
func ParseLimit(s string) (sluice.Limit, error) {
	limit, err := sluice.ParseLimit(s)
	if err != nil {
		return limit, errors.New(strings.TrimPrefix(err.Error(), "sluice: "))
	}
	if limit == sluice.AtOnce(limit.Rate, limit.Period) {
		return limit, fmt.Errorf("limit %q is of requests that run, and a log does not tell how long they did; want a count per time, as in 60/m", s)
	}
	return limit, nil
}
