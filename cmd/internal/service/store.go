package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/redisconn"
	"github.com/sluice-go/sluice/redislimit"
	"github.com/sluice-go/sluice/redislimit/rulestore"
	"github.com/sluice-go/sluice/rules"
)

// StoreConfig says where the processes keep the counts that they share. The zero value shares no counts.
type StoreConfig struct {
	Redis, PerSecond redisconn.Config
	Prefix           string
	Budget           time.Duration
	OnFailure        string
	Leases           bool
	Replicas         int
	Health           bool
	Keys             string
	Jitter           time.Duration
}

// failures are the values of --on-store-failure, as redislimit numbers them.
var failures = []string{redislimit.LocalShare: "local-share", redislimit.FailOpen: "open", redislimit.FailClosed: "closed"}

// storeFlags defines the flags about the store. No flag takes a password, since all users of a machine can read flags.
func (c *StoreConfig) storeFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&c.Redis.URLs, "redis", nil, "servers in which several processes count together, as redis://HOST:PORT, rediss://... or unix:///PATH; several of a cluster")
	f.StringVar(&c.Redis.Type, "redis-type", "", "single, cluster or sentinel (NAME,HOST:PORT,...); else as --redis suggests")
	f.StringSliceVar(&c.PerSecond.URLs, "redis-per-second", nil, "servers for limits of a second, if others")
	f.StringVar(&c.PerSecond.Type, "redis-per-second-type", "", "their type")
	f.IntVar(&c.Redis.PoolSize, "redis-pool-size", 0, "connections to each server; 0 for as many as needed")
	f.StringVar(&c.Redis.CA, "redis-ca", "", "certificates that must have signed those of the servers; empty for those of the system")
	f.StringVar(&c.Redis.Cert, "redis-cert", "", "certificate of this service, as their client")
	f.StringVar(&c.Redis.Key, "redis-key", "", "key of the certificate")
	f.StringVar(&c.Prefix, "store-prefix", "", "what names of keys begin with; empty for sluice")
	f.DurationVar(&c.Budget, "store-budget", 5*time.Millisecond, "how long an answer waits for the store")
	f.StringVar(&c.OnFailure, "on-store-failure", "", "what happens to calls that it does not answer by then: local-share (this process enforces its part; the default), open (admit) or closed (an error)")
	f.StringVar(&c.Keys, "store-keys", ownNames, "names of keys: sluice, or upstream, to count together with envoyproxy/ratelimit; without leases then, and closed unless open")
	f.BoolVar(&c.Leases, "leases", true, "admit hot keys from units that the store has lent; what remains is then approximate")
	f.IntVar(&c.Replicas, "replicas", 0, "processes that count together; 0 to find out, and to wait for the store before the first call")
	f.BoolVar(&c.Health, "store-health", false, "be unhealthy while the store does not answer")
}

// storeVariables are the variables of envoyproxy/ratelimit about the store that are flags here.
var storeVariables = [][2]string{
	{"REDIS_TYPE", "redis-type"}, {"REDIS_PERSECOND_TYPE", "redis-per-second-type"}, {"REDIS_POOL_SIZE", "redis-pool-size"},
	{"REDIS_TLS_CACERT", "redis-ca"}, {"REDIS_TLS_CLIENT_CERT", "redis-cert"}, {"REDIS_TLS_CLIENT_KEY", "redis-key"},
	{"CACHE_KEY_PREFIX", "store-prefix"}, {"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "store-health"},
}

// store takes the store from upstream's variables, unless the command line names one.
func (e *environment) store(c *StoreConfig) {
	switch backend := strings.ToLower(e.values["BACKEND_TYPE"]); {
	case backend == "memcache":
		e.fail(errors.New("BACKEND_TYPE memcache: there is no memcached here; want redis with REDIS_URL, or no BACKEND_TYPE, to count in memory"))
	case backend != "" && backend != "redis":
		e.fail(fmt.Errorf("BACKEND_TYPE %q: want redis, or no BACKEND_TYPE, to count in memory", backend))
	case backend == "redis" && e.values["REDIS_URL"] == "" && !c.Redis.On():
		e.fail(errors.New("BACKEND_TYPE redis without REDIS_URL: want the address of a server, as HOST:PORT with REDIS_SOCKET_TYPE=tcp"))
	}
	for _, v := range storeVariables {
		e.set(v[1], v[0], e.values[v[0]])
	}
	e.redis("REDIS_", &c.Redis, "redis")
	if e.is("REDIS_PERSECOND", false) || c.PerSecond.On() {
		e.redis("REDIS_PERSECOND_", &c.PerSecond, "redis-per-second")
		if e.values["REDIS_PERSECOND_URL"] == "" && !c.PerSecond.On() {
			e.fail(errors.New("REDIS_PERSECOND without REDIS_PERSECOND_URL: want the address of a server"))
		}
	}
	if n := e.values["EXPIRATION_JITTER_MAX_SECONDS"]; n != "" {
		seconds, err := strconv.ParseUint(n, 10, 31)
		if err != nil {
			e.fail(fmt.Errorf("EXPIRATION_JITTER_MAX_SECONDS %q: want a number of seconds", n))
		}
		c.Jitter = time.Duration(seconds) * time.Second
	}
	p := &c.PerSecond
	if p.TLS || slices.ContainsFunc(p.URLs, func(u string) bool { return strings.HasPrefix(u, "rediss:") }) {
		p.CA, p.Cert, p.Key, p.SkipHostname = c.Redis.CA, c.Redis.Cert, c.Redis.Key, c.Redis.SkipHostname
	}
}

// redis takes one server from the variables that begin with begin. Flags have precedence.
func (e *environment) redis(begin string, c *redisconn.Config, flag string) {
	if url := e.values[begin+"URL"]; url != "" && !e.flags.Changed(flag) {
		c.URLs = strings.Split(url, ",")
	}
	socket := strings.ToLower(e.values[begin+"SOCKET_TYPE"])
	switch socket {
	case "", "tcp", "unix":
	default:
		e.fail(fmt.Errorf("%sSOCKET_TYPE %q: want tcp or unix", begin, socket))
	}
	c.Unix = socket == "unix" || socket == "" && c.On() && strings.HasPrefix(c.URLs[0], "/")
	c.Auth, c.SentinelAuth = e.values[begin+"AUTH"], e.values[begin+"SENTINEL_AUTH"]
	c.TLS = e.is(begin+"TLS", false)
	if begin == "REDIS_" {
		c.SkipHostname = e.is("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false)
	}
	if n := e.values[begin+"POOL_SIZE"]; n != "" && begin != "REDIS_" {
		size, err := strconv.Atoi(n)
		if err != nil {
			e.fail(fmt.Errorf("%sPOOL_SIZE %q: want a number of connections", begin, n))
		}
		c.PoolSize = size
	}
	if d := e.values[begin+"TIMEOUT"]; d != "" {
		timeout, err := time.ParseDuration(d)
		if err != nil || timeout < 0 {
			e.fail(fmt.Errorf("%sTIMEOUT %q: want a time such as 10s", begin, d))
		}
		c.Timeout = timeout
	}
}

// fail keeps the first error.
func (e *environment) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// checkStore refuses invalid settings of the store.
func (c *Config) checkStore() error {
	s := &c.Store
	if !s.Redis.On() {
		return nil // checkMeanings refuses flags about it
	}
	upstream := s.Keys == upstreamNames
	if s.OnFailure == "" {
		s.OnFailure = failures[redislimit.LocalShare]
		if upstream {
			s.OnFailure = failures[redislimit.FailClosed]
		}
	}
	for _, flag := range [][2]string{{"store-keys", s.Keys}, {"on-store-failure", s.OnFailure}} {
		if err := cli.WantWord(flag[0], flag[1], Words[flag[0]]); err != nil {
			return err
		}
	}
	switch {
	case upstream && s.OnFailure == failures[redislimit.LocalShare]:
		return errors.New("--on-store-failure local-share with --store-keys upstream: want open or closed, since nothing is known of other processes then")
	case upstream && s.Health:
		return errors.New("--store-health (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION) with --store-keys upstream: want one of them, since an unhealthy process gets no calls, and nothing else asks the store then")
	case s.Budget < 100*time.Microsecond || s.Budget > time.Minute:
		return fmt.Errorf("--store-budget %v: want 100us to 1m", s.Budget)
	case s.Replicas < 0:
		return fmt.Errorf("--replicas %d: want a number of processes, or 0 to find out", s.Replicas)
	case s.Redis.PoolSize < 0:
		return fmt.Errorf("--redis-pool-size %d: want at least 0", s.Redis.PoolSize)
	case c.State != "":
		return errors.New("--state with --redis: want one of them, since the counts are in the store")
	case c.ManualClock:
		return errors.New("--manual-clock with --redis: want one of them, since the store has a clock of its own")
	}
	for _, r := range []struct {
		flag   string
		config *redisconn.Config
	}{{"redis", &s.Redis}, {"redis-per-second", &s.PerSecond}} {
		if r.config.On() {
			client, err := r.config.Client()
			if err != nil {
				return fmt.Errorf("--%s: %w", r.flag, err)
			}
			_ = client.Close()
		}
	}
	return nil
}

// sharedStore is a store, and the clients that connect to it.
type sharedStore struct {
	rules.Store
	own      *rulestore.Store    // nil with upstream's names
	upstream *rulestore.Upstream // nil with our own names
	clients  []redis.UniversalClient
}

// parts returns the part of the store in each server, or nothing without a store.
func (s *sharedStore) parts() (out []storePart) {
	switch {
	case s == nil:
	case s.own != nil:
		for _, p := range s.own.Stores() {
			out = append(out, p)
		}
	default:
		for _, p := range s.upstream.Servers() {
			out = append(out, p)
		}
	}
	return out
}

// openStore connects to the store. It returns nil if there is none. It does not wait for the store.
func (s *server) openStore() (_ *sharedStore, err error) {
	c := &s.config.Store
	if !c.Redis.On() {
		return nil, nil
	}
	clientLog.Store(s.log)
	out := &sharedStore{}
	defer func() {
		if err != nil {
			out.closeClients()
		}
	}()
	open := func(to redisconn.Config) (redis.UniversalClient, error) {
		to.Reply = c.Budget + time.Second // no call waits longer
		client, err := to.Client()
		if err == nil {
			out.clients = append(out.clients, client)
		}
		return client, err
	}
	client, err := open(c.Redis)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	var perSecond redis.UniversalClient
	if c.PerSecond.On() {
		if perSecond, err = open(c.PerSecond); err != nil {
			return nil, fmt.Errorf("--redis-per-second: %w", err)
		}
	}
	if err := out.open(c, client, perSecond, s.config.MaxKeys, storeNews{s.storeMode, s.refundsUnknown}); err != nil {
		return nil, fmt.Errorf("the store: %w", err)
	}
	return out, nil
}

// storeNews is the callbacks of a store.
type storeNews struct {
	mode    func(redislimit.Mode, error)
	refunds func(error)
}

// open makes the store.
func (s *sharedStore) open(c *StoreConfig, client, perSecond redis.UniversalClient, maxKeys int, tell storeNews) (err error) {
	policy := redislimit.OnUnavailable(slices.Index(failures, c.OnFailure))
	if c.Keys == upstreamNames {
		s.upstream, err = rulestore.NewUpstream(client, rulestore.UpstreamConfig{
			Prefix: c.Prefix, PerSecond: perSecond, Budget: c.Budget, OnUnavailable: policy, Jitter: c.Jitter, OnMode: tell.mode,
		})
		s.Store = s.upstream
		return err
	}
	s.own, err = rulestore.New(client, rulestore.Config{PerSecond: perSecond, OnError: tell.refunds, StoreConfig: redislimit.StoreConfig{
		Prefix: c.Prefix, Replicas: c.Replicas, Budget: c.Budget, MaxKeys: maxKeys, OnUnavailable: policy, OnMode: tell.mode,
	}})
	s.Store = s.own
	return err
}

// CheckStored returns an error about rules that a store does not keep, in the same words as serve. keys is one of
// Words for --store-keys. For the rules the error is a *rules.LoadError. CheckStored connects to no server.
func CheckStored(set *rules.Set, keys string) error {
	client := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no server is asked")
	}})
	store := &sharedStore{clients: []redis.UniversalClient{client}}
	if err := store.open(&StoreConfig{Keys: keys, OnFailure: failures[redislimit.FailClosed], Replicas: 1}, client, nil, 0, storeNews{}); err != nil {
		return err
	}
	_, err := rules.New(set, rules.Config{Store: store.Store})
	return errors.Join(err, store.close())
}

// storeMode logs that the store no longer answers, or answers again.
func (s *server) storeMode(mode redislimit.Mode, cause error) {
	if mode == redislimit.ModeDegraded {
		s.log.Warn("the store does not answer", "now", s.config.Store.OnFailure, "error", cause)
	} else {
		s.log.Warn("the store answers again")
	}
	select {
	case <-s.made:
		s.updateHealth()
	default: // the first health of the service will include the mode
	}
}

// refundsUnknown logs that the store does not say which domains are sent refunds.
func (s *server) refundsUnknown(cause error) {
	s.log.Warn("the store does not say, or was not told, which domains are sent refunds: what is known of them stays", "error", cause)
}

// storeHealthy reports whether the store lets the service be healthy.
func (s *server) storeHealthy() bool {
	if s.store != nil && s.config.Store.needsContact() && !s.reached.Load() {
		return false
	}
	return !s.config.Store.Health || !slices.ContainsFunc(s.store.parts(), func(p storePart) bool { return p.Mode() != redislimit.ModeShared })
}

// storeEnd is how long the end waits while the store is told of the charges that it is owed.
const storeEnd = 2 * time.Second

// close gives back the units on lease, and disconnects. A nil store does nothing.
func (s *sharedStore) close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeEnd)
	defer cancel()
	var err error
	if s.own != nil {
		err = s.own.Close(ctx)
	}
	s.closeClients()
	return err
}

func (s *sharedStore) closeClients() {
	for _, c := range s.clients {
		_ = c.Close()
	}
}

// rulesStore returns the store for rules.Config: nil means memory.
func (s *server) rulesStore() rules.Store {
	if s.store == nil {
		return nil
	}
	return s.store.Store
}

// clientLog gets the lines of the Redis client, whose only logger must be set while no client is in use.
var clientLog atomic.Pointer[slog.Logger]

func init() { redis.SetLogger(quietLog{}) }

// quietLog logs the client's own lines at the level of details: the modes of the store tell the rest.
type quietLog struct{}

// Printf implements the client's logger.
func (quietLog) Printf(_ context.Context, format string, v ...any) {
	if log := clientLog.Load(); log != nil {
		log.Debug(fmt.Sprintf(format, v...))
	}
}
