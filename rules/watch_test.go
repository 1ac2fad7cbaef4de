package rules

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// folder is a directory whose files get another time with each write, whatever the clock says.
type folder struct {
	t    *testing.T
	dir  string
	time time.Time
}

func newFolder(t *testing.T) *folder {
	return &folder{t, t.TempDir(), time.Unix(1_790_000_000, 0)}
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) write(name, text string) {
	f.t.Helper()
	require.NoError(f.t, os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	require.NoError(f.t, os.WriteFile(f.path(name), []byte(text), 0o644))
	f.time = f.time.Add(time.Second)
	require.NoError(f.t, os.Chtimes(f.path(name), f.time, f.time))
}

// replace writes a new file and renames it.
func (f *folder) replace(name, text string) {
	f.t.Helper()
	f.write(name+".new", text)
	require.NoError(f.t, os.Rename(f.path(name+".new"), f.path(name)))
}

func (f *folder) link(target, name string) {
	f.t.Helper()
	require.NoError(f.t, os.Symlink(target, f.path(name)+".new"))
	require.NoError(f.t, os.Rename(f.path(name)+".new", f.path(name)))
}

// poll returns what a change brings, names and contents; "" for none.
func poll(t *testing.T, w *Watcher) string {
	t.Helper()
	files, _, changed, err := w.Poll()
	if !changed {
		require.NoError(t, err)
		return ""
	}
	if err != nil {
		return "error"
	}
	out := "files"
	for _, f := range files {
		out += " " + filepath.Base(f.Name) + "=" + string(f.Data)
	}
	return out
}

func TestRead(t *testing.T) {
	f := newFolder(t)
	f.write("b.yaml", "1")
	f.write("a.yml", "2")
	f.write("sub/c.YAML", "3")
	f.write("notes.txt", "4")
	f.write(".hidden.yaml", "5")
	f.write("..2026/d.yaml", "6")
	f.write(".#lock.yaml", "7")
	files, other, err := Read([]string{f.dir, f.path("notes.txt"), f.path("b.yaml")})
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimPrefix(file.Name, f.dir+"/")+"="+string(file.Data))
	}
	require.Equal(t, []string{".hidden.yaml=5", "a.yml=2", "b.yaml=1", "sub/c.YAML=3", "notes.txt=4"}, names)
	require.Equal(t, []string{f.path("notes.txt")}, other)

	_, _, err = Read([]string{f.path("none.yaml")})
	require.Error(t, err)
	require.NoError(t, os.Symlink(f.dir, f.path("round")))
	_, _, err = Read([]string{f.dir})
	require.ErrorContains(t, err, "nest deeper than 20")
}

// TestRead_NotRegular: a directory has files that can be read to their end, and links to them. Whoever
// names a pipe or a device has it read.
func TestRead_NotRegular(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "1")
	f.link("a.yaml", "b.yaml")
	f.link(os.DevNull, "device")
	files, other, err := Read([]string{f.dir})
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.Equal(t, []string{f.path("device")}, other)
	files, _, err = Read([]string{os.DevNull})
	require.NoError(t, err)
	require.Empty(t, files[0].Data)

	f.link(os.DevNull, "c.yaml")
	_, _, err = Read([]string{f.dir})
	require.ErrorContains(t, err, f.path("c.yaml")+" is Dc")
	require.ErrorContains(t, err, "; want a regular file, or a link to one")
}

// TestReadBounded: a file ends at its bound, whatever size it says it has.
func TestReadBounded(t *testing.T) {
	f := newFolder(t)
	f.write("a", "12345")
	data, err := readBounded(f.path("a"), 5)
	require.NoError(t, err)
	require.Equal(t, "12345", string(data))
	_, err = readBounded(f.path("a"), 4)
	require.ErrorContains(t, err, "a has more than 4 bytes; want at most as many")
	_, err = readBounded("/dev/zero", 100) // whose size is 0
	require.ErrorContains(t, err, "/dev/zero has more than 100 bytes")
}

// TestWatcher_NotRegular: a watcher reads again and again, so nothing else than a regular file will do,
// also where it has been named. Nothing is opened to find that out.
func TestWatcher_NotRegular(t *testing.T) {
	_, _, changed, err := NewWatcher([]string{os.DevNull}).Poll()
	require.True(t, changed)
	require.ErrorContains(t, err, os.DevNull+" is Dc")

	f := newFolder(t)
	f.write("a.yaml", "1")
	w := NewWatcher([]string{f.dir})
	require.Equal(t, "files a.yaml=1", poll(t, w))
	f.link(os.DevNull, "b.yaml")
	require.Equal(t, "error", poll(t, w))
	require.Empty(t, poll(t, w))
	require.NoError(t, os.Remove(f.path("b.yaml")))
	require.Empty(t, poll(t, w))
	require.Equal(t, "files a.yaml=1", poll(t, w))
}

func TestWatcher(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "1")
	w := NewWatcher([]string{f.dir})
	require.Equal(t, "files a.yaml=1", poll(t, w), "at once")
	require.Empty(t, poll(t, w))

	f.write("a.yaml", "12")
	require.Empty(t, poll(t, w), "it may still be written")
	f.write("a.yaml", "123")
	require.Empty(t, poll(t, w))
	require.Equal(t, "files a.yaml=123", poll(t, w))

	f.replace("a.yaml", "4")
	f.write("b.yaml", "5")
	require.Empty(t, poll(t, w))
	require.Equal(t, "files a.yaml=4 b.yaml=5", poll(t, w))

	require.NoError(t, os.Remove(f.path("a.yaml")))
	require.NoError(t, os.Remove(f.path("b.yaml")))
	require.Empty(t, poll(t, w))
	require.Equal(t, "files", poll(t, w), "no domains")
}

// TestWatcher_OneThingChanges: a size, a time or a file that is another one is a change, though the rest is as it was.
func TestWatcher_OneThingChanges(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "1")
	w := NewWatcher([]string{f.dir})
	require.Equal(t, "files a.yaml=1", poll(t, w))
	for _, change := range []struct {
		text string
		do   func(name, text string)
		at   time.Duration
	}{
		{"22", f.write, -time.Second}, {"33", f.write, 0}, {"44", f.replace, -time.Second},
	} {
		f.time = f.time.Add(change.at) // before a second is added
		change.do("a.yaml", change.text)
		require.Empty(t, poll(t, w))
		require.Equal(t, "files a.yaml="+change.text, poll(t, w))
	}
}

// TestWatcher_Storm: files that are replaced all the time are loaded now and then; one that keeps
// growing is waited for.
func TestWatcher_Storm(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "0")
	w := NewWatcher([]string{f.dir})
	require.NotEmpty(t, poll(t, w))
	loads := 0
	for range 30 {
		f.replace("a.yaml", "new")
		if poll(t, w) != "" {
			loads++
		}
	}
	require.GreaterOrEqual(t, loads, 8)

	for range 30 {
		f.write("a.yaml", strings.Repeat("x", loads))
		loads++
		require.Empty(t, poll(t, w))
	}
}

// TestWatcher_ConfigMap: the layout in which Kubernetes mounts a ConfigMap: ..data is a link to a
// version, and files are links through it.
func TestWatcher_ConfigMap(t *testing.T) {
	f := newFolder(t)
	f.write("..1/rules.yaml", "one")
	f.link("..1", "..data")
	f.link("..data/rules.yaml", "rules.yaml")
	w := NewWatcher([]string{f.dir})
	require.Equal(t, "files rules.yaml=one", poll(t, w))
	f.write("..2/rules.yaml", "two")
	f.link("..2", "..data")
	require.NoError(t, os.RemoveAll(f.path("..1")))
	require.Empty(t, poll(t, w))
	require.Equal(t, "files rules.yaml=two", poll(t, w))
}

// TestWatcher_Link: a directory behind a link anywhere in its path.
func TestWatcher_Link(t *testing.T) {
	f := newFolder(t)
	f.write("v1/config/a.yaml", "1")
	f.write("v2/config/a.yaml", "2")
	f.link("v1", "current")
	w := NewWatcher([]string{f.path("current/config")})
	require.Equal(t, "files a.yaml=1", poll(t, w))
	f.link("v2", "current")
	require.Empty(t, poll(t, w))
	require.Equal(t, "files a.yaml=2", poll(t, w))
}

// TestWatcher_Vanished: a directory that is gone is an error, once, and a change when it is back.
func TestWatcher_Vanished(t *testing.T) {
	f := newFolder(t)
	f.write("d/a.yaml", "1")
	w := NewWatcher([]string{f.path("d")})
	require.NotEmpty(t, poll(t, w))
	require.NoError(t, os.Rename(f.path("d"), f.path("e")))
	require.Equal(t, "error", poll(t, w))
	require.Empty(t, poll(t, w))
	require.NoError(t, os.Rename(f.path("e"), f.path("d")))
	require.Empty(t, poll(t, w))
	require.Equal(t, "files a.yaml=1", poll(t, w))
	require.Empty(t, poll(t, w))

	require.NoError(t, os.Symlink("nowhere", f.path("d/broken.yaml")))
	require.Equal(t, "error", poll(t, w))
	require.NoError(t, os.Remove(f.path("d/broken.yaml")))
	require.Empty(t, poll(t, w))
	require.Equal(t, "files a.yaml=1", poll(t, w))
}

func TestWatch(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "1")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		force := make(chan struct{})
		changes := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			NewWatcher([]string{f.dir}).Watch(ctx, force, func([]File, []string, error) { changes++ })
		}()
		time.Sleep(10 * PollInterval) // the bubble's time
		synctest.Wait()
		require.Equal(t, 1, changes)
		force <- struct{}{}
		synctest.Wait()
		require.Equal(t, 2, changes, "forced, though nothing has changed")
		f.write("a.yaml", "2")
		time.Sleep(2*PollInterval + 1)
		synctest.Wait()
		require.Equal(t, 3, changes)
		cancel()
		<-done
	})
}
