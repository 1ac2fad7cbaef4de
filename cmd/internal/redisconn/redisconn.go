// Package redisconn makes clients of Redis and Valkey from flags and the variables of envoyproxy/ratelimit.
// No error and no text of it has a password in it.
package redisconn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/redislimit"
)

// The types of deployments.
const (
	Single   = "single"
	Cluster  = "cluster"
	Sentinel = "sentinel"
)

// Types are the types.
var Types = []string{Single, Cluster, Sentinel}

// Config says where the servers are, and how to reach them. The zero value reaches none.
type Config struct {
	// URLs are redis://, rediss:// or unix:// URLs, or, as REDIS_URL has them, addresses without a scheme: of a server, or of
	// some of a cluster, or the name of a master and the addresses of Sentinels.
	URLs []string
	// Type is Single, Cluster or Sentinel in any case. Empty is Cluster for several URLs, Sentinel for one with a
	// master_name, and else Single.
	Type string
	// Unix makes addresses without a scheme paths of sockets.
	Unix bool
	// Auth and SentinelAuth are PASSWORD or USER:PASSWORD. They win over URLs.
	Auth, SentinelAuth string

	// TLS speaks TLS, as rediss:// does. CA is a file of certificates that must have signed the servers', empty for the certificates of
	// the system; Cert and Key are files of the client's own.
	TLS           bool
	CA, Cert, Key string
	// SkipHostname accepts a server's certificate for any name, if it is signed.
	SkipHostname bool

	// PoolSize is connections to each server, 0 for as many as are needed. Timeout bounds the making of one; 0 means
	// 900 ms.
	PoolSize int
	Timeout  time.Duration
	// Reply bounds how long a reply may take, 0 for the client's default. A node that hangs holds up the search for the node
	// in its place for as long.
	Reply time.Duration
}

// On reports whether there are servers to reach.
func (c *Config) On() bool { return len(c.URLs) > 0 }

// address is one of URLs, taken apart.
type address struct {
	network, host string
	tls           bool
	auth          string
	db            string
	master        string
	more          []string // addresses of a URL's parameters
}

// defaultPool bounds the connections to a server if Config.PoolSize is 0. A store has some twenty at most under way. After as many
// failed dials in all as the bound says the client dials once a second only, and so learns late that a server is back.
const defaultPool = 1000

// Client returns a client that has not connected yet. It sends no command again, since one whose answer is lost may have counted, and
// dials once, so that a call has the error of the dial in time: a caller that goes on without the server tries again.
func (c *Config) Client() (redis.UniversalClient, error) {
	kind, list, err := c.parse()
	if err != nil {
		return nil, err
	}
	config, err := c.tlsConfig(c.secure(list))
	if err != nil {
		return nil, err
	}
	first := list[0]
	size := cmp.Or(c.PoolSize, defaultPool)
	if kind == Single {
		o := &redis.Options{Network: first.network, Addr: first.host, Dialer: c.dialer(config), DialerRetries: 1, TLSConfig: config, PoolSize: size, DialTimeout: c.timeout(), ReadTimeout: c.Reply, ContextTimeoutEnabled: true, MaxRetries: -1}
		o.Username, o.Password = userAndPassword(c.Auth, first.auth)
		if o.DB, err = first.database(); err != nil {
			return nil, err
		}
		return redislimit.NewClient(o)
	}
	o := &redis.UniversalOptions{Dialer: c.dialer(config), DialerRetries: 1, TLSConfig: config, PoolSize: size, DialTimeout: c.timeout(), ReadTimeout: c.Reply, ContextTimeoutEnabled: true, MaxRetries: -1, IsClusterMode: kind == Cluster, MasterName: first.master}
	for _, a := range list {
		o.Addrs = append(append(o.Addrs, a.host), a.more...)
	}
	o.Username, o.Password = userAndPassword(c.Auth, first.auth)
	if kind == Sentinel {
		if o.DB, err = first.database(); err != nil {
			return nil, err
		}
	}
	o.SentinelUsername, o.SentinelPassword = userAndPassword(c.SentinelAuth, "")
	return redis.NewUniversalClient(o), nil
}

// secure reports whether servers are spoken to with TLS.
func (c *Config) secure(list []address) bool {
	return c.TLS || slices.ContainsFunc(list, func(a address) bool { return a.tls })
}

// Secure reports whether the client speaks TLS.
func (c *Config) Secure() bool {
	_, list, err := c.parse()
	return err == nil && c.secure(list)
}

// database is the number in the path, 0 for none.
func (a *address) database() (n int, err error) {
	if a.db == "" {
		return 0, nil
	}
	if n, err = strconv.Atoi(a.db); err != nil || n < 0 || strconv.Itoa(n) != a.db {
		return 0, errors.New("the path of the address is no number of a database; want one as in redis://localhost:6379/0")
	}
	return n, nil
}

// Servers names the servers, without passwords.
func (c *Config) Servers() string {
	kind, list, err := c.parse()
	if err != nil {
		return ""
	}
	names := []string{}
	for _, a := range list {
		names = append(append(names, a.host), a.more...)
	}
	out := kind + " " + strings.Join(names, ",")
	if kind == Sentinel {
		out += " of " + list[0].master
	}
	return out
}

// parse takes the URLs apart.
func (c *Config) parse() (kind string, list []address, err error) {
	kind = strings.ToLower(c.Type)
	urls := c.URLs
	master := ""
	if kind == Sentinel && len(urls) > 0 && !strings.Contains(urls[0], "://") {
		master, urls = urls[0], urls[1:]
	}
	for i, text := range urls {
		a, err := c.address(text)
		if err != nil {
			return "", nil, fmt.Errorf("address %d: %w", i+1, err)
		}
		if a.master == "" {
			a.master = master
		}
		list = append(list, a)
	}
	switch {
	case len(list) == 0 && master == "":
		return "", nil, errors.New("there is no address; want one such as redis://localhost:6379")
	case kind != "":
	case len(list) > 1 || len(list[0].more) > 0 && list[0].master == "":
		kind = Cluster
	case list[0].master != "":
		kind = Sentinel
	default:
		kind = Single
	}
	switch {
	case !slices.Contains(Types, kind):
		return "", nil, fmt.Errorf("the type %q; want single, cluster or sentinel", c.Type)
	case kind == Sentinel && (len(list) == 0 || list[0].master == ""):
		return "", nil, errors.New("a Sentinel without the name of a master; want NAME,HOST:PORT,HOST:PORT or redis://HOST:PORT?master_name=NAME")
	case kind != Sentinel && slices.ContainsFunc(list, func(a address) bool { return a.master != "" }):
		return "", nil, fmt.Errorf("a master_name of a %s; want the type sentinel", kind)
	case kind == Cluster && slices.ContainsFunc(list, func(a address) bool { return strings.Trim(a.db, "0") != "" }):
		return "", nil, errors.New("a database of a cluster, which has one; want no path")
	case kind == Single && len(list) > 1:
		return "", nil, fmt.Errorf("%d addresses of a single server; want one, or the type cluster", len(list))
	case kind != Single && slices.ContainsFunc(list, func(a address) bool { return a.network == "unix" }):
		return "", nil, fmt.Errorf("a unix socket of a %s; want HOST:PORT", kind)
	}
	return kind, list, nil
}

// address reads one of URLs. An error has no part of it, which may be a password.
func (c *Config) address(text string) (address, error) {
	const want = "want redis://[USER:PASSWORD@]HOST:PORT, rediss://... with TLS, unix:///PATH or HOST:PORT"
	if !strings.Contains(text, "://") {
		a := address{network: "tcp", host: text}
		if c.Unix {
			a.network = "unix"
		}
		switch {
		case text == "" || !c.Unix && !strings.Contains(text, ":"):
			return a, errors.New("it is no HOST:PORT; " + want)
		case !c.Unix && strings.Contains(text, "@"):
			return a, errors.New("it has an @ and no scheme; " + want)
		}
		return a, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return address{}, errors.New("it is no URL (a password needs % escapes for @, / and :); " + want)
	}
	a := address{network: "tcp", host: u.Host, tls: u.Scheme == "rediss", db: strings.Trim(u.Path, "/"), master: u.Query().Get("master_name"), more: u.Query()["addr"]}
	if u.User != nil {
		password, _ := u.User.Password()
		a.auth = u.User.Username() + ":" + password
	}
	others := 0
	for name := range u.Query() {
		if name != "master_name" && name != "addr" {
			others++
		}
	}
	switch {
	case others > 0:
		return a, errors.New("it has a parameter that is neither master_name nor addr (a password needs % escapes); " + want)
	case u.Fragment != "" || u.Scheme != "unix" && strings.ContainsAny(u.Path, "@:") || strings.Contains(u.RawQuery, "@"):
		return a, errors.New("it has an @ or a # where none is expected (a password needs % escapes for @, /, # and :); " + want)
	case u.Scheme == "unix":
		a.network, a.host, a.db = "unix", u.Path, ""
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return a, errors.New("its scheme is another one; " + want)
	case u.Hostname() == "":
		return a, errors.New("it has no host; " + want)
	case u.Port() == "":
		a.host += ":6379"
	}
	return a, nil
}

// userAndPassword takes the first one apart that is not empty.
func userAndPassword(auths ...string) (user, password string) {
	for _, auth := range auths {
		if auth == "" {
			continue
		}
		if user, password, ok := strings.Cut(auth, ":"); ok {
			return user, password
		}
		return "", auth
	}
	return "", ""
}

// tlsConfig is nil without TLS.
func (c *Config) tlsConfig(on bool) (*tls.Config, error) {
	if !on {
		if c.CA+c.Cert+c.Key != "" || c.SkipHostname {
			return nil, errors.New("a setting about TLS without TLS; want rediss://, or REDIS_TLS=true")
		}
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("the certificates of servers: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the certificates of servers: %s has none in PEM", c.CA)
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return nil, errors.New("one of the client's certificate and key is missing; want both or none")
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("the client's certificate: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if c.SkipHostname {
		roots := out.RootCAs
		out.InsecureSkipVerify = true // the chain is verified below, as ever, and the name alone is not
		out.VerifyConnection = func(s tls.ConnectionState) error {
			o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
			for _, cert := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(o)
			return err
		}
	}
	return out, nil
}
