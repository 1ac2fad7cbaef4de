package accesslog

import "strings"

// idClass stands in a class for the ids that tell paths of one kind apart.
const idClass = "{id}"

// leastHex is the length from which on a text of hexadecimal digits is an id, and no word: "cafe", "2fa".
const leastHex = 8

// PathClass returns a path with ids replaced by {id}: of each segment between slashes the part before an extension, if it is digits only; a
// UUID; or eight hexadecimal digits or more, at least one from 0 to 9. An extension is a dot and the rest, if that
// begins with a letter. Other segments stay as they are.
func PathClass(path string) string {
	var out strings.Builder
	for i, segment := range strings.Split(path, "/") {
		if i > 0 {
			out.WriteByte('/')
		}
		stem, extension := segment, ""
		if dot := strings.IndexByte(segment, '.'); dot > 0 && dot+1 < len(segment) && isLetter(segment[dot+1]) {
			stem, extension = segment[:dot], segment[dot:]
		}
		if !isID(stem) {
			out.WriteString(segment)
			continue
		}
		out.WriteString(idClass)
		out.WriteString(extension)
	}
	return out.String()
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isID(s string) bool {
	digits, letters := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			digits++
		case hexDigit(c):
			letters++
		default:
			return isUUID(s)
		}
	}
	return digits > 0 && (letters == 0 || digits+letters >= leastHex)
}

// isUUID reports whether s is 8-4-4-4-12 hexadecimal digits.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (s[i] == '-') || !dash && !hexDigit(s[i]) {
			return false
		}
	}
	return true
}
