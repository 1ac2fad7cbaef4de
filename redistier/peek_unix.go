//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd || solaris || illumos

package redistier

import "syscall"

// ended reports whether the other side of a socket has ended the connection. It does not wait, and reads
// nothing.
func ended(fd uintptr) bool {
	var b [1]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return n <= 0 && err != syscall.EAGAIN && err != syscall.EWOULDBLOCK && err != syscall.EINTR
}
