package fleet

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// A Pair is the case in which the synchronised counters of another gateway admitted 590 of 500 a second: two gateways that
// are offered 800 calls a second together.
type Pair struct {
	Seconds []int // admitted in each second, as far as that is sure
	Tally   Tally
	Calls   []Call
	Lost    int // how often a service has lost the store, and has admitted by its share
}

// pairLimit and pairOffered are a second's.
const pairLimit, pairOffered = 500, 800

// RunPair offers two services, which lend, their calls for some seconds.
func RunPair(binary, url string, seconds int, args ...string) (*Pair, error) {
	limit := Limit{Name: "pair", Algorithm: sluice.FixedWindow, Requests: pairLimit, Unit: "second"}
	f, err := New(binary, Rules(limit), 2, []string{url}, args...)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.Warm()
	begin := time.Now().Truncate(time.Second).Add(time.Second + 10*time.Millisecond)
	end := begin.Add(time.Duration(seconds)*time.Second - 11*time.Millisecond)
	load := Load{Rate: pairOffered, Next: func(int) (string, string) { return "pair", "key" }}
	p := &Pair{Calls: load.While(f.Services, func(at time.Time) bool { return at.Before(end) }, begin)}
	for _, s := range f.Services {
		lost, _ := s.Modes()
		p.Lost += lost
	}
	if n, err := Errors(p.Calls); n > 0 {
		return p, fmt.Errorf("%d calls failed: %w", n, err)
	}
	p.Tally = Count(p.Calls, time.Second, 0)
	p.Seconds = p.Tally.Sure
	if len(p.Seconds) != seconds {
		return p, fmt.Errorf("%d seconds have admitted calls, and not %d", len(p.Seconds), seconds)
	}
	return p, nil
}

// Judge returns an error unless each second has admitted the limit, or up to 1 % less.
func (p *Pair) Judge() error {
	if err := p.Tally.Within(pairLimit); err != nil {
		return err
	}
	return p.Tally.AtLeast(pairLimit, 0.99)
}
