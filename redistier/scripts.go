package redistier

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
)

// A script decides on one key, in one step. One script serves all limits of a shape: the numbers of
// a limit are arguments.
type script struct {
	text string
	sha  any // a string: as an argument of a command, it is put into an interface once
}

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// assemble puts the sections of files in the place of their names in a flow. A section
// begins with a line such as "-- @name"; other comments are left out.
func assemble(flow string, files ...string) *script {
	var sections []string // "@name", text, ...
	for _, file := range files {
		for i, part := range strings.Split(file, "-- @") {
			if name, text, ok := strings.Cut(part, "\n"); ok && i > 0 {
				sections = append(sections, "@"+name, strings.TrimSpace(code(text)))
			}
		}
	}
	text, replacer := code(flow), strings.NewReplacer(sections...)
	for range 2 { // a section may have another in it
		text = replacer.Replace(text)
	}
	return newScript(text)
}

// code returns the lines of text that are neither empty nor a comment.
func code(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

var (
	//go:embed lua/head.lua
	headLua string
	//go:embed lua/flow.lua
	flowLua string
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

	bucketScript   = assemble(headLua+flowLua, bucketLua)
	counterScript  = assemble(headLua+flowLua, counterLua, countedLua, windowsLua)
	anchoredScript = assemble(headLua+flowLua, anchoredLua, countedLua, windowsLua)
	slidingScript  = assemble(headLua+flowLua, slidingLua, windowsLua)
	slogScript     = assemble(headLua+"@flow", slogLua)

	//go:embed lua/replicas.lua
	replicasLua    string
	replicasScript = newScript(code(replicasLua))

	//go:embed lua/all.lua
	allLua    string
	allScript = assembleAll()
)

// headOf begins each script for one key. As a function in another script it gets these variables from its caller.
const headOf = "local key, arg, call = KEYS[1], ARGV[1], redis.call\n"

// assembleAll makes the script for calls that are made together. The scripts of the shapes are functions in it; they
// write with the function that they get as call.
func assembleAll() *script {
	var shapes strings.Builder
	for _, s := range []struct {
		letters string
		script  *script
	}{{"b", bucketScript}, {"wi", counterScript}, {"a", anchoredScript}, {"s", slidingScript}, {string(logLetter), slogScript}} {
		body, ok := strings.CutPrefix(s.script.text, headOf)
		if !ok {
			panic("redistier: a script begins otherwise")
		}
		first, others := s.letters[:1], s.letters[1:]
		shapes.WriteString("run['" + first + "'] = function(key, arg, call)\n" + strings.ReplaceAll(body, "redis.pcall", "call") + "end\n")
		for i := range others {
			shapes.WriteString("run['" + others[i:i+1] + "'] = run['" + first + "']\n")
		}
	}
	return newScript(strings.Replace(code(allLua), "@shapes\n", shapes.String(), 1))
}
