// Package message writes messages for people, one line each.
package message

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine makes a message safe to print on a line of its own. It leaves printable
// text in any script as it is.
func OneLine(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// Count is a number of things in English.
func Count[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Or lists at least two words as alternatives: "a, b or c".
func Or(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// NoRules is the error for paths without a file of rules.
func NoRules(paths []string) error {
	return fmt.Errorf("no file of rules in %q: want names that end in .yaml or .yml", paths)
}
