package accesslog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// pollInterval is how often a file is looked at that is followed.
const pollInterval = 250 * time.Millisecond

var (
	// errIdle is not the end: there is nothing to read now, and the next Read waits.
	errIdle = errors.New("nothing to read yet")
	// errNewFile ends a file that has become another one: the next byte begins a line.
	errNewFile = errors.New("a new file")
)

// follower reads a file, and lines that are written to it later. When another file has taken its name, as when logs
// are rotated, it reads this one to its end and goes on with the other. When the file is cut off, or holds
// other bytes than the bytes read, it goes on from the start.
type follower struct {
	ctx   context.Context
	path  string
	file  *os.File
	count *atomic.Int64
	poll  func(context.Context) error

	at   int64
	tail []byte // the last bytes that have been read
	idle bool
}

func newFollower(ctx context.Context, path string, file io.ReadCloser, count *atomic.Int64, poll func(context.Context) error) *follower {
	if poll == nil {
		poll = pause
	}
	return &follower{ctx: ctx, path: path, file: file.(*os.File), count: count, poll: poll}
}

// pause waits for a while, or for the end of ctx.
func pause(ctx context.Context) error {
	select {
	case <-time.After(pollInterval):
		return nil
	case <-ctx.Done():
		return ErrInterrupted
	}
}

// Close closes the file that is read now.
func (f *follower) Close() error { return f.file.Close() }

func (f *follower) Read(p []byte) (int, error) {
	for {
		if f.ctx.Err() != nil {
			return 0, ErrInterrupted
		}
		if n, err := f.file.ReadAt(p, f.at); n > 0 && f.same() {
			f.idle = false
			f.keep(p[:n])
			return n, nil
		} else if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if moved, err := f.moved(); err != nil {
			return 0, err
		} else if moved {
			return 0, errNewFile
		}
		if !f.idle {
			f.idle = true
			return 0, errIdle
		}
		if err := f.poll(f.ctx); err != nil {
			return 0, err
		}
	}
}

// tailLength is the number of bytes that tell whether a file is still the one that was read.
const tailLength = 256

func (f *follower) keep(read []byte) {
	f.at += int64(len(read))
	f.count.Add(int64(len(read)))
	f.tail = append(f.tail, read[max(0, len(read)-tailLength):]...)
	f.tail = f.tail[max(0, len(f.tail)-tailLength):]
}

// same reports whether the file still holds the bytes read.
func (f *follower) same() bool {
	now := make([]byte, len(f.tail))
	_, err := f.file.ReadAt(now, f.at-int64(len(f.tail)))
	return (err == nil || errors.Is(err, io.EOF)) && bytes.Equal(now, f.tail)
}

// moved goes on to the start of the file if it holds something else now, or to another one that has its
// name: when that has something in it, because servers write to the old one until they open the new one.
func (f *follower) moved() (bool, error) {
	named, missing := os.Stat(f.path) // before the size of the file, which then is its last one
	info, err := f.file.Stat()
	switch {
	case err != nil:
		return false, err
	case info.Size() < f.at, !f.same():
		f.restart(f.file)
		return true, nil
	case missing != nil, os.SameFile(info, named), named.Size() == 0, info.Size() > f.at:
		return false, nil
	}
	next, err := os.Open(f.path)
	if err != nil {
		return false, nil // it has been moved away again
	}
	f.file.Close()
	f.restart(next)
	return true, nil
}

func (f *follower) restart(file *os.File) {
	f.file, f.at, f.tail, f.idle = file, 0, f.tail[:0], false
}
