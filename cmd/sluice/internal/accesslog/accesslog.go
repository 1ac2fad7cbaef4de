// Package accesslog reads the access logs of web servers as a stream of records:
// who asked, when, and for what.
//
// A format is a Parser for single lines. A Reader finds the lines in a stream,
// compressed or not, gives each to its parser and keeps account of those that
// could not be read. The memory it takes does not depend on the log.
package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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
	// Request reads the rest of a line that Parse has read.
	Request(line []byte) Request
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
	ErrBlank     = errors.New("the log has nothing but blank lines")
	ErrNUL       = errors.New("the log has nothing but NUL bytes, as a crash may leave it")
	ErrNoRecords = errors.New("no readable line")

	// ErrUnknownJSON is wrapped by ErrNoRecords: the first line was JSON without the
	// fields of any format.
	ErrUnknownJSON = errors.New("JSON without the fields of a known format")
)

// decisive is the error of a line whose kind is known: no other format can read it,
// and nothing better can be said.
type decisive string

func (d decisive) Error() string { return string(d) }

func isDecisive(err error) bool { return errors.As(err, new(decisive)) }

// A Reader reads the records of a log in file order.
//
// Given several parsers, it settles on the first that can read a line, tried in
// the order given, and holds to it for the rest of the log. Lines before that
// one are malformed.
type Reader struct {
	lines   *lineReader
	parsers []Parser
	facts   Facts
	wrap    wrap
	reason  error  // of the first malformed line
	line    []byte // of the last record
}

// NewReader returns a Reader of src, which it decompresses if its content is
// gzip. It needs at least one parser. Content of another kind than lines is an error
// that names it.
func NewReader(src io.Reader, parsers ...Parser) (*Reader, error) {
	lines, err := newLineReader(src)
	if err != nil {
		return nil, err
	}
	return &Reader{lines: lines, parsers: parsers}, nil
}

// Next returns the next record, or io.EOF at the end of the log. Malformed and
// blank lines are passed over, but a log without any record ends with ErrEmpty,
// ErrBlank or ErrNUL, or with an error that wraps ErrNoRecords and says in one line
// what was expected. Any other error is that of the source, with the number of the
// line it came in; the records before it are sound.
func (r *Reader) Next() (Record, error) {
	for {
		line, bad, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			return Record{}, r.end()
		}
		if err != nil {
			return Record{}, fmt.Errorf("line %d: %w", r.facts.Lines+1, err)
		}
		r.facts.Lines++
		if bad == nil && len(bytes.TrimSpace(line)) == 0 {
			r.facts.Blank++
			continue
		}
		rec := Record{}
		if bad == nil {
			rec, bad = r.read(line)
		} else {
			r.wrap = wrap{longest: r.wrap.longest}
		}
		if bad != nil {
			r.malformed(bad)
			continue
		}
		r.facts.Counted++
		r.line = line
		return rec, nil
	}
}

// Request returns what the log says of the last record's request.
func (r *Reader) Request() Request { return r.parsers[0].Request(r.line) }

// Facts returns the account of the lines read so far.
func (r *Reader) Facts() Facts { return r.facts }

// read reads a line that may be no record of its own, or several.
func (r *Reader) read(line []byte) (rec Record, bad error) {
	rest := r.wrap.isRest(line)
	switch {
	case rest:
		bad = errWrapped
	case r.several(line):
		bad = errCarriage
	default:
		rec, bad = r.parse(line)
	}
	r.wrap.add(line, rest, bad == nil)
	return rec, bad
}

// several reports whether there are carriage returns in a line, and a record behind one. There may be one
// in a request, too.
func (r *Reader) several(line []byte) bool {
	for {
		_, rest, found := bytes.Cut(line, []byte{'\r'})
		if !found {
			return false
		}
		for _, p := range r.parsers {
			piece, _, _ := bytes.Cut(rest, []byte{'\r'})
			if _, err := p.Parse(piece); err == nil {
				return true
			}
		}
		line = rest
	}
}

// parse tries the parsers on a line. If none can read it, the reason is that of the
// parser that knows its kind, if there is one.
func (r *Reader) parse(line []byte) (Record, error) {
	var reason error
	for _, p := range r.parsers {
		rec, err := p.Parse(line)
		if err == nil {
			r.parsers = []Parser{p}
			r.facts.Format = p.Name()
			return rec, nil
		}
		if reason == nil || isDecisive(err) && !isDecisive(reason) {
			reason = err
		}
	}
	if names := r.formats(); len(names) > 1 && !isDecisive(reason) {
		if looksJSON(line) && json.Valid(line) {
			return Record{}, ErrUnknownJSON
		}
		reason = errors.New("in none of the known formats: " + strings.Join(names, ", "))
	}
	return Record{}, reason
}

// formats lists the names of the parsers, each once.
func (r *Reader) formats() []string {
	var names []string
	for _, p := range r.parsers {
		if !slices.Contains(names, p.Name()) {
			names = append(names, p.Name())
		}
	}
	return names
}

func (r *Reader) malformed(reason error) {
	if r.facts.Malformed == 0 {
		r.reason = reason
		r.facts.MalformedReason = reason.Error()
	}
	r.facts.Malformed++
	if len(r.facts.MalformedLines) < MaxMalformedLines {
		r.facts.MalformedLines = append(r.facts.MalformedLines, r.facts.Lines)
	}
}

// end tells the end of a log from the end of something that was not one.
func (r *Reader) end() error {
	switch {
	case r.facts.Counted > 0:
		return io.EOF
	case r.facts.Malformed > 0:
		err := fmt.Errorf("%w among %d (%s: %w)", ErrNoRecords, r.facts.Lines, r.facts.malformedPlaces(), r.reason)
		if len(r.formats()) == 1 && !isDecisive(r.reason) {
			err = fmt.Errorf("%w; expected %s", err, r.parsers[0].Wants())
		}
		return err
	case r.lines.nuls:
		return ErrNUL
	case r.facts.Blank > 0:
		return ErrBlank
	}
	return ErrEmpty
}

// malformedPlaces names the first malformed lines, a few of them.
func (f *Facts) malformedPlaces() string {
	if f.Malformed == 1 {
		return "line " + f.MalformedNumbers(1)
	}
	return "lines " + f.MalformedNumbers(3)
}

// MalformedNumbers lists the numbers of the first malformed lines, at most so many: "3, 8, ...".
func (f *Facts) MalformedNumbers(most int) string {
	shown := f.MalformedLines[:min(len(f.MalformedLines), most)]
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(shown), " ", ", "), "[]")
	if int64(len(shown)) < f.Malformed {
		list += ", ..."
	}
	return list
}
