package report

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// pageWidth is 800 px, the width of a README.
const pageWidth = 600 * vg.Length(1)

const (
	margin    = 10
	titleSize = 12
	textSize  = 8.5
	smallSize = 7.5
	headSpace = 44 // of a chart, for its title and subtitle
)

var (
	white     = color.White
	ink       = color.RGBA{0x24, 0x29, 0x2f, 0xff}
	faint     = color.RGBA{0x6e, 0x77, 0x81, 0xff}
	gridColor = color.RGBA{0xe6, 0xe9, 0xec, 0xff}
	other     = color.RGBA{0xb4, 0xbb, 0xc3, 0xff}
	otherDark = color.RGBA{0x7d, 0x86, 0x90, 0xff}
	own       = color.RGBA{0x0b, 0x7a, 0x75, 0xff}
	ownMiddle = color.RGBA{0x2f, 0x98, 0x92, 0xff}
	ownLight  = color.RGBA{0x57, 0xb8, 0xb1, 0xff}
	alarm     = color.RGBA{0xc9, 0x3c, 0x37, 0xff}
)

// colorOf is one colour for sluice, the lighter the cheaper the clock, and grey for
// everybody else.
func (v *view) colorOf(subject string) color.Color {
	s := v.subjects[subject]
	switch {
	case !isOurs(s):
		return other
	case s.Clock == fast:
		return ownMiddle
	case s.Clock == coarse:
		return ownLight
	}
	return own
}

// words is a text style; align is where the given point lies in the text.
func words(size vg.Length, c color.Color, align text.XAlignment) text.Style {
	f := font.From(plot.DefaultFont, size)
	f.Variant = "Sans"
	return text.Style{Color: c, Font: f, XAlign: align, YAlign: text.YCenter, Handler: text.Plain{Fonts: font.DefaultCache}}
}

func bold(s text.Style) text.Style {
	s.Font.Weight = 3 // of x/image/font: WeightBold
	return s
}

// A page is a chart being drawn. Its y grows downwards from the top.
type page struct {
	draw.Canvas
	svg    *vgsvg.Canvas
	height vg.Length
}

func newPage(height vg.Length, title, subtitle string) *page {
	svg := vgsvg.New(pageWidth, height)
	p := &page{Canvas: draw.New(svg), svg: svg, height: height}
	p.box(0, 0, pageWidth, height, white)
	p.text(bold(words(titleSize, ink, text.XLeft)), margin, 15, title)
	p.text(words(textSize, faint, text.XLeft), margin, 30, subtitle)
	return p
}

func (p *page) text(s text.Style, x, y vg.Length, str string) {
	p.FillText(s, vg.Point{X: x, Y: p.height - y}, str)
}

func (p *page) box(x, y, w, h vg.Length, c color.Color) {
	top, bottom := p.height-y, p.height-y-h
	p.FillPolygon(c, []vg.Point{{X: x, Y: top}, {X: x + w, Y: top}, {X: x + w, Y: bottom}, {X: x, Y: bottom}})
}

func (p *page) line(c color.Color, width vg.Length, x0, y0, x1, y1 vg.Length) {
	p.StrokeLine2(draw.LineStyle{Color: c, Width: width}, x0, p.height-y0, x1, p.height-y1)
}

func (p *page) dot(c color.Color, radius, x, y vg.Length) {
	p.DrawGlyph(draw.GlyphStyle{Color: c, Radius: radius, Shape: draw.CircleGlyph{}}, vg.Point{X: x, Y: p.height - y})
}

// darkColors are the colours that change on a dark page, as GitHub's is for those who want it dark.
var darkColors = map[color.Color]string{
	white: "#0D1117", ink: "#E6EDF3", faint: "#9198A1", gridColor: "#30363D", other: "#6E7681", otherDark: "#9198A1",
}

// darkStyle has these colours for viewers that ask for a dark page.
func darkStyle() string {
	var rules []string
	for c, dark := range darkColors {
		r, g, b, _ := c.RGBA()
		for _, of := range []string{"fill", "stroke"} {
			rules = append(rules, fmt.Sprintf("[style*=\"%s:#%02X%02X%02X\"]{%s:%s !important}\n", of, r>>8, g>>8, b>>8, of, dark))
		}
	}
	slices.Sort(rules)
	return "<style>@media (prefers-color-scheme: dark) {\n" + strings.Join(rules, "") + "}</style>\n"
}

// An svgText is a text in the SVG: its font's size, whether that is bold, and the text.
var svgText = regexp.MustCompile(`font-weight:(bold|normal);[^"]*font-size:([0-9.]+)px[^"]*">([^<]*)</text>`)

// fitted gives each text the width that it was laid out with: whoever looks at it may not have the font, and another one may be wider.
func fitted(svg string) string {
	return svgText.ReplaceAllStringFunc(svg, func(found string) string {
		m := svgText.FindStringSubmatch(found)
		size, _ := strconv.ParseFloat(m[2], 64)
		style := words(vg.Length(size), ink, text.XLeft)
		if m[1] == "bold" {
			style = bold(style)
		}
		width := fmt.Sprintf("\" textLength=\"%.2f\" lengthAdjust=\"spacingAndGlyphs\">", float64(style.Width(html.UnescapeString(m[3]))))
		return strings.Replace(found, "\">", width, 1)
	})
}

// bytes is the page as SVG.
func (p *page) bytes() ([]byte, error) {
	var b bytes.Buffer
	if _, err := p.svg.WriteTo(&b); err != nil {
		return nil, err
	}
	svg := strings.ReplaceAll(b.String(), "font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
	return []byte(strings.Replace(fitted(svg), "<g ", darkStyle()+"<g ", 1)), nil
}

// widest is the room that the widest of the labels needs.
func widest(s text.Style, labels []string) vg.Length {
	var w vg.Length
	for _, l := range labels {
		w = max(w, s.Width(l))
	}
	return w
}

// spreadOut moves positions apart so that each is at least gap below the one
// before, keeping their order and staying as near as that allows.
func spreadOut(at []vg.Length, gap vg.Length) []vg.Length {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(1000 * (at[a] - at[b])) })
	out := slices.Clone(at)
	// Half of each overlap is taken upwards, until nothing overlaps.
	for range 100 * len(at) {
		moved := false
		for i := 1; i < len(order); i++ {
			a, b := order[i-1], order[i]
			if short := gap - (out[b] - out[a]); short > gap/1000 {
				out[a] -= short / 2
				out[b] += short / 2
				moved = true
			}
		}
		if !moved {
			break
		}
	}
	return out
}
