package cli

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
		assert.Equal(t, want, versionLine("sluice", info))
	}
}

func TestRoff(t *testing.T) {
	assert.Equal(t, "\\&.so x\na \\e \\-\\-b\n\\&.x \\(aqq\\(aq", roff(".so x\na \\ --b\n.x 'q'"))
}
