package httplimit

import (
	"fmt"
	"math"

	"github.com/sluice-go/sluice"
)

// tierBits are the prefixes of IPTiers: a network, what a household gets, a site
// (RFC 6177).
var tierBits = [...]int{64, 56, 48}

// IPTiers returns three policies, named ip-64, ip-56 and ip-48, that together keep the
// owner of a large IPv6 block from having the budget of each /64 in it. A limiter with
// base is for each /64; one with growth times its Limit (rate and burst) for each /56;
// and one with growth times that for each /48. A request must pass all three. So the
// 65,536 networks of a /48 have growth*growth times the budget of one. 4 is a good
// growth where a /64 is a household's.
//
// IPv4 addresses, and IPv6 addresses with one inside (see ByRemoteIP), are held to base:
// the wider policies have the same key for them as the first, so that they never deny
// what it admits. Neighbours in an IPv4 network are strangers, and must not share a
// budget. ip.IPv4Bits holds for all three.
//
// The client's address is found as by ByRemoteIP with ip, whose IPv6Bits must be 0.
// Each limiter has the rest of base, MaxKeys and Soft among it, for itself. The errors
// are a *ConfigError, also for a growth that is not 2 to 255 (the /56 would have the
// budget of all its 256 networks) and for a limit that is too large to grow, and what
// sluice.New returns, wrapped.
func IPTiers(ip IPConfig, base sluice.Config, growth int) ([]Policy, error) {
	switch {
	case ip.IPv6Bits != 0:
		return nil, configErrorf("IPConfig.IPv6Bits", "%d with IPTiers, which sets it for each tier; want 0", ip.IPv6Bits)
	case growth < 2 || growth > 255:
		return nil, configErrorf("IPTiers.growth", "%d; want 2 to 255, since from 256 on wider tiers deny nothing", growth)
	}
	policies := make([]Policy, len(tierBits))
	factor := 1
	for i, bits := range tierBits {
		name := fmt.Sprintf("ip-%d", bits)
		ip.IPv6Bits = bits
		key, err := newIPKeyer(ip)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			key.unnamed = nil // the first one tells
		}
		c := base
		if max(c.Limit.Rate, c.Limit.Burst) > math.MaxInt/factor {
			return nil, configErrorf("IPTiers.base.Limit", "%s: %d times a limit of %v is too large to count; want a smaller limit", name, factor, base.Limit)
		}
		c.Limit.Rate *= factor
		c.Limit.Burst *= factor
		limiter, err := sluice.New(c)
		if err != nil {
			return nil, fmt.Errorf("httplimit: %s: %w", name, err)
		}
		policies[i] = Policy{Name: name, Limiter: limiter, Key: key.key}
		factor *= growth
	}
	return policies, nil
}
