package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice/cmd/internal/cli/clitest"
	"github.com/sluice-go/sluice/cmd/internal/servetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(servetest.AsProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

var theProgram = clitest.Program{Root: newRoot, Run: run, Commands: "check, compare, completion, recommend, replay or version", Sibling: "sluiced serve"}

func TestCommandLine(t *testing.T) {
	theProgram.Test(t)
	_, stdout, _ := execute(nil)
	assert.Contains(t, stdout, "\n  sluice replay\n")
	for _, args := range [][]string{{"replay"}, {"recommend"}, {"compare"}} {
		_, stdout, stderr := execute(nil, args...)
		assert.NotContains(t, stdout+stderr, "\x1b", args)
	}
}
