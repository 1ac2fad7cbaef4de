package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice"
)

// Explain tells in plain words the cost of a request by weights, scale and then, with an example, and of units in flight, calendars and
// counts_denials_of how they count: FILE:LINE, the rule and a sentence. It is empty for a rule without these.
func (r *Rule) Explain() string {
	if r.unlimited || r.weights == nil && r.scale == 1 && r.second == nil && r.denialsOf == "" && r.config.Algorithm != sluice.InFlight && r.dates == nil {
		return ""
	}
	var said []string
	if r.config.Algorithm == sluice.InFlight {
		said = append(said, fmt.Sprintf("at most %s at once; one that is not given back comes back after %v at the earliest, and %v at the latest",
			grouped(r.limit), r.period, 2*r.period))
	}
	if r.dates != nil {
		said = append(said, fmt.Sprintf("%s per %s, by the clocks there; around the start of a window up to twice as many pass",
			grouped(uint64(r.requests)), r.dates.Calendar.Text()))
	}
	budget := fmt.Sprintf("%s %s", grouped(uint64(r.requests)), r.span())
	if r.scale > 1 {
		budget = fmt.Sprintf("%s units %s", grouped(r.limit), r.span())
		said = append(said, fmt.Sprintf("%s is %s units, counted one by one", grouped(uint64(r.requests)), grouped(r.limit)))
	}
	switch {
	case r.denialsOf != "":
		said = append(said, fmt.Sprintf("counts what %s denies, up to %s; then it denies the client's calls%s", strconv.Quote(r.denialsOf), budget, r.ban()))
	case r.weights != nil:
		said = append(said, r.weights.example()+" of "+budget)
	case r.scale == 1 && r.config.Algorithm != sluice.InFlight && (r.dates == nil || r.second != nil):
		said = append(said, "a request costs its hits, of "+budget)
	}
	if r.second != nil {
		said = append(said, fmt.Sprintf("what does not fit is taken from %s, %s (%s %s)", strconv.Quote(r.then), r.second.path,
			grouped(uint64(r.second.requests)), r.second.span()))
	}
	return fmt.Sprintf("%s:%d: %s: %s", r.at.file, r.at.line, oneLine(r.path), oneLine(strings.Join(said, "; ")))
}

// ban is for how long a key is blocked, in words: at least until it would be fresh without.
func (r *Rule) ban() string {
	if r.config.BlockFor == 0 {
		return ""
	}
	return fmt.Sprintf(" for at least %v", r.config.BlockFor)
}

// span is the period in words, with its article.
func (r *Rule) span() string {
	switch {
	case r.dates != nil:
		return "a " + r.dates.Unit.String()
	case r.unit == UnknownUnit:
		return "a period of " + r.period.String()
	case r.unit == Hour:
		return "an hour"
	}
	return "a " + strings.ToLower(r.unit.String())
}

// example is the cost of a request with counts of all kinds.
func (w *weights) example() string {
	counts := make([]Entry, len(w.kinds))
	parts := make([]string, len(w.kinds))
	for i, k := range w.kinds {
		n := uint64(1000)
		if i > 0 {
			n = 200
		}
		counts[i] = Entry{k, strconv.FormatUint(n, 10)}
		parts[i] = grouped(n) + " " + k
	}
	text := parts[0]
	if last := len(parts) - 1; last > 0 {
		text = strings.Join(parts[:last], ", ") + " and " + parts[last]
	}
	units, _, _ := w.cost(counts, nil, false)
	return fmt.Sprintf("a request of %s costs %s units", text, grouped(units))
}

// grouped writes a number with commas.
func grouped(n uint64) string {
	b := []byte(strconv.FormatUint(n, 10))
	for i := len(b) - 3; i > 0; i -= 3 {
		b = slices.Insert(b, i, ',')
	}
	return string(b)
}
