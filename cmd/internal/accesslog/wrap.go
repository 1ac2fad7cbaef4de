package accesslog

import (
	"bytes"
	"strings"
)

const errWrapped = decisive("the rest of the line before, which another tool has wrapped")

// wrap finds the rests of lines that another tool has wrapped, at a column or at a blank. A rest may look
// like a record: of a long name, or of text that a client has written into its request. It can only be
// behind a line that leaves a record open, and that has no room for more of it in the longest line so far.
type wrap struct {
	longest int  // line so far
	last    int  // length of the line before
	bare    bool // the record that it belongs to has had no quote, and no time
	quote   bool // or is within quotes
}

// wrappable reports whether the rest of a line may look like a record of a format: of those without it, records
// have an address between other fields, or are JSON, which is whole or none.
func wrappable(p Parser) bool {
	switch p := p.(type) {
	case combined, vhostCombined:
		return true
	case pattern:
		return !p.addresses
	}
	return false
}

// see notes the next line, and makes it malformed if it is the rest of the one before.
func (w *wrap) see(l *line) {
	if l.text == nil { // it was not kept
		*w = wrap{longest: w.longest}
		return
	}
	open := w.bare || w.quote
	switch {
	case w.isRest(l.text):
		l.bad = errWrapped
	case l.bad != nil && !open && isMessage(l.text):
		w.bare, w.quote = false, l.quote // so that no quote is open below
	default:
		w.bare, w.quote = l.bad != nil, false
	}
	w.bare = w.bare && bytes.IndexByte(l.text, '"') < 0
	w.quote = w.quote != l.quote
	w.longest, w.last = max(w.longest, len(l.text)), len(l.text)
}

// isMessage reports whether a line that is no record is whole, such as an error or a warning between records: it begins
// with a bracket or a date, or it has marks that no start of a record has before its time.
func isMessage(line []byte) bool {
	first, rest := word(line)
	switch {
	case len(first) == 0 || addressForm(first) != noAddress:
		return false
	case strings.IndexByte("[<({", first[0]) >= 0, isDate(first):
		return true
	}
	rest, _, _ = bytes.Cut(rest, []byte{'['})
	return bytes.IndexByte(line, '"') < 0 && bytes.ContainsAny(rest, ":|(){}=;")
}

// isDate reports whether a word begins with a year, a month and a day.
func isDate(word []byte) bool {
	return len(word) >= 10 && allDigits(word[:4]) && allDigits(word[5:7]) && allDigits(word[8:10]) && word[4] == word[7] && strings.IndexByte("/-.", word[4]) >= 0
}

func (w *wrap) isRest(line []byte) bool {
	if !w.bare && !w.quote {
		return false
	}
	first, _ := word(line)
	return w.last+len(first) >= max(w.longest, len(line))
}

// leavesQuote reports whether a line ends within a quotation that begins in it, or the other way round.
func leavesQuote(line []byte) bool {
	if bytes.IndexByte(line, '\\') < 0 {
		return bytes.Count(line, []byte{'"'})%2 == 1
	}
	open := false
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '\\':
			i++
		case '"':
			open = !open
		}
	}
	return open
}
