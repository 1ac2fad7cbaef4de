// Package spool keeps the requests of a log, of whom and when, so that it need not be read and parsed a second
// time: standard input cannot be.
package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// inMemory is how many bytes of requests are kept in memory. Those before go into a temporary file.
const inMemory = 4 << 20

// A Spool is a sequence of requests. One takes 2 to 15 bytes, 3 or 4 in a busy log. It is written first, and then read by
// any number of Readers at once.
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
	s.tail = binary.AppendUvarint(s.tail, uint64(client))
	s.tail = binary.AppendUvarint(s.tail, uint64(now-s.last))
	s.n++
	s.last = now
	return nil
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

// longest is the most bytes that a request takes: two numbers.
const longest = 2 * binary.MaxVarintLen64

// A Reader reads the requests in order. It is for one goroutine.
type Reader struct {
	Client int   // of the request that Next has read
	Now    int64 // its time

	spool *Spool
	left  int64 // requests to come
	off   int64 // of the bytes behind data
	data  []byte
	buf   []byte
	err   error
}

// Read returns a Reader that stands before the first request.
func (s *Spool) Read() *Reader {
	return &Reader{spool: s, left: s.n, buf: make([]byte, readAhead)}
}

// Next reads the next request; false behind the last one, and if that cannot be.
func (r *Reader) Next() bool {
	if r.left == 0 || len(r.data) < longest && !r.fill() {
		return false
	}
	client, n := binary.Uvarint(r.data)
	delta, m := binary.Uvarint(r.data[n:])
	r.data = r.data[n+m:]
	r.Client = int(client)
	r.Now += int64(delta)
	r.left--
	return true
}

// Err returns why Next could not read a request.
func (r *Reader) Err() error { return r.err }

// fill makes sure that data begins with a whole request.
func (r *Reader) fill() bool {
	kept := copy(r.buf, r.data)
	n, err := r.spool.readAt(r.buf[kept:], r.off)
	r.off += int64(n)
	r.data = r.buf[:kept+n]
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
