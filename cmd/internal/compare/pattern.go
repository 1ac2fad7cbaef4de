package compare

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/limittest"
)

// start is when patterns begin: midnight, and the beginning of windows.
var start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// periods is how long most patterns last.
const periods = 20

// MaxRequests is the most requests that a pattern has.
const MaxRequests = 10_000_000

// A Pattern is requests that a limit meets.
type Pattern struct {
	Name  string
	About string
	// arrivals makes them, for one key unless it says so.
	arrivals func(t limittest.Traffic, limit sluice.Limit) iter.Seq[limittest.Arrival]
	load     time.Duration // how many times the rate of the limit is asked for
	lasts    func(limit sluice.Limit) time.Duration
	requests int // in place of load and lasts
}

const day = 24 * time.Hour

func somePeriods(limit sluice.Limit) time.Duration { return periods * limit.Period }

// Patterns are all of them.
var Patterns = []Pattern{
	{Name: "steady", About: "one request after the other, at twice the rate", load: 2, lasts: somePeriods,
		arrivals: func(t limittest.Traffic, _ sluice.Limit) iter.Seq[limittest.Arrival] { return t.Steady() }},
	{Name: "poisson", About: "by chance, at the rate on average", load: 1, lasts: somePeriods,
		arrivals: func(t limittest.Traffic, _ sluice.Limit) iter.Seq[limittest.Arrival] { return t.Poisson() }},
	{Name: "bursty", About: "twice the limit at once, every two periods", load: 1, lasts: somePeriods,
		arrivals: func(t limittest.Traffic, l sluice.Limit) iter.Seq[limittest.Arrival] { return t.Bursty(2 * l.Rate) }},
	{Name: "boundary", About: "the limit just before a minute or so ends, and once more just after", load: 1, lasts: somePeriods,
		arrivals: func(t limittest.Traffic, l sluice.Limit) iter.Seq[limittest.Arrival] { return t.Boundary(l) }},
	{Name: "flood", About: "a new key for each request", requests: 10_000,
		arrivals: func(t limittest.Traffic, _ sluice.Limit) iter.Seq[limittest.Arrival] { return t.Flood() }},
	{Name: "diurnal", About: "by chance, from nothing at midnight to twice the rate at noon", load: 1, lasts: func(sluice.Limit) time.Duration { return day },
		arrivals: func(t limittest.Traffic, _ sluice.Limit) iter.Seq[limittest.Arrival] { return t.Diurnal(day) }},
}

// Names lists the patterns.
func Names() string {
	names := make([]string, len(Patterns))
	for i, p := range Patterns {
		names[i] = p.Name
	}
	return strings.Join(names, ", ")
}

// Arrivals returns the requests of a pattern under a limit, which has a rate. requests is their number; 0 for the pattern's own.
func Arrivals(name string, limit sluice.Limit, seed uint64, requests int) (iter.Seq[limittest.Arrival], error) {
	for _, p := range Patterns {
		if p.Name == name {
			return p.of(limit, seed, requests)
		}
	}
	return nil, fmt.Errorf("unknown pattern %q: want one of %s", name, Names())
}

func (p Pattern) of(limit sluice.Limit, seed uint64, requests int) (iter.Seq[limittest.Arrival], error) {
	t := limittest.Traffic{Seed: seed, N: requests, Start: time.Unix(0, start.UnixNano()/int64(limit.Period)*int64(limit.Period))}
	if p.load > 0 {
		t.Every = max(1, limit.Period/(time.Duration(limit.Rate)*p.load))
	}
	if t.N == 0 {
		t.N = p.requests
	}
	if t.N == 0 {
		n := p.lasts(limit) / t.Every
		if n > MaxRequests {
			return nil, fmt.Errorf("%s under %v has more than %d requests: want --requests, or a lower --limit", p.Name, limit, MaxRequests)
		}
		t.N = max(1, int(n))
	}
	return p.arrivals(t, limit), nil
}
