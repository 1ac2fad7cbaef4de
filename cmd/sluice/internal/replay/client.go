package replay

import (
	"bytes"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sluice-go/sluice/httplimit"
)

// How many bits of an IPv6 address may be the client. The middleware has the same range
// and the same default.
const (
	MinIPv6Prefix = 32
	IPv6Prefix    = 64
	MaxIPv6Prefix = 128
)

// namer gives all addresses of one client one name, the key that the middleware counts
// it by.
type namer struct {
	key     httplimit.KeyFunc
	request http.Request // whose peer the client is
}

func newNamer(ipv6Prefix int) (*namer, error) {
	key, err := httplimit.ByRemoteIP(httplimit.IPConfig{IPv6Bits: ipv6Prefix})
	return &namer{key: key}, err
}

// name returns the name of a client that the log spells so. What is no address, with
// or without a port, keeps its spelling. An IPv4 address has only the one.
func (n *namer) name(spelled []byte) []byte {
	if bytes.IndexByte(spelled, ':') < 0 {
		return spelled
	}
	n.request.RemoteAddr = string(spelled)
	key, err := n.key(&n.request)
	if err != nil {
		return spelled
	}
	return []byte(key)
}

// isPrivate reports whether a name is that of a private address, of this host, or of a
// Unix socket: what a server sees of a proxy that stands before it.
func isPrivate(name string) bool {
	text, _, _ := strings.Cut(name, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return name == "unix:" || name == "@"
	}
	return addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast()
}
