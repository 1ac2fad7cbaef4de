package service

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/rules"
)

// restore makes the engine, from the state file if there is one. A file that is damaged, or that another
// program has written, is put aside.
func (s *server) restore(set *rules.Set, c rules.Config) (*rules.Engine, error) {
	name := s.config.State
	if name == "" {
		return rules.New(set, c)
	}
	if err := writable(name); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
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
	bad := name + ".bad"
	if e := os.Rename(name, bad); e != nil {
		return nil, fmt.Errorf("--state %s: %w, and it cannot be put aside: %w", name, err, e)
	}
	s.log.Error("the state cannot be read: it is put aside, and counts begin at 0", "file", bad, "error", err)
	return rules.New(set, c)
}

// create makes the temporary file that a state is written to. It holds the key of the hash: other users must
// not read it.
func create(name string) (*os.File, error) {
	temporary := name + ".tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a process that was killed
		return nil, err
	}
	return os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// writable finds out, before any hit is counted, whether the state could not be written at the end.
func writable(name string) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", name)
	}
	f, err := create(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// saveAgain saves the state while the service runs. A failure is logged, and the service goes on.
func (s *server) saveAgain(time.Time) {
	if err := s.save(); err != nil {
		s.log.Error("counts since the last time are lost if the process dies", "error", err)
	}
}

// save writes the state to a temporary file first, so that the state file is always complete.
func (s *server) save() error {
	name := s.config.State
	f, err := create(name)
	if err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	w := bufio.NewWriter(f)
	if err := errors.Join(s.engine.Snapshot(w), w.Flush(), f.Sync(), f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing the state: %w", err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
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
