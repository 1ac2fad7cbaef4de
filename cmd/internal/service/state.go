package service

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// errLocked is the error of lockFile where another process has the lock.
var errLocked = errors.New("another process has it")

// errNoLocks is the error of lockFile where the file system has no locks, as some of networks.
var errNoLocks = errors.New("the file system has no locks")

// stateFile is the file of --state. Only one process uses it at a time.
type stateFile struct {
	name string // where links lead
	lock *os.File

	unlocked bool // nothing keeps other processes from it
}

// openState takes the file of --state, which need not exist. It returns nil without --state.
func openState(given string) (*stateFile, error) {
	if given == "" {
		return nil, nil
	}
	name, err := target(given)
	if err != nil {
		return nil, err
	}
	f := &stateFile{name: name}
	if err := f.take(); err != nil {
		return nil, err
	}
	if err := f.writable(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// target follows the links that a name leads by, to a file that need not exist. Writing to the name of a link would replace it.
func target(name string) (string, error) {
	for range 40 {
		link, err := os.Readlink(name)
		if err != nil { // no link
			return name, nil
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(name), link)
		}
		name = link
	}
	return "", fmt.Errorf("%s: too many links", name)
}

// take locks the file, by another one beside it: the file itself is replaced whenever it is written.
func (f *stateFile) take() (err error) {
	name := f.name + ".lock"
	f.lock, err = lockFile(name)
	if errors.Is(err, errLocked) {
		who := "another process"
		if pid, err := os.ReadFile(name); err == nil && len(pid) > 0 && len(pid) < 20 {
			who = "process " + strings.TrimSpace(string(pid))
		}
		return fmt.Errorf("%s: %s uses it, and they would overwrite each other's counts; want a file for each process", f.name, who)
	}
	f.unlocked = errors.Is(err, errNoLocks)
	if err != nil && !f.unlocked {
		return err
	}
	_ = f.lock.Truncate(0)
	_, _ = f.lock.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	return nil
}

// close lets other processes use the file. A nil stateFile does nothing.
func (f *stateFile) close() {
	if f != nil {
		unlockFile(f.lock)
	}
}

// restore makes the engine, from the state file if there is one. A file that is damaged, or that another
// program has written, is put aside.
func (s *server) restore(set *rules.Set, c rules.Config) (_ *rules.Engine, err error) {
	if s.state, err = openState(s.config.State); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	if s.state == nil {
		return rules.New(set, c)
	}
	name := s.state.name
	if s.state.unlocked {
		s.log.Warn("the file system has no locks, so that nothing keeps another process from the file of --state: they would overwrite each other's counts; want a file for each process", "file", name)
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return rules.New(set, c)
	}
	if err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	defer f.Close()
	engine, err := rules.Restore(set, c, bufio.NewReader(f))
	switch {
	case err == nil:
		s.log.Info("counts restored", "file", name)
		if domains := engine.Unrestored(); len(domains) > 0 {
			s.log.Warn("counts begin at 0 where max_keys or overflow is new, or no longer there, and there is no room for the old keys", "domains", domains)
		}
		return engine, nil
	case !errors.Is(err, sluice.ErrBadSnapshot):
		return nil, fmt.Errorf("--state %s: %w", name, err)
	}
	bad, e := s.state.putAside()
	if e != nil {
		return nil, fmt.Errorf("--state %s: %w, and it cannot be put aside: %w", name, err, e)
	}
	s.log.Error("the state cannot be read: it is put aside, and counts begin at 0", "file", bad, "error", err)
	return rules.New(set, c)
}

// maxAside bounds the files that have been put aside: more of them need somebody who looks at them.
const maxAside = 100

// putAside gives the file a name that no other file has.
func (f *stateFile) putAside() (bad string, err error) {
	for i := range maxAside {
		bad = f.name + ".bad"
		if i > 0 {
			bad += "." + strconv.Itoa(i)
		}
		if _, err := os.Lstat(bad); errors.Is(err, fs.ErrNotExist) {
			return bad, os.Rename(f.name, bad)
		}
	}
	return "", fmt.Errorf("%s.bad to %s are there already; want fewer", f.name, bad)
}

// create makes the temporary file that a state is written to, with a name of its own. It holds the key of the hash: other
// users must not read it.
func (f *stateFile) create() (*os.File, error) {
	return os.CreateTemp(filepath.Dir(f.name), filepath.Base(f.name)+".*"+temporary)
}

const temporary = ".tmp"

// writable finds out, before any hit is counted, whether the state could not be written at the end. It removes files that processes
// have left behind that were killed.
func (f *stateFile) writable() error {
	if info, err := os.Stat(f.name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", f.name)
	}
	dir, base := filepath.Split(f.name)
	entries, _ := os.ReadDir(filepath.Clean(dir))
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), base+".")
		number, named := strings.CutSuffix(number, temporary)
		if _, err := strconv.ParseUint(number, 10, 64); ours && named && err == nil {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	t, err := f.create()
	if err != nil {
		return err
	}
	return errors.Join(t.Close(), os.Remove(t.Name()))
}

// saveAgain saves the state while the service runs. A failure is logged, and the service goes on.
func (s *server) saveAgain(time.Time) {
	if err := s.save(); err != nil {
		s.log.Error("counts since the last time are lost if the process dies", "error", err)
	}
}

// save writes the state to a temporary file first, so that the state file is always complete.
func (s *server) save() error {
	name := s.state.name
	f, err := s.state.create()
	if err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	w := bufio.NewWriter(f)
	if err := errors.Join(s.engine.Snapshot(w), w.Flush(), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing the state: %w", err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing the state: %w", err)
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	return nil
}
