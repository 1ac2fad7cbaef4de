package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func TestHelp_IsNoError(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"replay", "--help"}, {"help"}, {"help", "replay"}, {"help", "help"}, {"help", "completion", "bash"}} {
		code, stdout, stderr := execute(nil, args...)
		assert.Equal(t, exitOK, code, args)
		assert.Contains(t, stdout, "Usage:", args)
		assert.Empty(t, stderr, args)
	}
}

func TestHelp_UnwritableOutput(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"replay", "--help"}, {"serve", "--help"}, {"help"}, {"help", "replay"}} {
		var stderr bytes.Buffer
		assert.Equal(t, exitFailed, run(args, nil, fullDisk{}, &stderr), args)
		assert.Contains(t, stderr.String(), ": writing: no space left on device\n", args)
	}
}

func TestHelp_OfAnUnknownCommandIsAnError(t *testing.T) {
	for _, args := range [][]string{{"foo"}, {"help", "foo"}, {"help", "completion", "foo"}} {
		code, stdout, stderr := execute(nil, args...)
		assert.Equal(t, exitUsage, code, args)
		assert.Empty(t, stdout, args)
		assert.Contains(t, stderr, `: unknown command "foo": want `, args)
	}
	_, _, stderr := execute(nil, "help", "foo")
	assert.Equal(t, "sluice help: unknown command \"foo\": want ask, check, compare, completion, recommend, replay, serve or version\n", stderr)
}

// TestHelp_Examples: each command has one, and none writes what a terminal takes for colour: NO_COLOR has nothing to turn off.
func TestHelp_Examples(t *testing.T) {
	for _, cmd := range append(newRoot().Commands(), newRoot()) {
		if cmd.Name() == "help" {
			continue
		}
		assert.Contains(t, cmd.Example, "  sluice", cmd.Name())
	}
	for _, args := range [][]string{{}, {"replay"}, {"recommend"}, {"compare"}, {"replay", "--help"}, {"version"}} {
		_, stdout, stderr := execute(nil, args...)
		assert.NotContains(t, stdout+stderr, "\x1b", args)
	}
}

// TestHelp_FitsIntoATerminal covers every command that there is.
func TestHelp_FitsIntoATerminal(t *testing.T) {
	commands := []string{""}
	for _, cmd := range newRoot().Commands() {
		commands = append(commands, cmd.Name())
	}
	assert.Contains(t, commands, "replay")
	for _, name := range commands {
		_, stdout, _ := execute(nil, append(strings.Fields(name), "--help")...)
		for line := range strings.Lines(stdout) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, line)
		}
	}
}

// TestHelp_TheInterface: what scripts go by is in the help, and what is for tests only is not.
func TestHelp_TheInterface(t *testing.T) {
	_, serve, _ := execute(nil, "serve", "--help")
	_, check, _ := execute(nil, "check", "--help")
	for _, flag := range []string{"--rules", "--grpc", "--http", "--debug", "--metrics", "--metrics-names", "--uds", "--state", "--drain", "--max-keys"} {
		assert.Contains(t, serve, flag+" ")
	}
	assert.Contains(t, check, "--merge ")
	assert.NotContains(t, serve, "manual-clock")
}

func TestHelp_OfTheProgramSaysWhatToTry(t *testing.T) {
	_, stdout, _ := execute(nil)
	assert.Contains(t, stdout, "\n  sluice replay\n")
	assert.Contains(t, stdout, "\n  sluice serve --rules rules/\n")
	assert.Contains(t, stdout, "Usage:\n  sluice [command]\n")
	assert.Contains(t, stdout, "\n  completion  ")
}
