package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion(program, line string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long: `Version prints the version of this program, the commit it was built from where
that is known, and the version of Go that built it.`,
		Example: "  " + program + " version",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("want no arguments, got %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
				return Fail(fmt.Errorf("writing the version: %w", err))
			}
			return nil
		},
	}
}

// buildInfo returns Go's description of this build: nothing if it has no modules.
func buildInfo() debug.BuildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return debug.BuildInfo{}
	}
	return *info
}

// versionLine describes a build. One installed from a release knows its version and no
// commit; one made in a clone knows the commit too, unless Go was told to leave it out.
func versionLine(program string, info debug.BuildInfo) string {
	version, commit, changed := "(devel)", "", ""
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			commit = ", commit " + setting.Value[:min(12, len(setting.Value))]
		case setting.Key == "vcs.modified" && setting.Value == "true":
			changed = " and changes"
		}
	}
	return fmt.Sprintf("%s %s%s%s, %s %s/%s", program, version, commit, changed, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
