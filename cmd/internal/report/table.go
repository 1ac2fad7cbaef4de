package report

import (
	"fmt"
	"io"
	"strings"
)

// table is rows of ASCII cells under a header. Columns are as wide as they need
// to be. (text/tabwriter aligns all columns to one side; names want the left and
// numbers the right.)
type table struct {
	indent string
	left   []bool // by column; false is right
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) {
	widths := make([]int, len(t.left))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			width := widths[i]
			if t.left[i] {
				width = -width
			}
			fmt.Fprintf(&line, "%s%*s", t.indent, width, cell)
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}
