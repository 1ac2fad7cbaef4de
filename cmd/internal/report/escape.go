package report

import (
	"strconv"
	"strings"
	"unicode/utf16"
)

// plain makes text from a log harmless: printable ASCII that takes one column a
// byte and can be read back. Any other byte becomes a Go escape.
func plain(s string) string {
	quoted := strconv.QuoteToASCII(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// shorten cuts ASCII text to at most width columns and marks the cut.
func shorten(s string, width int) string {
	const mark = "..."
	if len(s) <= width {
		return s
	}
	return s[:width-len(mark)] + mark
}

// asciiJSON escapes in JSON the characters that encoding/json leaves as they are but a terminal
// may obey: delete, the C1 controls and everything else beyond ASCII.
func asciiJSON(text []byte) []byte {
	const hex = "0123456789abcdef"
	var out []byte
	for _, r := range string(text) {
		if r < 0x7f {
			out = append(out, byte(r))
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = append(out, '\\', 'u', hex[unit>>12], hex[unit>>8&15], hex[unit>>4&15], hex[unit&15])
		}
	}
	return out
}
