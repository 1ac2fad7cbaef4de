// Package spool keeps the requests of a log, of whom and when, so that it need not be read and parsed a second
// time: standard input cannot be.
package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
)

// inMemory is how many bytes of requests are kept in memory. Those before go into a temporary file.
const inMemory = 4 << 20

// A Spool is a sequence of requests. One takes 2 to 17 bytes, 3 or 4 in a busy log. It is written first, and then read by
// any number of Readers at once.
//
// A request is a byte with the lengths of two numbers, in its lower and its upper half, and their bytes, the lowest first: the client, and the
// nanoseconds since the request before. So it is read without a branch: who looks for limits reads all requests a dozen times.
type Spool struct {
	n    int64
	last int64 // the time of the newest
	tail []byte
	file *os.File // has the bytes before tail; nil if there are none
	size int64    // of the file
	name string   // of a file that could not be removed while it is open
	err  error

	limit int // 0 is inMemory
}

// Add keeps a request of a client, a number that is not negative, at a time not before that of the request before.
func (s *Spool) Add(client int, now int64) error {
	if s.err != nil {
		return s.err
	}
	if len(s.tail) >= s.max() {
		if s.err = s.flush(); s.err != nil {
			s.err = fmt.Errorf("keeping the requests of the log in a temporary file: %w", s.err)
			return s.err
		}
	}
	head := len(s.tail)
	s.tail = append(s.tail, 0)
	lengths := s.number(uint64(client)) | s.number(uint64(now-s.last))<<4
	s.tail[head] = lengths
	s.n++
	s.last = now
	return nil
}

// number appends a number, and returns its length.
func (s *Spool) number(n uint64) byte {
	length := (bits.Len64(n) + 7) / 8
	s.tail = binary.LittleEndian.AppendUint64(s.tail, n)[:len(s.tail)+length]
	return byte(length)
}

func (s *Spool) max() int {
	if s.limit > 0 {
		return s.limit
	}
	return inMemory
}

// flush moves the tail to the file.
func (s *Spool) flush() (err error) {
	if s.file == nil {
		if s.file, err = os.CreateTemp("", "sluice-*"); err != nil {
			return err
		}
		// Where a file can go before it is closed, nothing is left behind, whatever ends the process.
		if os.Remove(s.file.Name()) != nil {
			s.name = s.file.Name()
		}
	}
	n, err := s.file.WriteAt(s.tail, s.size)
	s.size += int64(n)
	s.tail = s.tail[:0]
	return err
}

// Close gives up the requests, and the file.
func (s *Spool) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if s.name != "" {
		err = errors.Join(err, os.Remove(s.name))
	}
	s.file = nil
	return err
}

// readAhead is how much a Reader reads at once.
const readAhead = 64 << 10

// longest is the most bytes that a request takes.
const longest = 1 + 8 + 8

// A Request is one of a log.
type Request struct {
	Client int
	Now    int64
}

// A Reader reads the requests in order. It is for one goroutine.
type Reader struct {
	spool *Spool
	left  int64  // requests to come
	now   int64  // of the newest that has been read
	off   int64  // of the bytes behind buf[:end]
	buf   []byte // with room behind end, so that no number ends outside
	at    int    // of the next request
	end   int
	err   error
}

// Read returns a Reader that stands before the first request.
func (s *Spool) Read() *Reader {
	return &Reader{spool: s, left: s.n, buf: make([]byte, readAhead+longest)}
}

// Batch reads the next requests, as many as out has room for, and returns the part of out that has them: empty behind the last request, and if no
// more can be read.
func (r *Reader) Batch(out []Request) []Request {
	n := 0
	for ; n < len(out) && r.left > 0; n++ {
		if r.end-r.at < longest && !r.fill() {
			break
		}
		lengths := r.buf[r.at]
		r.at++
		client := r.number(int(lengths & 15))
		r.now += int64(r.number(int(lengths >> 4)))
		r.left--
		out[n] = Request{int(client), r.now}
	}
	return out[:n]
}

func (r *Reader) number(length int) uint64 {
	n := binary.LittleEndian.Uint64(r.buf[r.at:]) &^ (^uint64(0) << (8 * length))
	r.at += length
	return n
}

// Err returns why Batch could not read a request.
func (r *Reader) Err() error { return r.err }

// fill makes sure that the next request is in buf as a whole.
func (r *Reader) fill() bool {
	kept := copy(r.buf, r.buf[r.at:r.end])
	n, err := r.spool.readAt(r.buf[kept:readAhead], r.off)
	r.off += int64(n)
	r.at, r.end = 0, kept+n
	if err != nil {
		r.err = fmt.Errorf("reading the temporary file of requests: %w", err)
	}
	return r.err == nil
}

// readAt reads from off, to the end of the file at most.
func (s *Spool) readAt(b []byte, off int64) (int, error) {
	if off >= s.size {
		return copy(b, s.tail[off-s.size:]), nil
	}
	n, err := s.file.ReadAt(b[:min(int64(len(b)), s.size-off)], off)
	if err == io.EOF && int64(n) == s.size-off {
		err = nil
	}
	return n, err
}
