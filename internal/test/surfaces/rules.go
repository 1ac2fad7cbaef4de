package surfaces

import (
	"fmt"
	"strings"
)

// RuleFile is the policies as rules of the domain d, each with a descriptor of its name and the client.
func RuleFile(s *Setup) string {
	var actions, descriptors strings.Builder
	for _, p := range s.Policies {
		c := p.Config
		fmt.Fprintf(&actions, "- actions: [{generic_key: {descriptor_key: %s, descriptor_value: %[1]s}}, {remote_address: {}}]\n", p.Name)
		fmt.Fprintf(&descriptors, "- key: %s\n  descriptors: [{key: remote_address, shadow_mode: %v, rate_limit: {name: %[1]s, period: %[3]v, requests_per_unit: %d, algorithm: %v",
			p.Name, c.Shadow, c.Limit.Period, c.Limit.Rate, c.Algorithm)
		if c.Offset > 0 {
			fmt.Fprintf(&descriptors, ", offset: %v", c.Offset)
		}
		if c.BlockFor > 0 {
			fmt.Fprintf(&descriptors, ", block_for: %v", c.BlockFor)
		}
		if p.CountsDenialsOf != "" {
			fmt.Fprintf(&descriptors, ", counts_denials_of: %s", p.CountsDenialsOf)
		}
		descriptors.WriteString("}}]\n")
	}
	var told strings.Builder
	if s.MaxRetryAfter > 0 {
		fmt.Fprintf(&told, "sluice:\n  max_retry_after: %v\n", s.MaxRetryAfter)
	}
	if s.RetryJitter > 0 {
		fmt.Fprintf(&told, "  retry_jitter: %v\n", s.RetryJitter)
	}
	return "domain: d\n" + told.String() + "http:\n" + actions.String() + "descriptors:\n" + descriptors.String()
}
