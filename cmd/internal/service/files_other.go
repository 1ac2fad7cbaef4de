//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package service

import (
	"errors"
	"net"
	"os"
)

func lockFile(string) (*os.File, error) {
	return nil, errors.New("this system has no locks of files, without which two processes would overwrite each other's counts; want no --state")
}

func unlockFile(*os.File) {}

func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	return l, err
}
