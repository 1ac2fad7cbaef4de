package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// MaxLine is the length in bytes, line end excluded, above which a line is not
// kept. Servers cap a request line at a few KiB, so a longer line is damage.
const MaxLine = 1 << 20

const readBuffer = 64 << 10

const (
	gzipMagic = "\x1f\x8b\x08"
	utf8BOM   = "\xef\xbb\xbf"
)

// unreadable are the kinds of content that would be taken for lines, and programs that
// make lines of them. No line of text starts like one.
var unreadable = []struct {
	offset              int
	magic, kind, remedy string
}{
	{4, "1AY&SY", "bzip2 data", "plain text or gzip, as from bzcat FILE"},
	{0, "\x28\xb5\x2f\xfd", "zstd data", "plain text or gzip, as from zstdcat FILE"},
	{0, "\xfd7zXZ\x00", "xz data", "plain text or gzip, as from xzcat FILE"},
	{0, "\x04\x22\x4d\x18", "lz4 data", "plain text or gzip, as from lz4cat FILE"},
	{0, "PK\x03\x04", "zip data", "plain text or gzip, as from unzip -p FILE"},
	{0, "\xff\xfe", "UTF-16 text", "UTF-8, as from iconv -f UTF-16 -t UTF-8 FILE"},
	{0, "\xfe\xff", "UTF-16 text", "UTF-8, as from iconv -f UTF-16 -t UTF-8 FILE"},
}

// startLength is how much of a stream tells its kind.
const startLength = 10

var (
	errTooLong = fmt.Errorf("longer than %d bytes", MaxLine)
	errCutOff  = errors.New("the gzip data is cut off")
	errNoGzip  = errors.New("the gzip data ends, and other data follows: want gzip data only, as from cat A.gz B.gz")
)

// Of these lines it is known what else they are.
const (
	errCarriage = decisive(`carriage returns where line feeds should be: tr '\r' '\n' puts them right`)
	errZipped   = decisive("gzip data behind lines of text: want one kind, as from zcat -f A.gz B")
)

// lineReader splits a stream into lines without ever holding more than one.
//
// A line ends at LF, CRLF or the end of the stream. What the file systems and
// editors of the world put around lines is taken off: a byte order mark at the
// start of a line, where a file began before it was put behind another one, and NUL
// bytes there, which a crash or a truncation under a running server leaves in front
// of the next record.
type lineReader struct {
	in     *bufio.Reader
	zipped bool
	nuls   bool   // some have been taken off
	buf    []byte // a line that spans reads is put together here
}

// newLineReader returns a reader of the lines of src, decompressed if src
// starts like a gzip file. Only the content decides, not the name.
func newLineReader(src io.Reader) (*lineReader, error) {
	r := &lineReader{in: bufio.NewReaderSize(src, readBuffer)}
	start, err := r.start()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(start, gzipMagic) {
		unzipped, err := newUnzipper(r.in)
		if err != nil {
			return nil, cutOff(err)
		}
		r.in, r.zipped = bufio.NewReaderSize(unzipped, readBuffer), true
		if start, err = r.start(); err != nil {
			return nil, cutOff(err)
		}
	}
	for _, u := range unreadable {
		if strings.HasPrefix(start[min(u.offset, len(start)):], u.magic) {
			return nil, fmt.Errorf("%s: want %s | sluice replay -", u.kind, u.remedy)
		}
	}
	if strings.HasPrefix(start, utf8BOM) {
		r.in.Discard(len(utf8BOM))
	}
	return r, nil
}

// unzipper decompresses gzip files that stand one behind the other. The package does that, too, but
// takes a few bytes of something else for a file that is cut off.
type unzipper struct {
	*gzip.Reader
	src *bufio.Reader
}

func newUnzipper(src *bufio.Reader) (*unzipper, error) {
	file, err := gzip.NewReader(src)
	if err != nil {
		return nil, err
	}
	file.Multistream(false)
	return &unzipper{file, src}, nil
}

func (u *unzipper) Read(p []byte) (int, error) {
	for {
		n, err := u.Reader.Read(p)
		if errors.Is(err, io.EOF) {
			err = u.next()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// next goes on to the next file; io.EOF if there is none.
func (u *unzipper) next() error {
	start, err := u.src.Peek(len(gzipMagic))
	switch {
	case len(start) == 0:
		return err
	case !strings.HasPrefix(gzipMagic, string(start)):
		return errNoGzip
	}
	if err := u.Reset(u.src); err != nil {
		return err
	}
	u.Multistream(false)
	return nil
}

// start returns the first bytes of the stream, fewer if it is shorter, and leaves them
// to be read.
func (r *lineReader) start() (string, error) {
	head, err := r.in.Peek(startLength)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(head), err
}

// next returns the next line without its end, or io.EOF after the last one. The
// line is valid until the following call. Of a line that cannot be kept it returns
// why, in bad, and stands at the line after it.
func (r *lineReader) next() (line []byte, bad, err error) {
	r.buf = r.buf[:0]
	seen := false
	for {
		chunk, err := r.in.ReadSlice('\n')
		seen = seen || len(chunk) > 0
		if bad == nil {
			chunk = r.trimStart(chunk)
			bad = r.tooLong(chunk)
		}
		switch {
		case bad != nil:
			r.buf = r.buf[:0]
		case err == nil && len(r.buf) == 0:
			return checkLine(trimEnd(chunk))
		default:
			r.buf = append(r.buf, chunk...)
		}
		switch {
		case (err == nil || errors.Is(err, io.EOF) && seen) && bad != nil:
			return nil, bad, nil
		case err == nil, errors.Is(err, io.EOF) && seen:
			return checkLine(trimEnd(r.buf))
		case r.zipped:
			err = cutOff(err)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, nil, err
		}
	}
}

// tooLong says why a line that goes on with chunk is not kept, if that is so.
func (r *lineReader) tooLong(chunk []byte) error {
	switch {
	case len(r.buf)+len(chunk) <= MaxLine+len("\r\n"):
		return nil
	case bytes.IndexByte(r.buf, '\r') >= 0:
		return errCarriage
	}
	return errTooLong
}

// trimStart takes the padding off a chunk with which a line starts, and leaves other
// chunks alone.
func (r *lineReader) trimStart(chunk []byte) []byte {
	if len(r.buf) > 0 {
		return chunk
	}
	trimmed := bytes.TrimLeft(chunk, "\x00")
	r.nuls = r.nuls || len(trimmed) < len(chunk)
	return trimmed
}

func checkLine(line []byte) (kept []byte, bad, err error) {
	switch {
	case bytes.HasPrefix(line, []byte(gzipMagic)):
		return nil, errZipped, nil
	case len(line) > MaxLine:
		return nil, errTooLong, nil
	}
	return bytes.TrimPrefix(line, []byte(utf8BOM)), nil, nil
}

func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimRight(line, "\r")
}

// cutOff names an end that comes too early. The package that decompresses calls it an
// unexpected EOF.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errCutOff
	}
	return err
}
