package httplimit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/sluice-go/sluice"
)

// IPConfig says how ByRemoteIP finds a client's address, and how much of it is the key.
// The zero value takes the socket peer, believes no header, and gives each IPv4 address
// and each IPv6 /64 a key.
type IPConfig struct {
	// TrustedProxies are the addresses of the proxies in front of this server, and of
	// nothing else: whoever has one of them can name any client it likes. If the socket
	// peer is not one of them, no header is looked at.
	//
	// IPv4 prefixes must be at least /8, IPv6 prefixes /16, except those within fc00::/7
	// and fe80::/10, which the internet cannot reach. So "trust everybody" cannot be
	// written. Where IPv6 addresses stand for IPv4 addresses, it is /24 in 2002::/16, and
	// /104 in 64:ff9b::/96, 64:ff9b:1::/48 and 2001::/32. Bits set beyond the length are
	// refused, too.
	TrustedProxies []netip.Prefix

	// TrustUnix makes peers on Unix sockets, which have no address, trusted proxies. It
	// is for servers whose socket only the proxy can open.
	TrustUnix bool

	// Header is the header in which the trusted proxies say whom they speak for. The name
	// says how it is read:
	//
	//   - X-Forwarded-For: a list of addresses. Each proxy appends its own peer.
	//   - Forwarded: a list by RFC 7239, of which "for" is read.
	//   - Any other, such as X-Real-IP or CF-Connecting-IP: one address, there once. The
	//     proxies must replace the clients' fields.
	//
	// It is required with TrustedProxies or TrustUnix, and refused without.
	Header string

	// RequireHeader makes a request from a trusted peer that has no Header an error
	// instead of a request of the peer itself; see ByRemoteIP.
	RequireHeader bool

	// OnMissingHeader is called for each request from a trusted peer without Header that is counted under the
	// peer's own address, to count them, say: if the peer is a proxy that does not write Header, all of its clients share one
	// budget. It does not change the key. nil logs the first one by slog.Default, which can be a health check. It is
	// refused with RequireHeader, under which there are none, and without TrustedProxies.
	OnMissingHeader func(*http.Request)

	// OnUntrustedProxy is called for each request from a peer that is no trusted proxy but
	// has sent X-Forwarded-For, Forwarded, X-Real-IP or Header, to count them, say: if the
	// peer is a proxy, all of its clients share its budget. It can be a client's own doing,
	// and does not change the key. nil looks at one request in 16, at random, and logs the
	// first one found by slog.Default.
	OnUntrustedProxy func(r *http.Request, header string)

	// IPv4Bits is how many bits of an IPv4 address are the key, 16 to 32. 0 means 32.
	IPv4Bits int

	// IPv6Bits is how many bits of an IPv6 address are the key, 32 to 128. 0 means 64:
	// the smallest network that is handed out, all of whose addresses one host can use.
	IPv6Bits int
}

// The headers that are lists.
const (
	headerXFF       = "X-Forwarded-For"
	headerForwarded = "Forwarded"
)

const (
	defaultIPv4Bits = 32
	defaultIPv6Bits = 64
)

// ByRemoteIP returns a function that makes a key of the client's IP address. All texts
// of one address are one key: "192.0.2.1", "2001:db8::/64". The error is a *ConfigError.
//
// Without trusted proxies the client is the socket peer, http.Request.RemoteAddr, which
// nothing must have overwritten. If the peer is a trusted proxy, the list in
// IPConfig.Header is walked from the right, where that proxy has written: the client is
// the first address that is no trusted proxy. The addresses to its left come from the client,
// and are never looked at. If all addresses are trusted, it is the leftmost. Of several
// header lines the last is the right end.
//
// IPv4-mapped addresses are IPv4 addresses, zones and ports are dropped, and the address
// is cut to IPv4Bits or IPv6Bits. Ranges of IPv6 in which an IPv4 address says who it is
// are cut so that each IPv4 address has one key, next to the key of the IPv4 address itself
// (anybody may be a relay for the tunnels, and could use up a foreign address's budget
// if it were the same):
//
//   - 64:ff9b::/96 (NAT64, RFC 6052) at /96 and IPv4Bits,
//   - 64:ff9b:1::/48 (local NAT64, RFC 8215) and ::/64 (with ::1) not at all,
//   - 2002::/16 (6to4, RFC 3056) at /16 and IPv4Bits,
//   - 2001::/32 (Teredo, RFC 4380) to its IPv4 address and IPv4Bits; server, flags and
//     port do not count.
//
// Behind a translator with another prefix, all IPv4 clients share a /64, unless
// IPv6Bits is 128 (where hosts with IPv6 of their own have as many keys as they like).
//
// Errors, all of which come before any limit is asked:
//
//   - ErrNoKey: RemoteAddr has no IP address, as on Unix sockets without TrustUnix.
//   - ErrBadKey: a trusted proxy has written something other than an address ("unknown", "_hidden",
//     an empty element, garbage), or a single-value header is there twice, or the list
//     goes on for more than 32 trusted proxies or 4096 bytes. With RequireHeader, and on
//     a Unix socket, also a trusted peer without the header.
//
// A malformed header is never attributed to the last address that was in order:
// that address is a proxy's, and one client could use up its budget for all that it sends on its
// own. A client behind proxies that append in order cannot cause it. A trusted peer that
// sends no header, or an empty one, speaks for itself, as health checks and internal
// callers do, and OnMissingHeader is told; where no trusted peer does, or a client could make a proxy drop the
// header (CVE-2022-31813), set RequireHeader.
//
// A client takes no allocation if its key is as the socket or a proxy has written it, as that
// of an IPv4 address is, or if it came lately: up to 1024 keys are kept. Any other takes one, and
// one in four of these two.
func ByRemoteIP(c IPConfig) (KeyFunc, error) {
	k, err := newIPKeyer(c)
	if err != nil {
		return nil, err
	}
	return k.key, nil
}

// ipKeyer is an IPConfig that has been checked.
type ipKeyer struct {
	trusted   []netip.Prefix
	trustUnix bool
	header    string // canonical
	required  bool
	v4, v6    int           // lengths of prefixes
	unnamed   *unnamedProxy // nil if nobody is to be told
	missing   *missingHeader
	noHeader  error
	texts     texts
}

func newIPKeyer(c IPConfig) (*ipKeyer, error) {
	k := &ipKeyer{
		trusted:   slices.Clone(c.TrustedProxies),
		trustUnix: c.TrustUnix,
		header:    http.CanonicalHeaderKey(c.Header),
		required:  c.RequireHeader,
		v4:        cmp.Or(c.IPv4Bits, defaultIPv4Bits),
		v6:        cmp.Or(c.IPv6Bits, defaultIPv6Bits),
		unnamed:   newUnnamedProxy(c),
		missing:   &missingHeader{hook: c.OnMissingHeader},
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	k.noHeader = fmt.Errorf("%w: trusted proxy has sent no header %s", ErrBadKey, k.header)
	return k, nil
}

func (c IPConfig) validate() error {
	proxies := len(c.TrustedProxies) > 0 || c.TrustUnix
	switch {
	case c.IPv4Bits != 0 && (c.IPv4Bits < 16 || c.IPv4Bits > 32):
		return configErrorf("IPConfig.IPv4Bits", "%d is not a length of prefix to limit by; want 16 to 32, or 0 for %d", c.IPv4Bits, defaultIPv4Bits)
	case c.IPv6Bits != 0 && (c.IPv6Bits < 32 || c.IPv6Bits > 128):
		return configErrorf("IPConfig.IPv6Bits", "%d is not a length of prefix to limit by; want 32 to 128, or 0 for %d", c.IPv6Bits, defaultIPv6Bits)
	case proxies && c.Header == "":
		return configErrorf("IPConfig.Header", "is empty with trusted proxies; want the header that they write, such as "+headerXFF)
	case !proxies && c.Header != "":
		return configErrorf("IPConfig.Header", "%.64q without TrustedProxies would believe every client; want the addresses of the proxies that write it", c.Header)
	case !proxies && c.RequireHeader:
		return configErrorf("IPConfig.RequireHeader", "is set without TrustedProxies, so no header is read; want the addresses of the proxies")
	case c.OnMissingHeader != nil && (len(c.TrustedProxies) == 0 || c.RequireHeader):
		return configErrorf("IPConfig.OnMissingHeader", "is set without TrustedProxies, or with RequireHeader, so that no request is counted under a proxy's address; want TrustedProxies alone, or nil")
	case proxies && !isToken(c.Header):
		return notAToken("IPConfig.Header", c.Header, headerXFF)
	}
	for i, p := range c.TrustedProxies {
		if reason := refuseTrust(p); reason != "" {
			return configErrorf(fmt.Sprintf("IPConfig.TrustedProxies[%d]", i), "%s", reason)
		}
	}
	return nil
}

// refuseTrust says why the addresses in p cannot all be trusted proxies, or nothing.
//
// The bounds let every private block pass, 10.0.0.0/8 being the widest of IPv4, and no
// operator has proxies all over a wider one of the internet.
func refuseTrust(p netip.Prefix) string {
	a, bits := p.Addr(), p.Bits()
	switch {
	case !p.IsValid():
		return "is not a prefix; want one made by netip.ParsePrefix, such as 10.0.0.0/8"
	case a.Is4In6():
		return fmt.Sprintf("%v is IPv4-mapped, and addresses are compared as IPv4; want the IPv4 prefix", p)
	case p != p.Masked():
		return fmt.Sprintf("%v has bits set beyond its length; want %v, or %v/%d for that address alone", p, p.Masked(), a, a.BitLen())
	case a.Is4() && bits < 8:
		return fmt.Sprintf("%v trusts too much of the internet; want at least /8, and only addresses of proxies", p)
	case a.Is4(), uniqueLocal.Contains(a) && bits >= uniqueLocal.Bits(), linkLocal.Contains(a) && bits >= linkLocal.Bits():
		return ""
	case bits < 16:
		return fmt.Sprintf("%v trusts too much of the internet; want at least /16, and only addresses of proxies", p)
	}
	for _, r := range embedded {
		if p.Overlaps(r.prefix) && bits < r.least {
			return fmt.Sprintf("%v holds IPv4 addresses by way of %v; want at least /%d there, and only addresses of proxies", p, r.prefix, r.least)
		}
	}
	return ""
}

// key is the KeyFunc.
func (k *ipKeyer) key(r *http.Request) (string, error) {
	n, err := k.client(r)
	if err != nil {
		return "", err
	}
	return k.text(n), nil
}

// Ranges in which a prefix of the usual length does not stand for one owner.
var (
	uniqueLocal = netip.MustParsePrefix("fc00::/7")
	linkLocal   = netip.MustParsePrefix("fe80::/10")
	reserved    = netip.MustParsePrefix("::/64")
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64  = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour   = netip.MustParsePrefix("2002::/16")
	teredo      = netip.MustParsePrefix("2001::/32")
)

// embedded are the ranges through which all of IPv4 may come, and the lengths from which
// a prefix in them holds no more of it than an IPv4 /8.
var embedded = []struct {
	prefix netip.Prefix
	least  int
}{{nat64, 96 + 8}, {localNAT64, 96 + 8}, {sixToFour, 16 + 8}, {teredo, 96 + 8}}

// cut returns the part of a that its owner does not choose.
func (k *ipKeyer) cut(a netip.Addr) netip.Prefix {
	bits := k.v6
	switch {
	case a.Is4():
		bits = k.v4
	case nat64.Contains(a):
		bits = nat64.Bits() + k.v4
	case sixToFour.Contains(a):
		bits = sixToFour.Bits() + k.v4
	case reserved.Contains(a), localNAT64.Contains(a):
		bits = 128
	case teredo.Contains(a):
		b := a.As16()
		clear(b[4:12]) // the rest is the client's address, its bits inverted
		a, bits = netip.AddrFrom16(b), 96+k.v4
	}
	p, _ := a.Prefix(bits) // bits are in range
	return p
}

// text returns the key of n.
func (k *ipKeyer) text(n node) string {
	p := k.cut(n.addr)
	if !p.IsSingleIP() {
		return k.texts.of(p)
	}
	var space [64]byte
	if b := p.Addr().AppendTo(space[:0]); string(b) != n.text {
		return k.texts.of(p)
	}
	return n.text // no allocation
}

// texts keeps the texts of prefixes that were seen lately, so that the texts of clients that come
// again need not be made again.
type texts [1024]atomic.Pointer[prefixText]

type prefixText struct {
	prefix netip.Prefix
	text   string
}

// keptOneIn is of how many new texts one is kept: a client that comes again soon has its own,
// and a flood of strangers costs little more than the texts.
const keptOneIn = 4

// of returns the text of a prefix, or of the address that it is.
func (t *texts) of(p netip.Prefix) string {
	b := p.Addr().As16()
	mixed := (binary.BigEndian.Uint64(b[:8]) ^ bits.ReverseBytes64(binary.BigEndian.Uint64(b[8:]))) * 0x9e3779b97f4a7c15 // the golden ratio
	place := &t[mixed>>54]
	if kept := place.Load(); kept != nil && kept.prefix == p {
		return kept.text
	}
	var space [64]byte
	text := ""
	if p.IsSingleIP() {
		text = string(p.Addr().AppendTo(space[:0]))
	} else {
		text = string(p.AppendTo(space[:0]))
	}
	if rand.Uint32()%keptOneIn == 0 {
		place.Store(&prefixText{p, text})
	}
	return text
}

// tierBits are the prefixes of IPTiers: a network, a household, a site
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
// requests that it admits. Neighbours in an IPv4 network are strangers, and must not share a
// budget. ip.IPv4Bits holds for all three.
//
// The client's address is found as by ByRemoteIP with ip, whose IPv6Bits must be 0.
// Each limiter has the rest of base, MaxKeys and Soft among it, for itself. The errors
// are a *ConfigError, also for a growth that is not 2 to 255 (the /56 would have the
// budget of all its 256 networks) and for a limit that is too large to grow, and the errors of
// sluice.New, wrapped.
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
			key.unnamed, key.missing = nil, nil // the first one tells
		}
		c := base
		if max(c.Limit.Rate, c.Limit.Burst) > math.MaxInt/factor {
			return nil, configErrorf("IPTiers.base.Limit", "%s: %d times a limit of %v is too large to count; want a smaller limit", name, factor, base.Limit)
		}
		c.Limit.Rate *= factor
		if c.Limit.Burst > 0 {
			c.Limit.Burst *= factor
		}
		limiter, err := sluice.New(c)
		if err != nil {
			return nil, fmt.Errorf("httplimit: %s: %w", name, err)
		}
		policies[i] = Policy{Name: name, Limiter: limiter, Key: key.key}
		factor *= growth
	}
	return policies, nil
}
