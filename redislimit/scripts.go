package redislimit

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
// begins with a line such as "-- @name"; other comments are left out. Of two sections of the same name the first one is taken.
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
	for range 4 { // a section may have sections in it
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
	//go:embed lua/calendar.lua
	calendarLua string
	//go:embed lua/firstcharge.lua
	firstChargeLua string
	//go:embed lua/sliding.lua
	slidingLua string
	//go:embed lua/inflight.lua
	inFlightLua string
	//go:embed lua/slog.lua
	slogLua string
	//go:embed lua/counted.lua
	countedLua string
	//go:embed lua/windows.lua
	windowsLua string

	//go:embed lua/plain.lua
	plainLua string
	//go:embed lua/receipts.lua
	receiptsLua string
	//go:embed lua/apart.lua
	apartLua string
	//go:embed lua/within.lua
	withinLua string

	bucketScript      = assemble(headLua+flowLua, plainLua, bucketLua)
	counterScript     = assemble(headLua+flowLua, plainLua, counterLua, countedLua, windowsLua)
	calendarScript    = assemble(headLua+flowLua, plainLua, calendarLua, countedLua, windowsLua)
	firstChargeScript = assemble(headLua+flowLua, plainLua, firstChargeLua, countedLua, windowsLua)
	slidingScript     = assemble(headLua+flowLua, plainLua, slidingLua, windowsLua)
	inFlightScript    = assemble(headLua+flowLua, plainLua, inFlightLua, slidingLua, windowsLua)
	slogScript        = assemble(headLua+"@flow", plainLua, slogLua)

	// The scripts of limits with holds, by the letter of the shape.
	holdScripts = map[byte]*script{
		'b': assembleHolds(receiptsLua, apartLua, bucketLua),
		'w': assembleHolds(receiptsLua, withinLua, counterLua, countedLua, windowsLua),
		'i': assembleHolds(receiptsLua, withinLua, counterLua, countedLua, windowsLua),
		'd': assembleHolds(receiptsLua, calendarLua, withinLua, countedLua, windowsLua),
		'a': assembleHolds(receiptsLua, withinLua, firstChargeLua, countedLua, windowsLua),
		's': assembleHolds(receiptsLua, withinLua, slidingLua, windowsLua),

		inFlightLetter: assembleHolds(receiptsLua, inFlightLua, withinLua, slidingLua, windowsLua),
	}

	//go:embed lua/replicas.lua
	replicasLua    string
	replicasScript = newScript(code(replicasLua))

	//go:embed lua/all.lua
	allLua         string
	allScript      = assembleAll(false)
	allHoldsScript = assembleAll(true)
)

// headOf begins each script for one key, and sideOf comes next with holds. As a function in another script it gets these
// variables from its caller.
const (
	headOf = "local key, arg, call = KEYS[1], ARGV[1], redis.call\n"
	sideOf = "local holds, times = KEYS[2], KEYS[3]\n"
)

// assembleHolds is assemble for a shape with holds.
func assembleHolds(files ...string) *script {
	s := assemble(headLua+flowLua, files...)
	return newScript(strings.Replace(s.text, headOf, headOf+sideOf, 1))
}

// assembleAll makes the script for calls that are made together, with holds or without. The scripts of the shapes are
// functions in it; they write with the function that they get as call.
func assembleAll(holds bool) *script {
	var shapes strings.Builder
	add := func(letters string, s *script, head, arguments string) {
		body, ok := strings.CutPrefix(s.text, head)
		if !ok {
			panic("redislimit: a script begins otherwise")
		}
		first, others := letters[:1], letters[1:]
		shapes.WriteString("run['" + first + "'] = function(" + arguments + ")\n" + strings.ReplaceAll(body, "redis.pcall", "call") + "end\n")
		for i := range others {
			shapes.WriteString("run['" + others[i:i+1] + "'] = run['" + first + "']\n")
		}
	}
	for _, s := range []struct {
		letters string
		script  *script
	}{{"b", bucketScript}, {"wi", counterScript}, {"d", calendarScript}, {"a", firstChargeScript}, {"s", slidingScript}, {string(inFlightLetter), inFlightScript}, {string(logLetter), slogScript}} {
		add(s.letters, s.script, headOf, "key, arg, call")
		if with := holdScripts[s.letters[0]]; holds && with != nil {
			add(strings.ToUpper(s.letters), with, headOf+sideOf, "key, arg, call, holds, times")
		}
	}
	return newScript(strings.Replace(code(allLua), "@shapes\n", shapes.String(), 1))
}
