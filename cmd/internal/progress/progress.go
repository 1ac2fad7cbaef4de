// Package progress shows on a terminal how far the reading of a log has come.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// interval is the least time between two drawings.
const interval = 100 * time.Millisecond

// width is the width of a line, which fits every terminal that is 80 columns wide.
const width = 78

// Bar is one line that is drawn again and again, in plain ASCII: no colour, and nothing but a carriage return
// moves the cursor. One goroutine uses it.
type Bar struct {
	out         io.Writer
	now         func() time.Time
	start, last time.Time
}

// New returns a bar on a terminal.
func New(out io.Writer) *Bar { return &Bar{out: out, now: time.Now} }

// Terminal reports whether a file is a terminal that can draw a line again.
func Terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Show draws that so many bytes of a total have been read, 0 if that is not known, and so many lines.
func (b *Bar) Show(bytes, total, lines int64) {
	now := b.now()
	if b.start.IsZero() {
		b.start = now
	} else if now.Sub(b.last) < interval {
		return
	}
	b.last = now
	text := short(float64(lines)) + " lines"
	spent := now.Sub(b.start)
	if spent > 0 {
		text += fmt.Sprintf(", %s a second", short(float64(lines)/spent.Seconds()))
	}
	if total > 0 && bytes > 0 {
		done := min(1, float64(bytes)/float64(total))
		if spent > 0 {
			text += fmt.Sprintf(", %v left", time.Duration(float64(spent)*(1/done-1)).Round(time.Second))
		}
		const cells = 24
		text = fmt.Sprintf("[%-*s] %3.0f%%  %s", cells, strings.Repeat("=", int(done*cells)), 100*done, text)
	}
	fmt.Fprintf(b.out, "\r%-*.*s", width, width, text)
}

// Clear takes the line off the terminal.
func Clear(out io.Writer) { fmt.Fprintf(out, "\r%*s\r", width, "") }

// short is a number with a letter for its size.
func short(n float64) string {
	for _, unit := range []string{"", "k", "M", "G"} {
		if n < 1000 || unit == "G" {
			if unit == "" {
				return fmt.Sprintf("%.0f", n)
			}
			return fmt.Sprintf("%.1f%s", n, unit)
		}
		n /= 1000
	}
	return ""
}
