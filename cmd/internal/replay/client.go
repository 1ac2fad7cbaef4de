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

// Clients numbers the clients of a log, from 0 and in the order of their first requests. A client is, as for the
// middleware of httplimit, an IPv4 address, an IPv6 network, or another name as it is spelled.
type Clients struct {
	namer  *namer // nil if they are keys
	ids    map[string]int
	names  []string
	public bool // one has no private address
}

// NewClients returns no clients yet. All IPv6 addresses with the same first ipv6Prefix bits are one.
func NewClients(ipv6Prefix int) (*Clients, error) {
	namer, err := newNamer(ipv6Prefix)
	return &Clients{namer: namer, ids: make(map[string]int)}, err
}

// NewKeys returns no keys yet. Keys of any other kind take the place of clients; each has the one spelling.
func NewKeys() *Clients { return &Clients{ids: make(map[string]int), public: true} }

// Naming returns a function that gives all spellings of a client one name, as Clients do. Several goroutines may call it at once.
func Naming(ipv6Prefix int) (func(spelled []byte) []byte, error) {
	shared, err := newNamer(ipv6Prefix)
	return func(spelled []byte) []byte { return (&namer{key: shared.key}).name(spelled) }, err
}

// ID returns the number of a client that the log spells so. It does not retain spelled.
func (c *Clients) ID(spelled []byte) int {
	key := spelled
	if c.namer != nil {
		key = c.namer.name(spelled)
	}
	id, ok := c.ids[string(key)]
	if !ok {
		id = len(c.names)
		name := string(key)
		c.ids[name] = id
		c.names = append(c.names, name)
		c.public = c.public || !isPrivate(name)
	}
	return id
}

// Name returns the name of a client.
func (c *Clients) Name(id int) string { return c.names[id] }

// Len returns how many clients there are.
func (c *Clients) Len() int { return len(c.names) }

// Private reports whether every client has a private address, or none at all.
func (c *Clients) Private() bool { return !c.public }

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

// name returns the name of a client that the log spells so. A text that is no address, with
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

// isPrivate reports whether a name is of a private address, of this host, or of a
// Unix socket: as a server sees a proxy in front of it.
func isPrivate(name string) bool {
	text, _, _ := strings.Cut(name, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return name == "unix:" || name == "@"
	}
	return addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast()
}
