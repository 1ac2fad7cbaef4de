package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// MaxLine is the length in bytes, line end excluded, above which a line is not
// kept. Servers cap a request line at a few KiB, so a longer line is damage.
const MaxLine = 1 << 20

// blockSize is how much is parsed at once. A block is longer only if a line is.
const blockSize = 128 << 10

var errTooLong = fmt.Errorf("longer than %d bytes", MaxLine)

// These lines belong to other formats.
const (
	errCarriage = decisive(`carriage returns where line feeds should be: tr '\r' '\n' puts them right`)
	errZipped   = decisive("gzip data behind lines of text: want one kind, as from zcat -f A.gz B")
)

// splitter makes blocks of a source, which it never holds as a whole.
//
// A line ends at LF, CRLF or the end of the source. Bytes that file systems and editors put
// around lines is taken off: a byte order mark at the start of a line, where a file began before it was put
// behind another one, and NUL bytes there, which a crash or a truncation under a running server leaves in
// front of the next record.
type splitter struct {
	p       *pipeline
	ctx     context.Context
	source  string
	parsers []Parser // the first one reads the most lines, once that is settled
	settled bool
	depths  depths
	follow  bool

	first bool
	rest  []byte // of a line that has not ended yet
	skip  error  // why that line is not kept
	nuls  bool
}

// run makes blocks of a source to its end; false if an error ends it, or nobody waits for blocks any more.
func (s *splitter) run(source Source) bool {
	in, err := s.open(source)
	if err != nil {
		return s.fail(openError{withoutPath(err)})
	}
	defer in.Close()
	s.first = true
	for {
		b := s.p.next()
		if b == nil {
			return false
		}
		err := s.fill(b, in)
		if err == nil && s.ctx.Err() != nil {
			err = ErrInterrupted
		}
		whole := errors.Is(err, io.EOF) || errors.Is(err, errNewFile)
		s.cut(b, whole)
		if b.idle = errors.Is(err, errIdle); !whole && !b.idle {
			b.err = withoutPath(err)
		}
		failed := b.err != nil // from send on, the block is its worker's
		if len(b.data) == 0 && b.bad == nil && b.err == nil && !(b.idle && s.settled) {
			s.p.free <- b
		} else {
			s.send(b)
		}
		s.first = s.first || errors.Is(err, errNewFile)
		if failed || errors.Is(err, io.EOF) {
			return !failed
		}
	}
}

func (s *splitter) open(source Source) (io.ReadCloser, error) {
	in, err := source.open()
	if err != nil {
		return nil, err
	}
	if s.follow {
		return newFollower(s.ctx, source.path, in, &s.p.bytes, s.p.config.poll), nil
	}
	raw := io.Reader(in)
	if source.path == "" || source.size == 0 {
		raw = interruptible(s.ctx, in)
	}
	out, err := decompressed(counted{raw, s})
	if err != nil {
		in.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{out, closers{out, in}}, nil
}

// counted counts the bytes and lines read of a source.
type counted struct {
	io.Reader
	s *splitter
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.s.p.bytes.Add(int64(n))
	return n, err
}

type closers []io.Closer

func (c closers) Close() (err error) {
	for _, closer := range c {
		err = errors.Join(err, closer.Close())
	}
	return err
}

func (s *splitter) fail(err error) bool {
	if b := s.p.next(); b != nil {
		b.err = err
		s.send(b)
	}
	return false
}

func (s *splitter) send(b *block) {
	b.source, b.first, b.nuls = s.source, s.first, s.nuls
	if !s.settled {
		s.parsers, s.depths, s.settled = settle(s.parsers, b.data)
	}
	b.parsers, b.depths, b.settled = s.parsers, s.depths, s.settled
	s.parsers = withDirectives(s.parsers, b.data)
	s.first = false
	s.p.send(b)
}

// fill reads until the block is full, or an error.
func (s *splitter) fill(b *block, in io.Reader) error {
	size := cmp.Or(s.p.config.block, blockSize)
	if want := len(s.rest) + size; cap(b.data) < want || cap(b.data) > 3*size {
		b.data = make([]byte, 0, want)
	}
	b.data = append(b.data, s.rest...)
	s.rest = s.rest[:0]
	for len(b.data) < cap(b.data) {
		n, err := in.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		if err != nil {
			return err
		}
	}
	return nil
}

// cut leaves whole lines in a block, and keeps the rest for the next one, if it is not too long.
func (s *splitter) cut(b *block, whole bool) {
	if s.skip != nil {
		_, kept, found := bytes.Cut(b.data, []byte{'\n'})
		b.data = append(b.data[:0], kept...)
		if !found && !whole {
			return
		}
		b.bad, s.skip = s.skip, nil
	}
	end := bytes.LastIndexByte(b.data, '\n') + 1
	if whole {
		end = len(b.data)
	}
	s.rest = append(s.rest, b.data[end:]...)
	b.data = b.data[:end]
	if end > 0 || len(s.rest) <= MaxLine+len("\r\n") {
		return
	}
	kept := bytes.TrimLeft(s.rest, "\x00")
	s.nuls = s.nuls || len(kept) < len(s.rest)
	s.rest = append(s.rest[:0], kept...)
	if len(kept) > MaxLine+len("\r\n") {
		s.skip = tooLong(kept)
		s.rest = nil
	}
}

// tooLong says why a line is not kept.
func tooLong(line []byte) error {
	if bytes.IndexByte(line, '\r') >= 0 {
		return errCarriage
	}
	return errTooLong
}

func cutLine(data []byte) (line, rest []byte) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return data[:end], data[end+1:]
	}
	return data, nil
}

// trim takes the envelope off a line, or says why the line is none.
func (b *block) trim(line []byte) ([]byte, error) {
	if len(line) > 0 && line[0] == 0 {
		line = bytes.TrimLeft(line, "\x00")
		b.nuls = true
	}
	for len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	switch {
	case len(line) > MaxLine:
		return nil, tooLong(line)
	case len(line) > 0 && line[0] == gzipMagic[0] && bytes.HasPrefix(line, []byte(gzipMagic)):
		return nil, errZipped
	}
	return bytes.TrimPrefix(line, []byte(utf8BOM)), nil
}

// settleLines is how many readable lines tell the format of a source. The first one may be the odd one.
const settleLines = 100

// settle returns the parsers with the one first that reads the most of the first lines, of several the one that reads
// the first of these lines, and in how many envelopes its first line is; false if none reads a line.
func settle(parsers []Parser, data []byte) ([]Parser, depths, bool) {
	counts, depth := make([]int, len(parsers)), make([]int, len(parsers))
	first, readable := -1, 0
	for now := parsers; len(data) > 0 && readable < settleLines; {
		var text []byte
		text, data = cutLine(data)
		now = withDirectives(now, text)
		text, err := new(block).trim(text)
		if err != nil {
			continue
		}
		known, texts := readable, peeled{text}
		for i, p := range now {
			l := line{text: text}
			if !l.readBy(p, &texts, anyDepth) || l.bad != nil {
				continue
			}
			if counts[i]++; counts[i] == 1 {
				depth[i] = l.depth
			}
			readable = known + 1
		}
		if first < 0 && readable > 0 {
			first = slices.Index(counts, 1)
		}
	}
	if readable == 0 {
		return parsers, anyDepth, false
	}
	if most := slices.Max(counts); counts[first] < most {
		first = slices.Index(counts, most)
	}
	return slices.Concat(parsers[first:first+1], parsers[:first], parsers[first+1:]), depths{depth[first], depth[first]}, true
}

// directed is a parser that goes by lines of the log which are no records.
type directed interface {
	Parser
	// directive is the parser for the lines behind a line that begins with #.
	directive(line string) Parser
}

// errComment is the error of such a line.
var errComment = errors.New("a comment")

// mayDirect reports whether a line of data can begin with #, without a look at each.
func mayDirect(data []byte) bool {
	return bytes.HasPrefix(data, []byte{'#'}) || bytes.Contains(data, []byte("\n#")) ||
		bytes.Contains(data, []byte(utf8BOM+"#")) || bytes.Contains(data, []byte("\x00#"))
}

// withDirectives returns the parsers for the lines behind data.
func withDirectives(parsers []Parser, data []byte) []Parser {
	if !mayDirect(data) || !slices.ContainsFunc(parsers, func(p Parser) bool { _, ok := p.(directed); return ok }) {
		return parsers
	}
	out := slices.Clone(parsers)
	for len(data) > 0 {
		var text []byte
		text, data = cutLine(data)
		text, err := new(block).trim(text)
		if err != nil || len(text) == 0 || text[0] != '#' {
			continue
		}
		for i, p := range out {
			if d, ok := p.(directed); ok {
				out[i] = d.directive(string(text))
			}
		}
	}
	return out
}
