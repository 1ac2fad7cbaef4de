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

// Read reads the files of rules at paths: a file whatever its name, and of a directory all files
// below it that end in .yaml or .yml, sorted. Symbolic links are followed. Names that begin with
// two dots are not read, since those are how Kubernetes keeps versions of a ConfigMap apart, nor
// those that begin with ".#", which editors lock files with. A pipe, a device or the like is read
// where paths names it, and is an error in a directory. other lists further files, which somebody
// may have meant to be read.
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

// readBounded reads a file of at most most bytes. Not every file says beforehand how many it has.
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

// requireRegular refuses what reading could wait for, or never come to the end of.
func requireRegular(name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %v; want a regular file, or a link to one", name, info.Mode())
	}
	return nil
}

// listing is the files at some paths, and what they looked like.
type listing struct {
	files, other []string
	infos        map[string]fs.FileInfo
}

// unchanged reports whether the file behind a name is the same, and looks the same without reading it.
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

// maxDirectories bounds how deep directories nest; links can make them go round.
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

// A Watcher tells when files of rules have changed, by looking at them again and again: at names,
// sizes, times and what links lead to. It must be made by NewWatcher, and be used by one goroutine
// at a time.
type Watcher struct {
	paths   []string
	loaded  *listing // what the last load was of
	last    *listing // what the last look saw
	failure string   // why the last look saw nothing, or the last load failed
	waited  int
}

// PollInterval is how often Watch looks.
const PollInterval = 500 * time.Millisecond

// patience is for how many looks files that keep changing are waited for.
const patience = 3

// NewWatcher returns a watcher of the paths, which are as for Read, but must be regular files or
// directories of such: a pipe can be read once, and could be waited for without end. Its first Poll
// sees a change.
func NewWatcher(paths []string) *Watcher { return &Watcher{paths: slices.Clone(paths)} }

// look lists what is there now.
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

// Poll looks once. changed is true if the files are other ones than at the last change, and look as
// they did at the last Poll: a file that is being written is waited for. Where files keep being
// replaced it waits for three looks. After a change, files are as Read returns them, or err says
// why they cannot be read; that is reported once.
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
