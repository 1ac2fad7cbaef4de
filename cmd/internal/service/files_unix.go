//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package service

import (
	"net"
	"os"
	"syscall"
)

var flock = syscall.Flock // tests replace it

// lockFile opens a file that no other process has locked, and locks it, for as long as it is open. errLocked means that another
// has. With errNoLocks it returns the file: it is open, and nothing is locked.
func lockFile(name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		switch err := flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case nil:
		case syscall.ENOLCK, syscall.ENOSYS, syscall.EOPNOTSUPP:
			return f, errNoLocks
		case syscall.EWOULDBLOCK:
			_ = f.Close()
			return nil, errLocked
		default:
			_ = f.Close()
			return nil, &os.PathError{Op: "flock", Path: name, Err: err}
		}
		if sameFile(f, name) {
			return f, nil
		}
		_ = f.Close() // the process that had it has removed it meanwhile
	}
}

func sameFile(f *os.File, name string) bool {
	a, err := f.Stat()
	b, e := os.Lstat(name)
	return err == nil && e == nil && os.SameFile(a, b)
}

// unlockFile removes the file first: whoever waits for no lock finds none.
func unlockFile(f *os.File) {
	_ = os.Remove(f.Name())
	_ = f.Close()
}

// listenUnix listens on a socket that nobody can connect to, at no time, whom mode does not admit.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	before := syscall.Umask(int(0o777 &^ mode))
	defer syscall.Umask(before)
	return net.Listen("unix", path)
}
