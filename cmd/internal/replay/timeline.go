package replay

import (
	"slices"
	"time"
)

// maxColumns is the most columns that a timeline is reported in.
const maxColumns = 60

// maxBins is the most bins that a timeline is kept in. While a log is read its
// length is unknown, so bins are merged into coarser ones as it grows; a factor
// of at most 12 between steps leaves more than maxColumns of them in use.
const maxBins = 1024

const day = 24 * time.Hour

// steps are the widths of bins. Each divides the next, so bins merge whole.
var steps = []time.Duration{
	1, 10, 100, time.Microsecond, 10 * time.Microsecond, 100 * time.Microsecond,
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
	time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute, 30 * time.Minute,
	6 * time.Hour, day, 10 * day, 100 * day, 1000 * day,
}

// roundWidths returns the column widths that a person finds round, ascending.
func roundWidths() []time.Duration {
	var widths []time.Duration
	add := func(unit time.Duration, counts ...time.Duration) {
		for _, n := range counts {
			widths = append(widths, n*unit)
		}
	}
	for unit := time.Duration(1); unit < time.Second; unit *= 10 {
		add(unit, 1, 2, 5)
	}
	add(time.Second, 1, 2, 5, 10, 15, 20, 30)
	add(time.Minute, 1, 2, 5, 10, 15, 20, 30)
	add(time.Hour, 1, 2, 3, 6, 12)
	for unit := day; unit <= 1000*day; unit *= 10 {
		add(unit, 1, 2, 5)
	}
	return widths
}

// timeline counts events of several rows in bins of equal width. Bins start at
// whole multiples of the width since 1970.
type timeline struct {
	step  int   // the width is steps[step]
	first int64 // number of the first bin, counted from 1970
	rows  [][]int64
}

func newTimeline(start int64, rows int) *timeline {
	return &timeline{first: start / int64(steps[0]), rows: make([][]int64, rows)}
}

// reach returns the bin of now, which is never earlier than at the call before.
func (t *timeline) reach(now int64) int {
	for {
		bin := now/int64(steps[t.step]) - t.first
		if bin < maxBins {
			t.extend(int(bin) + 1)
			return int(bin)
		}
		t.coarsen()
	}
}

func (t *timeline) extend(bins int) {
	for i, row := range t.rows {
		for len(row) < bins {
			row = append(row, 0)
		}
		t.rows[i] = row
	}
}

// coarsen merges the bins into bins of the next step.
func (t *timeline) coarsen() {
	t.step++
	t.first, t.rows = t.merged(int64(steps[t.step] / steps[t.step-1]))
}

// merged has one bin for every factor bins.
func (t *timeline) merged(factor int64) (first int64, rows [][]int64) {
	first, rows = t.first/factor, slices.Clone(t.rows)
	for i, row := range t.rows {
		var merged []int64
		for j, n := range row {
			bin := int((t.first+int64(j))/factor - first)
			for len(merged) <= bin {
				merged = append(merged, 0)
			}
			merged[bin] += n
		}
		rows[i] = merged
	}
	return first, rows
}

// columns are the bins merged into at most maxColumns of a round width, at least
// least. start is the start of the first.
func (t *timeline) columns(least time.Duration) (start int64, width time.Duration, rows [][]int64) {
	step := steps[t.step]
	last := t.first + int64(len(t.rows[0])) - 1
	for _, width = range roundWidths() {
		factor := int64(width / step)
		if width >= least && width%step == 0 && last/factor-t.first/factor < maxColumns {
			start, rows = t.merged(factor)
			break
		}
	}
	return start * int64(width), width, rows
}
