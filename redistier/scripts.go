package redistier

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// A script decides on one key, in one step. One fits all limits of a shape of state: what
// it needs of the limit is an argument.
type script struct {
	text string
	sha  string
}

func newScript(parts ...string) *script {
	text := ""
	for _, part := range parts {
		text += part
	}
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

var (
	//go:embed lua/head.lua
	headLua string
	//go:embed lua/tail.lua
	tailLua string
	//go:embed lua/bucket.lua
	bucketLua string
	//go:embed lua/counter.lua
	counterLua string
	//go:embed lua/anchored.lua
	anchoredLua string
	//go:embed lua/sliding.lua
	slidingLua string
	//go:embed lua/slog.lua
	slogLua string
	//go:embed lua/counted.lua
	countedLua string
	//go:embed lua/windows.lua
	windowsLua string

	bucketScript   = newScript(headLua, bucketLua, tailLua)
	counterScript  = newScript(headLua, counterLua, countedLua, windowsLua, tailLua)
	anchoredScript = newScript(headLua, anchoredLua, countedLua, windowsLua, tailLua)
	slidingScript  = newScript(headLua, slidingLua, windowsLua, tailLua)
	slogScript     = newScript(headLua, slogLua)
)
