package rules

import (
	"fmt"
	"strings"
)

// A part that can never apply is most likely a mistake: a descriptor whose requests all go to another one, or a
// name in replaces that no rule of the domain has. Both are warnings, since Envoy's service loads files with them.

// maxCompared bounds how many pairs of patterns a load compares, which takes tens of milliseconds. Files with thousands
// of patterns for one key can have more pairs; further pairs are not compared, and get no warnings.
const maxCompared = 1 << 20

// fresh stands for the asterisks of a pattern. Only an asterisk fits it, since no text contains this character.
const fresh = "\U0010FFFF"

// hardest returns a value that the pattern value fits. If another pattern without fresh in it fits this value, it
// fits all values that the pattern fits.
func hardest(value string) string { return strings.ReplaceAll(value, "*", fresh) }

// unreached warns if n, which is about to become one of b, is never reached, or makes another descriptor unreachable.
func (l *loader) unreached(fields fieldList, parent *node, b *branch, n *node, path string) {
	where := func(n *node) place { return l.nodes[nodeName{parent, n.name}] }
	if n.value() == "" {
		at := fields.at("key").value
		for _, p := range b.patterns {
			if p.value() == "*" {
				l.warnAt(at, path, `%s without a value is never reached, since value: "*" at %s:%d fits all values; want one of the two`, n.key(), where(p).file, where(p).line)
			}
		}
		return
	}
	if n.pattern == nil {
		return
	}
	at, most := fields.at("value").value, hardest(n.value())
	for _, p := range b.patterns {
		if l.compared++; l.compared > maxCompared {
			break
		}
		if !strings.Contains(p.value(), fresh) && p.pattern.fits(most) {
			l.warnAt(at, path, "the value %q is never reached, since %q at %s:%d is before it and fits all that it does; want the narrower one first", n.value(), p.value(), where(p).file, where(p).line)
			return
		}
	}
	if n.value() == "*" && b.all != nil {
		l.warnAt(at, path, `value: "*" fits all values, so %s without a value at %s:%d is never reached; want one of the two`, n.key(), where(b.all).file, where(b.all).line)
	}
}

// replacement is a name that a rule replaces.
type replacement struct {
	domain  *domain
	name    int
	warning Problem // if no rule has it
}

// ruleName is a rate_limit.name in its domain.
type ruleName struct {
	domain *domain
	id     int
}

// nobodysName ends the error of a field with a name that no rule has.
const nobodysName = "which no rule of the domain has; want the rate_limit.name of another rule"

// refuseName adds an error to the loader: a field of a rule names another rule, which has the fault.
func (l *loader) refuseName(r *Rule, at place, field, name, fault string) {
	l.failed = true
	l.add(at.problem(r.path, fmt.Sprintf("%s names %q, %s", field, name, fault)))
}

// named returns the rules of each name.
func (l *loader) named() map[ruleName][]*Rule {
	named := map[ruleName][]*Rule{}
	for _, r := range l.set.rules {
		if r.nameID != 0 {
			named[ruleName{r.domain, r.nameID}] = append(named[ruleName{r.domain, r.nameID}], r)
		}
	}
	return named
}

// unnamed warns of replaced names that no rule has.
func (l *loader) unnamed(named map[ruleName][]*Rule) {
	for _, r := range l.replaced {
		if named[ruleName{r.domain, r.name}] == nil {
			l.add(r.warning)
		}
	}
}
