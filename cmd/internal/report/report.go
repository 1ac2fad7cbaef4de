// Package report writes the result of a replay for people and for programs.
//
// Nothing from a log reaches the output as it is: a client name is whatever a
// stranger sent, and may hold what a terminal takes for commands.
package report

import (
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// Report is all there is to say about one replay.
type Report struct {
	Source string // where the log came from
	Note   string // what else a person should know about that; may be empty
	Log    accesslog.Facts
	// Incomplete says why the log could not be read to its end; empty if it was.
	Incomplete string
	Key        string // what a client is here, in the words of --key; empty if it is one
	Result     replay.Result
}
