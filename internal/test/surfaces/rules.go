package surfaces

import (
	"fmt"
	"strings"
)

// RuleFile is policies as rules of the domain d, each with a descriptor of its name and the client.
func RuleFile(policies []*Policy) string {
	var actions, descriptors strings.Builder
	for _, p := range policies {
		c := p.Config
		fmt.Fprintf(&actions, "- actions: [{generic_key: {descriptor_key: %s, descriptor_value: %[1]s}}, {remote_address: {}}]\n", p.Name)
		fmt.Fprintf(&descriptors, "- key: %s\n  descriptors: [{key: remote_address, shadow_mode: %v, rate_limit: {period: %v, requests_per_unit: %d, algorithm: %v",
			p.Name, c.Shadow, c.Limit.Period, c.Limit.Rate, c.Algorithm)
		if c.Offset > 0 {
			fmt.Fprintf(&descriptors, ", offset: %v", c.Offset)
		}
		descriptors.WriteString("}}]\n")
	}
	return "domain: d\nhttp:\n" + actions.String() + "descriptors:\n" + descriptors.String()
}
