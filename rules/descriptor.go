package rules

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-go/sluice"
)

// maxDepth bounds how deep descriptors nest. A request with as many entries is refused.
const maxDepth = 1000

// descriptors reads a list of descriptors into parent.
func (l *loader) descriptors(f field, d *domain, parent *node, path string, above []*node) {
	if isNull(f.value) {
		return
	}
	if f.value.Kind != yaml.SequenceNode {
		l.errorAt(f.value, path, "descriptors is %s; want a list of descriptors", show(f.value))
		return
	}
	if len(above) >= maxDepth {
		l.errorAt(f.value, path, "descriptors nest deeper than %d; want fewer levels", maxDepth)
		return
	}
	l.items(f.value.Content, d, parent, path, above)
}

// items reads the descriptors of a list.
func (l *loader) items(list []*yaml.Node, d *domain, parent *node, path string, above []*node) {
	for _, item := range list {
		if l.exhausted() {
			return
		}
		n := l.follow(item)
		if n.Kind != yaml.MappingNode {
			l.errorAt(n, path, "descriptors holds %s; want descriptors, maps with a key", show(n))
			continue
		}
		l.descriptor(n, d, parent, path, above)
	}
}

// descriptor reads one descriptor, and those below it.
func (l *loader) descriptor(at *yaml.Node, d *domain, parent *node, path string, above []*node) {
	fields := l.fields(at, path)
	current := last(fields)
	n, path := l.identify(at, current, path)
	flags := l.flags(current, path)
	n.valueToMetric, n.share = flags.valueToMetric, flags.shareThreshold
	if n.share && n.pattern == nil {
		l.errorAt(current.at("share_threshold").value, path, "share_threshold is true, but the value %s; want a \"*\" in it, or no share_threshold", valueOf(n))
	}
	rules, replaced := len(l.set.rules), len(l.replaced)
	levels := l.keep.below(above, n)
	l.rule(fields, current, d, n, flags, path, levels)
	if f, ok := current.get("descriptors"); ok {
		l.descriptors(f, d, n, path, levels)
	}
	l.kindsApart(current, n, path)
	if flags.disabled {
		l.set.rules, l.replaced = l.set.rules[:rules], l.replaced[:replaced]
		return
	}
	l.insert(at, current, parent, n, path)
}

func valueOf(n *node) string {
	if n.value() == "" {
		return "is missing"
	}
	return "is " + strconv.Quote(n.value())
}

// identify reads key and value, and returns the descriptor's path.
func (l *loader) identify(at *yaml.Node, fields fieldList, path string) (*node, string) {
	key, value := "", ""
	if f, ok := fields.get("key"); ok {
		key, at = l.text(f, path), f.value
	}
	if key == "" {
		l.errorAt(at, path, "a descriptor without a key; want key: NAME")
	}
	if f, ok := fields.get("value"); ok {
		value = l.text(f, path)
	}
	if strings.Contains(key, "*") {
		l.warnAt(at, path, "the key %q has a \"*\", which stands for itself: only values are patterns", key)
	}
	if _, err := netip.ParsePrefix(value); err == nil && key == "remote_address" {
		l.warnAt(fields.at("value").value, path+".remote_address_"+value, "the value of remote_address is an address, so a network fits none; want masked_remote_address, whose value is the network that Envoy's action makes")
	}
	if l.paths -= len(path) + len(key) + len(value) + 2; l.paths < 0 && !l.exhausted() {
		l.left = 0
		l.errorAt(at, "", "too much text: each descriptor has the keys and values above it in its path; want shorter ones, or fewer descriptors below long ones")
	}
	return l.keep.node(path, key, value)
}

// flags are the keys of a descriptor that are true or false.
type flags struct{ shadow, quota, detailed, valueToMetric, shareThreshold, disabled bool }

// flags reads them, and reports keys that have no meaning.
func (l *loader) flags(fields fieldList, path string) (out flags) {
	for _, f := range fields {
		switch f.name {
		case "shadow_mode":
			out.shadow = l.boolean(f, path)
		case "quota_mode":
			out.quota = l.boolean(f, path)
		case "detailed_metric":
			out.detailed = l.boolean(f, path)
		case "value_to_metric":
			out.valueToMetric = l.boolean(f, path)
		case "share_threshold":
			out.shareThreshold = l.boolean(f, path)
		case "enabled":
			out.disabled = !isNull(f.value) && !l.boolean(f, path)
		case "key", "value", "rate_limit", "descriptors", "metadata":
		case "description":
			l.text(f, path)
		default:
			l.unknown(f, path, inDescriptor)
		}
	}
	return out
}

// insert makes n a child of parent.
func (l *loader) insert(at *yaml.Node, fields fieldList, parent, n *node, path string) {
	key, value := n.key(), n.value()
	if key == "" {
		return
	}
	if parent.children == nil {
		parent.children = map[string]*branch{}
	}
	if first, ok := l.nodes[nodeName{parent, n.name}]; ok {
		l.errorAt(at, path, "the descriptor is already defined at %s:%d; want one descriptor for %s at this level", first.file, first.line, n.name)
		return
	}
	l.nodes[nodeName{parent, n.name}] = l.place(at)
	b := parent.children[key]
	if b == nil {
		b = &branch{values: map[string]*node{}}
		parent.children[key] = b
	}
	l.unreached(fields, parent, b, n, path)
	if value == "" {
		b.all = n
		return
	}
	b.values[value] = n
	if n.pattern != nil {
		b.patterns = append(b.patterns, n)
	}
}

// rule reads the limit of a descriptor.
func (l *loader) rule(fields, current fieldList, d *domain, n *node, flags flags, path string, levels []*node) {
	var metadata map[string]any
	if f, ok := current.get("metadata"); ok {
		metadata = l.metadata(f, path)
	}
	rate, ok := l.rateLimit(fields, d, path)
	if !ok {
		l.warnIdle(current, flags, path)
		return
	}
	r := one(&l.keep.rules)
	*r = Rule{
		index: len(l.set.rules), domain: d, path: path, levels: levels,
		rateLimit: rate,
		shadow:    flags.shadow, quota: flags.quota, detailed: flags.detailed, metadata: metadata,
	}
	if r.then != "" && r.shadow {
		l.errorAt(current.at("shadow_mode").value, path, "shadow_mode and then are both given, but a rule in shadow mode has room for all; want one of them")
	}
	r.metricValues = r.detailed
	for _, level := range levels {
		if level.valueToMetric && (level.value() == "" || level.pattern != nil && !level.share) {
			r.metricValues = true
		}
	}
	n.rule = r
	l.set.rules = append(l.set.rules, r)
}

// warnIdle warns of keys about a limit in a descriptor without a limit.
func (l *loader) warnIdle(fields fieldList, flags flags, path string) {
	if _, ok := fields.get("rate_limit"); ok {
		return
	}
	for _, f := range fields {
		idle := false
		switch f.name {
		case "shadow_mode":
			idle = flags.shadow
		case "quota_mode":
			idle = flags.quota
		case "detailed_metric":
			idle = flags.detailed
		case "metadata":
			idle = true
		}
		if idle {
			l.warnAt(f.key, path, "%s means nothing without rate_limit; want both at the same descriptor", f.name)
		}
	}
}

// identity identifies the rule: different lists of keys and values have different identities.
func (r *Rule) identity() string {
	b := appendText(nil, r.domain.name)
	for _, n := range r.levels {
		b = appendText(appendText(b, n.key()), n.value())
	}
	return string(b)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// metadata reads a map of any values.
func (l *loader) metadata(f field, path string) map[string]any {
	if isNull(f.value) {
		return nil
	}
	if f.value.Kind != yaml.MappingNode {
		l.errorAt(f.value, path, "metadata is %s; want a map", show(f.value))
		return nil
	}
	m, _ := l.plain(f.value, path, 0).(map[string]any)
	return m
}

// plain turns a value into one that JSON can express.
func (l *loader) plain(n *yaml.Node, path string, depth int) any {
	if depth > maxDepth || l.exhausted() {
		l.errorAt(n, path, "metadata nests deeper than %d; want fewer levels", maxDepth)
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		for _, f := range l.fields(n, path) {
			m[f.name] = l.plain(f.value, path, depth+1)
		}
		return m
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			list = append(list, l.plain(l.follow(c), path, depth+1))
		}
		return list
	}
	switch scalarKind(n) {
	case nullKind:
		return nil
	case boolKind:
		return yamlBools[n.Value]
	case intKind:
		i, _ := yamlInt(n.Value)
		return i
	case otherKind:
		v, err := strconv.ParseFloat(strings.ReplaceAll(n.Value, "_", ""), 64)
		switch {
		case err != nil:
		case math.IsInf(v, 0) || math.IsNaN(v):
			l.errorAt(n, path, "metadata has the number %s, which JSON has no word for; want a finite one, or text in quotes", n.Value)
		default:
			return v
		}
	}
	return n.Value
}

// domainOptions reads "sluice".
func (l *loader) domainOptions(f field, d *domain, path string) {
	if f.value.Kind != yaml.MappingNode {
		l.errorAt(f.value, path, "sluice is %s; want a map with max_keys, overflow, atomic, count_denied, max_retry_after or retry_jitter", show(f.value))
		return
	}
	for _, f := range last(l.fields(f.value, path)) {
		switch f.name {
		case "max_keys":
			if n, ok := l.number(f, path, 1, maxMaxKeys); ok {
				d.maxKeys = int(n)
			}
		case "overflow":
			if err := d.overflow.UnmarshalText([]byte(l.text(f, path))); err != nil {
				l.errorAt(f.value, path, "overflow is %s; want %s, %s or %s", show(f.value), sluice.OverflowEvictSoonest, sluice.OverflowDenyNew, sluice.OverflowAdmitNew)
			}
			d.overflowSet = true
		case "atomic":
			d.atomic = l.boolean(f, path)
		case "count_denied":
			b := l.boolean(f, path)
			d.countDenied = &b
		case "max_retry_after":
			d.hint.Most, d.hints = l.duration(f, path, time.Second), true
			l.hintError(f, path, d.hint.CheckMost())
		case "retry_jitter":
			d.hint.Jitter, d.hints = l.duration(f, path, time.Second), true
			l.hintError(f, path, d.hint.CheckJitter())
		default:
			l.unknown(f, path, inDomainOptions)
		}
	}
	if d.atomic && d.countDenied != nil && *d.countDenied {
		l.errorAt(f.value, path, "atomic and count_denied are both true, but an atomic call that is denied counts nothing; want one of them")
	}
}

// hintError reports why a wait cannot be told as the field says; "" for no reason.
func (l *loader) hintError(f field, path, reason string) {
	if reason != "" {
		l.errorAt(f.value, path, "%s: %s", f.name, reason)
	}
}
