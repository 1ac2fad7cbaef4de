package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

const keysHeight = 330

// keysChart draws ns a call over the number of keys, with the names at the lines'
// ends.
func (v *view) keysChart() ([]byte, error) {
	names := v.scalingSubjects()
	if len(names) == 0 {
		return nil, nil
	}
	page := newPage(keysHeight, "Time of Allow over the number of keys",
		"ns a call, median, one goroutine, all keys equally often; lower is better")
	p := newLogPlot()
	lines := make([]plotter.XYs, len(names))
	for i, name := range names {
		lines[i] = v.scalingLine(name)
		if err := v.addLine(p, name, lines[i]); err != nil {
			return nil, err
		}
	}
	p.Y.Min, p.Y.Max = 0, 1.05*p.Y.Max
	label := words(textSize, ink, text.XLeft)
	right := widest(bold(label), names) + 2*margin
	c := draw.Crop(page.Canvas, margin, -right, margin, -headSpace)
	p.Draw(c)
	data := p.DataCanvas(c)
	toX, toY := p.Transforms(&data)
	ends := make([]vg.Length, len(names))
	for i, line := range lines {
		ends[i] = keysHeight - toY(line[len(line)-1].Y)
	}
	for i, y := range spreadOut(ends, textSize+2) {
		style := label
		if isOurs(v.subjects[names[i]]) {
			style = bold(style)
			style.Color = v.colorOf(names[i])
		}
		x := toX(lines[i][len(lines[i])-1].X)
		page.line(other, 0.5, x+3, ends[i], x+9, y)
		page.text(style, x+11, y, names[i])
	}
	return page.bytes()
}

func (v *view) scalingLine(name string) plotter.XYs {
	var line plotter.XYs
	for _, s := range v.Scaling {
		if s.Subject == name {
			line = append(line, plotter.XY{X: float64(s.Keys), Y: median(s.Samples)})
		}
	}
	slices.SortFunc(line, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return line
}

func (v *view) addLine(p *plot.Plot, name string, line plotter.XYs) error {
	l, points, err := plotter.NewLinePoints(line)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.Color, l.Width = otherDark, 1
	if isOurs(v.subjects[name]) {
		l.Color, l.Width = v.colorOf(name), 2
	}
	points.GlyphStyle = draw.GlyphStyle{Color: l.Color, Radius: 2, Shape: draw.CircleGlyph{}}
	p.Add(l, points)
	return nil
}

func newLogPlot() *plot.Plot {
	p := plot.New()
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColor, gridColor
	p.Add(grid)
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		var ticks []plot.Tick
		for x := 1.0; x <= high*1.01; x *= 10 {
			if x >= low*0.99 {
				ticks = append(ticks, plot.Tick{Value: x, Label: grouped(int64(x))})
			}
		}
		return ticks
	})
	p.X.Label.Text = "keys"
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		var ticks []plot.Tick
		for _, t := range (plot.DefaultTicks{}).Ticks(low, high) {
			if !t.IsMinor() {
				ticks = append(ticks, plot.Tick{Value: t.Value, Label: grouped(int64(t.Value))})
			}
		}
		return ticks
	})
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.LineStyle.Color = faint, faint
		style := words(textSize, ink, axis.Tick.Label.XAlign)
		style.YAlign = axis.Tick.Label.YAlign
		axis.Tick.Label, axis.Label.TextStyle.Font = style, style.Font
		axis.Label.TextStyle.Color = faint
	}
	return p
}

// The stall chart has a row for each subject and situation, and a dot for each
// percentile on a logarithmic axis.
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
	budgetStall  = 1e6 // ns
)

func (v *view) stallChart() ([]byte, error) {
	var situations, names []string
	rows := map[string][]results.Stall{}
	for _, s := range v.Stall {
		if !v.subjects[s.Subject].Stands() {
			continue
		}
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
	p := newPage(height, "Latency of single calls",
		"Of several runs the one with the median p99.99. Lower is better; the axis is logarithmic.")
	left := margin + widest(bold(words(textSize, ink, text.XRight)), names) + 8
	stallScale(p, left)
	y := vg.Length(headSpace + stallLegend)
	for _, situation := range situations {
		p.text(bold(words(textSize, ink, text.XLeft)), margin, y+stallTitle/2, situationTitles[situation])
		y += stallTitle
		for _, s := range rows[situation] {
			v.stallDots(p, s, left, y+stallRow/2)
			y += stallRow
		}
	}
	return p.bytes()
}

var situationTitles = map[string]string{
	"growth": "growing to a million keys",
	"sweep":  "live keys, while a million idle ones are swept",
	"flood":  "new keys, with a million at MaxKeys",
}

// stallX is where a latency lies on the axis that begins at left.
func stallX(left vg.Length, ns int64) vg.Length {
	decades := math.Log10(float64(max(ns, leastStall)) / leastStall)
	return left + (pageWidth-left-2*margin)*vg.Length(math.Min(decades/stallDecades, 1))
}

// stallScale draws the legend, the decades and the budget.
func stallScale(p *page, left vg.Length) {
	x := left
	for _, q := range percentiles {
		p.dot(q.color, 3, x+3, headSpace+2)
		p.text(words(smallSize, ink, text.XLeft), x+9, headSpace+2, q.title)
		x += 42
	}
	p.line(ink, 1, x+3, headSpace-2, x+3, headSpace+6)
	p.text(words(smallSize, ink, text.XLeft), x+9, headSpace+2, "p99.99 of an empty call: the machine's own")
	x += 168
	p.line(alarm, 1, x+3, headSpace-2, x+3, headSpace+6)
	p.text(words(smallSize, ink, text.XLeft), x+9, headSpace+2, "budget for p99.99")
	top, bottom := vg.Length(headSpace+stallLegend-4), p.height-stallAxis+4
	ns := int64(leastStall)
	for _, label := range []string{"10 ns", "100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s"} {
		at, c, width := stallX(left, ns), color.Color(gridColor), vg.Length(0.6)
		if ns == budgetStall {
			c, width = alarm, 1
		}
		p.line(c, width, at, top, at, bottom)
		p.text(words(smallSize, faint, text.XCenter), at, bottom+8, label)
		ns *= 10
	}
}

func (v *view) stallDots(p *page, s results.Stall, left, y vg.Length) {
	style := words(textSize, ink, text.XRight)
	if isOurs(v.subjects[s.Subject]) {
		style = bold(style)
	}
	p.text(style, left-8, y, s.Subject)
	p.line(other, 0.8, stallX(left, s.P50), y, stallX(left, s.Max), y)
	at := stallX(left, s.BaselineP9999)
	p.line(ink, 1, at, y-4, at, y+4)
	for _, q := range percentiles {
		p.dot(q.color, 3, stallX(left, q.of(s)), y)
	}
}
