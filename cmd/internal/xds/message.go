package xds

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-go/sluice/rules"
)

// A RateLimitConfig is one domain. It is turned into the file that says the same, so that rules are
// checked, and mean the same, wherever they come from. No Go module has the newest form of the message: the
// numbers of its fields are here, those of
//
//	RateLimitConfig: name 1, domain 2, descriptors 3
//	RateLimitDescriptor: key 1, value 2, rate_limit 3, descriptors 4, shadow_mode 5, detailed_metric 6,
//	  quota_mode 7, metadata 8 (a Struct)
//	RateLimitPolicy: unit 1, requests_per_unit 2, unlimited 3, name 4, replaces 5 (messages: name 1)
//
// Fields with other numbers are newer, and are passed over, as every reader of protocol buffers does.

// maxDepth bounds how deep descriptors nest. Package rules has a bound of its own, which is lower.
const maxDepth = 2000

var errMessage = errors.New("the message is no RateLimitConfig")

// file turns a resource into a file of rules.
func file(resource *anypb.Any) (rules.File, error) {
	if resource.GetTypeUrl() != TypeURL {
		return rules.File{}, fmt.Errorf("a resource of type %q; want %s", resource.GetTypeUrl(), TypeURL)
	}
	name, domain := "", ""
	descriptors := list()
	err := fields(resource.GetValue(), func(number protowire.Number, v value) (err error) {
		switch number {
		case 1:
			name, err = v.string()
		case 2:
			domain, err = v.string()
		case 3:
			err = appendMessage(descriptors, v, func(b []byte) (*yaml.Node, error) { return descriptor(b, 1) })
		}
		return err
	})
	if err != nil {
		return rules.File{}, fmt.Errorf("resource %q: %w", name, err)
	}
	root := mapping()
	add(root, "domain", text(domain))
	if len(descriptors.Content) > 0 {
		add(root, "descriptors", descriptors)
	}
	data, err := yaml.Marshal(root)
	if err != nil {
		return rules.File{}, fmt.Errorf("resource %q: %w", name, err)
	}
	if name == "" {
		name = domain
	}
	return rules.File{Name: name, Data: data}, nil
}

func descriptor(b []byte, depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("descriptors nest deeper than %d", maxDepth)
	}
	out, below := mapping(), list()
	err := fields(b, func(number protowire.Number, v value) error {
		switch number {
		case 1:
			return setText(out, "key", v)
		case 2:
			return setText(out, "value", v)
		case 3:
			b, err := v.bytes()
			if err != nil {
				return err
			}
			limit, err := policy(b)
			set(out, "rate_limit", limit)
			return err
		case 4:
			return appendMessage(below, v, func(b []byte) (*yaml.Node, error) { return descriptor(b, depth+1) })
		case 5:
			return setBool(out, "shadow_mode", v)
		case 6:
			return setBool(out, "detailed_metric", v)
		case 7:
			return setBool(out, "quota_mode", v)
		case 8:
			return setStruct(out, "metadata", v)
		}
		return nil
	})
	if len(below.Content) > 0 {
		add(out, "descriptors", below)
	}
	sortFields(out)
	return out, err
}

// policy reads a limit. A requests_per_unit that is absent is 0: the protocol does not tell them apart.
func policy(b []byte) (*yaml.Node, error) {
	unit, requests, unlimited := uint64(0), uint64(0), false
	out, replaces := mapping(), list()
	err := fields(b, func(number protowire.Number, v value) (err error) {
		switch number {
		case 1:
			unit, err = v.number()
		case 2:
			requests, err = v.number()
			requests = uint64(uint32(requests))
		case 3:
			var n uint64
			n, err = v.number()
			unlimited = n != 0
		case 4:
			err = setText(out, "name", v)
		case 5:
			err = appendMessage(replaces, v, replaced)
		}
		return err
	})
	if unlimited {
		set(out, "unlimited", boolean(true))
	}
	if unit != 0 || !unlimited {
		name := rules.UnknownUnit.String()
		if unit <= uint64(rules.Week) {
			name = rules.Unit(unit).String()
		}
		set(out, "unit", text(name))
	}
	if requests != 0 || !unlimited {
		set(out, "requests_per_unit", scalar("!!int", strconv.FormatUint(requests, 10)))
	}
	if len(replaces.Content) > 0 {
		add(out, "replaces", replaces)
	}
	sortFields(out)
	return out, err
}

func replaced(b []byte) (*yaml.Node, error) {
	out := mapping()
	err := fields(b, func(number protowire.Number, v value) error {
		if number == 1 {
			return setText(out, "name", v)
		}
		return nil
	})
	return out, err
}

// value is the value of a field: a number, or bytes.
type value struct {
	kind protowire.Type
	n    uint64
	data []byte
}

// fields calls f for each field of a message, in order.
func fields(b []byte, f func(protowire.Number, value) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMessage
		}
		b = b[n:]
		v := value{kind: kind}
		switch kind {
		case protowire.VarintType:
			v.n, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			v.data, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return errMessage
		}
		b = b[n:]
		if err := f(number, v); err != nil {
			return err
		}
	}
	return nil
}

func (v value) number() (uint64, error) {
	if v.kind != protowire.VarintType {
		return 0, errMessage
	}
	return v.n, nil
}

func (v value) bytes() ([]byte, error) {
	if v.kind != protowire.BytesType {
		return nil, errMessage
	}
	return v.data, nil
}

func (v value) string() (string, error) {
	b, err := v.bytes()
	return string(b), err
}

// The nodes of a file. Text is in quotes, so that no value is taken for anything else.

func scalar(tag, s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: s}
}

func text(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: s}
}

func boolean(b bool) *yaml.Node { return scalar("!!bool", strconv.FormatBool(b)) }

func list() *yaml.Node { return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"} }

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }

func add(m *yaml.Node, key string, v *yaml.Node) {
	m.Content = append(m.Content, scalar("!!str", key), v)
}

// order is how fields follow one another in a file. Messages may have theirs in any order, and say the same.
var order = []string{"key", "value", "rate_limit", "unit", "requests_per_unit", "unlimited", "name", "replaces",
	"shadow_mode", "quota_mode", "detailed_metric", "metadata", "descriptors"}

func sortFields(m *yaml.Node) {
	pairs := slices.SortedStableFunc(slices.Chunk(m.Content, 2), func(a, b []*yaml.Node) int {
		return slices.Index(order, a[0].Value) - slices.Index(order, b[0].Value)
	})
	m.Content = slices.Concat(pairs...)
}

// set puts a field that may come again, of which the last counts.
func set(m *yaml.Node, key string, v *yaml.Node) {
	for i := 0; i < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content[i+1] = v
			return
		}
	}
	add(m, key, v)
}

// setText leaves out an empty text, which the protocol does not tell from an absent one.
func setText(m *yaml.Node, key string, v value) error {
	s, err := v.string()
	if err == nil && s != "" {
		set(m, key, text(s))
	}
	return err
}

func setBool(m *yaml.Node, key string, v value) error {
	n, err := v.number()
	if err == nil {
		set(m, key, boolean(n != 0))
	}
	return err
}

func setStruct(m *yaml.Node, key string, v value) error {
	b, err := v.bytes()
	if err != nil {
		return err
	}
	var s structpb.Struct
	if err := proto.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is no google.protobuf.Struct", key)
	}
	var n yaml.Node
	if err := n.Encode(s.AsMap()); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	quote(&n)
	set(m, key, &n)
	return nil
}

// quote puts the texts of a value into quotes.
func quote(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		quote(c)
	}
}

func appendMessage(to *yaml.Node, v value, read func([]byte) (*yaml.Node, error)) error {
	b, err := v.bytes()
	if err != nil {
		return err
	}
	n, err := read(b)
	to.Content = append(to.Content, n)
	return err
}
