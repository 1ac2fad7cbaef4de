package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Config chooses the sources and formats of Read.
type Config struct {
	// Sources are read one after the other. Several files are put in the order of their first times.
	Sources []Source
	// Parsers read the formats that a source may have. For each source Read takes the one that
	// reads the most of its first lines.
	Parsers []Parser
	// Follow waits at the end of the last source, a plain file, for lines that are still written to it, also when
	// another file takes its name or when it is cut off. Then only the context ends Read.
	Follow bool
	// Requests fills Record.Request.
	Requests bool
	// From and To, unless 0, leave out requests before From, and from To on: in nanoseconds since 1970.
	From, To int64
	// Key, unless nil, takes the place of the client in Record.Client.
	Key *Key
	// Progress, unless nil, is called now and then, on the goroutine that called Read.
	Progress func(Progress)

	poll  func(context.Context) error // waits until a file may have grown
	block int                         // 0 is blockSize
}

// Progress is how far Read has come.
type Progress struct {
	Bytes, Total int64 // of the sources as they are stored; Total is 0 if that is not known
	Facts        Facts // so far
	Idle         bool  // of a log that is followed: this is all that is there
}

// Read hands the records of the sources to each, in order and on the calling goroutine. It returns nil at
// the end of sources with at least one record. Without one the error is ErrEmpty, ErrBlank or ErrNUL, or
// wraps ErrNoRecords and names in one line the expected formats. Any other error is of a source, with the
// number of the line it came in, or ErrInterrupted; the records before it are sound. Errors begin with the
// name of the source.
func Read(ctx context.Context, c Config, each func(Record)) (Facts, error) {
	if err := c.order(); err != nil {
		return Facts{}, err
	}
	p := newPipeline(&c)
	defer close(p.gone)
	go p.split(ctx)
	s := sequencer{config: &c, each: each}
	for b := range p.inOrder {
		<-b.parsed
		s.take(b)
		if b.err != nil {
			return s.facts, s.ended(b.source, b.err)
		}
		if c.Progress != nil {
			c.Progress(Progress{p.bytes.Load(), c.total(), s.facts, b.idle})
		}
		p.free <- b
	}
	if s.facts.Counted == 0 && s.lacking != nil {
		return s.facts, fmt.Errorf("%s: %w", Names(c.Sources), s.lacking)
	}
	if err := s.facts.end(c.Parsers); err != nil {
		return s.facts, fmt.Errorf("%s: %w", Names(c.Sources), err)
	}
	return s.facts, nil
}

// pipeline is the goroutines of one Read: one that makes blocks of the sources, and some that parse them.
// The blocks go round; that bounds the memory.
type pipeline struct {
	config  *Config
	free    chan *block
	work    chan *block
	inOrder chan *block
	gone    chan struct{} // closed when nobody takes blocks any more
	bytes   atomic.Int64  // read of the sources
}

// blocksPerWorker lets a worker go on while the block before is in the way.
const blocksPerWorker = 3

func newPipeline(c *Config) *pipeline {
	workers := runtime.GOMAXPROCS(0)
	blocks := workers * blocksPerWorker
	p := &pipeline{config: c, free: make(chan *block, blocks), work: make(chan *block, blocks), inOrder: make(chan *block, blocks), gone: make(chan struct{})}
	for range blocks {
		p.free <- &block{parsed: make(chan struct{}, 1)}
	}
	for range workers {
		go func() {
			for b := range p.work {
				b.parse(c.Requests, c.Key)
				b.parsed <- struct{}{}
			}
		}()
	}
	return p
}

// split makes blocks of the sources, to their end or the first error.
func (p *pipeline) split(ctx context.Context) {
	defer close(p.work)
	defer close(p.inOrder)
	for i, source := range p.config.Sources {
		s := splitter{p: p, ctx: ctx, source: source.Name, parsers: p.config.Parsers, follow: p.config.Follow && i == len(p.config.Sources)-1}
		if !s.run(source) {
			return
		}
	}
}

// next returns a block to fill, or nil if nobody waits for it any more.
func (p *pipeline) next() *block {
	select {
	case b := <-p.free:
		*b = block{parsed: b.parsed, data: b.data[:0], lines: b.lines[:0]}
		return b
	case <-p.gone:
		return nil
	}
}

func (p *pipeline) send(b *block) {
	p.work <- b
	p.inOrder <- b
}

// block is whole lines of one source, and their records.
type block struct {
	source  string
	first   bool // of its source, or of a file that has taken its name: no line goes on across it
	parsers []Parser
	settled bool // the first parser is the parser of the source
	depths  depths
	bad     error // why the line before data was not kept
	data    []byte
	idle    bool  // nothing is behind it yet
	err     error // that ended the source behind it

	lines  []line
	parsed chan struct{}
	nuls   bool
}

// line is the part of a record that needs no line before it.
type line struct {
	text   []byte
	parser Parser // that has read it
	depth  int    // in how many envelopes it was
	rec    Record
	bad    error // why it is no record
	blank  bool
	none   bool // it is a record that lacks the key
	quote  bool // it ends within quotes, or began within some
}

// parse reads the lines of the block.
func (b *block) parse(requests bool, key *Key) {
	if b.err = cmp.Or(b.checkKey(key), b.err); errors.Is(b.err, ErrKey) {
		return
	}
	if b.bad != nil {
		b.lines = append(b.lines, line{bad: b.bad})
	}
	returns := bytes.IndexByte(b.data, '\r') >= 0
	for data := b.data; len(data) > 0; {
		var text []byte
		text, data = cutLine(data)
		b.lines = append(b.lines, line{})
		l := &b.lines[len(b.lines)-1]
		l.text, l.bad = b.trim(text)
		if l.bad != nil {
			continue
		}
		if l.blank = len(bytes.TrimSpace(l.text)) == 0 || inArray(l.text); l.blank {
			continue
		}
		if returns && several(b.candidates(), l.text) {
			l.bad, l.quote = errCarriage, leavesQuote(l.text)
			continue
		}
		if b.read(l); errors.Is(l.bad, errComment) {
			l.bad, l.blank = nil, true
			b.parsers = withDirectives(b.parsers, l.text)
			if err := b.checkKey(key); err != nil {
				b.err = err
				return
			}
		}
		if l.quote = leavesQuote(l.text); l.bad != nil || l.blank {
			continue
		}
		if key != nil {
			var err error
			l.rec.Client, err = key.of(l.parser, l.text, l.rec)
			l.none = err != nil
		}
		if requests {
			r := l.parser.Request(l.text)
			l.rec.Request = &r
		}
	}
}

// candidates are the parsers that a record can be of by itself: the source's, once it is known.
func (b *block) candidates() []Parser {
	if b.settled {
		return b.parsers[:1]
	}
	return b.parsers
}

// read reads a line by the source's parser, else by any that can: a format can change within a file. What the source's
// parser knows to be a line of its own is read by no other, since a client can have written the mistake.
func (b *block) read(l *line) {
	texts := peeled{l.text}
	if l.readBy(b.parsers[0], &texts, b.depths) || b.settled && isDecisive(l.bad) {
		return
	}
	b.readByOther(l, texts)
}

// readByOther is read for a line that the source's parser cannot read.
func (b *block) readByOther(l *line, texts peeled) {
	reason := l.bad
	object := sync.OnceValue(func() bool { return isJSON(texts.get(b.depths.least)) })
	for _, p := range b.parsers[1:] {
		by := p
		if f, ok := p.(jsonLines); ok && b.settled { // looked at once, and not by each preset
			if !object() {
				continue
			}
			by = knownJSON{f}
		}
		if l.readBy(by, &texts, b.depths) && b.trusts(p, l) {
			l.parser = p
			return
		}
		if isDecisive(l.bad) && !isDecisive(reason) && !b.settled {
			reason = l.bad
		}
	}
	l.parser = nil
	if names := names(b.parsers); len(names) > 1 && !isDecisive(reason) && !b.settled {
		if isJSON(l.text) {
			reason = ErrUnknownJSON
		} else {
			reason = errors.New("in none of the known formats: " + strings.Join(names, ", "))
		}
	}
	l.bad = reason
}

// trusts reports whether a line that another parser than the source's has read is of its format: behind a host, which a client
// sends, a client is a combined line's only if no ident follows it.
func (b *block) trusts(p Parser, l *line) bool {
	if _, ok := p.(combined); !ok || !b.settled {
		return true
	}
	h, err := readHead(l.text)
	return err == nil && isDash(h.words[1])
}

// readBy reads the line within one of a number of envelopes, and keeps the text that is read. The error is about the line
// within the fewest of them.
func (l *line) readBy(p Parser, texts *peeled, d depths) bool {
	for i := d.least; i <= d.most; i++ {
		within := texts.get(i)
		if within == nil {
			break
		}
		rec, err := p.Parse(within)
		if err == nil || i == 0 && errors.Is(err, errComment) {
			l.rec, l.bad, l.text, l.parser, l.depth = rec, err, within, p, i
			return true
		}
		if i == d.least {
			l.bad = err
		}
	}
	if d.least > 0 && texts.get(d.least) == nil {
		l.bad = errEnvelope
	}
	return false
}

// depths are in how many envelopes lines can be: in as many as the first line that was read, once there is one. Else a
// client that has a program write a line of its own would have it read.
type depths struct{ least, most int }

var anyDepth = depths{0, len(peeled{}) - 1}

var errEnvelope = errors.New("not in an envelope, as the lines before")

// checkKey says whether lines of the block cannot have the key.
func (b *block) checkKey(key *Key) error {
	if key == nil || !b.settled {
		return nil
	}
	return key.check(b.parsers[0])
}

// several reports whether there are carriage returns in a line, and a record behind one. There may be one
// in a request, too.
func several(parsers []Parser, text []byte) bool {
	_, rest, found := bytes.Cut(text, []byte{'\r'})
	for found {
		var piece []byte
		piece, rest, found = bytes.Cut(rest, []byte{'\r'})
		for _, p := range parsers {
			if _, err := p.Parse(piece); err == nil {
				return true
			}
		}
	}
	return false
}

// sequencer takes the lines in their order.
type sequencer struct {
	config *Config
	each   func(Record)
	facts  Facts
	wrap   wrap
	source string
	before int64  // lines of the sources before
	last   string // format

	lacking error // of the first line without the key, if no other line has it
}

func (s *sequencer) take(b *block) {
	if b.first {
		s.wrap = wrap{}
	}
	if b.source != s.source {
		s.source, s.before = b.source, s.facts.Lines
	}
	s.facts.nuls = s.facts.nuls || b.nuls
	mayWrap := wrappable(b.parsers[0])
	for i := range b.lines {
		l := &b.lines[i]
		s.facts.Lines++
		if l.blank {
			s.facts.Blank++
			continue
		}
		if mayWrap || l.parser != nil && wrappable(l.parser) {
			s.wrap.see(l)
		}
		if l.bad != nil {
			if len(s.config.Sources) > 1 && s.facts.Malformed == 0 {
				l.bad = fmt.Errorf("%s:%d: %w", s.source, s.facts.Lines-s.before, l.bad)
			}
			s.facts.malformed(l.bad)
			continue
		}
		if c := s.config; l.rec.Time < c.From || c.To > 0 && l.rec.Time >= c.To {
			s.facts.Outside++
			continue
		}
		if l.none {
			if s.facts.Keyless == 0 {
				s.lacking = s.config.Key.missing(l.parser, l.text)
			}
			s.facts.Keyless++
			continue
		}
		s.facts.Counted++
		s.format(l.parser)
		s.each(l.rec)
	}
}

func (s *sequencer) format(p Parser) {
	name := p.Name()
	if name == s.last {
		return
	}
	if s.last = name; s.facts.Format == "" {
		s.facts.Format = name
	} else if !slices.Contains(strings.Split(s.facts.Format, ", "), name) {
		s.facts.Format += ", " + name
	}
}

// ended names the place of an error.
func (s *sequencer) ended(source string, err error) error {
	if source != s.source {
		s.source, s.before = source, s.facts.Lines
	}
	if !errors.As(err, new(openError)) && !errors.Is(err, ErrKey) {
		err = fmt.Errorf("line %d: %w", s.facts.Lines-s.before+1, err)
	}
	return fmt.Errorf("%s: %w", source, err)
}
