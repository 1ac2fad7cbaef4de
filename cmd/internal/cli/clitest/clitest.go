// Package clitest has the tests that each program's command line runs. Only tests use it.
package clitest

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

// A Program is a program under test.
type Program struct {
	Root     func() *cobra.Command
	Run      func(args []string, stdin io.Reader, stdout, stderr io.Writer) int
	Commands string // as an error lists them
	Sibling  string // a command of the other program, with the name of that program before it
}

// Execute runs a command line.
func (p *Program) Execute(stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = p.Run(args, stdin, &out, &errs)
	return code, out.String(), errs.String()
}

func (p *Program) names() (names []string) {
	for _, c := range p.Root().Commands() {
		if c.Name() != "help" {
			names = append(names, c.Name())
		}
	}
	return names
}

// Test runs the tests.
func (p *Program) Test(t *testing.T) {
	for name, test := range map[string]func(t *testing.T){
		"help is no error": p.help, "unwritable output": p.unwritable, "unknown words": p.unknown, "examples": p.examples,
		"80 columns": p.columns, "version": p.version, "pages": p.pages, "pages refuse": p.pagesRefuse, "completion": p.completion,
	} {
		t.Run(name, test)
	}
}

func (p *Program) help(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"check", "--help"}, {"help"}, {"help", "check"}, {"help", "help"}, {"help", "completion", "bash"}} {
		code, stdout, stderr := p.Execute(nil, args...)
		assert.Equal(t, cli.ExitOK, code, args)
		assert.Contains(t, stdout, "Usage:", args)
		assert.Empty(t, stderr, args)
	}
	_, stdout, _ := p.Execute(nil)
	assert.Contains(t, stdout, "Usage:\n  "+p.Root().Name()+" [command]\n")
	assert.Contains(t, stdout, "\n  completion  ")
}

// unwritable: a disk that is full is not the fault of the command line.
func (p *Program) unwritable(t *testing.T) {
	commands := [][]string{{}, {"--help"}, {"help"}, {"version"}}
	for _, name := range p.names() {
		commands = append(commands, []string{name, "--help"}, []string{"help", name})
	}
	for _, args := range commands {
		var stderr bytes.Buffer
		assert.Equal(t, cli.ExitFailed, p.Run(args, nil, servetest.FullDisk{}, &stderr), args)
		assert.Regexp(t, `: writing( the version)?: no space left on device\n$`, stderr.String(), args)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Log(err)
		return
	}
	defer full.Close()
	for _, arg := range []string{"version", "--version"} {
		assert.Equal(t, cli.ExitFailed, p.Run([]string{arg}, nil, full, io.Discard), arg)
	}
}

// unknown: the error says which words there are, or which one is nearly it, in one line.
func (p *Program) unknown(t *testing.T) {
	for _, args := range [][]string{{"foo"}, {"help", "foo"}, {"help", "completion", "foo"}} {
		code, stdout, stderr := p.Execute(nil, args...)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Empty(t, stdout, args)
		assert.Contains(t, stderr, `: unknown command "foo": want `, args)
	}
	name := p.Root().Name()
	_, _, stderr := p.Execute(nil, "help", "foo")
	assert.Equal(t, name+" help: unknown command \"foo\": want "+p.Commands+"\n", stderr)
	_, _, stderr = p.Execute(nil, "chekc", "x")
	assert.Equal(t, name+": unknown command \"chekc\": did you mean check?\n", stderr)
	code, _, stderr := p.Execute(nil, "check", "--megre", "x")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Equal(t, name+" check: unknown flag --megre: did you mean --merge?\n", stderr)
	_, _, stderr = p.Execute(nil, "check", "--colour", "x")
	assert.Equal(t, name+" check: unknown flag: --colour; see "+name+" check --help\n", stderr)
	other, command, _ := strings.Cut(p.Sibling, " ")
	_, _, stderr = p.Execute(nil, command)
	assert.Equal(t, name+": "+command+" is a command of "+other+": want "+p.Sibling+"\n", stderr)
}

// examples: each command has an example, and none writes what a terminal takes for colour: NO_COLOR has nothing to turn off.
func (p *Program) examples(t *testing.T) {
	for _, cmd := range append(p.Root().Commands(), p.Root()) {
		if cmd.Name() != "help" {
			assert.Contains(t, cmd.Example, "  "+p.Root().Name()+" ", cmd.Name())
		}
	}
	for _, args := range [][]string{{}, {"check", "--help"}, {"version"}} {
		_, stdout, stderr := p.Execute(nil, args...)
		assert.NotContains(t, stdout+stderr, "\x1b", args)
	}
}

// columns covers every command that there is.
func (p *Program) columns(t *testing.T) {
	for _, name := range append(p.names(), "") {
		_, stdout, _ := p.Execute(nil, append(strings.Fields(name), "--help")...)
		for line := range strings.Lines(stdout) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, line)
		}
	}
}

func (p *Program) version(t *testing.T) {
	want := p.Root().Version + "\n"
	assert.True(t, strings.HasPrefix(want, p.Root().Name()+" "), want)
	for _, arg := range []string{"version", "--version"} {
		code, stdout, stderr := p.Execute(nil, arg)
		assert.Equal(t, cli.ExitOK, code, arg)
		assert.Equal(t, want, stdout, arg)
		assert.Empty(t, stderr, arg)
	}
	code, stdout, stderr := p.Execute(nil, "version", "7")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Empty(t, stdout)
	assert.Equal(t, p.Root().Name()+" version: want no arguments, got \"7\"\n", stderr)
}

// pages: there is a page for each command, the same each time, with the text of its help; and groff, where there is one, has nothing to say.
func (p *Program) pages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1772442000")
	dir, again := filepath.Join(t.TempDir(), "man1"), t.TempDir()
	for _, d := range []string{dir, again} {
		code, stdout, stderr := p.Execute(nil, "man", d)
		require.Equal(t, cli.ExitOK, code, stderr)
		assert.Empty(t, stdout)
	}
	groff, _ := exec.LookPath("groff")
	if groff == "" {
		t.Log("without groff: apt-get install groff-base")
	}
	for _, c := range append(p.Root().Commands(), p.Root()) {
		if c.Hidden || c.Name() == "help" {
			continue
		}
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		require.NoError(t, err)
		other, err := os.ReadFile(filepath.Join(again, name+".1"))
		require.NoError(t, err)
		assert.Equal(t, string(other), string(page))
		assert.True(t, strings.HasPrefix(string(page), `.TH SLUICE`), name)
		assert.Contains(t, string(page), ` 1 "2026-03-02" "sluice"`)
		if groff != "" {
			testGroff(t, groff, page, c)
		}
	}
}

func testGroff(t *testing.T, groff string, page []byte, c *cobra.Command) {
	cmd := exec.Command(groff, "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=100n")
	cmd.Stdin = bytes.NewReader(page)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	text, err := cmd.Output()
	require.NoError(t, err)
	assert.Empty(t, warnings.String(), c.Name())
	for line := range strings.Lines(c.Example + "\n") { // as it is typed
		assert.Contains(t, string(text), strings.TrimSpace(line), c.Name())
	}
}

func (p *Program) pagesRefuse(t *testing.T) {
	file := filepath.Join(servetest.Files(t, map[string]string{"file": ""}), "file")
	for want, args := range map[string][]string{"want one directory": {"man"}, "not a directory": {"man", filepath.Join(file, "x")}} {
		code, _, stderr := p.Execute(nil, args...)
		assert.NotEqual(t, cli.ExitOK, code)
		assert.Contains(t, stderr, want)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	code, _, stderr := p.Execute(nil, "man", t.TempDir())
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, stderr, `SOURCE_DATE_EPOCH "yesterday": want Unix seconds`)
}

func (p *Program) completion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, _ := p.Execute(nil, "completion", shell)
		assert.Equal(t, cli.ExitOK, code)
		assert.Contains(t, stdout, p.Root().Name())
	}
}
