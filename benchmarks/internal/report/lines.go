package report

import (
	"fmt"
	"maps"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const linesHeight = 330

// A lineChart has a line for each name over the number of keys.
type lineChart struct {
	title, subtitle string
	names           []string
	lines           []plotter.XYs
	dots            bool // one at each point
}

// keysChart draws ns a call over the number of keys.
func (v *view) keysChart() ([]byte, error) {
	c := lineChart{
		title:    "Time of Allow over the number of keys",
		subtitle: "ns a call, median, one goroutine, all keys equally often; lower is better",
		names:    v.scalingSubjects(), dots: true,
	}
	for _, name := range c.names {
		c.lines = append(c.lines, v.scalingLine(name))
	}
	return v.drawLines(c)
}

// drawLines draws a chart with the names at the lines' ends.
func (v *view) drawLines(chart lineChart) ([]byte, error) {
	if len(chart.names) == 0 {
		return nil, nil
	}
	page := newPage(linesHeight, chart.title, chart.subtitle)
	p := newLogPlot()
	for i, name := range chart.names {
		if err := v.addLine(p, name, chart.lines[i], chart.dots); err != nil {
			return nil, err
		}
	}
	p.Y.Min, p.Y.Max = 0, 1.05*p.Y.Max
	label := words(textSize, ink, text.XLeft)
	right := widest(bold(label), chart.names) + 2*margin
	c := draw.Crop(page.Canvas, margin, -right, margin, -headSpace)
	p.Draw(c)
	data := p.DataCanvas(c)
	toX, toY := p.Transforms(&data)
	together := map[float64][]int{} // lines by where they end
	for i, line := range chart.lines {
		x := line[len(line)-1].X
		together[x] = append(together[x], i)
	}
	for _, end := range slices.Sorted(maps.Keys(together)) {
		lines, x := together[end], toX(end)
		ends := make([]vg.Length, len(lines))
		for k, i := range lines {
			line := chart.lines[i]
			ends[k] = linesHeight - toY(line[len(line)-1].Y)
		}
		for k, y := range spreadOut(ends, textSize+2) {
			name, style := chart.names[lines[k]], label
			if isOurs(v.subjects[name]) {
				style = bold(style)
				style.Color = v.colorOf(name)
			}
			if end < p.X.Max { // other lines go on below the name
				y -= textSize
			}
			page.line(other, 0.5, x+3, ends[k], x+9, y)
			page.text(style, x+11, y, name)
		}
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

func (v *view) addLine(p *plot.Plot, name string, line plotter.XYs, dots bool) error {
	l, points, err := plotter.NewLinePoints(line)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.Color, l.Width = otherDark, 1
	if isOurs(v.subjects[name]) {
		l.Color, l.Width = v.colorOf(name), 2
	}
	points.GlyphStyle = draw.GlyphStyle{Color: l.Color, Radius: 2, Shape: draw.CircleGlyph{}}
	p.Add(l)
	if dots {
		p.Add(points)
	}
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
