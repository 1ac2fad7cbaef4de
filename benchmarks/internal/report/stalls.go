package report

import (
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// A stallChart has a row for each subject and situation, and a dot for each percentile on
// a logarithmic axis.
type stallChart struct {
	title, subtitle string
	rows            []results.Stall
	titles          map[string]string // of the situations
	empty           func(results.Stall) int64
	emptyTitle      string
	budget          int64 // ns
	budgetTitle     string
}

var percentiles = []struct {
	title string
	of    func(results.Stall) int64
	color color.Color
}{
	{"p50", func(s results.Stall) int64 { return s.P50 }, color.RGBA{0xc6, 0xdd, 0xdb, 0xff}},
	{"p99", func(s results.Stall) int64 { return s.P99 }, color.RGBA{0x8c, 0xc3, 0xbf, 0xff}},
	{"p99.9", func(s results.Stall) int64 { return s.P999 }, color.RGBA{0x4a, 0xa3, 0x9d, 0xff}},
	{"p99.99", func(s results.Stall) int64 { return s.P9999 }, color.RGBA{0x0b, 0x7a, 0x75, 0xff}},
	{"max", func(s results.Stall) int64 { return s.Max }, otherDark},
}

const (
	stallRow     = 13
	stallTitle   = 20
	stallLegend  = 16
	stallAxis    = 22
	leastStall   = 10  // ns
	stallDecades = 8.0 // from 10 ns to 1 s
)

func (v *view) stallChart() ([]byte, error) {
	rows := slices.DeleteFunc(slices.Clone(v.Stall), func(s results.Stall) bool { return !v.subjects[s.Subject].Stands() })
	return v.drawStalls(stallChart{
		title:    "Latency of single calls",
		subtitle: "Of several runs the one with the median p99.99. Lower is better; the axis is logarithmic.",
		rows:     rows,
		titles: map[string]string{
			"growth": "growing to a million keys",
			"sweep":  "live keys, while a million idle ones are swept",
			"flood":  "new keys, with a million at MaxKeys",
		},
		empty:      func(s results.Stall) int64 { return s.BaselineP9999 },
		emptyTitle: "p99.99 of an empty call: the machine's own",
		budget:     1e5, budgetTitle: "budget for p99.99",
	})
}

func (v *view) tailsChart() ([]byte, error) {
	c := stallChart{
		title:      "Latency of single calls with ten million keys",
		subtitle:   "Of several runs the one with the shortest longest call: the least disturbed. Lower is better; the axis is logarithmic.",
		rows:       v.Tails,
		titles:     map[string]string{},
		empty:      func(s results.Stall) int64 { return s.BaselineMax },
		emptyTitle: "longest empty call: the machine's own",
		budget:     100_000, budgetTitle: "budget for the longest call",
	}
	for _, t := range tails {
		c.titles[t.situation] = t.title
	}
	return v.drawStalls(c)
}

func (v *view) drawStalls(c stallChart) ([]byte, error) {
	var situations, names []string
	rows := map[string][]results.Stall{}
	for _, s := range c.rows {
		if rows[s.Situation] == nil {
			situations = append(situations, s.Situation)
		}
		rows[s.Situation] = append(rows[s.Situation], s)
		names = append(names, s.Subject)
	}
	if len(names) == 0 {
		return nil, nil
	}
	height := vg.Length(headSpace + stallLegend + stallAxis + stallTitle*len(situations) + stallRow*len(names))
	p := newPage(height, c.title, c.subtitle)
	left := margin + widest(bold(words(textSize, ink, text.XRight)), names) + 8
	c.drawScale(p, left)
	y := vg.Length(headSpace + stallLegend)
	for _, situation := range situations {
		p.text(bold(words(textSize, ink, text.XLeft)), margin, y+stallTitle/2, c.titles[situation])
		y += stallTitle
		for _, s := range rows[situation] {
			v.stallDots(p, s, left, y+stallRow/2, c.empty(s))
			y += stallRow
		}
	}
	return p.bytes()
}

// stallX is where a latency lies on the axis that begins at left.
func stallX(left vg.Length, ns int64) vg.Length {
	decades := math.Log10(float64(max(ns, leastStall)) / leastStall)
	return left + (pageWidth-left-2*margin)*vg.Length(math.Min(decades/stallDecades, 1))
}

// drawScale draws the legend, the decades and the budget.
func (c stallChart) drawScale(p *page, left vg.Length) {
	legend := words(smallSize, ink, text.XLeft)
	x := left
	for _, q := range percentiles {
		p.dot(q.color, 3, x+3, headSpace+2)
		p.text(legend, x+9, headSpace+2, q.title)
		x += 42
	}
	p.line(ink, 1, x+3, headSpace-2, x+3, headSpace+6)
	p.text(legend, x+9, headSpace+2, c.emptyTitle)
	x += 168
	p.line(alarm, 1, x+3, headSpace-2, x+3, headSpace+6)
	p.text(legend, x+9, headSpace+2, c.budgetTitle)
	top, bottom := vg.Length(headSpace+stallLegend-4), p.height-stallAxis+4
	ns := int64(leastStall)
	for _, label := range []string{"10 ns", "100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s"} {
		at := stallX(left, ns)
		p.line(gridColor, 0.6, at, top, at, bottom)
		p.text(words(smallSize, faint, text.XCenter), at, bottom+8, label)
		ns *= 10
	}
	at := stallX(left, c.budget)
	p.line(alarm, 1, at, top, at, bottom)
}

func (v *view) stallDots(p *page, s results.Stall, left, y vg.Length, empty int64) {
	style := words(textSize, ink, text.XRight)
	if isOurs(v.subjects[s.Subject]) {
		style = bold(style)
	}
	p.text(style, left-8, y, s.Subject)
	p.line(other, 0.8, stallX(left, s.P50), y, stallX(left, s.Max), y)
	at := stallX(left, empty)
	p.line(ink, 1, at, y-4, at, y+4)
	for _, q := range percentiles {
		p.dot(q.color, 3, stallX(left, q.of(s)), y)
	}
}
