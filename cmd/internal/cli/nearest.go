package cli

import "strings"

// nearest returns the name that typed is a slip for: one that begins with it, or is at most two letters away, and at most a third of its own
// length; "" if there is none, or if two are as near.
func nearest(typed string, names []string) string {
	best, found, tie := len(typed)+1, "", false
	for _, name := range names {
		d := distance(typed, name)
		if len(typed) > 2 && strings.HasPrefix(name, typed) {
			d = min(d, 2)
		} else if d > min(2, len(name)/3) {
			continue
		}
		switch {
		case d < best:
			best, found, tie = d, name, false
		case d == best:
			tie = true
		}
	}
	if tie {
		return ""
	}
	return found
}

// distance counts the letters to insert, remove or replace, and the neighbours to exchange, between two words: the restricted Damerau-Levenshtein
// distance.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := 1
			if a[i-1] == b[j-1] {
				replace = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
