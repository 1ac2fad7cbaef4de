package rules

import (
	"bytes"
	"errors"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
)

// A tree of YAML takes twenty times the memory of its text, in small objects. While the garbage
// collector looks at them it takes processors from calls. A long list of descriptors is therefore
// parsed in pieces: cut takes lines out of a file that look like items of the list, and each piece is
// parsed by itself.
//
// Pieces mean the same as the whole. If a cut goes through a text in quotes, or through a list in brackets, that
// is still open at the end of the first piece, which is an error. Text without quotes, and blocks of text, end at
// a line that begins with an item of a list around them, whether something is cut there or
// not. An alias of an anchor in another piece is an error. After an error the file is read as a whole.

// pieceSize is the least size of a piece in bytes, except for the last one.
const pieceSize = 16 << 10

// cuts is a file that has been cut up.
type cuts struct {
	rest   []byte  // the file, with empty lines in the place of the list
	line   int     // the line of the list's key
	pieces []piece // of the list; nil if nothing has been cut
}

// piece is some of the items of a list, in the form of a list.
type piece struct {
	text   []byte
	before int // number of lines before it
}

// cut cuts up a file whose descriptors are longer than a piece.
func cut(data []byte, size int) cuts {
	begin, line := listStart(data)
	if len(data)-begin < size {
		return cuts{rest: data}
	}
	c := cuts{line: line}
	end, indent := begin, -1
	from, before := begin, line // where the present piece begins
lines:
	for text := range bytes.Lines(data[begin:]) {
		depth := len(text) - len(bytes.TrimLeft(text, " "))
		content := bytes.TrimSpace(text)
		item := isItem(text[depth:])
		if indent < 0 && item {
			indent = depth
		}
		switch {
		case len(content) == 0 || content[0] == '#' || indent >= 0 && depth > indent:
		case !item || depth != indent:
			break lines
		case end-from >= size:
			c.pieces = append(c.pieces, piece{data[from:end], before})
			from, before = end, line
		}
		end += len(text)
		line++
	}
	if indent < 0 {
		return cuts{rest: data}
	}
	c.pieces = append(c.pieces, piece{data[from:end], before})
	c.rest = slices.Concat(data[:begin], bytes.Repeat([]byte("\n"), line-c.line), data[end:])
	return c
}

// listStart returns where the line after "descriptors:" begins, and how many lines there are before
// it; without such a list, the end of the file.
func listStart(data []byte) (at, line int) {
	for text := range bytes.Lines(data) {
		at += len(text)
		line++
		if string(bytes.TrimRight(text, " \t\r\n")) == "descriptors:" {
			return at, line
		}
	}
	return len(data), line
}

// isItem reports whether a line begins as an item of a list.
func isItem(text []byte) bool {
	return len(text) > 1 && text[0] == '-' && bytes.IndexByte([]byte(" \r\n"), text[1]) >= 0
}

// fits reports whether the list that was cut out was the whole value of the file's only field
// "descriptors".
func (c *cuts) fits(fields fieldList) bool {
	if c.pieces == nil {
		return true
	}
	found := false
	for _, f := range fields {
		if f.name != "descriptors" {
			continue
		}
		if f.key.Line != c.line || !isNull(f.value) || f.value.Value != "" {
			return false
		}
		found = true
	}
	return found
}

// parse returns the items of a piece; false if the piece is not a list by itself.
func (p *piece) parse() ([]*yaml.Node, bool) {
	dec := yaml.NewDecoder(bytes.NewReader(p.text))
	var doc, next yaml.Node
	if dec.Decode(&doc) != nil || !errors.Is(dec.Decode(&next), io.EOF) || doc.Content[0].Kind != yaml.SequenceNode {
		return nil, false
	}
	shift(&doc, p.before)
	return doc.Content[0].Content, true
}

// shift moves parsed values down by some lines.
func shift(n *yaml.Node, lines int) {
	n.Line += lines
	for _, c := range n.Content {
		shift(c, lines)
	}
}
