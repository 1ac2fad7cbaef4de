// Package service runs the rate limit service: its ports, its files of rules, its state.
package service

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice/cmd/internal/cli"
	"github.com/sluice-go/sluice/cmd/internal/redisconn"
	"github.com/sluice-go/sluice/cmd/internal/xds"
)

// Config is the settings from the command line and the environment. Flags sets its defaults.
type Config struct {
	Rules  []string
	Merge  bool
	Strict bool

	XDS, XDSNode          string
	XDSTLS                xds.TLS
	XDSRetry, XDSRetryMax time.Duration

	GRPC, HTTP, Debug, Metrics, UDS string
	UDSMode                         string
	LiveKeys                        bool
	DebugHosts                      []string
	HTTPTLS, HTTPPlain              bool
	TLSCert, TLSKey                 string
	ClientCA, ClientSAN             string
	MaxConnectionAge, ConnectionEnd time.Duration
	Reflection                      bool

	Shadow, Quota, StopWhenOver bool
	NearRatio                   float32
	MaxKeys, MaxSeries          int
	MaxHolds                    int
	MaxHoldTTL                  time.Duration

	Headers                                   bool
	LimitHeader, RemainingHeader, ResetHeader string
	RuleHeader                                string
	DynamicMetadata                           bool

	MaxMessage, MaxDescriptors, MaxEntries, MaxValue int

	TrustedProxies      []string
	ClientHeader        string
	RequireClientHeader bool
	HeadersDraft11      bool
	FailOpen            bool

	State      string
	StateEvery time.Duration
	Drain      time.Duration

	MetricsPath, MetricsNames string
	Log, LogLevel             string

	Store StoreConfig

	StartWithoutRules, HealthyWithRules bool
	ManualClock                         bool

	given []string // flags of the command line, by Environment
}

// Names of metrics.
const (
	ownNames      = "sluice"
	upstreamNames = "upstream"
)

// Words are the values of flags that take a word.
var Words = map[string][]string{
	"log":              {"text", "json"},
	"log-level":        {"debug", "info", "warn", "error"},
	"metrics-names":    {ownNames, upstreamNames},
	"redis-type":       redisconn.Types,
	"store-keys":       {ownNames, upstreamNames},
	"on-store-failure": failures,
}

// Flags defines the flags of c, with their defaults, in the groups in which help lists them.
func (c *Config) Flags(f *pflag.FlagSet) {
	cli.Group(f, "Rules", c.ruleFlags)
	cli.Group(f, "Rules from a management server", c.xdsFlags)
	cli.Group(f, "Ports and connections", c.portFlags)
	cli.Group(f, "Answers", c.answerFlags)
	cli.Group(f, "Proxies that ask /check", c.checkFlags)
	cli.Group(f, "Counts in memory", c.memoryFlags)
	cli.Group(f, "Counts in Redis", c.Store.storeFlags)
	cli.Group(f, "Sizes of requests", c.sizeFlags)
	cli.Group(f, "Metrics, log and end", c.watchFlags)
}

// ruleFlags defines the flags about files of rules.
func (c *Config) ruleFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&c.Rules, "rules", nil, "files of rules, or directories of them")
	f.BoolVar(&c.Merge, "merge", false, "let several files name the same domain")
	f.BoolVar(&c.Strict, "strict", false, "refuse rules with warnings")
	f.BoolVar(&c.StartWithoutRules, "start-without-rules", false, "start although the rules are bad, or there are none")
	f.BoolVar(&c.HealthyWithRules, "healthy-with-rules", false, "be unhealthy until there is a domain")
}

// xdsFlags defines the flags about the management server.
func (c *Config) xdsFlags(f *pflag.FlagSet) {
	f.StringVar(&c.XDS, "xds", "", "address of a management server that sends rules over xDS, in place of --rules")
	f.StringVar(&c.XDSNode, "xds-node", "default", "node id by which it knows this service")
	f.BoolVar(&c.XDSTLS.On, "xds-tls", false, "speak TLS with it")
	f.StringVar(&c.XDSTLS.CA, "xds-ca", "", "certificates that must have signed its own; empty for those of the system")
	f.StringVar(&c.XDSTLS.Name, "xds-san", "", "name that its certificate must have; empty for that of the address")
	f.StringVar(&c.XDSTLS.Cert, "xds-cert", "", "certificate of this service, as its client")
	f.StringVar(&c.XDSTLS.Key, "xds-key", "", "key of the certificate")
	f.DurationVar(&c.XDSRetry, "xds-retry", time.Second, "how long to wait for the next connection, give or take a half; twice as long each time")
	f.DurationVar(&c.XDSRetryMax, "xds-retry-max", time.Minute, "and at most")
}

// portFlags defines the flags about ports and connections.
func (c *Config) portFlags(f *pflag.FlagSet) {
	f.StringVar(&c.GRPC, "grpc", ":8081", "address of the gRPC service")
	f.StringVar(&c.UDS, "uds", "", "path of a unix socket for gRPC, in place of --grpc")
	f.StringVar(&c.UDSMode, "uds-mode", "0660", "who may connect to it, as chmod has it")
	f.StringVar(&c.HTTP, "http", ":8080", "address of /check, /json, /hold and /healthcheck; empty for none")
	f.StringVar(&c.Debug, "debug", "127.0.0.1:6070", "address of /rlconfig, /stats, /live and /debug/pprof; empty for none")
	f.StringSliceVar(&c.DebugHosts, "debug-hosts", nil, "names of that port, besides localhost and its address")
	f.BoolVar(&c.HTTPTLS, "http-tls", false, "serve TLS on --http, with the certificate of gRPC and for the clients of --client-ca; /healthcheck for all")
	f.BoolVar(&c.HTTPPlain, "http-plain", false, "answer all on --http without TLS, in spite of --client-ca; else only this machine")
	f.BoolVar(&c.LiveKeys, "live-keys", false, "show the most denied keys on /live as they are, and not as hashes")
	f.StringVar(&c.Metrics, "metrics", ":9090", "address of the metrics; empty for none")
	f.StringVar(&c.TLSCert, "tls-cert", "", "certificate of the gRPC service; read again when it changes")
	f.StringVar(&c.TLSKey, "tls-key", "", "key of the certificate")
	f.StringVar(&c.ClientCA, "client-ca", "", "certificates that must have signed those of clients")
	f.StringVar(&c.ClientSAN, "client-san", "", "name that a client's certificate must have")
	f.DurationVar(&c.MaxConnectionAge, "max-connection-age", 24*time.Hour, "how long a gRPC connection may live")
	f.DurationVar(&c.ConnectionEnd, "max-connection-age-grace", time.Hour, "and how long its last calls may take")
	f.BoolVar(&c.Reflection, "reflection", false, "serve gRPC reflection")
}

// answerFlags defines the flags about answers.
func (c *Config) answerFlags(f *pflag.FlagSet) {
	f.BoolVar(&c.Shadow, "shadow", false, "count as ever, and answer OK")
	f.BoolVar(&c.Quota, "quota", false, "deny only if all descriptors are over their limits")
	f.BoolVar(&c.StopWhenOver, "stop-when-over", false, "if a descriptor is over its limit, count no other one")
	f.BoolVar(&c.Headers, "headers", false, "answer with headers for the client")
	f.StringVar(&c.LimitHeader, "limit-header", "RateLimit-Limit", "name of the header with the limit")
	f.StringVar(&c.RemainingHeader, "remaining-header", "RateLimit-Remaining", "name of the header with what remains")
	f.StringVar(&c.ResetHeader, "reset-header", "RateLimit-Reset", "name of the header with the seconds to the end of the window")
	f.StringVar(&c.RuleHeader, "rule-header", "", "name of a header with the rule that denied a call; empty for none")
	f.BoolVar(&c.DynamicMetadata, "dynamic-metadata", false, "answer with dynamic metadata")
}

// checkFlags defines the flags about /check.
func (c *Config) checkFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&c.TrustedProxies, "trusted-proxies", []string{"127.0.0.0/8", "::1/128"}, "addresses of proxies that /check believes what they say of a request")
	f.StringVar(&c.ClientHeader, "client-header", "X-Forwarded-For", "header in which they say who the client is")
	f.BoolVar(&c.RequireClientHeader, "require-client-header", false, "refuse what they ask without it, in place of counting it under the proxy's address; also with --fail-open")
	f.BoolVar(&c.FailOpen, "fail-open", false, "let /check admit what it cannot decide")
	f.BoolVar(&c.HeadersDraft11, "headers-draft11", false, "answer /check with RateLimit and RateLimit-Policy, as the IETF has them in draft 11")
}

// memoryFlags defines the flags about counts in memory.
func (c *Config) memoryFlags(f *pflag.FlagSet) {
	f.IntVar(&c.MaxKeys, "max-keys", 1<<20, "tracked keys, for each unit")
	f.IntVar(&c.MaxHolds, "max-holds", 100_000, "limits that holds in memory have, and extensions of them")
	f.DurationVar(&c.MaxHoldTTL, "max-hold-ttl", time.Hour, "how long a hold may last that nobody settles")
	f.StringVar(&c.State, "state", "", "file that keeps the counts over a restart")
	f.DurationVar(&c.StateEvery, "state-every", 0, "how often to write it; 0 for the end only")
	f.BoolVar(&c.ManualClock, "manual-clock", false, "move the clock by POST /clock only")
	_ = f.MarkHidden("manual-clock")
}

// sizeFlags defines the flags about the sizes of requests.
func (c *Config) sizeFlags(f *pflag.FlagSet) {
	f.IntVar(&c.MaxMessage, "max-message", 64<<10, "bytes of text in a request")
	f.IntVar(&c.MaxDescriptors, "max-descriptors", 256, "descriptors in a request")
	f.IntVar(&c.MaxEntries, "max-entries", 64, "entries in a descriptor")
	f.IntVar(&c.MaxValue, "max-value", 64<<10, "bytes of a key or a value")
}

// watchFlags defines the flags about metrics, the log and the end.
func (c *Config) watchFlags(f *pflag.FlagSet) {
	f.StringVar(&c.MetricsPath, "metrics-path", "/metrics", "path of the metrics")
	f.StringVar(&c.MetricsNames, "metrics-names", ownNames, "sluice, or upstream for those of envoyproxy/ratelimit")
	f.IntVar(&c.MaxSeries, "metrics-max-series", 2000, "series with values of requests; 0 for none")
	f.Float32Var(&c.NearRatio, "near-ratio", 0.8, "share of a limit from which on hits are near it")
	f.StringVar(&c.Log, "log", "text", "form of the log, text or json")
	f.StringVar(&c.LogLevel, "log-level", "warn", "debug, info, warn or error")
	f.DurationVar(&c.Drain, "drain", 5*time.Second, "how long to answer calls, unhealthy, before the end")
}

// Check refuses invalid settings, and reports the first one.
func (c *Config) Check() error {
	for _, check := range []func() error{c.checkChoices, c.checkNumbers, c.checkTLS, c.checkXDS, c.checkPorts, c.checkProxies, c.checkStore, c.checkMeanings} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkChoices() error {
	for _, flag := range [][2]string{{"metrics-names", c.MetricsNames}, {"log", c.Log}, {"log-level", c.LogLevel}} {
		if err := cli.WantWord(flag[0], flag[1], Words[flag[0]]); err != nil {
			return err
		}
	}
	switch {
	case len(c.Rules) == 0 && c.XDS == "" && !c.StartWithoutRules:
		return errors.New("no rules: want --rules with files or directories, or RUNTIME_ROOT and RUNTIME_SUBDIRECTORY, or --xds")
	case slices.Contains(c.Rules, ""):
		return errors.New(`--rules "": want a file or a directory`)
	case !strings.HasPrefix(c.MetricsPath, "/") || strings.ContainsAny(c.MetricsPath, "{} \t\n"):
		return fmt.Errorf("--metrics-path %q: want a path that begins with /, without braces and spaces", c.MetricsPath)
	}
	for _, h := range [][2]string{{"limit-header", c.LimitHeader}, {"remaining-header", c.RemainingHeader}, {"reset-header", c.ResetHeader}, {"rule-header", c.RuleHeader}} {
		if h[1] == "" && h[0] != "rule-header" || strings.ContainsFunc(h[1], func(r rune) bool { return !isToken(r) }) {
			return fmt.Errorf("--%s %q: want the name of a header", h[0], h[1])
		}
	}
	return nil
}

// isToken reports whether the name of a header can contain r (RFC 9110, section 5.6.2).
func isToken(r rune) bool {
	return r > ' ' && r < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

func (c *Config) checkNumbers() error {
	for _, n := range []struct {
		flag  string
		value int
	}{
		{"max-keys", c.MaxKeys}, {"max-holds", c.MaxHolds}, {"max-message", c.MaxMessage}, {"max-descriptors", c.MaxDescriptors},
		{"max-entries", c.MaxEntries}, {"max-value", c.MaxValue},
	} {
		if n.value < 1 {
			return fmt.Errorf("--%s %d: want at least 1", n.flag, n.value)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"drain", c.Drain}, {"state-every", c.StateEvery},
		{"max-connection-age", c.MaxConnectionAge}, {"max-connection-age-grace", c.ConnectionEnd},
	} {
		if d.value < 0 {
			return fmt.Errorf("--%s %v: want at least 0", d.flag, d.value)
		}
	}
	switch {
	case c.MaxHoldTTL <= 0:
		return fmt.Errorf("--max-hold-ttl %v: want more than 0", c.MaxHoldTTL)
	case !(c.NearRatio >= 0 && c.NearRatio <= 1): // also if it is not a number
		return fmt.Errorf("--near-ratio %v: want 0 to 1", c.NearRatio)
	case c.MaxSeries < 0:
		return fmt.Errorf("--metrics-max-series %d: want at least 0", c.MaxSeries)
	case c.StateEvery > 0 && c.State == "":
		return errors.New("--state-every without --state: want a file to write to")
	}
	return nil
}

func (c *Config) checkTLS() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("one of --tls-cert and --tls-key is missing: want both or none")
	case c.TLSCert == "" && (c.ClientCA != "" || c.ClientSAN != ""):
		return errors.New("--client-ca or --client-san without --tls-cert: want a certificate of the service, too")
	case c.HTTPTLS && (c.TLSCert == "" || c.HTTP == ""):
		return errors.New("--http-tls without --tls-cert or --http: want both, too")
	case c.HTTPPlain && (c.ClientCA == "" || c.HTTPTLS || c.HTTP == ""):
		return errors.New("--http-plain without --client-ca and --http, or with --http-tls: want it only where the port has no TLS and --client-ca would close it")
	case c.ClientSAN != "" && c.ClientCA == "":
		return errors.New("--client-san without --client-ca: want the certificates that names are believed from")
	}
	return nil
}

func (c *Config) checkXDS() error {
	t := &c.XDSTLS
	if c.XDS == "" {
		return nil // checkMeanings refuses flags about it
	}
	if _, _, err := net.SplitHostPort(c.XDS); err != nil {
		return fmt.Errorf("--xds %q: want HOST:PORT", c.XDS)
	}
	switch {
	case len(c.Rules) > 0:
		return errors.New("--xds and --rules: want one of them")
	case c.XDSNode == "":
		return errors.New(`--xds-node "": want the node id that the management server has rules for`)
	case c.XDSRetry <= 0 || c.XDSRetryMax < c.XDSRetry:
		return fmt.Errorf("--xds-retry %v and --xds-retry-max %v: want more than 0, and at least as much", c.XDSRetry, c.XDSRetryMax)
	case !t.On && t.CA+t.Name+t.Cert+t.Key != "":
		return errors.New("--xds-ca, --xds-san, --xds-cert or --xds-key without --xds-tls: want that, too")
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("one of --xds-cert and --xds-key is missing: want both or none")
	}
	if t.On {
		if _, err := t.Config(); err != nil {
			return fmt.Errorf("--xds-tls: %w", err)
		}
	}
	return nil
}

func (c *Config) checkProxies() error {
	_, err := newProxies(c, nil, nil)
	return err
}

func (c *Config) checkPorts() error {
	if c.GRPC == "" && c.UDS == "" {
		return errors.New(`--grpc "": want an address, or --uds`)
	}
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(c.UDS) > most {
		return fmt.Errorf("--uds %s: it is %d bytes long; want at most %d, which is what the system takes", c.UDS, len(c.UDS), most)
	}
	if mode, err := strconv.ParseUint(c.UDSMode, 8, 32); err != nil || mode > 0o777 {
		return fmt.Errorf("--uds-mode %q: want three octal digits, such as 0660", c.UDSMode)
	}
	for _, p := range c.ports() {
		if p.address == "" || p.network == "unix" {
			continue
		}
		_, port, err := net.SplitHostPort(p.address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return fmt.Errorf("--%s %q: want HOST:PORT or :PORT", p.name, p.address)
		}
	}
	return nil
}

// port is one address on which the service listens.
type port struct{ name, network, address string }

// flag is the flag that names the address.
func (p port) flag() string {
	if p.network == "unix" {
		return "uds"
	}
	return p.name
}

// ports returns the ports. The unix socket replaces the port grpc, and has its name.
func (c *Config) ports() []port {
	grpc := port{"grpc", "tcp", c.GRPC}
	if c.UDS != "" {
		grpc = port{"grpc", "unix", c.UDS}
	}
	return []port{grpc, {"http", "tcp", c.HTTP}, {"debug", "tcp", c.Debug}, {"metrics", "tcp", c.Metrics}}
}
