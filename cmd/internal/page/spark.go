package page

import (
	"fmt"
	"slices"
	"strings"
)

// Spark is a small chart in a row of a table, over all the time of a log.
type Spark struct {
	Of     string // the values
	Values []int64
}

// sparkHeight is the height of the largest value, and a value is 4 wide, in units of the drawing.
const sparkHeight = 24

// Width is the width of the drawing.
func (s Spark) Width() int { return 4 * len(s.Values) }

// Path draws a bar for each value but 0, of which the smallest can be seen.
func (s Spark) Path() string {
	var b strings.Builder
	for i, v := range s.Values {
		if v > 0 {
			fmt.Fprintf(&b, "M%d %dv-%.1f", 4*i+2, sparkHeight, max(1.5, float64(v)*sparkHeight/float64(slices.Max(s.Values))))
		}
	}
	return b.String()
}

// Label is read aloud: all values.
func (s Spark) Label() string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Values), " ", ", "), "[]")
	return fmt.Sprintf("%s, at most %d, in %d equal parts of the time: %s", s.Of, slices.Max(s.Values), len(s.Values), text)
}
