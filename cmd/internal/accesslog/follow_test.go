package accesslog

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// followed is a Read that goes on. The follower stops at each poll until step.
type followed struct {
	t       *testing.T
	path    string
	clients []string
	polled  chan struct{}
	step    chan struct{}
	stop    context.CancelFunc
	done    chan struct{}
	facts   Facts
	err     error
}

func follow(t *testing.T, before string, earlier ...Source) *followed {
	t.Helper()
	f := &followed{t: t, path: filepath.Join(t.TempDir(), "access.log"), polled: make(chan struct{}), step: make(chan struct{}), done: make(chan struct{})}
	f.write(os.O_CREATE, before)
	parsers, err := Select(Auto, "", "")
	require.NoError(t, err)
	last, err := Files([]string{f.path}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	f.stop = stop
	c := Config{Sources: append(earlier, last...), Parsers: parsers, Follow: true, poll: func(ctx context.Context) error {
		select {
		case f.polled <- struct{}{}:
		case <-ctx.Done():
			return ErrInterrupted
		}
		select {
		case <-f.step:
			return nil
		case <-ctx.Done():
			return ErrInterrupted
		}
	}}
	go func() {
		defer close(f.done)
		f.facts, f.err = Read(ctx, c, func(rec Record) { f.clients = append(f.clients, string(rec.Client)) })
	}()
	f.wait(f.polled)
	return f
}

func (f *followed) wait(c <-chan struct{}) {
	f.t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		require.FailNow(f.t, "nothing happens")
	}
}

func (f *followed) write(flags int, text string) {
	f.t.Helper()
	file, err := os.OpenFile(f.path, os.O_WRONLY|flags, 0o600)
	require.NoError(f.t, err)
	_, err = file.WriteString(text)
	require.NoError(f.t, err)
	require.NoError(f.t, file.Close())
}

// look lets the follower look once, and waits until it has read what there is.
func (f *followed) look() {
	f.t.Helper()
	f.step <- struct{}{}
	f.wait(f.polled)
}

// end interrupts, and returns the clients of all records.
func (f *followed) end() []string {
	f.t.Helper()
	f.stop()
	f.wait(f.done)
	assert.ErrorIs(f.t, f.err, ErrInterrupted)
	return f.clients
}

func TestRead_Follow(t *testing.T) {
	r := func(clients string) (log string) {
		for _, c := range clients {
			log += string(c) + record + "\n"
		}
		return log
	}
	for name, c := range map[string]struct {
		before string
		change func(f *followed)
		want   string
		bad    int64
	}{
		"nothing": {r("ab"), func(*followed) {}, "ab", 0},
		"empty before": {"", func(f *followed) {
			f.write(os.O_APPEND, r("a"))
		}, "a", 0},
		"lines and parts of lines": {r("a"), func(f *followed) {
			f.write(os.O_APPEND, r("b")+"c - -")
			f.look()
			f.write(os.O_APPEND, strings.TrimPrefix(r("c"), "c - -")+r("d"))
		}, "abcd", 0},
		"renamed, and another file": {r("a"), func(f *followed) {
			require.NoError(t, os.Rename(f.path, f.path+".1"))
			f.look()
			f.write(os.O_CREATE, "")
			f.look()
			f.path += ".1"
			f.write(os.O_APPEND, r("b")) // the server has not opened the new one yet
			f.path = strings.TrimSuffix(f.path, ".1")
			f.look()
			f.write(os.O_APPEND, r("cd"))
			f.look()
			f.write(os.O_APPEND, r("e"))
		}, "abcde", 0},
		"renamed within a line": {r("a") + "b - - [17/May", func(f *followed) {
			require.NoError(t, os.Rename(f.path, f.path+".1"))
			f.write(os.O_CREATE, r("c"))
		}, "ac", 1},
		"cut off": {r("abc"), func(f *followed) {
			f.write(os.O_TRUNC, r("d"))
		}, "abcd", 0},
		"cut off and emptied first": {r("abc"), func(f *followed) {
			f.write(os.O_TRUNC, "")
			f.look()
			f.write(os.O_APPEND, r("d"))
		}, "abcd", 0},
		"cut off, and longer than before at once": {"aa" + record + "\n", func(f *followed) {
			f.write(os.O_TRUNC, r("xyz"))
		}, "aa,xyz", 0},
		"cut off within a line": {r("a") + "192.0.2.", func(f *followed) {
			f.write(os.O_TRUNC, r("c"))
		}, "ac", 1},
	} {
		t.Run("change="+name, func(t *testing.T) {
			f := follow(t, c.before)
			c.change(f)
			f.look()
			f.look() // a new file is found at one look, and read to its end at the next
			clients := f.end()
			assert.Equal(t, strings.ReplaceAll(c.want, ",", ""), strings.Join(clients, ""))
			assert.Equal(t, c.bad, f.facts.Malformed)
			assert.EqualValues(t, len(clients), f.facts.Counted)
		})
	}
}

// TestRead_FollowsTheLast: logs before it are read to their ends first.
func TestRead_FollowsTheLast(t *testing.T) {
	f := follow(t, "b"+record+"\n", Stream("old", strings.NewReader("a"+record+"\n")))
	f.write(os.O_APPEND, "c"+record+"\n")
	f.look()
	assert.Equal(t, []string{"a", "b", "c"}, f.end())
}

func TestRead_FollowsPlainFilesOnly(t *testing.T) {
	parsers, err := Select(Auto, "", "")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "a.gz")
	require.NoError(t, os.WriteFile(path, []byte(gzipped(t, "a"+record)), 0o600))
	zipped, err := Files([]string{path}, nil)
	require.NoError(t, err)
	for _, s := range []Source{Stream(Stdin, bytes.NewReader(nil)), zipped[0]} {
		_, err := Read(t.Context(), Config{Sources: []Source{s}, Parsers: parsers, Follow: true}, nil)
		assert.EqualError(t, err, s.Name+": want a plain file to follow")
	}
}

// TestRead_OrdersFiles: by their first times, whatever their names are; what is not readable comes last.
func TestRead_OrdersFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(day int) string { return fmt.Sprintf("%d - - [%02d/May/2015:10:05:03 +0000]\n", day, day) }
	for name, text := range map[string]string{
		"access.log": at(9), "access.log.1": "noise\n" + at(7), "access.log.2": gzipped(t, at(5)+at(6)), "access.log.3": "noise\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	sources, err := Files([]string{filepath.Join(dir, "access.*")}, nil)
	require.NoError(t, err)
	require.Len(t, sources, 4)
	parsers, err := Select(Auto, "", "")
	require.NoError(t, err)
	var clients []string
	facts, err := Read(t.Context(), Config{Sources: sources, Parsers: parsers}, func(rec Record) { clients = append(clients, string(rec.Client)) })
	require.NoError(t, err)
	assert.Equal(t, []string{"5", "6", "7", "9"}, clients)
	assert.Equal(t, []int64{3, 6}, facts.MalformedLines)
	assert.Equal(t, filepath.Join(dir, "access.log.1")+":1: "+errNoTimestamp.Error(), facts.MalformedReason)
}

func TestNames(t *testing.T) {
	var sources []Source
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		sources = append(sources, Stream(name, nil))
	}
	assert.Equal(t, "a, b, c", Names(sources[:3]))
	assert.Equal(t, "a, b, c and 2 more", Names(sources))
}

func TestFiles_Errors(t *testing.T) {
	dir := t.TempDir()
	_, err := Files([]string{dir}, nil)
	assert.ErrorContains(t, err, dir+": is a directory: want its files, as in "+filepath.Join(dir, "*.log"))
	_, err = Files([]string{filepath.Join(dir, "*.gz")}, nil)
	assert.ErrorContains(t, err, filepath.Join(dir, "*.gz")+": ")
	odd := filepath.Join(dir, "a[1].log")
	require.NoError(t, os.WriteFile(odd, nil, 0o600))
	sources, err := Files([]string{odd}, nil)
	require.NoError(t, err)
	assert.Equal(t, odd, sources[0].Name)
}
