// Package accesslog reads the access logs of web servers as a stream of records: who asked, when, and for
// what.
//
// A format is a Parser for single lines. Read takes the bytes of its sources apart into blocks of lines,
// parses several blocks at once, and hands the records over in the order of the lines, with an account of
// the lines that are none. The memory it takes does not depend on the log.
package accesslog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Record is one request of a log.
type Record struct {
	// Client is the client as the log spells it, or the Key of the Config. It is never empty, and valid until the function that got
	// the record returns.
	Client []byte
	// Time is the time of the request in nanoseconds since 1970, never negative.
	Time int64
	// Request is the rest; nil unless Config.Requests asks for it.
	Request *Request
}

// A Parser reads the lines of one log format. Several goroutines may use it at once.
type Parser interface {
	// Name is the format's name on the command line.
	Name() string
	// Wants describes a readable line, for error messages.
	Wants() string
	// Parse reads the client and the time of a line without its end. The record may alias it. The error
	// says what is missing and never quotes the line.
	Parse(line []byte) (Record, error)
	// Request reads the rest of a line that Parse has read.
	Request(line []byte) Request
}

// MaxMalformedLines is how many numbers of malformed lines are remembered.
const MaxMalformedLines = 10

// Facts is the account of the lines read so far, of all sources together.
//
// Lines = Blank + Counted + Malformed + Keyless + Outside.
type Facts struct {
	Format    string // names of the formats, with commas between; empty until a line was readable
	Lines     int64
	Blank     int64 // lines of nothing but white space, and comments of formats that have some
	Counted   int64 // lines that became records
	Malformed int64
	Keyless   int64 // readable lines without a part of Config.Key
	Outside   int64 // requests before Config.From or not before Config.To
	// MalformedLines are the numbers, from 1 in the first source on, of the first malformed lines.
	MalformedLines []int64
	// MalformedReason is the mistake of the first of them. Of several sources it begins with the name
	// of the one that has it.
	MalformedReason string

	nuls   bool  // NUL bytes have been taken off
	reason error // of the first malformed line
}

// The errors of logs that ended without one record.
var (
	ErrEmpty     = errors.New("the log is empty")
	ErrBlank     = errors.New("the log has nothing but blank lines")
	ErrNUL       = errors.New("the log has nothing but NUL bytes, as a crash may leave it")
	ErrNoRecords = errors.New("no readable line")
	ErrOutside   = errors.New("no request in the time asked for")

	// ErrUnknownJSON is wrapped by ErrNoRecords: the first line was JSON without the
	// fields of any format.
	ErrUnknownJSON = errors.New("JSON without the fields of a known format")
)

// ErrInterrupted is how a log ends when the context does.
var ErrInterrupted = errors.New("interrupted")

// decisive is the error of a line whose kind is known: no other format can read it,
// and nothing better can be said.
type decisive string

func (d decisive) Error() string { return string(d) }

func isDecisive(err error) bool { return errors.As(err, new(decisive)) }

func (f *Facts) malformed(reason error) {
	if f.Malformed == 0 {
		f.reason = reason
		f.MalformedReason = reason.Error()
	}
	f.Malformed++
	if len(f.MalformedLines) < MaxMalformedLines {
		f.MalformedLines = append(f.MalformedLines, f.Lines)
	}
}

// end tells the end of a log from the end of something that was not one.
func (f *Facts) end(parsers []Parser) error {
	switch {
	case f.Counted > 0:
		return nil
	case f.Outside > 0:
		return fmt.Errorf("%w: all %d are before --from or after --to, which are in UTC unless they have a zone", ErrOutside, f.Outside)
	case f.Malformed > 0:
		err := fmt.Errorf("%w among %d (%s: %w)", ErrNoRecords, f.Lines, f.malformedPlaces(), f.reason)
		if len(names(parsers)) == 1 && !isDecisive(f.reason) {
			err = fmt.Errorf("%w; expected %s", err, parsers[0].Wants())
		}
		return err
	case f.nuls:
		return ErrNUL
	case f.Blank > 0:
		return ErrBlank
	}
	return ErrEmpty
}

// names lists the names of parsers, each once.
func names(parsers []Parser) []string {
	var out []string
	for _, p := range parsers {
		if !slices.Contains(out, p.Name()) {
			out = append(out, p.Name())
		}
	}
	return out
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
