// Package snapfile is the format of a limiter's snapshots. It knows bytes, and not the meaning of words.
//
// A snapshot is, in little endian:
//
//	magic, version          8 bytes
//	sections, each of the keys under one policy that are kept on one limit, or on none:
//	  1, Header
//	  several times, a number of entries above 0, and as many times
//	    id, word, and the words of the tail, unless the word stands for no state
//	  0                     4 bytes
//	0                       1 byte
//	xxHash64 of all before  8 bytes
//
// Words are as in memory. So the version must change with any layout of any algorithm.
package snapfile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-go/sluice/internal/calendar"
)

// A snapshot begins with the magic and its version.
const (
	Magic   = "sluice\x00"
	Version = 5
)

// A Header says how the words of a section are to be read, and where its keys have their limit from.
type Header struct {
	Algorithm                 uint8
	Rate, Period, Burst, Soft int64
	Offset, Room              int64
	TailLen                   uint32
	Calendar                  Calendar
	Source
}

// A Calendar is the calendar of a limit, or zero.
type Calendar struct {
	Unit, Month, Day uint8
	Zone             [calendar.MaxZone]byte // followed by zeros
}

// A Source says where the keys have their limit from, and the limit, unless it is the limiter's.
type Source struct {
	Kind                               uint8
	LimitRate, LimitPeriod, LimitBurst int64
	LimitCalendar                      Calendar
}

// ErrBad is matched by the errors that speak of the input.
var ErrBad = errors.New("sluice: not a snapshot that can be read")

// Bad returns an error that matches ErrBad.
func Bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBad, fmt.Sprintf(format, args...))
}

// Entries are keys of one section, as they are written. The zero value is empty.
type Entries struct {
	Bytes []byte
	N     int
}

// Add adds the entry of a key whose tail nobody writes.
func (e *Entries) Add(id, word uint64, tail []atomic.Uint64) {
	to := binary.LittleEndian.AppendUint64(e.Bytes, id)
	to = binary.LittleEndian.AppendUint64(to, word)
	for i := range tail {
		to = binary.LittleEndian.AppendUint64(to, tail[i].Load())
	}
	e.Bytes = to
	e.N++
}

// Size is how many bytes an entry with a tail of n words takes.
func Size(n int) int { return 16 + 8*n }

// A Writer writes a snapshot. Close tells the first error of all.
type Writer struct {
	w    *bufio.Writer
	sum  *xxhash.Digest
	open bool // a section
}

// NewWriter begins a snapshot.
func NewWriter(w io.Writer) *Writer {
	sum := xxhash.New()
	out := &Writer{w: bufio.NewWriter(io.MultiWriter(w, sum)), sum: sum}
	out.w.WriteString(Magic)
	out.w.WriteByte(Version)
	return out
}

// Section begins a section, after the one before.
func (out *Writer) Section(h Header) {
	out.end()
	out.w.WriteByte(1)
	binary.Write(out.w, binary.LittleEndian, h)
	out.open = true
}

func (out *Writer) end() {
	if out.open {
		binary.Write(out.w, binary.LittleEndian, uint32(0))
	}
	out.open = false
}

// Entries writes entries of the section.
func (out *Writer) Entries(e Entries) {
	if e.N > 0 {
		binary.Write(out.w, binary.LittleEndian, uint32(e.N))
		out.w.Write(e.Bytes)
	}
}

// Close ends the snapshot.
func (out *Writer) Close() error {
	out.end()
	out.w.WriteByte(0)
	out.w.Flush()
	binary.Write(out.w, binary.LittleEndian, out.sum.Sum64()) // which is not of itself
	return out.w.Flush()
}

// A Reader reads a snapshot. Its errors match ErrBad, or are the input's.
type Reader struct {
	r     *bufio.Reader
	sum   hash.Hash64
	begun bool
	left  uint32 // entries of those that have been counted together
	buf   [512]byte
}

// NewReader reads from r, to its end.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReader(r), sum: xxhash.New()} }

// fill reads b whole.
func (in *Reader) fill(b []byte) error {
	_, err := io.ReadFull(in.r, b)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return Bad("it has been cut short")
	case err != nil:
		return err
	}
	in.sum.Write(b)
	return nil
}

// fields reads a number, or the fields of a struct of numbers, of a fixed size.
func (in *Reader) fields(h any) error {
	b := in.buf[:binary.Size(h)]
	if err := in.fill(b); err != nil {
		return err
	}
	return binary.Read(bytes.NewReader(b), binary.LittleEndian, h)
}

// Section begins the next section. After the last one it checks that nothing has been changed, and that
// nothing follows.
func (in *Reader) Section() (h Header, ok bool, err error) {
	if !in.begun {
		if err := in.begin(); err != nil {
			return h, false, err
		}
	}
	var more uint8
	if err := in.fields(&more); err != nil {
		return h, false, err
	}
	if more == 0 {
		return h, false, in.end()
	}
	err = in.fields(&h)
	return h, err == nil, err
}

func (in *Reader) begin() error {
	var head [len(Magic) + 1]byte
	if err := in.fill(head[:]); err != nil {
		return err
	}
	switch v := head[len(Magic)]; {
	case string(head[:len(Magic)]) != Magic:
		return Bad("it does not begin as one")
	case v != Version:
		return Bad("its version is %d; want %d", v, Version)
	}
	in.begun = true
	return nil
}

func (in *Reader) end() error {
	var sum uint64
	want := in.sum.Sum64()
	if err := in.fields(&sum); err != nil {
		return err
	}
	if sum != want {
		return Bad("its checksum is wrong")
	}
	switch _, err := in.r.ReadByte(); {
	case err == nil:
		return Bad("something follows it")
	case err != io.EOF:
		return err
	}
	return nil
}

// Entry reads the next entry of the section, but not its tail. It is not ok after the last one.
func (in *Reader) Entry() (id, word uint64, ok bool, err error) {
	if in.left == 0 {
		if err := in.fields(&in.left); err != nil || in.left == 0 {
			return 0, 0, false, err
		}
	}
	in.left--
	b := in.buf[:16]
	if err := in.fill(b); err != nil {
		return 0, 0, false, err
	}
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), true, nil
}

// Tail reads the tail of the entry, of n words.
func (in *Reader) Tail(n uint32) (tail []atomic.Uint64, err error) {
	if n == 0 {
		return nil, nil
	}
	// Not all at once: a header can claim a longer tail than there is.
	tail = make([]atomic.Uint64, 0, min(uint64(n), uint64(len(in.buf)/8)))
	for left := 8 * uint64(n); left > 0; {
		b := in.buf[:min(left, uint64(len(in.buf)))]
		if err := in.fill(b); err != nil {
			return nil, err
		}
		for left -= uint64(len(b)); len(b) > 0; b = b[8:] {
			tail = append(tail, atomic.Uint64{})
			tail[len(tail)-1].Store(binary.LittleEndian.Uint64(b))
		}
	}
	return tail, nil
}
