package httplimit

import (
	"errors"
	"math/big"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/test/seeded"
)

// A second implementation, from the definitions: slow, without bounds, of regular
// expressions and big numbers, and Forwarded is read from the left. It holds for
// default prefixes and the proxies of behindProxies.

const (
	refToken = "[-!#$%&'*+.^_`|~0-9A-Za-z]+"
	refPort  = `(?::(?:[0-9]{1,5}|_` + refToken + `))`
	refZone  = `(?:%` + refToken + `)`
)

var (
	refDotted    = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)\.(\d+)$`)
	refGroup     = regexp.MustCompile(`^[0-9A-Fa-f]{1,4}$`)
	refIPv4      = regexp.MustCompile(`^([0-9.]+)` + refPort + `?$`)
	refIPv6      = regexp.MustCompile(`^([0-9A-Fa-f.]*:[0-9A-Fa-f.:]*)` + refZone + `?$`)
	refBracketed = regexp.MustCompile(`^\[([^\]]*)\]` + refPort + `?$`)
)

// refDottedGroups turns "192.0.2.1" into "c000:201".
func refDottedGroups(s string) (string, bool) {
	m := refDotted.FindStringSubmatch(s)
	if m == nil {
		return "", false
	}
	var b [4]int64
	for i := range b {
		b[i], _ = strconv.ParseInt(m[i+1], 10, 64)
		if b[i] > 255 || strconv.FormatInt(b[i], 10) != m[i+1] {
			return "", false
		}
	}
	return strconv.FormatInt(b[0]<<8|b[1], 16) + ":" + strconv.FormatInt(b[2]<<8|b[3], 16), true
}

// refAddress reads an address as a number, an IPv4 address as the mapped one.
func refAddress(s string) (*big.Int, bool) {
	if refDotted.MatchString(s) {
		s = "::ffff:" + s
	}
	if strings.Contains(s, ".") {
		i := strings.LastIndexByte(s, ':')
		groups, ok := refDottedGroups(s[i+1:])
		if !ok {
			return nil, false
		}
		s = s[:i+1] + groups
	}
	split := func(s string) []string {
		if s == "" {
			return nil
		}
		return strings.Split(s, ":")
	}
	left, right, short := strings.Cut(s, "::")
	groups := split(left)
	if short {
		missing := 8 - len(groups) - len(split(right))
		if missing < 1 {
			return nil, false
		}
		groups = append(append(groups, split(strings.Repeat(":0", missing)[1:])...), split(right)...)
	}
	if len(groups) != 8 {
		return nil, false
	}
	n := new(big.Int)
	for _, g := range groups {
		if !refGroup.MatchString(g) {
			return nil, false
		}
		v, _ := strconv.ParseInt(g, 16, 64)
		n.Add(n.Lsh(n, 16), big.NewInt(v))
	}
	return n, true
}

func refNode(s string) (*big.Int, bool) {
	if m := refIPv4.FindStringSubmatch(s); m != nil {
		return refAddress(m[1])
	}
	if m := refBracketed.FindStringSubmatch(s); m != nil {
		s = m[1]
	}
	if m := refIPv6.FindStringSubmatch(s); m != nil {
		return refAddress(m[1])
	}
	return nil, false
}

// refBits returns the first so many of the 128 bits of an address.
func refBits(n *big.Int, bits uint) string { return new(big.Int).Rsh(n, 128-bits).Text(16) }

func refTrusts(n *big.Int) bool {
	return refBits(n, 104) == "ffff0a" || refBits(n, 48) == "20010db8000a"
}

func refKey(n *big.Int) string {
	a := netip.AddrFrom16([16]byte(n.FillBytes(make([]byte, 16))))
	switch {
	case refBits(n, 96) == "ffff":
		return a.Unmap().String()
	case refBits(n, 96) == "64ff9b0000000000000000", refBits(n, 48) == "64ff9b0001", refBits(n, 64) == "0":
		return a.String()
	case refBits(n, 16) == "2002":
		return netip.PrefixFrom(a, 48).Masked().String()
	case refBits(n, 32) == "20010000":
		v4 := a.As16()
		return netip.AddrFrom16([16]byte{0x20, 1, 12: v4[12], v4[13], v4[14], v4[15]}).String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}

// refWalk returns the key by the elements of a list, "" for one that is refused, and
// whether what is left of an untrusted address decides nothing.
func refWalk(elements []string, node func(string) (*big.Int, bool)) (key string, final bool) {
	for i := len(elements) - 1; i >= 0; i-- {
		n, ok := node(elements[i])
		if !ok {
			return "", false
		}
		if key = refKey(n); !refTrusts(n) {
			return key, true
		}
	}
	return key, false
}

const (
	refPair   = `(?:(` + refToken + `)=(` + refToken + `|"(?:[^"\\]|\\.)*"))`
	refSpace  = `[ \t]*`
	refPairs  = refSpace + refPair + `?` + refSpace + `(?:;` + refSpace + refPair + `?` + refSpace + `)*`
	refEnding = `(?:,|$)`
)

var (
	refElement  = regexp.MustCompile(`(?s)^(` + refPairs + `)` + refEnding)
	refOnePair  = regexp.MustCompile(`(?s)^[ \t;]*` + refPair)
	refNoBraces = regexp.MustCompile(`^[^\[]*:.*:`)
)

// refElements splits a line of Forwarded from the left, or says that it is malformed.
func refElements(line string) (elements []string, ok bool) {
	for {
		m := refElement.FindStringSubmatch(line)
		if m == nil {
			return nil, false
		}
		elements = append(elements, m[1])
		if len(m[0]) == len(m[1]) {
			return elements, true
		}
		line = line[len(m[0]):]
	}
}

func refForwarded(element string) (*big.Int, bool) {
	var values []string
	for {
		m := refOnePair.FindStringSubmatch(element)
		if m == nil {
			break
		}
		if strings.EqualFold(m[1], "for") {
			values = append(values, m[2])
		}
		element = element[len(m[0]):]
	}
	if len(values) != 1 {
		return nil, false
	}
	value := values[0]
	if strings.HasPrefix(value, `"`) {
		value = value[1 : len(value)-1]
	}
	if refNoBraces.MatchString(value) {
		return nil, false
	}
	return refNode(value)
}

// checkKeyOrError checks what holds for every request: an address in its one form, or
// an error of this package.
func checkKeyOrError(tb testing.TB, f KeyFunc, r *http.Request) string {
	key, err := f(r)
	if err != nil {
		require.True(tb, key == "" && (errors.Is(err, ErrNoKey) || errors.Is(err, ErrBadKey)), "%q, %v", key, err)
		return ""
	}
	a, err := netip.ParseAddr(key)
	if p, prefixErr := netip.ParsePrefix(key); prefixErr == nil {
		require.Equal(tb, p, p.Masked())
		require.Equal(tb, key, p.String())
		a, err = p.Addr(), nil
	} else {
		require.Equal(tb, key, a.String())
	}
	require.NoError(tb, err)
	require.False(tb, a.Is4In6())
	if key == "64:ff9b::/64" {
		return key // what is in it beside NAT64, which its first address is
	}
	again, err := sluice.Must(ByRemoteIP(IPConfig{}))(fromPeer(a.String()))
	require.NoError(tb, err)
	require.Equal(tb, key, again, "the key of the address in the key")
	return key
}

func checkUntrustedPeer(tb testing.TB, f KeyFunc, header string, lines []string) {
	r := fromPeer("192.0.2.1:1")
	r.Header[header] = lines
	require.Equal(tb, "192.0.2.1", keyOf(tb, f, r))
}

var (
	fuzzXFF       = sluice.Must(ByRemoteIP(behindProxies(headerXFF)))
	fuzzForwarded = sluice.Must(ByRemoteIP(behindProxies(headerForwarded)))
)

// checkXForwardedFor checks the key for lines, separated by line feeds, and that the
// client's part of them does not matter.
func checkXForwardedFor(tb testing.TB, left, right string) {
	r := fromPeer(proxy)
	lines := strings.Split(right, "\n")
	r.Header[headerXFF] = lines
	key := checkKeyOrError(tb, fuzzXFF, r)
	checkUntrustedPeer(tb, fuzzXFF, headerXFF, lines)
	elements := strings.Split(strings.Join(lines, ","), ",")
	if len(right) > maxForwardedBytes || len(elements) > maxHops {
		return
	}
	for i := range elements {
		elements[i] = trimSpace(elements[i])
	}
	want, final := refWalk(elements, refNode)
	if len(elements) == 1 && elements[0] == "" {
		want = "10.0.0.1"
	}
	require.Equal(tb, want, key, "%q", lines)
	if final {
		checkClientsPart(tb, fuzzXFF, headerXFF, left, right, key)
	}
}

func checkForwarded(tb testing.TB, left, right string) {
	r := fromPeer(proxy)
	lines := strings.Split(right, "\n")
	r.Header[headerForwarded] = lines
	key := checkKeyOrError(tb, fuzzForwarded, r)
	checkUntrustedPeer(tb, fuzzForwarded, headerForwarded, lines)
	var elements []string
	for _, line := range lines {
		part, ok := refElements(line)
		if !ok {
			return
		}
		elements = append(elements, part...)
	}
	if len(right) > maxForwardedBytes || len(elements) > maxHops || trimSpace(right) == "" {
		return
	}
	want, final := refWalk(elements, refForwarded)
	require.Equal(tb, want, key, "%q", lines)
	if final {
		checkClientsPart(tb, fuzzForwarded, headerForwarded, left, right, key)
	}
}

// checkClientsPart demands the same key whatever the client has sent.
func checkClientsPart(tb testing.TB, f KeyFunc, header, left, right, key string) {
	r := fromPeer(proxy)
	for _, between := range []string{",", "\n"} {
		r.Header[header] = strings.Split(left+between+right, "\n")
		require.Equal(tb, key, keyOf(tb, f, r), "the client has sent %q%q", left, between)
	}
}

func checkRemoteAddr(tb testing.TB, remoteAddr string) {
	f := sluice.Must(ByRemoteIP(IPConfig{}))
	key := checkKeyOrError(tb, f, fromPeer(remoteAddr))
	want := ""
	if n, ok := refNode(remoteAddr); ok {
		want = refKey(n)
	}
	require.Equal(tb, want, key, "%q", remoteAddr)
}

func FuzzXForwardedFor(f *testing.F) {
	f.Add("6.6.6.6", "203.0.113.77, 10.0.0.2")
	f.Add("", "[2001:db8::1]:80\n2001:db8:a::1")
	f.Add(`"`, "::ffff:192.0.2.1%eth0,::ffff:10.0.0.3")
	f.Add(",,", "unknown, 64:ff9b::1.2.3.4")
	f.Add(`"`, `::1.2.3.4%"`)
	f.Fuzz(func(t *testing.T, left, right string) { checkXForwardedFor(t, left, right) })
}

func FuzzForwarded(f *testing.F) {
	f.Add(`for="6.6.6.6`, `for=203.0.113.77;proto=https, for="10.0.0.2:80"`)
	f.Add(`by="\`, `for="[2001:db8::1]:4711";host="a,\"b\\"`+"\n"+`For=10.0.0.3`)
	f.Add(`"`, `for=_hidden, for=unknown`)
	f.Fuzz(func(t *testing.T, left, right string) { checkForwarded(t, left, right) })
}

func FuzzRemoteAddr(f *testing.F) {
	for _, s := range []string{"192.0.2.1:80", "[fe80::1%eth0]:80", "@", "::ffff:192.0.2.1", "2002:c000:201::1", "2001::3fff:fdfe", "1:2:3:4:5:6:7::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, remoteAddr string) { checkRemoteAddr(t, remoteAddr) })
}

// Random lists of nearly right pieces, which a fuzzer takes long to find.
func TestForwarded_AgreesWithTheReference(t *testing.T) {
	rng := seeded.Rand(t)
	draw := func(n int, pieces ...string) string {
		s := ""
		for range n {
			s += pieces[rng.IntN(len(pieces))]
		}
		return s
	}
	address := func() string {
		switch rng.IntN(5) {
		case 0:
			return draw(1+rng.IntN(9), "0", ":", "::", "1", "ffff", "2001", ".", "db8", "64:ff9b", "2002", "%", "%eth0", `"`, "[", "]", "192.0.2.1", ":80", ":_x", "_", "-")
		case 1:
			return draw(1, "10.0.0.2", "2001:db8:a::2", "::ffff:10.0.0.2")
		case 2:
			return "[" + draw(1, "2001:db8::1", "2001:db8:a::1", "64:ff9b::1.2.3.4", "fe80::1%eth0", "192.0.2.1") + "]" + draw(1, "", ":80", ":", "80", ":_p")
		}
		return draw(1, "203.0.113.77", "192.0.2.1:80", "2001:db8::1", "::ffff:192.0.2.1", "2002:c000:201::1", "2001:0:1:2:3:4:3fff:fdfe", "::1", "unknown", "_x", "")
	}
	pair := func() string {
		value := draw(1, address(), `"`+address()+`"`, `"`+address()+`"`)
		if rng.IntN(4) == 0 {
			value = `"` + draw(rng.IntN(5), `\"`, `\\`, ",", ";", "x", "for=") + `"`
		}
		return draw(1, "for", "for", "For", "by", "host") + "=" + value
	}
	const rounds = 20000
	var keys, finals int
	for range rounds {
		left := draw(rng.IntN(6), `"`, `\`, ",", "for=", "10.0.0.2", "6.6.6.6", "\n", " ", ";")
		xff, forwarded := address(), pair()
		for range rng.IntN(4) {
			separator := draw(1, ",", ", ", "\t,", "\n", "\n ")
			xff += separator + address()
			forwarded += draw(1, separator, separator, ";", "; ") + pair()
		}
		checkXForwardedFor(t, left, xff)
		checkForwarded(t, left, forwarded)
		checkRemoteAddr(t, address())
		r := fromPeer(proxy)
		r.Header[headerForwarded] = strings.Split(forwarded, "\n")
		if key, err := fuzzForwarded(r); err == nil {
			keys++
			if !strings.HasPrefix(key, "10.") && !strings.HasPrefix(key, "2001:db8:a:") {
				finals++
			}
		}
	}
	require.Greater(t, keys, rounds/20, "of the lists are in order")
	require.Greater(t, finals, rounds/40, "name a client")
}
