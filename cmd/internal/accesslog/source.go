package accesslog

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one log.
type Source struct {
	Name string
	path string    // of a file
	in   io.Reader // else
	size int64
}

// Stream is a source that is read from in.
func Stream(name string, in io.Reader) Source { return Source{Name: name, in: in} }

// Stdin is the name of the source that stands for standard input.
const Stdin = "standard input"

// Files returns the sources that a command line names: files, patterns of their names as filepath.Glob has
// them, and - for stdin. A file that cannot be opened is an error.
func Files(args []string, stdin io.Reader) ([]Source, error) {
	var out []Source
	for _, arg := range args {
		if arg == "-" {
			out = append(out, Stream(Stdin, stdin))
			continue
		}
		paths := []string{arg}
		if _, err := os.Lstat(arg); err != nil {
			if found, _ := filepath.Glob(arg); len(found) > 0 {
				paths = found
			}
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err == nil && info.IsDir() {
				err = errors.New("is a directory: want its files, as in " + filepath.Join(path, "*.log"))
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, withoutPath(err))
			}
			s := Source{Name: path, path: path}
			if info.Mode().IsRegular() {
				s.size = info.Size()
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// Names is the names of sources, or of the first ones of many.
func Names(sources []Source) string {
	const most = 3
	var out []string
	for _, s := range sources[:min(most, len(sources))] {
		out = append(out, s.Name)
	}
	list := strings.Join(out, ", ")
	if more := len(sources) - len(out); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

func (s *Source) open() (io.ReadCloser, error) {
	if s.path == "" {
		return io.NopCloser(s.in), nil
	}
	return os.Open(s.path)
}

// total is the size of the sources; 0 if one has none, or is still written to.
func (c *Config) total() (sum int64) {
	for _, s := range c.Sources {
		if s.in != nil || c.Follow {
			return 0
		}
		sum += s.size
	}
	return sum
}

// order puts the sources in the order of their first times: the names of logs that are kept by number,
// as a shell lists them, begin with the newest. A source that can be read only once stays where it is, and so does all
// else then.
func (c *Config) order() error {
	last := len(c.Sources)
	if c.Follow {
		if s := c.Sources[last-1]; !isRegular(s.path) || s.compressed() {
			return fmt.Errorf("%s: want a plain file to follow", s.Name)
		}
		last--
	}
	if last < 2 || slices.ContainsFunc(c.Sources, func(s Source) bool { return !isRegular(s.path) }) {
		return nil
	}
	first := map[string]int64{}
	for _, s := range c.Sources[:last] {
		first[s.path] = s.firstTime(c.Parsers)
	}
	c.Sources = slices.Clone(c.Sources)
	slices.SortStableFunc(c.Sources[:last], func(a, b Source) int { return cmp.Compare(first[a.path], first[b.path]) })
	return nil
}

// compressed reports whether a file begins like gzip or zstd.
func (s *Source) compressed() bool {
	file, err := os.Open(s.path)
	if err != nil {
		return false
	}
	defer file.Close()
	start, _ := peek(bufio.NewReader(file))
	return strings.HasPrefix(start, gzipMagic) || strings.HasPrefix(start, zstdMagic)
}

func isRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// firstTime is the time of the first record, or the largest time if there is no record. Who reads the source then learns why.
func (s *Source) firstTime(parsers []Parser) int64 {
	p := newPipeline(&Config{Sources: []Source{*s}, Parsers: parsers})
	defer close(p.gone)
	go p.split(context.Background())
	for b := range p.inOrder {
		<-b.parsed
		for _, l := range b.lines {
			if l.bad == nil && !l.blank {
				return l.rec.Time
			}
		}
		p.free <- b
	}
	return math.MaxInt64
}

// openError is the error of a source of which no line can be read.
type openError struct{ error }

func (e openError) Unwrap() error { return e.error }

// withoutPath takes the path off an error of the file system: messages begin with it.
func withoutPath(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// interruptible is a stream that ends with ErrInterrupted when ctx does, also while it has nothing to read.
func interruptible(ctx context.Context, src io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, src)
		_ = in.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(ErrInterrupted) })
	return out
}
