// Package uplot has the library that draws the charts of pages.
package uplot

import _ "embed"

// JS, CSS and Licence are the files of uPlot 1.6. The licence is to be in each copy.
var (
	//go:embed uPlot.iife.min.js
	JS string
	//go:embed uPlot.min.css
	CSS string
	//go:embed LICENSE
	Licence string
)
