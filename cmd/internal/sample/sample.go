// Package sample holds a small made-up access log, so that a replay has
// something to show before the first real log is at hand.
package sample

import (
	"bytes"
	_ "embed"
	"io"
)

//go:generate go run ./gen access.log.gz

//go:embed access.log.gz
var accessLog []byte

// Open returns the log: Combined format, compressed with gzip. Generate has
// written it.
func Open() io.Reader { return bytes.NewReader(accessLog) }
