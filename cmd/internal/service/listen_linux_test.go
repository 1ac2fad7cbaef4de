package service

import (
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// TestRemoveSocket: a socket is only removed if nobody listens on it; a process that is too busy to take a
// connection does.
func TestRemoveSocket(t *testing.T) {
	path := servetest.SocketName(t)
	require.NoError(t, removeSocket(path), "there is none")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	require.NoError(t, syscall.Listen(fd, 0))
	require.ErrorContains(t, removeSocket(path), "another process listens on it")
	for conn := net.Conn(nil); err == nil; {
		if conn, err = net.Dial("unix", path); err == nil {
			defer conn.Close()
		}
	}
	require.ErrorContains(t, removeSocket(path), "another process listens on it, and is busy")
	_, err = os.Lstat(path)
	require.NoError(t, err)
	require.NoError(t, syscall.Close(fd))
	require.NoError(t, removeSocket(path))
	_, err = os.Lstat(path)
	require.ErrorIs(t, err, os.ErrNotExist)

	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer datagrams.Close()
	require.ErrorContains(t, removeSocket(path), path+" is there, and may be another process's: ")
	_, err = os.Lstat(path)
	assert.NoError(t, err)
}
