package main

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVersion_BothSpellings(t *testing.T) {
	want := versionLine(buildInfo()) + "\n"
	for _, arg := range []string{"version", "--version"} {
		code, stdout, stderr := execute(nil, arg)
		assert.Equal(t, exitOK, code, arg)
		assert.Equal(t, want, stdout, arg)
		assert.Empty(t, stderr, arg)
	}
}

func TestVersion_Refuses(t *testing.T) {
	code, stdout, stderr := execute(nil, "version", "7")
	assert.Equal(t, exitUsage, code)
	assert.Empty(t, stdout)
	assert.Equal(t, "sluice version: want no arguments, got \"7\"\n", stderr)
}

func TestVersion_UnwritableOutput(t *testing.T) {
	var stderr bytes.Buffer
	code := run([]string{"version"}, nil, fullDisk{}, &stderr)
	assert.Equal(t, exitFailed, code)
	assert.Equal(t, "sluice version: writing the version: no space left on device\n", stderr.String())
}

// TestVersion_FullDevice: the command line is not at fault.
func TestVersion_FullDevice(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, arg := range []string{"version", "--version"} {
		assert.Equal(t, exitFailed, run([]string{arg}, nil, full, io.Discard), arg)
	}
}

func TestVersion_Line(t *testing.T) {
	built := ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}
	changed := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	clean := debug.BuildSetting{Key: "vcs.modified", Value: "false"}
	for want, info := range map[string]debug.BuildInfo{
		"sluice (devel)" + built: {},
		"sluice v1.2.3" + built:  {Main: debug.Module{Version: "v1.2.3"}},
		"sluice v1.2.3, commit 0123456789ab" + built: {
			Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{commit, clean}},
		"sluice (devel), commit 0123456789ab and changes" + built: {
			Settings: []debug.BuildSetting{commit, changed}},
	} {
		assert.Equal(t, want, versionLine(info))
	}
}
