package accesslog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	gzipMagic = "\x1f\x8b\x08"
	zstdMagic = "\x28\xb5\x2f\xfd"
	utf8BOM   = "\xef\xbb\xbf"
)

// unreadable are the kinds of content that would be taken for lines, and programs that
// make lines of them. No line of text starts like one.
var unreadable = []struct {
	offset              int
	magic, kind, remedy string
}{
	{4, "1AY&SY", "bzip2 data", "plain text, gzip or zstd, as from bzcat FILE"},
	{0, "\xfd7zXZ\x00", "xz data", "plain text, gzip or zstd, as from xzcat FILE"},
	{0, "\x04\x22\x4d\x18", "lz4 data", "plain text, gzip or zstd, as from lz4cat FILE"},
	{0, "PK\x03\x04", "zip data", "plain text, gzip or zstd, as from unzip -p FILE"},
	{0, "\xff\xfe", "UTF-16 text", "UTF-8, as from iconv -f UTF-16 -t UTF-8 FILE"},
	{0, "\xfe\xff", "UTF-16 text", "UTF-8, as from iconv -f UTF-16 -t UTF-8 FILE"},
}

// startLength is how much of a stream tells its kind.
const startLength = 10

const readBuffer = 64 << 10

// maxZstdWindow is the bound of zstd itself, without --long=31.
const maxZstdWindow = 128 << 20

var errNoGzip = errors.New("the gzip data ends, and other data follows: want gzip data only, as from cat A.gz B.gz")

// decompressed reads src, decompressed if it starts like gzip or zstd. Only the content decides,
// not the name. It is to be closed.
func decompressed(src io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(src, readBuffer)
	start, err := peek(in)
	out := io.NopCloser(io.Reader(in))
	switch {
	case err != nil:
		return nil, err
	case strings.HasPrefix(start, gzipMagic):
		unzipped, err := newUnzipper(in)
		if err != nil {
			return nil, cutOff("gzip", err)
		}
		out = namedCut{unzipped, "gzip"}
	case strings.HasPrefix(start, zstdMagic):
		d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, err
		}
		out = namedCut{d.IOReadCloser(), "zstd"}
	}
	inner := bufio.NewReaderSize(out, readBuffer)
	if start, err = peek(inner); err != nil {
		return nil, err
	}
	for _, u := range unreadable {
		if strings.HasPrefix(start[min(u.offset, len(start)):], u.magic) {
			return nil, fmt.Errorf("%s: want %s | sluice replay -", u.kind, u.remedy)
		}
	}
	return struct {
		io.Reader
		io.Closer
	}{inner, out}, nil
}

// peek returns the first bytes of a stream, fewer if it is shorter, and leaves them to be read.
func peek(in *bufio.Reader) (string, error) {
	head, err := in.Peek(startLength)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(head), err
}

// namedCut names an end that comes too early. Packages that decompress call it an unexpected EOF.
type namedCut struct {
	io.ReadCloser
	kind string
}

func (c namedCut) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	return n, cutOff(c.kind, err)
}

func cutOff(kind string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the %s data is cut off", kind)
	}
	return err
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
