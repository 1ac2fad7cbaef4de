package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// row is the knowledge of a second.
type row struct {
	number   int
	window   int64 // its seconds since 1970
	modes    [replicas]string
	degraded [replicas]bool // without the store in a part of it
	event    string

	admitted [replicas]int
	counts   counts
}

func (r *row) total() (n int) {
	for _, a := range r.admitted {
		n += a
	}
	return n
}

// outage reports whether a replica was without the store.
func (r *row) outage() bool {
	for _, d := range r.degraded {
		if d {
			return true
		}
	}
	return false
}

// table is the rows so far.
type table struct {
	out    io.Writer
	colour bool
	rows   []row
	across [replicas]int // admitted in the last row's second or in the next one
}

// add adds a row. A call that was sent in one second and answered in the next one is counted where it fits: it may have been decided
// in any of the two, and only hits that fit in neither are too many.
func (t *table) add(r row, c counts) {
	r.counts, r.admitted = c, c.sure
	for i, n := range t.across {
		r.admitted[i] += n
	}
	for i, n := range c.across {
		here := min(n, max(limit-r.total(), 0))
		r.admitted[i] += here
		t.across[i] = n - here
	}
	t.rows = append(t.rows, r)
	t.print(&r)
}

const (
	red, green, yellow, grey = "31", "32", "33", "90"
)

// paint colours a text, which has been padded.
func (t *table) paint(code, text string) string {
	if !t.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (t *table) header() {
	var b strings.Builder
	b.WriteString("  s")
	for i := range replicas {
		fmt.Fprintf(&b, "   %-18s", fmt.Sprint("replica ", i+1))
	}
	b.WriteString("   total   limit")
	fmt.Fprintln(t.out, b.String())
}

var modeColours = map[string]string{shared: green, localShare: yellow, down: grey}

func (t *table) print(r *row) {
	fmt.Fprintf(t.out, "%3d", r.number)
	for i, mode := range r.modes {
		fmt.Fprintf(t.out, "   %5d  %s", r.admitted[i], t.paint(modeColours[mode], fmt.Sprintf("%-11s", mode)))
	}
	colour := green
	if r.total() > limit {
		colour = red
	}
	fmt.Fprintf(t.out, "   %s   %5d   %s\n", t.paint(colour, fmt.Sprintf("%5d", r.total())), limit, r.event)
}

// verdict judges the rows: with the store no second admits more than the limit. Each outage, with the return after it, may admit
// one limit more in all: the hits that the store had counted and has lost.
func (t *table) verdict() error {
	denied, failed, most, outages, before, worst := 0, 0, 0, 0, false, 0
	var admitted [replicas]int
	excess, over := 0, 0
	for i := range t.rows {
		r := &t.rows[i]
		denied, failed, most = denied+r.counts.denied, failed+r.counts.failed, max(most, r.total())
		for j, n := range r.admitted {
			admitted[j] += n
		}
		more := max(r.total()-limit, 0)
		if out := r.outage(); !out {
			over, excess, before = over+more, 0, false
			continue
		} else if !before {
			outages, before = outages+1, true
		}
		excess += more
		worst = max(worst, excess)
	}
	fmt.Fprintf(t.out, "\n%d s: replicas admitted %v, %d calls were denied, %d had no answer. The most in a second: %d.\n", len(t.rows), admitted, denied, failed, most)
	switch {
	case over > 0:
		return t.failed("The limit did not hold: %d more than the limit were admitted with the store", over)
	case worst > limit:
		return t.failed("The limit did not hold: %d more than the limit were admitted in an outage, where %d may be", worst, limit)
	case denied == 0:
		return t.failed("Nothing is shown: no call was denied; this machine is too busy for %d calls a second", offered)
	case min(admitted[0], admitted[1], admitted[2]) == 0:
		return t.failed("Nothing is shown: a replica admitted nothing")
	}
	fmt.Fprintln(t.out, t.paint(green, fmt.Sprintf("The limit held: no second with the store admitted more than %d; outages: %d, each with at most %d more in all, where %d may be.", limit, outages, worst, limit)))
	return nil
}

func (t *table) failed(format string, args ...any) error {
	text := fmt.Sprintf(format+".", args...)
	fmt.Fprintln(t.out, t.paint(red, text))
	return errors.New("the verdict is above")
}
