package grpclimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-go/sluice/httplimit"
)

// The errors of key functions, which wrap one of them and name the mistake. They are the errors of
// httplimit. Clients are not told of them.
var (
	// ErrNoKey: the call lacks a part of the key.
	ErrNoKey = httplimit.ErrNoKey
	// ErrBadKey says that it is there, but malformed, or there twice, or not to be believed, so
	// that the limiter and the application might not read the same.
	ErrBadKey = httplimit.ErrBadKey
	// ErrKeyTooLong: the text that the key is read from is longer than the function accepts.
	ErrKeyTooLong = httplimit.ErrKeyTooLong
)

// MaxKeyLen is the length in bytes of the longest text that is a key as it is, 4096. In the place
// of a longer one stands its SHA-256, "sha256:" and 64 hexadecimal digits; so it does for a text
// that begins like that, which nobody can choose to be counted as somebody else.
const MaxKeyLen = httplimit.MaxKeyLen

const hashPrefix = "sha256:"

// bounded returns the key for a text of any length.
func bounded(text string) string {
	if len(text) <= MaxKeyLen && !strings.HasPrefix(text, hashPrefix) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// ByPeer returns a function that makes a key of the client's IP address, as
// httplimit.ByRemoteIP does: all texts of one address are one key, and IPv6 is cut to a /64. The
// error is a *httplimit.ConfigError.
//
// With the zero IPConfig the client is the peer of the connection, whatever the metadata says. Behind proxies name
// them in IPConfig.TrustedProxies, and in IPConfig.Header the metadata that they write, such as
// X-Forwarded-For: it is believed only of them, and read from the right, where they write. Of
// metadata that is there several times, the last is the right end.
//
// A peer without an address, as on a pipe or, without IPConfig.TrustUnix, a Unix socket, is
// ErrNoKey; a text of a trusted proxy that is no address, ErrBadKey.
// IPConfig.OnUntrustedProxy and OnMissingHeader are given a request with nothing but the address and these headers,
// which they must not keep; without OnUntrustedProxy one call in 256 is looked at, at random.
//
// Of the calls of one connection, the first one and one in 16 take an allocation or two, and other calls
// none; calls of a proxy take two.
func ByPeer(c httplimit.IPConfig) (KeyFunc, error) {
	key, err := httplimit.ByRemoteIP(c)
	if err != nil {
		return nil, err
	}
	names := []string{"x-forwarded-for", "forwarded", "x-real-ip"}
	if header := strings.ToLower(c.Header); header != "" && !slices.Contains(names, header) {
		names = append(names, header)
	}
	proxies, kept := slices.Clone(c.TrustedProxies), new(peerKeys)
	byAll, byAddress := overHTTP(key, names...), overHTTP(key)
	return func(ctx context.Context, call Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return byAll(ctx, call)
		}
		at, tcp := p.Addr.(*net.TCPAddr)
		if !tcp || c.OnUntrustedProxy != nil || rand.Uint32()%oneIn == 0 || contains(proxies, at) {
			return byAll(ctx, call)
		}
		return kept.of(at, func() (string, error) { return byAddress(ctx, call) })
	}, nil
}

// oneIn is of how many calls of strangers one is judged with its metadata, which makes no difference
// to the key, for httplimit to look whether they are proxies that nobody has named.
const oneIn = 16

func contains(proxies []netip.Prefix, at *net.TCPAddr) bool {
	if len(proxies) == 0 {
		return false
	}
	ip := at.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// peerKeys keeps the keys of connections. All calls of one have the same address, in one place
// in memory, which is not used for another one as long as it is kept.
type peerKeys [1024]atomic.Pointer[peerKey]

type peerKey struct {
	at  *net.TCPAddr
	key string
}

// of returns the key of an address, which is made if it is not kept.
func (k *peerKeys) of(at *net.TCPAddr, newKey func() (string, error)) (string, error) {
	place := &k[at.Port%len(k)]
	if old := place.Load(); old != nil && old.at == at {
		return old.key, nil
	}
	key, err := newKey()
	if err == nil {
		place.Store(&peerKey{at, key})
	}
	return key, err
}

// ByBearerToken returns a function that takes the token of the metadata authorization with the
// scheme Bearer as the key, as httplimit.ByBearerToken does, with its errors: a token above
// MaxKeyLen is ErrKeyTooLong. A client chooses its token; the warning of ByMetadata holds here.
func ByBearerToken() KeyFunc { return overHTTP(httplimit.ByBearerToken(), "authorization") }

// overHTTP returns a key function that shows one of httplimit's a request which has nothing but the
// peer's address and the metadata of these names.
func overHTTP(key httplimit.KeyFunc, names ...string) KeyFunc {
	headers := make([]string, len(names))
	for i, name := range names {
		headers[i] = http.CanonicalHeaderKey(name)
	}
	requests := sync.Pool{New: func() any { return &http.Request{Header: make(http.Header)} }}
	return func(ctx context.Context, _ Call) (string, error) {
		r := requests.Get().(*http.Request)
		defer func() {
			clear(r.Header) // metadata can be large
			requests.Put(r)
		}()
		p, ok := peer.FromContext(ctx)
		if !ok {
			p = &nobody
		}
		for i, name := range names {
			if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
				r.Header[headers[i]] = values
			}
		}
		r.RemoteAddr = addressOf(p.Addr)
		if _, unix := p.LocalAddr.(*net.UnixAddr); unix {
			return key(r.WithContext(context.WithValue(ctx, http.LocalAddrContextKey, p.LocalAddr)))
		}
		return key(r)
	}
}

var nobody peer.Peer // the peer of a call that none is known of

// addressOf returns the text of an address, of which the key can be a part.
func addressOf(a net.Addr) string {
	switch a := a.(type) {
	case nil:
		return ""
	case *net.TCPAddr:
		if ip := a.AddrPort(); ip.IsValid() {
			var space [64]byte
			return string(netip.AddrPortFrom(ip.Addr().Unmap(), ip.Port()).AppendTo(space[:0]))
		}
	case *net.UnixAddr:
		return "" // whatever the socket of a client is called
	}
	return a.String()
}

// ByMetadata returns a function that takes the value of a metadata key as the key; of one that
// ends in "-bin" the bytes. White space around a value that is no bytes makes no difference. The
// error is a *ConfigError if name is no metadata key, or one whose value is no key:
// x-forwarded-for and forwarded (for ByPeer), authorization (for ByBearerToken) and cookie, where
// one credential can be written in many ways, and grpc-..., which gRPC keeps to itself.
//
// A key that is missing or empty is ErrNoKey, one that is there more than once ErrBadKey. See
// MaxKeyLen for long values.
//
// A client chooses its metadata, and one that the server has not verified by then can be another
// for each call: it limits nobody. Put the limit behind the authentication, or add a policy with
// ByPeer.
func ByMetadata(name string) (KeyFunc, error) {
	const field = "ByMetadata"
	name = strings.ToLower(name)
	switch {
	case name == "" || strings.ContainsFunc(name, notInName):
		return nil, configErrorf(field, "%.64q is no metadata key; want letters, digits and any of -_., as in x-api-key", name)
	case strings.HasPrefix(name, "grpc-"):
		return nil, configErrorf(field, "%s is for gRPC itself; want a key of the application, as x-api-key", name)
	case name == "x-forwarded-for" || name == "forwarded":
		return nil, configErrorf(field, "%s is written by the client as well as by proxies; want ByPeer with TrustedProxies", name)
	case name == "authorization":
		return nil, configErrorf(field, "authorization has many spellings of the same credentials; want ByBearerToken, or a function that reads them")
	case name == "cookie":
		return nil, configErrorf(field, "cookie has all cookies, to which a client can add any; want a function that returns one of them")
	}
	none := fmt.Errorf("%w: no metadata %s", ErrNoKey, name)
	twice := fmt.Errorf("%w: more than one metadata %s, want one", ErrBadKey, name)
	binary := strings.HasSuffix(name, "-bin")
	return func(ctx context.Context, _ Call) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		switch {
		case len(values) == 0:
			return "", none
		case len(values) > 1:
			return "", twice
		}
		value := values[0]
		if !binary { // HTTP/2 does not trim it, and whoever verifies it may
			value = strings.Trim(value, " \t")
		}
		if value == "" {
			return "", none
		}
		return bounded(value), nil
	}, nil
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
}

// ByMethod returns a function that takes the full method as the key, as in
// "/package.Service/Method": one budget for each. With Join, one for each client and method. A
// server answers methods that it does not have before any interceptor is asked. Only with
// grpc.UnknownServiceHandler does a client choose the name, for as many budgets as it likes: count
// by something else there. It does not allocate.
func ByMethod() KeyFunc {
	return func(_ context.Context, call Call) (string, error) {
		if call.FullMethod == "" {
			return "", errNoMethod
		}
		return bounded(call.FullMethod), nil
	}
}

var errNoMethod = fmt.Errorf("%w: the call has no method", ErrNoKey)

// ByTLSSubject returns a function that takes the subject of the client's certificate as the key,
// in the form of RFC 2253 ("CN=ann,O=example"), if the server has verified it:
// tls.VerifyClientCertIfGiven or RequireAndVerifyClientCert.
//
// A call without TLS or certificate, or with an empty subject, as certificates of SPIFFE have it,
// is ErrNoKey. A certificate that nobody has verified is ErrBadKey: anybody can make one with any
// subject. Behind a proxy that ends TLS the subject is the proxy's.
func ByTLSSubject() KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok {
			return "", errNoCertificate
		}
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		switch {
		case !ok || len(info.State.PeerCertificates) == 0:
			return "", errNoCertificate
		case len(info.State.VerifiedChains) == 0:
			return "", errUnverified
		}
		subject := info.State.PeerCertificates[0].Subject.String()
		if subject == "" {
			return "", errNoSubject
		}
		return bounded(subject), nil
	}
}

var (
	errNoCertificate = fmt.Errorf("%w: the peer has shown no certificate", ErrNoKey)
	errNoSubject     = fmt.Errorf("%w: the peer's certificate has no subject", ErrNoKey)
	errUnverified    = fmt.Errorf("%w: the peer's certificate has not been verified", ErrBadKey)
)

// Join returns a function that joins the keys of all funcs to one: a budget for each client and
// method, say. Two calls have the same key only if they have the same one by each of funcs: the key
// is the parts in order, each with its length in bytes and a colon before it, such as
// "3:ann14:/pkg.Svc/Login", which is also the name in TopDenied; see MaxKeyLen for long ones. The error
// of the first one that fails is returned as it is.
//
// The error is a *ConfigError if there are no funcs, or a nil one.
func Join(funcs ...KeyFunc) (KeyFunc, error) {
	if len(funcs) == 0 {
		return nil, configErrorf("Join", "no functions, so all calls would have one key; want at least one")
	}
	for i, f := range funcs {
		if f == nil {
			return nil, configErrorf("Join", "function %d of %d is nil; want a KeyFunc", i+1, len(funcs))
		}
	}
	funcs = append([]KeyFunc(nil), funcs...)
	return func(ctx context.Context, call Call) (string, error) {
		var space [128]byte
		joined := space[:0]
		for _, f := range funcs {
			key, err := f(ctx, call)
			if err != nil {
				return "", err
			}
			// A separator could be part of a key. A length in front cannot be mistaken.
			joined = strconv.AppendInt(joined, int64(len(key)), 10)
			joined = append(joined, ':')
			joined = append(joined, key...)
		}
		return bounded(string(joined)), nil
	}, nil
}
