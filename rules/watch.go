package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxFile bounds a file of rules: 100,000 rules take about 10 MB.
const maxFile = 256 << 20

// Read reads the files of rules at paths. A path to a file is read whatever its name; of a directory, Read takes all
// files below it that end in .yaml or .yml, sorted. Symbolic links are followed. Names that begin with
// two dots are not read, since Kubernetes uses them to keep versions of a ConfigMap apart. Nor are names
// that begin with ".#", which editors use to lock files. A pipe, a device or the like is read
// if paths names it, and is an error in a directory. other lists further files that may have been
// meant to be read.
func Read(paths []string) (files []File, other []string, err error) {
	list, err := scan(paths)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range list.files {
		data, err := readBounded(f, maxFile)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, File{Name: f, Data: data})
	}
	return files, list.other, nil
}

// readBounded reads a file of at most most bytes. Some files do not tell their size beforehand.
func readBounded(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		b.Grow(int(min(info.Size(), most)) + bytes.MinRead)
	}
	if _, err := b.ReadFrom(io.LimitReader(f, most+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > most {
		return nil, fmt.Errorf("%s has more than %d bytes; want at most as many", name, most)
	}
	return b.Bytes(), nil
}

// requireRegular refuses files whose reading could block, or never end.
func requireRegular(name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %v; want a regular file, or a link to one", name, info.Mode())
	}
	return nil
}

// listing is the files at some paths, and how they looked.
type listing struct {
	files, other []string
	infos        map[string]fs.FileInfo
}

// unchanged reports whether the file of a name is still the same, and looks the same without reading it.
func unchanged(a, b fs.FileInfo) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

func (l *listing) same(o *listing) bool {
	return o != nil && maps.EqualFunc(l.infos, o.infos, unchanged)
}

// growing reports whether a file is being written in place: it has changed, and is the same file.
func (l *listing) growing(before *listing) bool {
	for name, a := range l.infos {
		if b := before.infos[name]; b != nil && !unchanged(a, b) && os.SameFile(a, b) {
			return true
		}
	}
	return false
}

func scan(paths []string) (*listing, error) {
	l := &listing{infos: map[string]fs.FileInfo{}}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			err = l.directory(p, 0)
		} else {
			l.add(p, info)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *listing) add(name string, info fs.FileInfo) {
	if l.infos[name] != nil {
		return
	}
	l.files = append(l.files, name)
	l.infos[name] = info
}

// maxDirectories bounds how deep directories nest: links can make them go in circles.
const maxDirectories = 20

func (l *listing) directory(dir string, depth int) error {
	if depth > maxDirectories {
		return fmt.Errorf("%s: directories nest deeper than %d; want no links that go round", dir, maxDirectories)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") || strings.HasPrefix(e.Name(), ".#") {
			continue
		}
		name := filepath.Join(dir, e.Name())
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && e.Type()&fs.ModeSymlink == 0:
			continue // deleted meanwhile
		case err != nil:
			return err
		case info.IsDir():
			if err := l.directory(name, depth+1); err != nil {
				return err
			}
		case isRules(name):
			if err := requireRegular(name, info); err != nil {
				return err
			}
			l.add(name, info)
		default:
			l.other = append(l.other, name)
		}
	}
	return nil
}

func isRules(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".yaml" || ext == ".yml"
}

// A Watcher finds out when files of rules have changed, by looking at them again and again: at names,
// sizes, times and the targets of links. It must be made by NewWatcher, and be used by one goroutine
// at a time.
type Watcher struct {
	paths   []string
	loaded  *listing // the listing of the last load
	last    *listing // the listing of the last look
	failure string   // why the last look saw nothing, or the last load failed
	waited  int
}

// PollInterval is how often Watch looks.
const PollInterval = 500 * time.Millisecond

// patience is for how many looks the Watcher waits for files that keep changing.
const patience = 3

// NewWatcher returns a watcher of the paths. They are as for Read, but must be regular files or
// directories of regular files: a pipe can be read only once, and reading it could block for ever. The first
// Poll sees a change.
func NewWatcher(paths []string) *Watcher { return &Watcher{paths: slices.Clone(paths)} }

// look lists the files that are there now.
func (w *Watcher) look() (*listing, error) {
	l, err := scan(w.paths)
	if err != nil {
		return nil, err
	}
	for _, name := range l.files {
		if err := requireRegular(name, l.infos[name]); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Poll looks once. changed is true if the files differ from those at the last change, and look as
// they did at the last Poll: so Poll waits for a file that is being written. If files keep being
// replaced it waits for three looks. After a change it returns the files as Read does, or in err the
// reason why they cannot be read; that is reported once.
func (w *Watcher) Poll() (files []File, other []string, changed bool, err error) {
	now, err := w.look()
	if err != nil {
		w.last, w.waited = nil, 0
		return w.fail(err)
	}
	last := w.last
	w.last = now
	if now.same(w.loaded) && w.failure == "" {
		w.waited = 0
		return nil, nil, false, nil
	}
	first := w.loaded == nil && w.failure == ""
	if !first && !now.same(last) {
		w.waited++
		if last == nil || w.waited < patience || now.growing(last) {
			return nil, nil, false, nil
		}
	}
	files, other, err = Read(w.paths)
	if err != nil {
		return w.fail(err)
	}
	after, err := scan(w.paths)
	if err != nil {
		return w.fail(err)
	}
	if !after.same(now) && w.waited < patience && !first {
		w.last = after
		w.waited++
		return nil, nil, false, nil // changed while it was read
	}
	w.loaded, w.failure, w.waited = now, "", 0
	return files, other, true, nil
}

func (w *Watcher) fail(err error) ([]File, []string, bool, error) {
	if err.Error() == w.failure {
		return nil, nil, false, nil
	}
	w.failure = err.Error()
	return nil, nil, true, err
}

// Watch polls until ctx is done, and calls change for each change, with the files or the reason why
// they cannot be read. A value on force makes it call change at once, whether anything has changed
// or not.
func (w *Watcher) Watch(ctx context.Context, force <-chan struct{}, change func(files []File, other []string, err error)) {
	ticker := time.NewTicker(PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-force:
			*w = *NewWatcher(w.paths)
		case <-ticker.C:
		}
		if files, other, changed, err := w.Poll(); changed {
			change(files, other, err)
		}
	}
}
