package rules

import (
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A descriptor of a rule with weights says after the rule's own entries how many there were of each kind: input=1000,
// output=200. One such entry may have the value hitsValue instead of a number: Envoy puts a number of an answer into
// hits_addend and not into an entry.

// hitsValue is the value of an entry whose number is in Descriptor.Hits.
const hitsValue = "hits_addend"

// The bounds of weights. With them the sum of all products fits in 128 bits.
const (
	maxKinds     = 16
	maxDecimals  = 9
	maxCountText = 15 // digits
)

// weights say how many units one of each kind costs: parts[i]/per of kinds[i], exactly.
type weights struct {
	kinds []string
	parts []uint64
	per   uint64
	texts []string // as the file has them
}

var decimal = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?$`)

// readWeights reads a map of kinds and their weights.
func (r *rateLimitReader) readWeights(f field) *weights {
	if f.value.Kind != yaml.MappingNode || len(f.value.Content) == 0 {
		what := show(f.value)
		if f.value.Kind == yaml.MappingNode {
			what = "an empty map"
		}
		r.errorAt(f.value, r.path, "weights is %s; want a map of kinds and weights, such as {input: 1, output: 5}", what)
		return nil
	}
	w := &weights{per: 1}
	var fractions []string
	for _, f := range last(r.fields(f.value, r.path)) {
		text := f.value.Value
		switch {
		case f.name == "":
			r.errorAt(f.key, r.path, "weights has a kind without a name; want the key of an entry, such as input")
			continue
		case f.value.Kind != yaml.ScalarNode || !decimal.MatchString(text):
			r.errorAt(f.value, r.path, "the weight of %s is %s; want a decimal number from 0 to 999999999.999999999, such as 5 or 0.1", f.name, show(f.value))
			continue
		}
		whole, fraction, _ := strings.Cut(text, ".")
		fraction = strings.TrimRight(fraction, "0")
		n, _ := strconv.ParseUint(whole, 10, 64)
		w.kinds, w.parts, w.texts = append(w.kinds, f.name), append(w.parts, n), append(w.texts, text)
		fractions = append(fractions, fraction)
	}
	if len(w.kinds) > maxKinds {
		r.errorAt(f.value, r.path, "weights has %d kinds; want at most %d", len(w.kinds), maxKinds)
		return nil
	}
	w.scale(fractions)
	if len(w.parts) > 0 && slices.Max(w.parts) == 0 {
		r.errorAt(f.value, r.path, "weights are all 0, so nothing is counted; want at least one above 0")
	}
	return w
}

// scale gives all weights one denominator.
func (w *weights) scale(fractions []string) {
	digits := 0
	for _, f := range fractions {
		digits = max(digits, len(f))
	}
	for range digits {
		w.per *= 10
	}
	for i, f := range fractions {
		part, _ := strconv.ParseUint(f+strings.Repeat("0", digits-len(f)), 10, 64)
		w.parts[i] = w.parts[i]*w.per + part
	}
}

// String returns the weights as a file has them.
func (w *weights) String() string {
	parts := make([]string, len(w.kinds))
	for i, k := range w.kinds {
		parts[i] = k + ": " + w.texts[i]
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// has reports whether entries of the key are counts of a kind.
func (w *weights) has(key string) bool { return w != nil && slices.Contains(w.kinds, key) }

// cost returns the units of a descriptor whose entries after the rule's own are counts; hits is Descriptor.Hits. All
// counts together are rounded once: up, or down if they are given back. fault says why there is no such number. Without
// counts the hits are units already, and ok is false.
func (w *weights) cost(counts []Entry, hits *uint64, down bool) (units uint64, ok bool, fault string) {
	if len(counts) == 0 {
		return 0, false, ""
	}
	var hi, lo uint64
	for i := range counts {
		e := &counts[i]
		k := slices.Index(w.kinds, e.Key)
		n, fault := uint64(0), ""
		switch {
		case k < 0:
			fault = fmt.Sprintf("%.64q is none of the rule's weights; want one of %s", e.Key, strings.Join(w.kinds, ", "))
		case slices.ContainsFunc(counts[:i], func(o Entry) bool { return o.Key == e.Key }):
			fault = e.Key + " is there twice; want one entry of each kind"
		default:
			n, fault = countOf(e, hits, len(counts))
		}
		if fault != "" {
			return 0, true, fault
		}
		h, l := bits.Mul64(n, w.parts[k])
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	if hi >= w.per {
		return math.MaxUint64, true, ""
	}
	units, rest := bits.Div64(hi, lo, w.per)
	if rest != 0 && !down && units != math.MaxUint64 {
		units++
	}
	return units, true, ""
}

// countOf reads how many of a kind there are, as one of so many entries.
func countOf(e *Entry, hits *uint64, entries int) (n uint64, fault string) {
	switch {
	case e.Value == hitsValue && (hits == nil || entries > 1):
		return 0, fmt.Sprintf("%s=%s stands for the hits of the descriptor; want hits, and no count beside it", e.Key, hitsValue)
	case e.Value == hitsValue && *hits >= 1e15:
		return 0, fmt.Sprintf("%s is %d; want a whole number of at most %d digits", e.Key, *hits, maxCountText)
	case e.Value == hitsValue:
		return *hits, ""
	case hits != nil:
		return 0, fmt.Sprintf("both hits and %s=%.64s are there; want one of them, or %s=%s", e.Key, e.Value, e.Key, hitsValue)
	}
	n, err := strconv.ParseUint(e.Value, 10, 64)
	if err != nil || len(e.Value) > maxCountText {
		return 0, fmt.Sprintf("%s is %.64q; want a whole number of at most %d digits", e.Key, e.Value, maxCountText)
	}
	return n, ""
}

// weigh sets the hits of a descriptor, by its counts if it has some.
func (w *work) weigh(r *Rule, desc *Descriptor) (fault string) {
	if r.weights == nil {
		return ""
	}
	units, ok, fault := r.weights.cost(desc.Entries[len(r.levels):], desc.Hits, desc.Refund)
	if ok {
		w.hits = units
	}
	return fault
}

// kindsApart refuses weights with the key of a descriptor above or below: an entry would be either.
func (l *loader) kindsApart(fields fieldList, n *node, path string) {
	if n.rule == nil || n.rule.weights == nil {
		return
	}
	for _, kind := range n.rule.weights.kinds {
		if n.children[kind] != nil || slices.ContainsFunc(n.rule.levels, func(up *node) bool { return up.key() == kind }) {
			l.errorAt(fields.at("rate_limit").value, path, "%s is both one of the weights and the key of a descriptor; want different names", kind)
		}
	}
}
