package report

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// A table has a letter a column in align: l for words, r for figures.
type table struct {
	head  []string
	align string
	rows  [][]string
	bold  map[int]bool // rows that stand out, in Markdown
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// text is the table for a terminal.
func (t *table) text() string {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		var s strings.Builder
		for i, cell := range cells {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.align[i] == 'l' {
				s.WriteString(cell + pad + "  ")
			} else {
				s.WriteString(pad + cell + "  ")
			}
		}
		b.WriteString(strings.TrimRight(s.String(), " ") + "\n")
	}
	line(t.head)
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}

// markdown is the table for a README.
func (t *table) markdown() string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.head)
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "--:"
		if t.align[i] == 'l' {
			rule[i] = "---"
		}
	}
	b.WriteString("|" + strings.Join(rule, "|") + "|\n")
	for i, row := range t.rows {
		if t.bold[i] {
			row = emphasized(row)
		}
		line(row)
	}
	return b.String()
}

func emphasized(row []string) []string {
	out := make([]string, len(row))
	for i, cell := range row {
		out[i] = cell
		if cell != "" && cell != unknown {
			out[i] = "**" + cell + "**"
		}
	}
	return out
}

// unknown stands where there is no figure.
const unknown = "-"

// figure prints x with as many digits as tell something: 3.4, 57, 1,431.
func figure(x float64) string {
	switch {
	case math.IsNaN(x):
		return unknown
	case math.Abs(x) < 9.95:
		return fmt.Sprintf("%.1f", x)
	}
	return grouped(int64(math.Round(x)))
}

// grouped separates thousands.
func grouped(n int64) string {
	if n < 0 {
		return "-" + grouped(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// fixed prints x with so many decimals.
func fixed(x float64, decimals int) string {
	if math.IsNaN(x) {
		return unknown
	}
	return fmt.Sprintf("%.*f", decimals, x)
}

// nanos prints a latency in the unit in which it can be read.
func nanos(ns int64) string {
	switch {
	case ns < 1000:
		return fmt.Sprintf("%d ns", ns)
	case ns < 1_000_000:
		return fmt.Sprintf("%.1f us", float64(ns)/1e3)
	}
	return fmt.Sprintf("%.2f ms", float64(ns)/1e6)
}
