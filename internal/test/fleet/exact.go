package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Algorithms are those that a rule can have.
var Algorithms = []sluice.Algorithm{
	sluice.FixedWindow, sluice.SlidingWindow, sluice.SlidingLog, sluice.GCRA, sluice.TokenBucket, sluice.LeakyBucket,
}

// A Limit is a rule of a fleet, for the key that is its name.
type Limit struct {
	Name      string
	Algorithm sluice.Algorithm
	Requests  int
	Unit      string
}

var periods = map[string]time.Duration{
	"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
}

// Period is the limit's unit.
func (l *Limit) Period() time.Duration { return periods[l.Unit] }

// Rules are the rules of the domain fleet with these limits.
func Rules(limits ...Limit) string {
	var b strings.Builder
	b.WriteString("domain: fleet\ndescriptors:\n")
	for _, l := range limits {
		fmt.Fprintf(&b, "- key: %s\n  rate_limit: {unit: %s, requests_per_unit: %d", l.Name, l.Unit, l.Requests)
		if l.Algorithm != sluice.FixedWindow {
			fmt.Fprintf(&b, ", algorithm: %v", l.Algorithm)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// worst is WorstCase of the limit.
func (l *Limit) worst() (func(time.Duration) int, error) {
	limiter, err := sluice.New(sluice.Config{Algorithm: l.Algorithm, Limit: sluice.Per(l.Requests, l.Period())})
	if err != nil {
		return nil, err
	}
	return limiter.WorstCase, nil
}

// Judge returns an error if calls were admitted beyond the limit; or, if the demand was above the limit all the time, less than a
// share of it, where what comes back within late of the end may be missing. Windows are those of the clock of this machine.
func (l *Limit) Judge(calls []Call, share float64, late time.Duration) error {
	if n, err := Errors(calls); n > 0 {
		return fmt.Errorf("%d calls failed: %w", n, err)
	}
	if l.Algorithm == sluice.FixedWindow {
		tally := Count(calls, l.Period(), 0)
		if err := tally.Within(l.Requests); err != nil {
			return err
		}
		return tally.AtLeast(l.Requests, share)
	}
	worst, err := l.worst()
	if err == nil {
		err = Spans(calls, 0, worst)
	}
	if err != nil {
		return err
	}
	due, n := l.due(calls, late)
	if float64(n) < share*float64(due) {
		return fmt.Errorf("%d were admitted before the last denial, and at least %v of %d may be", n, share, due)
	}
	return nil
}

// due is how many an exact limiter has admitted at least when it denies the last of the calls, and how many were:
// of a bucket a burst and what has come back; of windows that slide the limit for each whole period.
func (l *Limit) due(calls []Call, late time.Duration) (due, admitted int) {
	first, denied := calls[0].Back, Call{}
	for _, c := range calls {
		if c.Back.Before(first) {
			first = c.Back
		}
		if !c.Admitted && c.Sent.After(denied.Sent) {
			denied = c
		}
	}
	for _, c := range calls {
		if c.Admitted && c.Sent.Before(denied.Back) {
			admitted++
		}
	}
	d := max(0, denied.Sent.Sub(first)-late)
	if l.Algorithm == sluice.SlidingLog || l.Algorithm == sluice.SlidingWindow {
		return max(1, int(d/l.Period())) * l.Requests, admitted
	}
	return l.Requests + int(int64(l.Requests)*int64(d)/int64(l.Period())) - 1, admitted // less than a unit is left
}

// Full returns an error if a sliding log has denied a call although less than its limit can have counted.
func (l *Limit) Full(calls []Call) error {
	if l.Algorithm != sluice.SlidingLog {
		return nil
	}
	for _, d := range calls {
		if d.Admitted {
			continue
		}
		n := 0
		for _, c := range calls {
			if c.Admitted && c.Back.After(d.Sent.Add(-l.Period())) && c.Sent.Before(d.Back) {
				n++
			}
		}
		if n < l.Requests {
			return fmt.Errorf("a call was denied when at most %d of %d counted", n, l.Requests)
		}
	}
	return nil
}
