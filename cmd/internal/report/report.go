// Package report writes the result of a replay for people and for programs.
//
// Nothing from a log reaches the output as it is: a client name is whatever a
// stranger sent, and may hold commands of a terminal.
package report

import (
	"github.com/sluice-go/sluice/cmd/internal/accesslog"
	"github.com/sluice-go/sluice/cmd/internal/replay"
)

// Report is all there is to say about one replay.
type Report struct {
	Source string // where the log came from
	Note   string // a remark for people; may be empty
	Log    accesslog.Facts
	// Incomplete says why the log could not be read to its end; empty if it was.
	Incomplete string
	Key        string // the kind of a client here, in the words of --key; empty for a client
	Result     replay.Result
}
