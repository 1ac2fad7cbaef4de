package page

import (
	"strconv"
	"time"
)

// number writes a value of an axis for a table.
func number(a Axis, v *float64) string {
	switch {
	case v == nil:
		return "-"
	case a.Time:
		return time.UnixMicro(int64(*v * 1e6)).UTC().Format("2006-01-02 15:04:05.999")
	}
	return strconv.FormatFloat(*v, 'g', 6, 64)
}

// Rows returns the values of a chart as rows of a table.
func (c *Chart) Rows() (rows [][]string) {
	for i, x := range c.Values {
		row := []string{number(c.X, &x)}
		for _, s := range c.Series {
			row = append(row, number(c.Y, s.Values[i]))
		}
		rows = append(rows, row)
	}
	return rows
}
