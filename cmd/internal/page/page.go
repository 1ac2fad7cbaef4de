// Package page writes a report as one HTML file that needs nothing else: no network, no other file.
//
// The charts are drawn by uPlot, which is in the file: small, without dependencies, and one reads values off by pointing. It draws pixels, which
// nobody can read aloud, so each chart has its values in a table, too. SVG made here would have needed axes with logarithms, ticks and colours for light
// and dark, by hand: Go's plotting libraries bring fixed colours and fonts of their own.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"io"
	"strings"

	"github.com/sluice-go/sluice/cmd/internal/uplot"
)

//go:embed page.html page.css page.js
var files embed.FS

// A Page is a report. Its texts may hold words of strangers: they become text, and never markup.
type Page struct {
	Title    string
	Command  string   // that made it
	Facts    []string // about the log
	Sections []Section
}

// A Section has a heading, and the other parts that are there, in this order.
type Section struct {
	Title string
	About string
	Chart *Chart
	Table *Table
	Texts []Text
}

// A Chart is lines, or bars, over one axis.
type Chart struct {
	X, Y   Axis
	Values []float64 // of X, ascending
	Series []Series
	// Steps, unless 0, is how long each value holds; else they are joined by lines.
	Steps float64
}

// An Axis is an axis of a chart.
type Axis struct {
	Label string // with the unit
	Log   bool
	Time  bool // seconds since 1970
}

// Series is one line, with a value for each of the chart's X; nil where there is none.
type Series struct {
	Name   string
	Values []*float64
}

// Table is rows under a header. The first column is the name of a row, those after Left are numbers.
type Table struct {
	Header []string
	Left   int
	Rows   [][]string
	// Sparks are drawn behind the rows, one for each; nil for none.
	Sparks []Spark
}

// Text is for programs.
type Text struct {
	Title, Text string
}

// Write writes the page.
func Write(w io.Writer, p Page) error {
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"css": func() template.CSS { return template.CSS(css()) },
		"js":  func() template.JS { return template.JS(js()) },
		// Only these run, whatever a name from a log could become.
		"policy": func() string {
			return "default-src 'none'; style-src '" + hash(css()) + "'; script-src '" + hash(js()) + "'"
		},
		// A comment must not end early, and the licence is to be in each copy.
		"licence": func() template.HTML {
			return template.HTML("<!-- uPlot, which draws the charts:\n" + strings.ReplaceAll(uplot.Licence, "--", "- -") + "-->")
		},
		"numeric": func(t *Table, column int) bool { return column > t.Left },
	}).ParseFS(files, "page.html")
	if err != nil {
		return err
	}
	return t.Execute(w, p)
}

func css() string { return uplot.CSS + file("page.css") }

func js() string { return uplot.JS + file("page.js") }

// hash is the source of a Content-Security-Policy for a text.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func file(name string) string {
	data, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(data)
}
