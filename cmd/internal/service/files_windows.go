package service

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// lockFile opens a file that no other process has open for writing, for as long as it is open. errLocked means that another has.
func lockFile(name string) (*os.File, error) {
	const sharingViolation, deleteOnClose = syscall.Errno(32), 0x04000000
	path, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	h, err := syscall.CreateFile(path, syscall.GENERIC_READ|syscall.GENERIC_WRITE, syscall.FILE_SHARE_READ, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL|deleteOnClose, 0)
	if errors.Is(err, sharingViolation) {
		return nil, errLocked
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

func unlockFile(f *os.File) { _ = f.Close() }

// listenUnix listens on a socket, which has the rights of its directory here.
func listenUnix(path string, _ os.FileMode) (net.Listener, error) { return net.Listen("unix", path) }
