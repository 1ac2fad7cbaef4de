package report

import (
	"image/color"
	"math"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
)

// bars is a chart of panels side by side that share the rows' labels.
type bars struct {
	title, subtitle string
	labels          []string
	colors          [][]color.Color // for each series, of each row
	panels          []panel
	across          int  // panels beside each other
	whole           bool // no bar is cut, however short other bars look beside it
	print           func(float64) string
}

// A panel has a bar for each row and series; NaN where there is none.
type panel struct {
	title  string
	series [][]float64
}

const (
	barHeight   = 8
	barGap      = 3.5
	panelGap    = 14
	panelTitle  = 18
	belowPanels = 10
)

func (b *bars) rowHeight() vg.Length { return vg.Length(len(b.colors))*barHeight + barGap }

func (b *bars) panelHeight() vg.Length {
	return panelTitle + vg.Length(len(b.labels))*b.rowHeight() + belowPanels
}

// draw returns nil if there are no rows.
func (b *bars) draw() ([]byte, error) {
	if len(b.labels) == 0 {
		return nil, nil
	}
	down := (len(b.panels) + b.across - 1) / b.across
	p := newPage(headSpace+vg.Length(down)*b.panelHeight(), b.title, b.subtitle)
	names := words(textSize, ink, text.XRight)
	left := margin + widest(bold(names), b.labels) + 6
	width := (pageWidth-left-margin+panelGap)/vg.Length(b.across) - panelGap
	for i, pan := range b.panels {
		x := left + vg.Length(i%b.across)*(width+panelGap)
		y := headSpace + vg.Length(i/b.across)*b.panelHeight()
		if i%b.across == 0 {
			b.drawLabels(p, left-6, y+panelTitle)
		}
		b.drawPanel(p, pan, x, y, width)
	}
	return p.bytes()
}

func (b *bars) drawLabels(p *page, right, y vg.Length) {
	for i, label := range b.labels {
		style := words(textSize, ink, text.XRight)
		if b.colors[0][i] != other {
			style = bold(style)
		}
		p.text(style, right, y+vg.Length(i)*b.rowHeight()+(b.rowHeight()-barGap)/2, label)
	}
}

func (b *bars) drawPanel(p *page, pan panel, x, y, width vg.Length) {
	p.text(bold(words(textSize, ink, text.XLeft)), x, y+panelTitle/2, pan.title)
	y += panelTitle
	figures := words(smallSize, ink, text.XLeft)
	room := width - figures.Width(" 00,000")
	full := fullLength(pan.series, b.whole)
	p.line(faint, 0.5, x, y-2, x, y+vg.Length(len(b.labels))*b.rowHeight())
	for s, values := range pan.series {
		for i, value := range values {
			top := y + vg.Length(i)*b.rowHeight() + vg.Length(s)*barHeight
			middle := top + barHeight/2
			if math.IsNaN(value) {
				p.text(words(smallSize, faint, text.XLeft), x+3, middle, unknown)
				continue
			}
			length := room * vg.Length(math.Min(value/full, 1))
			p.box(x, top+0.4, length, barHeight-0.8, b.colors[s][i])
			if value > full { // the bar goes on beyond the paper
				for _, at := range []vg.Length{0.80, 0.83} {
					p.line(white, 1.2, x+room*at-1.5, top+barHeight, x+room*at+1.5, top)
				}
			}
			p.text(figures, x+length+3, middle, b.print(value))
		}
	}
}

// fullLength is the value whose bar takes all the room: the largest, but at most
// five times the median unless whole, so that one outlier does not make all other bars
// dots.
func fullLength(series [][]float64, whole bool) float64 {
	var all []float64
	most := 0.0
	for _, values := range series {
		for _, x := range values {
			if !math.IsNaN(x) {
				all, most = append(all, x), math.Max(most, x)
			}
		}
	}
	if len(all) == 0 {
		return 1
	}
	if whole {
		return most
	}
	return math.Min(most, 5*median(all))
}
