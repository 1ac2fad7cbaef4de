//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package service

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestState_NoLocks: some file systems of networks have no locks. The service starts, and says what nobody checks.
func TestState_NoLocks(t *testing.T) {
	real := flock
	t.Cleanup(func() { flock = real })
	for _, code := range []syscall.Errno{syscall.ENOLCK, syscall.ENOSYS, syscall.EOPNOTSUPP} {
		flock = func(int, int) error { return code }
		state := filepath.Join(t.TempDir(), "state")
		s, log := still(t, someRules, "--state", state)
		require.Contains(t, log.String(), "the file system has no locks")
		s.state.close()
		require.NoFileExists(t, state+".lock")
	}
	flock = func(int, int) error { return syscall.EIO }
	_, err := openState(filepath.Join(t.TempDir(), "state"))
	require.ErrorIs(t, err, syscall.EIO)
}
