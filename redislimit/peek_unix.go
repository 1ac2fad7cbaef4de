//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos

package redislimit

import "syscall"

// quiet reports whether there is nothing to read from a socket: neither the end of the connection,
// nor bytes that were not asked for. It does not wait, and reads nothing.
func quiet(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
}
