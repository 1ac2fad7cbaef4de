package rules

import "strings"

// pattern is a value with at least one "*", each of which stands for any number of characters.
type pattern struct {
	prefix, suffix string
	middle         []string // between the asterisks, in order; none is empty
	least          int      // the length of all text
}

// newPattern returns nil for a value without "*".
func newPattern(value string) *pattern {
	parts := strings.Split(value, "*")
	if len(parts) == 1 {
		return nil
	}
	last := len(parts) - 1
	p := &pattern{prefix: parts[0], suffix: parts[last], least: len(parts[0]) + len(parts[last])}
	for _, m := range parts[1:last] {
		if m != "" {
			p.middle = append(p.middle, m)
			p.least += len(m)
		}
	}
	return p
}

// fits looks for each part at its first place: if any choice of places fits, this one does.
func (p *pattern) fits(value string) bool {
	if len(value) < p.least || !strings.HasPrefix(value, p.prefix) || !strings.HasSuffix(value, p.suffix) {
		return false
	}
	rest := value[len(p.prefix) : len(value)-len(p.suffix)]
	for _, m := range p.middle {
		i := strings.Index(rest, m)
		if i < 0 {
			return false
		}
		rest = rest[i+len(m):]
	}
	return true
}
