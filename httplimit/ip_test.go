package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-go/sluice"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fromPeer is a request from a socket peer, with pairs of header name and value.
func fromPeer(remoteAddr string, header ...string) *http.Request {
	r := (&http.Request{RemoteAddr: remoteAddr, Header: http.Header{}}).WithContext(context.Background())
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// keyOf returns the key of a request that has one.
func keyOf(tb testing.TB, f KeyFunc, r *http.Request) string {
	tb.Helper()
	key, err := f(r)
	require.NoError(tb, err)
	require.NotEmpty(tb, key)
	return key
}

// requireKeyError checks that r has no key, and an error of one kind only.
func requireKeyError(tb testing.TB, f KeyFunc, r *http.Request, want error) {
	tb.Helper()
	key, err := f(r)
	require.ErrorIs(tb, err, want)
	require.Empty(tb, key)
	require.Less(tb, len(err.Error()), 600, "an error must not repeat all of what it was sent")
	for _, other := range []error{ErrNoKey, ErrBadKey, ErrKeyTooLong} {
		require.Equal(tb, other == want, errors.Is(err, other), "%v is %v", err, other)
	}
}

func TestByRemoteIP_EveryTextOfAnAddressIsOneKey(t *testing.T) {
	plain := sluice.Must(ByRemoteIP(IPConfig{}))
	behind := sluice.Must(ByRemoteIP(IPConfig{TrustedProxies: prefixes("10.0.0.1/32"), Header: "X-Forwarded-For"}))
	for want, texts := range map[string][]string{
		"192.0.2.1": {
			"192.0.2.1", "192.0.2.1:1", "192.0.2.1:65535", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]:80",
			"[::ffff:c000:201]:80", "::FFFF:C000:0201", "[0:0:0:0:0:ffff:192.0.2.1]", "[::ffff:192.0.2.1%eth0]:80",
			"0000:0000:0000:0000:0000:ffff:c000:0201",
		},
		"2001:db8::/64": {
			"2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:80", "2001:DB8::1", "2001:0db8:0000:0000:0000:0000:0000:0001",
			"2001:db8:0:0::1", "[2001:db8::1%eth0]:80", "[2001:db8::1%1]", "2001:db8::1%zone", "2001:db8::192.0.2.1",
			"[2001:db8::ffff:ffff:ffff:ffff]:4711",
		},
		"fe80::/64": {"[fe80::1%eth0]:80", "[fe80::1%wlan0]:80", "fe80::1", "[fe80::2%25eth0]:80"},
		"::1":       {"[::1]:80", "::1", "0:0:0:0:0:0:0:1", "[::0.0.0.1]:80"},
	} {
		for _, text := range texts {
			assert.Equal(t, want, keyOf(t, plain, fromPeer(text)), "peer %s", text)
			assert.Equal(t, want, keyOf(t, behind, fromPeer("10.0.0.1:80", "X-Forwarded-For", text)), "hop %s", text)
		}
	}
}

func TestByRemoteIP_TextsThatAreNoAddressHaveNoKey(t *testing.T) {
	plain := sluice.Must(ByRemoteIP(IPConfig{}))
	behind := sluice.Must(ByRemoteIP(IPConfig{TrustedProxies: prefixes("10.0.0.1/32"), Header: "X-Forwarded-For"}))
	for _, text := range []string{
		"@", "/run/app.sock", "unix:", "localhost:80", "example.com", ":80", "[]:80", "[", "]", "[::1", "::1]", "[::1]80", "[::1]:",
		"192.0.2.1:", "192.0.2.1:x", "192.0.2.1:123456", "192.0.2.1:-1", "192.0.2.1:_", "192.0.2.1:_a b", "192.0.2.1:+1",
		"192.0.2.01", "192.0.2.001", "0300.0.2.1", "0xc0.0.2.1", "3221225985", "192.0.513", "192.0.2", "192.0.2.1.", ".192.0.2.1",
		"192.0.2.256", "192.0.2.1%eth0", "[192.0.2.1]", "[192.0.2.1]:80", "fe80::1%", "[fe80::1%]:80", "fe80::1%a\"", "fe80::1%\\", "fe80::1%a b", "fe80::1%a:1", "2001:db8::1::", "2001:db8:::1",
		"12345::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "::ffff:192.0.2.01", "192.0.2.1 192.0.2.2", "192.0.2.1/32", "2001:db8::/64",
		"\u0661\u0669\u0662.0.2.1", "192.0.2.1\x00", "\xff", "unknown", "_hidden", "\"192.0.2.1\"", "for=192.0.2.1",
	} {
		requireKeyError(t, plain, fromPeer(text), ErrNoKey)
		requireKeyError(t, behind, fromPeer("10.0.0.1:80", "X-Forwarded-For", text), ErrBadKey)
	}
	requireKeyError(t, plain, fromPeer(""), ErrNoKey)
	requireKeyError(t, plain, &http.Request{}, ErrNoKey)
}

func TestByRemoteIP_CutsToPrefixes(t *testing.T) {
	for _, c := range []struct {
		v4, v6     int
		addr, want string
	}{
		{0, 0, "192.0.2.129", "192.0.2.129"},
		{32, 64, "192.0.2.129", "192.0.2.129"},
		{31, 0, "192.0.2.129", "192.0.2.128/31"},
		{24, 0, "192.0.2.129", "192.0.2.0/24"},
		{24, 0, "::ffff:192.0.2.129", "192.0.2.0/24"},
		{16, 0, "192.0.2.129", "192.0.0.0/16"},
		{0, 128, "2001:DB8::A:B", "2001:db8::a:b"},
		{0, 127, "2001:db8::b", "2001:db8::a/127"},
		{0, 65, "2001:db8:1:2:ffff::", "2001:db8:1:2:8000::/65"},
		{0, 64, "2001:db8:1:2:ffff::", "2001:db8:1:2::/64"},
		{0, 56, "2001:db8:1:1ff::1", "2001:db8:1:100::/56"},
		{0, 48, "2001:db8:1:1ff::1", "2001:db8:1::/48"},
		{0, 32, "2001:db8:1:1ff::1", "2001:db8::/32"},
		{16, 48, "64:ff9b::c000:201", "64:ff9b::c000:0/112"},
		{0, 48, "64:ff9b::c000:201", "64:ff9b::c000:201"},
		{0, 64, "64:ff9b::1:c000:201", "64:ff9b::/64"}, // beside NAT64
		{0, 32, "64:ff9b:1:2::c000:201", "64:ff9b:1:2::c000:201"},
		{0, 128, "2002:c000:201:ffff::1", "2002:c000:201::/48"},
		{24, 32, "2002:c000:201:ffff::1", "2002:c000:200::/40"},
		{0, 64, "2001:0:1234:5678:8000:fbb9:3fff:fdfe", "2001::3fff:fdfe"}, // 192.0.2.1, inverted
		{24, 64, "2001:0:1234:5678:8000:fbb9:3fff:fdfe", "2001::3fff:fd00/120"},
		{0, 32, "::192.0.2.1", "::c000:201"},
		{0, 48, "::ffff:0:192.0.2.1", "::ffff:0:c000:201"},
		{0, 64, "::", "::"},
	} {
		f, err := ByRemoteIP(IPConfig{IPv4Bits: c.v4, IPv6Bits: c.v6})
		require.NoError(t, err)
		assert.Equal(t, c.want, keyOf(t, f, fromPeer(c.addr)), "%s to /%d, /%d", c.addr, c.v4, c.v6)
	}
}

// In each of these forms of an IPv4 address, two addresses have two keys, however far
// IPv6 addresses are cut. Only the mapped form is the address itself.
func TestByRemoteIP_IPv4ClientsNeverShareAKey(t *testing.T) {
	forms := []func([4]byte) [16]byte{
		func(a [4]byte) [16]byte { return netip.AddrFrom4(a).As16() }, // mapped
		func(a [4]byte) [16]byte { return [16]byte{0, 0x64, 0xff, 0x9b, 12: a[0], a[1], a[2], a[3]} },
		func(a [4]byte) [16]byte { return [16]byte{0, 0x64, 0xff, 0x9b, 0, 1, 12: a[0], a[1], a[2], a[3]} },
		func(a [4]byte) [16]byte { return [16]byte{0, 0x64, 0xff, 0x9b, 0, 1, a[0], a[1], 9: a[2], a[3]} },
		func(a [4]byte) [16]byte { return [16]byte{0x20, 0x02, a[0], a[1], a[2], a[3], 15: 1} },
		func(a [4]byte) [16]byte { return [16]byte{0x20, 0x01, 15: ^a[3], 14: ^a[2], 13: ^a[1], 12: ^a[0]} },
		func(a [4]byte) [16]byte { return [16]byte{12: a[0], a[1], a[2], a[3]} },
		func(a [4]byte) [16]byte { return [16]byte{8: 0xff, 0xff, 12: a[0], a[1], a[2], a[3]} },
	}
	for _, bits := range []int{32, 48, 56, 64, 128} {
		f := sluice.Must(ByRemoteIP(IPConfig{IPv6Bits: bits}))
		seen := map[string]netip.Addr{}
		for i, form := range forms {
			for _, a := range [][4]byte{{192, 0, 2, 1}, {192, 0, 2, 2}, {192, 0, 3, 1}, {192, 1, 2, 1}, {193, 0, 2, 1}} {
				addr := netip.AddrFrom16(form(a))
				key := keyOf(t, f, fromPeer(netip.AddrPortFrom(addr, 80).String()))
				require.NotContains(t, seen, key, "%v and %v", addr, seen[key])
				seen[key] = addr
				require.Equal(t, i == 0, key == netip.AddrFrom4(a).String(), "%v", addr)
			}
		}
	}
}

// The part of its address that a host can choose by itself is no part of the key.
func TestByRemoteIP_HoppingAddressesIsNoUse(t *testing.T) {
	f := sluice.Must(ByRemoteIP(IPConfig{}))
	for _, c := range []struct {
		base      string
		chosen    []int // bytes
		forbidden int   // a byte that is not of the host's choice
	}{
		{"2001:db8:1:2::", []int{8, 9, 10, 11, 12, 13, 14, 15}, 7},
		{"2002:c000:201::", []int{6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 5},
		{"2001:0:c000:201::3fff:fdfe", []int{4, 5, 6, 7, 8, 9, 10, 11}, 15},
		{"fe80::1", []int{8, 9, 10, 11, 12, 13, 14, 15}, 7},
	} {
		base := netip.MustParseAddr(c.base).As16()
		want := keyOf(t, f, fromPeer(netip.AddrFrom16(base).String()))
		for _, at := range c.chosen {
			b := base
			b[at] ^= 0xff
			require.Equal(t, want, keyOf(t, f, fromPeer(netip.AddrFrom16(b).String())), "%s, byte %d", c.base, at)
		}
		b := base
		b[c.forbidden] ^= 1
		require.NotEqual(t, want, keyOf(t, f, fromPeer(netip.AddrFrom16(b).String())), "%s", c.base)
	}
}

func TestByRemoteIP_ConfigErrors(t *testing.T) {
	trust := func(s string) IPConfig {
		return IPConfig{TrustedProxies: prefixes("10.0.0.1/32", s), Header: "X-Real-IP"}
	}
	const nth = "IPConfig.TrustedProxies[1]: "
	for want, c := range map[string]IPConfig{
		"IPConfig.IPv4Bits: 15 is not a length of prefix to limit by; want 16 to 32, or 0 for 32":                                           {IPv4Bits: 15},
		"IPConfig.IPv4Bits: 33 is not a length of prefix to limit by; want 16 to 32, or 0 for 32":                                           {IPv4Bits: 33},
		"IPConfig.IPv4Bits: -1 is not a length of prefix to limit by; want 16 to 32, or 0 for 32":                                           {IPv4Bits: -1},
		"IPConfig.IPv6Bits: 31 is not a length of prefix to limit by; want 32 to 128, or 0 for 64":                                          {IPv6Bits: 31},
		"IPConfig.IPv6Bits: 129 is not a length of prefix to limit by; want 32 to 128, or 0 for 64":                                         {IPv6Bits: 129},
		"IPConfig.Header: is empty with trusted proxies; want the header that they write, such as X-Forwarded-For":                          {TrustedProxies: prefixes("10.0.0.0/8")},
		"IPConfig.Header: \"X-Real-IP\" without TrustedProxies would believe every client; want the addresses of the proxies that write it": {Header: "X-Real-IP"},
		"IPConfig.RequireHeader: is set without TrustedProxies, so no header is read; want the addresses of the proxies":                    {RequireHeader: true},
		"IPConfig.Header: \"X Real IP\" is no name; want letters, digits and any of !#$%&'*+-.^_`|~, as in X-Forwarded-For":                 {Header: "X Real IP", TrustUnix: true},
		"IPConfig.TrustedProxies[0]: is not a prefix; want one made by netip.ParsePrefix, such as 10.0.0.0/8":                               {TrustedProxies: make([]netip.Prefix, 1), Header: "X-Real-IP"},
		nth + "0.0.0.0/0 trusts too much of the internet; want at least /8, and only addresses of proxies":                                  trust("0.0.0.0/0"),
		nth + "128.0.0.0/1 trusts too much of the internet; want at least /8, and only addresses of proxies":                                trust("128.0.0.0/1"),
		nth + "10.0.0.0/7 trusts too much of the internet; want at least /8, and only addresses of proxies":                                 trust("10.0.0.0/7"),
		nth + "::/0 trusts too much of the internet; want at least /16, and only addresses of proxies":                                      trust("::/0"),
		nth + "2000::/3 trusts too much of the internet; want at least /16, and only addresses of proxies":                                  trust("2000::/3"),
		nth + "2a00::/15 trusts too much of the internet; want at least /16, and only addresses of proxies":                                 trust("2a00::/15"),
		nth + "fc00::/6 trusts too much of the internet; want at least /16, and only addresses of proxies":                                  trust("fc00::/6"),
		nth + "fe80::/9 trusts too much of the internet; want at least /16, and only addresses of proxies":                                  trust("fe80::/9"),
		nth + "10.0.0.1/8 has bits set beyond its length; want 10.0.0.0/8, or 10.0.0.1/32 for that address alone":                           trust("10.0.0.1/8"),
		nth + "fd00::1/8 has bits set beyond its length; want fd00::/8, or fd00::1/128 for that address alone":                              trust("fd00::1/8"),
		nth + "::ffff:10.0.0.0/104 is IPv4-mapped, and addresses are compared as IPv4; want the IPv4 prefix":                                trust("::ffff:10.0.0.0/104"),
		nth + "64:ff9b::/96 holds IPv4 addresses by way of 64:ff9b::/96; want at least /104 there, and only addresses of proxies":           trust("64:ff9b::/96"),
		nth + "64:ff9b::8000:0/97 holds IPv4 addresses by way of 64:ff9b::/96; want at least /104 there, and only addresses of proxies":     trust("64:ff9b::8000:0/97"),
		nth + "64:ff9b::a00:0/103 holds IPv4 addresses by way of 64:ff9b::/96; want at least /104 there, and only addresses of proxies":     trust("64:ff9b::a00:0/103"),
		nth + "64::/16 holds IPv4 addresses by way of 64:ff9b::/96; want at least /104 there, and only addresses of proxies":                trust("64::/16"),
		nth + "64:ff9b:1:2::/103 holds IPv4 addresses by way of 64:ff9b:1::/48; want at least /104 there, and only addresses of proxies":    trust("64:ff9b:1:2::/103"),
		nth + "2002::/16 holds IPv4 addresses by way of 2002::/16; want at least /24 there, and only addresses of proxies":                  trust("2002::/16"),
		nth + "2002:a00::/23 holds IPv4 addresses by way of 2002::/16; want at least /24 there, and only addresses of proxies":              trust("2002:a00::/23"),
		nth + "2001::/16 holds IPv4 addresses by way of 2001::/32; want at least /104 there, and only addresses of proxies":                 trust("2001::/16"),
		nth + "2001:0:c000:201::/103 holds IPv4 addresses by way of 2001::/32; want at least /104 there, and only addresses of proxies":     trust("2001:0:c000:201::/103"),
	} {
		f, err := ByRemoteIP(c)
		require.Nil(t, f, want)
		require.EqualError(t, err, "httplimit: "+want)
		require.ErrorAs(t, err, new(*ConfigError))
	}
}

func TestByRemoteIP_TrustsWhatOperatorsHave(t *testing.T) {
	for _, s := range []string{
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "173.245.48.0/20",
		"fc00::/7", "fd00::/8", "fe80::/10", "::1/128", "2606:4700::/32", "2400::/16", "2001:db8::/32", "203.0.113.7/32", "2002:c000:201::/48",
		"2002:a00::/24", "64:ff9b::a00:0/104", "64:ff9b:1:2::a00:0/104", "2001:0:1:2:3:4:f500:0/104", "2001:1::/32",
	} {
		p := netip.MustParsePrefix(s)
		f, err := ByRemoteIP(IPConfig{TrustedProxies: []netip.Prefix{p}, Header: "X-Forwarded-For"})
		require.NoError(t, err, s)
		peer := netip.AddrPortFrom(p.Addr(), 80).String()
		require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer(peer, "X-Forwarded-For", "203.0.113.77")), s)
	}
}

// A translated or tunnelled address is not trusted because the IPv4 address in it is:
// it may come from anywhere. A mapped one is the address itself.
func TestByRemoteIP_OnlyMappedAddressesInheritTrust(t *testing.T) {
	f := sluice.Must(ByRemoteIP(IPConfig{TrustedProxies: prefixes("10.0.0.0/8"), Header: "X-Forwarded-For"}))
	for _, peer := range []string{"64:ff9b::10.0.0.1", "2002:a00:1::1", "::10.0.0.1", "2001::f5ff:fffe"} {
		key := keyOf(t, f, fromPeer(peer, "X-Forwarded-For", "203.0.113.77"))
		require.NotEqual(t, "203.0.113.77", key, peer)
	}
	require.Equal(t, "203.0.113.77", keyOf(t, f, fromPeer("[::ffff:10.0.0.1]:80", "X-Forwarded-For", "203.0.113.77")))
}

func TestByRemoteIP_DoesNotKeepTheCallersSlice(t *testing.T) {
	c := IPConfig{TrustedProxies: prefixes("10.0.0.1/32"), Header: "X-Forwarded-For"}
	f := sluice.Must(ByRemoteIP(c))
	c.TrustedProxies[0] = netip.MustParsePrefix("192.0.2.0/24")
	require.Equal(t, "192.0.2.1", keyOf(t, f, fromPeer("192.0.2.1:1", "X-Forwarded-For", "203.0.113.77")))
}

func TestByRemoteIP_Concurrent(t *testing.T) {
	f := sluice.Must(ByRemoteIP(IPConfig{TrustedProxies: prefixes("10.0.0.1/32"), Header: "Forwarded"}))
	var wg sync.WaitGroup
	for _, want := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"} {
		wg.Go(func() {
			for range 1000 {
				key, err := f(fromPeer("10.0.0.1:1", "Forwarded", "for="+want))
				assert.NoError(t, err)
				assert.Equal(t, want, key)
			}
		})
	}
	wg.Wait()
}

func TestByRemoteIP_Allocations(t *testing.T) {
	trusted := IPConfig{TrustedProxies: prefixes("10.0.0.0/8"), Header: "X-Forwarded-For"}
	rfc7239 := IPConfig{TrustedProxies: prefixes("10.0.0.0/8"), Header: "Forwarded"}
	for _, c := range []struct {
		name   string
		config IPConfig
		r      *http.Request
	}{
		{"IPv4", IPConfig{}, fromPeer("192.0.2.1:4711")},
		{"IPv4, untrusted", trusted, fromPeer("192.0.2.1:4711", "X-Forwarded-For", "203.0.113.77")},
		{"IPv4 /24", IPConfig{IPv4Bits: 24}, fromPeer("192.0.2.1:4711")},
		{"IPv4-mapped", IPConfig{}, fromPeer("[::ffff:192.0.2.1]:4711")},
		{"IPv6", IPConfig{}, fromPeer("[2001:db8::1]:4711")},
		{"IPv6 /128", IPConfig{IPv6Bits: 128}, fromPeer("[2001:db8::1]:4711")},
		{"IPv6 with zone", IPConfig{}, fromPeer("[fe80::1%eth0]:4711")},
		{"X-Forwarded-For", trusted, fromPeer("10.0.0.1:4711", "X-Forwarded-For", "6.6.6.6, 203.0.113.77, 10.0.0.2")},
		{"X-Forwarded-For, missing", trusted, fromPeer("10.0.0.1:4711")},
		{"Forwarded", rfc7239, fromPeer("10.0.0.1:4711", "Forwarded", `for=6.6.6.6, for="[2001:db8::1]:4711";proto=https, for=10.0.0.2`)},
	} {
		f := sluice.Must(ByRemoteIP(c.config))
		comeOften(f, c.r)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := f(c.r); err != nil {
				t.Fatal(err)
			}
		}), c.name)
	}
}

// comeOften sends a request until its key is kept, which one call in four does.
func comeOften(f KeyFunc, r *http.Request) {
	for range 1000 {
		_, _ = f(r)
	}
}

// However many clients share the places where texts are kept, and come at once, each has its own.
func TestByRemoteIP_KeptTextsAreTheirOwn(t *testing.T) {
	f := sluice.Must(ByRemoteIP(IPConfig{IPv4Bits: 24}))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 20_000 {
				n := (i*7 + g) % 5000 // of 1024 places
				peer, want := fmt.Sprintf("[2001:db8:%x:%x::1]:80", n/16, n%16), netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x:%x::/64", n/16, n%16)).String()
				if n%5 == 0 {
					peer, want = fmt.Sprintf("10.%d.%d.1:80", n/256, n%256), fmt.Sprintf("10.%d.%d.0/24", n/256, n%256)
				}
				if got, err := f(fromPeer(peer)); got != want || err != nil {
					t.Errorf("key %q of %s, want %q; error %v", got, peer, want, err)
					return
				}
			}
		}()
	}
	wg.Wait()
}

// netip keeps a table of all zones in use. A client's are not to get there.
func TestByRemoteIP_ZonesAreNotKept(t *testing.T) {
	f := sluice.Must(ByRemoteIP(behindProxies("X-Forwarded-For")))
	var requests []*http.Request
	for i := range 101 {
		requests = append(requests, fromPeer(proxy, "X-Forwarded-For", fmt.Sprintf("fe80::1%%%d-%d", i, rand.Uint64())))
	}
	n := 0
	comeOften(f, requests[0]) // the key is that of all
	require.Zero(t, testing.AllocsPerRun(len(requests)-1, func() {
		_, _ = f(requests[n])
		n++
	}), "no zone")
	require.Equal(t, len(requests), n)
}

// A proxy on a Unix socket has no address. It is trusted if the operator says so, and
// only if the request has really come that way.
func TestByRemoteIP_UnixSocket(t *testing.T) {
	closed := sluice.Must(ByRemoteIP(IPConfig{TrustedProxies: prefixes("127.0.0.1/32"), Header: "X-Forwarded-For"}))
	open := sluice.Must(ByRemoteIP(IPConfig{TrustUnix: true, Header: "X-Forwarded-For"}))
	type answer struct {
		key string
		err error
	}
	answers := make(chan answer, 2)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, f := range []KeyFunc{closed, open} {
			key, err := f(r)
			answers <- answer{key, err}
		}
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	for header, want := range map[string]string{"6.6.6.6, 203.0.113.77": "203.0.113.77", "": ""} {
		r, err := http.NewRequest(http.MethodGet, "http://unix/", nil)
		require.NoError(t, err)
		if header != "" {
			r.Header.Set("X-Forwarded-For", header)
		}
		res, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.ErrorIs(t, (<-answers).err, ErrNoKey, "not trusted")
		got := <-answers
		require.Equal(t, want, got.key)
		if want == "" {
			require.ErrorIs(t, got.err, ErrBadKey, "nothing to tell clients by")
		}
	}
	for _, peer := range []string{"", "@", "/run/app.sock"} {
		requireKeyError(t, open, fromPeer(peer, "X-Forwarded-For", "203.0.113.77"), ErrNoKey)
	}
	require.Equal(t, "192.0.2.1", keyOf(t, open, fromPeer("192.0.2.1:1", "X-Forwarded-For", "203.0.113.77")), "TCP on the same server")
}
