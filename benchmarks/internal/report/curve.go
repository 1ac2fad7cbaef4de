package report

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot/plotter"
)

// curveLeast is the size above which the budget for the memory holds.
const curveLeast = 10_000

// curveBudgets judge the own subjects of one word: the worst of them. The sizes are
// evenly spaced on a logarithmic scale, so their mean is the mean for a size that nobody knows.
func (v *view) curveBudgets() []budget {
	worst := newBudget("memory at any size above 10,000 keys, one word", atMost, 30, "B a key", 1)
	mean := newBudget("memory on average over these sizes", atMost, 24, "B a key", 1)
	full := newBudget("memory at MaxKeys, full, one word", atMost, 24, "B a key", 1)
	for _, c := range v.Curve {
		if s := v.subjects[c.Subject]; !isOurs(s) || !isOneWord(s) {
			continue
		}
		sum, n := 0.0, 0
		for i, keys := range c.Keys {
			if keys > curveLeast {
				sum, n = sum+c.Bytes[i], n+1
				worst.raise(c.Bytes[i], "%s with %s keys", c.Subject, grouped(int64(keys)))
			}
		}
		if n > 0 {
			mean.raise(sum/float64(n), "%s, %d sizes up to %s keys", c.Subject, n, grouped(int64(slices.Max(c.Keys))))
		}
	}
	for _, m := range v.Full {
		if s := v.subjects[m.Subject]; isOurs(s) && isOneWord(s) {
			full.raise(m.BytesPerKey, "%s with MaxKeys %s, of which it holds %s", m.Subject, grouped(int64(m.MaxKeys)), grouped(int64(m.Keys)))
		}
	}
	return []budget{worst, mean, full}
}

// curveTable has a row for each size and a column for each subject.
func (v *view) curveTable() *table {
	t := &table{head: []string{"keys"}, align: "r"}
	rows := map[int][]string{}
	var sizes []int
	for _, c := range v.Curve {
		t.head, t.align = append(t.head, c.Subject), t.align+"r"
		for _, keys := range c.Keys {
			if rows[keys] == nil {
				sizes = append(sizes, keys)
				rows[keys] = append([]string{grouped(int64(keys))}, slices.Repeat([]string{unknown}, len(v.Curve))...)
			}
		}
	}
	for column, c := range v.Curve {
		for i, keys := range c.Keys {
			rows[keys][1+column] = fixed(c.Bytes[i], 1)
		}
	}
	slices.Sort(sizes)
	for _, keys := range sizes {
		t.add(rows[keys]...)
	}
	return t
}

func (v *view) fullTable() *table {
	t := &table{head: []string{"limiter", "MaxKeys", "keys", "B a key", "objects a key"}, align: "lrrrr"}
	for _, m := range v.Full {
		t.add(m.Subject, grouped(int64(m.MaxKeys)), grouped(int64(m.Keys)), fixed(m.BytesPerKey, 1), fixed(math.Abs(m.ObjectsPerKey), 2))
	}
	return t
}

// curveChart draws bytes a key over the number of keys.
func (v *view) curveChart() ([]byte, error) {
	c := lineChart{
		title:    "Memory over the number of keys",
		subtitle: "Heap, bytes a key; lower is better." + v.curveNote(),
	}
	for _, curve := range v.Curve {
		line := make(plotter.XYs, len(curve.Keys))
		for i, keys := range curve.Keys {
			line[i] = plotter.XY{X: float64(keys), Y: curve.Bytes[i]}
		}
		c.names, c.lines = append(c.names, curve.Subject), append(c.lines, line)
	}
	return v.drawLines(c)
}

// curveNote says where the lines of peers end.
func (v *view) curveNote() string {
	own, others := 0, 0
	for _, c := range v.Curve {
		if isOurs(v.subjects[c.Subject]) {
			own = max(own, slices.Max(c.Keys))
		} else {
			others = max(others, slices.Max(c.Keys))
		}
	}
	if others == 0 || others >= own {
		return ""
	}
	return fmt.Sprintf(" Others only up to %s keys: their collections take too long beyond.", grouped(int64(others)))
}
