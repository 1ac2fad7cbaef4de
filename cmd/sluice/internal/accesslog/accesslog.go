// Package accesslog reads the access logs of web servers as a stream of records:
// who asked, and when.
//
// A format is a Parser for single lines. A Reader finds the lines in a stream,
// compressed or not, gives each to its parser and keeps account of those that
// could not be read. The memory it takes does not depend on the log.
package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A Record is what a replay needs to know of a request.
type Record struct {
	// Client is the client as the log spells it. It is never empty, and valid
	// until the next line is read.
	Client []byte
	// Time is the time of the request in nanoseconds since 1970, never negative.
	Time int64
}

// A Parser reads the lines of one log format.
type Parser interface {
	// Name is the format's name on the command line.
	Name() string
	// Wants describes a readable line, for error messages.
	Wants() string
	// Parse reads a line without its end. The record may alias it. The error says
	// what is missing and never quotes the line.
	Parse(line []byte) (Record, error)
}

// MaxMalformedLines is how many numbers of malformed lines are remembered.
const MaxMalformedLines = 10

// Facts is what a Reader knows about the log so far.
//
// Lines = Blank + Counted + Malformed.
type Facts struct {
	Format    string // name of the format; empty until a line was readable
	Lines     int64
	Blank     int64 // lines of nothing but white space
	Counted   int64 // lines that became records
	Malformed int64
	// MalformedLines are the numbers, from 1, of the first malformed lines.
	MalformedLines []int64
	// MalformedReason is what was wrong with the first of them.
	MalformedReason string
}

// The errors of a log that ended without one record.
var (
	ErrEmpty     = errors.New("the log is empty")
	ErrNoRecords = errors.New("no readable line")
)

// A Reader reads the records of a log in file order.
//
// Given several parsers, it settles on the first that can read a line, tried in
// the order given, and holds to it for the rest of the log. Lines before that
// one are malformed.
type Reader struct {
	lines   *lineReader
	parsers []Parser
	facts   Facts
}

// NewReader returns a Reader of src, which it decompresses if its content is
// gzip. It needs at least one parser.
func NewReader(src io.Reader, parsers ...Parser) (*Reader, error) {
	lines, err := newLineReader(src)
	if err != nil {
		return nil, err
	}
	return &Reader{lines: lines, parsers: parsers}, nil
}

// Next returns the next record, or io.EOF at the end of the log. Malformed and
// blank lines are passed over, but a log without any record ends with ErrEmpty, or
// with an error that wraps ErrNoRecords and says in one line what was expected.
// Any other error is that of the source, with the number of the line it came in.
func (r *Reader) Next() (Record, error) {
	for {
		line, tooLong, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			return Record{}, r.end()
		}
		if err != nil {
			return Record{}, fmt.Errorf("line %d: %w", r.facts.Lines+1, err)
		}
		r.facts.Lines++
		if tooLong {
			r.malformed(fmt.Errorf("longer than %d bytes", MaxLine))
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			r.facts.Blank++
			continue
		}
		rec, err := r.parse(line)
		if err != nil {
			r.malformed(err)
			continue
		}
		r.facts.Counted++
		return rec, nil
	}
}

// Facts returns the account of the lines read so far.
func (r *Reader) Facts() Facts { return r.facts }

func (r *Reader) parse(line []byte) (Record, error) {
	var reason error
	for _, p := range r.parsers {
		rec, err := p.Parse(line)
		if err == nil {
			r.parsers = []Parser{p}
			r.facts.Format = p.Name()
			return rec, nil
		}
		if reason == nil {
			reason = err
		}
	}
	if len(r.parsers) > 1 {
		reason = errors.New("not in any of the formats tried")
	}
	return Record{}, reason
}

func (r *Reader) malformed(reason error) {
	if r.facts.Malformed == 0 {
		r.facts.MalformedReason = reason.Error()
	}
	r.facts.Malformed++
	if len(r.facts.MalformedLines) < MaxMalformedLines {
		r.facts.MalformedLines = append(r.facts.MalformedLines, r.facts.Lines)
	}
}

// end tells the end of a log from the end of something that was not one.
func (r *Reader) end() error {
	if r.facts.Counted > 0 {
		return io.EOF
	}
	if r.facts.Malformed == 0 {
		return ErrEmpty
	}
	wants := make([]string, len(r.parsers))
	for i, p := range r.parsers {
		wants[i] = p.Wants()
	}
	return fmt.Errorf("%w among %d (%s: %s); expected %s", ErrNoRecords, r.facts.Lines,
		lineNumbers(r.facts), r.facts.MalformedReason, strings.Join(wants, ", or "))
}

// lineNumbers names the first malformed lines, a few of them.
func lineNumbers(f Facts) string {
	if f.Malformed == 1 {
		return fmt.Sprintf("line %d", f.MalformedLines[0])
	}
	shown := f.MalformedLines[:min(len(f.MalformedLines), 3)]
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(shown), " ", ", "), "[]")
	if int64(len(shown)) < f.Malformed {
		list += ", ..."
	}
	return "lines " + list
}
