package rules

import (
	"fmt"
	"strconv"
	"strings"
)

// key is the text of domain and entries under which a rule counts, with the lengths of all parts, so that different
// lists have different keys. A star marks a value that shares the count of its pattern.
func (d *domainState) key(r *Rule, entries []Entry) string {
	b := append(make([]byte, 0, 64), d.storeName...)
	if r != nil {
		entries = entries[:len(r.levels)]
	}
	for i := range entries {
		b = appendPart(b, '.', entries[i].Key)
		if r != nil && r.levels[i].share {
			b = appendPart(b, '*', r.levels[i].value())
		} else {
			b = appendPart(b, '=', entries[i].Value)
		}
	}
	return string(b)
}

func appendPart(b []byte, kind byte, text string) []byte {
	b = strconv.AppendInt(append(b, kind), int64(len(text)), 10)
	return append(append(b, ':'), text...)
}

// ParseStoreKey takes a StoreCall's Key apart, for a Store that has names of its own. It returns the domain and the
// entries of the descriptor. A value that shares the count of its pattern is replaced by the pattern. Such names can
// be equal for entries that have different Keys.
func ParseStoreKey(key string) (domain string, entries []Entry, err error) {
	bad := func() error { return fmt.Errorf("rules: %q is no Key of a StoreCall", key) }
	for rest := key; rest != ""; {
		length, text, ok := strings.Cut(rest[1:], ":")
		n, err := strconv.Atoi(length)
		if !ok || err != nil || n < 0 || n > len(text) {
			return "", nil, bad()
		}
		part := text[:n]
		switch {
		case rest[0] == '.' && domain == "" && len(entries) == 0 && len(rest) == len(key):
			domain = part
		case rest[0] == '.':
			entries = append(entries, Entry{Key: part})
		case (rest[0] == '=' || rest[0] == '*') && len(entries) > 0:
			entries[len(entries)-1].Value = part
		default:
			return "", nil, bad()
		}
		rest = text[n:]
	}
	return domain, entries, nil
}
