package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// MaxLine is the length in bytes, line end excluded, above which a line is not
// kept. Servers cap a request line at a few KiB, so a longer line is damage.
const MaxLine = 1 << 20

const readBuffer = 64 << 10

var gzipMagic = []byte{0x1f, 0x8b, 0x08}

var utf8BOM = []byte{0xef, 0xbb, 0xbf}

// lineReader splits a stream into lines without ever holding more than one.
//
// A line ends at LF, CRLF or the end of the stream. What the file systems and
// editors of the world put around lines is taken off: a byte order mark at the
// start of the stream, and NUL bytes at the start of a line, which a crash or a
// truncation under a running server leaves in front of the next record.
type lineReader struct {
	in      *bufio.Reader
	buf     []byte // a line that spans reads is put together here
	started bool
}

// newLineReader returns a reader of the lines of src, decompressed if src
// starts like a gzip file. Only the content decides, not the name.
func newLineReader(src io.Reader) (*lineReader, error) {
	in := bufio.NewReaderSize(src, readBuffer)
	head, err := in.Peek(len(gzipMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(head, gzipMagic) {
		return &lineReader{in: in}, nil
	}
	unzipped, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	return &lineReader{in: bufio.NewReaderSize(unzipped, readBuffer)}, nil
}

// next returns the next line without its end, or io.EOF after the last one. The
// line is valid until the following call. Of a line longer than MaxLine it
// returns tooLong and no bytes, and stands at the line after it.
func (r *lineReader) next() (line []byte, tooLong bool, err error) {
	r.buf = r.buf[:0]
	seen := false
	for {
		chunk, err := r.in.ReadSlice('\n')
		seen = seen || len(chunk) > 0
		if !tooLong {
			chunk = r.trimStart(chunk)
			tooLong = len(r.buf)+len(chunk) > MaxLine+len("\r\n")
		}
		switch {
		case tooLong:
			r.buf = r.buf[:0]
		case err == nil && len(r.buf) == 0:
			return checkLength(trimEnd(chunk))
		default:
			r.buf = append(r.buf, chunk...)
		}
		switch {
		case (err == nil || errors.Is(err, io.EOF) && seen) && tooLong:
			return nil, true, nil
		case err == nil, errors.Is(err, io.EOF) && seen:
			return checkLength(trimEnd(r.buf))
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}

// trimStart takes the byte order mark and the padding off a chunk with which a
// line starts, and leaves other chunks alone.
func (r *lineReader) trimStart(chunk []byte) []byte {
	if len(r.buf) > 0 {
		return chunk
	}
	if !r.started {
		r.started = true
		chunk = bytes.TrimPrefix(chunk, utf8BOM)
	}
	return bytes.TrimLeft(chunk, "\x00")
}

func checkLength(line []byte) ([]byte, bool, error) {
	if len(line) > MaxLine {
		return nil, true, nil
	}
	return line, false, nil
}

func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'})
}
