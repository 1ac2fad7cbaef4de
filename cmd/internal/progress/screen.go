package progress

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// screenInterval is the least time between two pages, unless one of them is for now the last.
const screenInterval = time.Second

// Screen is a terminal that shows one page after another, each in the place of the page before. One goroutine uses it.
type Screen struct {
	out  io.Writer
	size func() (columns, rows int, err error)
	now  func() time.Time
	last time.Time
}

// NewScreen returns the screen of a terminal.
func NewScreen(f *os.File) *Screen {
	return &Screen{out: f, size: func() (int, int, error) { return term.GetSize(int(f.Fd())) }, now: time.Now}
}

// Due reports whether it is time for a page: at once if none comes after it for now, else once in a second.
func (s *Screen) Due(last bool) bool { return last || s.now().Sub(s.last) >= screenInterval }

// Show shows as much of a page, which is lines of text, as has room.
func (s *Screen) Show(page []byte) {
	columns, rows, err := s.size()
	if err != nil || columns < 1 || rows < 2 {
		columns, rows = 80, 24
	}
	if s.last.IsZero() { // the terminal keeps its lines above the first page
		fmt.Fprint(s.out, strings.Repeat("\n", rows-1))
	}
	_, _ = s.out.Write(fit(page, columns, rows))
	s.last = s.now()
}

// Clear takes the page off the terminal.
func (s *Screen) Clear() { fmt.Fprint(s.out, home+clearBelow) }

// What moves the cursor on a terminal, and takes text off.
const (
	home       = "\x1b[H"
	clearLine  = "\x1b[K" // from the cursor on
	clearBelow = "\x1b[J"
)

// fit writes the lines that have room over a page. The last row says how many have none, and is otherwise the cursor's.
func fit(page []byte, columns, rows int) []byte {
	var out bytes.Buffer
	out.WriteString(home)
	lines := bytes.Split(bytes.TrimSuffix(page, []byte("\n")), []byte("\n"))
	room := min(len(lines), rows-1)
	for _, line := range lines[:room] {
		for n := 0; len(line) > 0 && n < columns; n++ {
			_, size := utf8.DecodeRune(line)
			out.Write(line[:size])
			line = line[size:]
		}
		out.WriteString(clearLine + "\n")
	}
	if hidden := len(lines) - room; hidden > 0 {
		more := fmt.Sprintf("%d lines more: in a taller window, or at the end", hidden)
		out.WriteString(more[:min(len(more), columns-1)])
	}
	out.WriteString(clearBelow)
	return out.Bytes()
}
