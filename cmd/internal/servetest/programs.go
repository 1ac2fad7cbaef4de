package servetest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// AsProgram is the variable that makes a test binary be the command itself, so that tests can start it as users do.
const AsProgram = "SLUICE_TEST_AS_PROGRAM"

// Installed returns the path of a program, or skips the test.
func Installed(t *testing.T, name, where string) string {
	t.Helper()
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	t.Skipf("there is no %s here: %s", name, where)
	return ""
}

// Files writes files into a directory of the test's and returns it.
func Files(t *testing.T, named map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range named {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// FullDisk cannot be written to.
type FullDisk struct{}

// Write implements io.Writer.
func (FullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }
