package rules

import (
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubernetes returns the value of "kind" of a manifest of Kubernetes.
func kubernetes(root *yaml.Node) (kind *yaml.Node, ok bool) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "apiVersion":
			ok = true
		case "kind":
			kind = root.Content[i+1]
		case "domain":
			return nil, false
		}
	}
	return kind, ok && kind != nil && kind.Kind == yaml.ScalarNode
}

// manifest reads the rules in the data of a ConfigMap, each as a file of rules.
func (l *loader) manifest(f File, root, kind *yaml.Node) bool {
	if kind.Value != "ConfigMap" {
		l.errorAt(kind, "", "the file is a Kubernetes %s; want a file of rules, or a ConfigMap of them: a policy of a gateway is translated by its controller", kind.Value)
		return true
	}
	if l.within {
		l.errorAt(kind, "", "the file is a Kubernetes ConfigMap within another; want a file of rules")
		return true
	}
	l.within = true
	defer func() { l.within = false }()
	found := false
	data := last(l.fields(root, "")).at("data")
	if data.value == nil || data.value.Kind != yaml.MappingNode {
		data.value = &yaml.Node{}
	}
	for i := 0; i+1 < len(data.value.Content); i += 2 {
		key, value := data.value.Content[i], l.follow(data.value.Content[i+1])
		switch ext := path.Ext(key.Value); {
		case ext != ".yaml" && ext != ".yml":
			l.warnAt(key, "", "data has %s, which is not read; want names of rules to end in .yaml or .yml", key.Value)
			continue
		case value.Kind != yaml.ScalarNode:
			l.errorAt(value, "", "%s is %s; want the text of a file of rules", key.Value, show(value))
			continue
		}
		found = true
		if !l.load(File{f.Name, l.inPlace(value)}) {
			return false
		}
	}
	if !found {
		l.errorAt(root, "", "the ConfigMap has no rules; want data with a name that ends in .yaml or .yml")
	}
	return true
}

// inPlace returns the text of a value behind as many lines as it has above it, so that problems name its lines.
func (l *loader) inPlace(value *yaml.Node) []byte {
	above := value.Line - 1
	if value.Style == yaml.LiteralStyle || value.Style == yaml.FoldedStyle {
		above = value.Line
	}
	return []byte(strings.Repeat("\n", above) + value.Value)
}
