package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"github.com/sluice-go/sluice/benchmarks/internal/results"
)

// A Chart is a file for the folder of the results.
type Chart struct {
	File string
	SVG  []byte
}

// Charts draws everything for which there are figures.
func Charts(r results.Results) ([]Chart, error) {
	v := newView(r)
	var charts []Chart
	for _, c := range []struct {
		file string
		draw func() ([]byte, error) // nil, nil: nothing to draw
	}{
		{"speed.svg", v.speedChart},
		{"keys.svg", v.keysChart},
		{"cores.svg", v.coresChart},
		{"memory.svg", v.memoryChart},
		{"curve.svg", v.curveChart},
		{"stall.svg", v.stallChart},
		{"tails.svg", v.tailsChart},
	} {
		svg, err := c.draw()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.file, err)
		}
		if svg != nil {
			charts = append(charts, Chart{c.file, svg})
		}
	}
	return charts, nil
}

// measured returns the subjects that have a figure in one of the columns, fastest
// first, and their colours.
func (v *view) measured(cols []column) (names []string, colors []color.Color) {
	for _, s := range v.bySpeed(results.Subject.Stands) {
		if v.hasAny(s.Name, cols) {
			names, colors = append(names, s.Name), append(colors, v.colorOf(s.Name))
		}
	}
	return names, colors
}

func (v *view) hasAny(subject string, cols []column) bool {
	return slices.ContainsFunc(cols, func(c column) bool { return len(v.samples(subject, c)) > 0 })
}

func (v *view) medians(names []string, c column) []float64 {
	values := make([]float64, len(names))
	for i, name := range names {
		values[i] = median(v.samples(name, c))
	}
	return values
}

func (v *view) speedChart() ([]byte, error) {
	cols := columns[:6] // the serial ones
	names, colors := v.measured(cols)
	b := bars{
		title:    "Time of Allow, one goroutine",
		subtitle: "ns a call, median, lower is better. Each panel has its own scale; a cut bar is longer than the panel.",
		labels:   names, colors: [][]color.Color{colors}, across: 3, print: figure,
	}
	for _, c := range cols {
		b.panels = append(b.panels, panel{c.title, [][]float64{v.medians(names, c)}})
	}
	return b.draw()
}

func (v *view) coresChart() ([]byte, error) {
	workloads := []column{columns[0], columns[2], columns[4]}
	var cols []column
	for _, w := range workloads {
		cols = append(cols, column{w.title, w.workload, oneCPU}, column{w.title, w.workload, twoCPU})
	}
	names, colors := v.measured(cols)
	b := bars{
		title:    "Decisions on one core and on two",
		subtitle: "Million decisions a second, median, higher is better. Upper bar: on one core; lower: on two.",
		labels:   names, colors: [][]color.Color{colors, darker(colors)}, across: 3, print: figure, whole: true,
	}
	for i := 0; i < len(cols); i += 2 {
		b.panels = append(b.panels, panel{cols[i].title, [][]float64{
			millionsASecond(v.medians(names, cols[i])), millionsASecond(v.medians(names, cols[i+1])),
		}})
	}
	return b.draw()
}

func millionsASecond(ns []float64) []float64 {
	out := make([]float64, len(ns))
	for i, x := range ns {
		out[i] = 1000 / x
	}
	return out
}

// darker are the colours of the second of two series.
func darker(colors []color.Color) []color.Color {
	out := make([]color.Color, len(colors))
	for i, c := range colors {
		r, g, b, _ := c.RGBA()
		dim := func(x uint32) uint8 { return uint8(float64(x>>8) * 0.7) }
		out[i] = color.RGBA{dim(r), dim(g), dim(b), 0xff}
	}
	return out
}

func (v *view) memoryChart() ([]byte, error) {
	b := bars{title: "Memory at a million keys", across: 2, print: figure, colors: make([][]color.Color, 1)}
	b.subtitle = "Heap only; keys are strings of 12 bytes that nobody else holds. Lower is better. Objects are what the garbage collector has to visit."
	bytes, objects := panel{"bytes a key", make([][]float64, 1)}, panel{"heap objects a key", make([][]float64, 1)}
	for _, m := range v.byBytes() {
		if !v.subjects[m.Subject].Stands() {
			continue
		}
		b.labels = append(b.labels, m.Subject)
		b.colors[0] = append(b.colors[0], v.colorOf(m.Subject))
		bytes.series[0] = append(bytes.series[0], m.BytesPerKey)
		// One table more or less must not show as -0.0.
		objects.series[0] = append(objects.series[0], math.Abs(m.ObjectsPerKey))
	}
	b.panels = []panel{bytes, objects}
	return b.draw()
}
