package service

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// variables are the environment variables of envoyproxy/ratelimit, each with the flag of the same meaning.
var variables = [][2]string{
	{"GRPC_UDS", "uds"}, {"GRPC_MAX_CONNECTION_AGE", "max-connection-age"}, {"GRPC_MAX_CONNECTION_AGE_GRACE", "max-connection-age-grace"},
	{"GRPC_CLIENT_TLS_CACERT", "client-ca"}, {"GRPC_CLIENT_TLS_SAN", "client-san"},
	{"SHADOW_MODE", "shadow"}, {"QUOTA_MODE", "quota"}, {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "stop-when-over"},
	{"NEAR_LIMIT_RATIO", "near-ratio"}, {"LIMIT_RESPONSE_HEADERS_ENABLED", "headers"},
	{"LIMIT_LIMIT_HEADER", "limit-header"}, {"LIMIT_REMAINING_HEADER", "remaining-header"}, {"LIMIT_RESET_HEADER", "reset-header"},
	{"RESPONSE_DYNAMIC_METADATA", "dynamic-metadata"}, {"MERGE_DOMAIN_CONFIG", "merge"},
	{"PROMETHEUS_PATH", "metrics-path"}, {"PROMETHEUS_ADDR", "metrics"}, {"LOG_FORMAT", "log"},
	{"FORCE_START_WITHOUT_INITIAL_CONFIG", "start-without-rules"}, {"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "healthy-with-rules"},
	{"CONFIG_GRPC_XDS_NODE_ID", "xds-node"}, {"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "xds-retry"}, {"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "xds-retry-max"},
}

// xdsTLS are the variables about TLS with the management server. Without TLS they mean nothing.
var xdsTLS = [][2]string{
	{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "xds-ca"}, {"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds-san"},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "xds-cert"}, {"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "xds-key"},
}

// meaningless are further variables of envoyproxy/ratelimit; a name that ends in _ stands for all
// variables that begin with it.
var meaningless = []string{
	"REDIS_PIPELINE_WINDOW", "REDIS_PIPELINE_LIMIT", "REDIS_PERSECOND_PIPELINE_WINDOW", "REDIS_PERSECOND_PIPELINE_LIMIT",
	"REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "MEMCACHE_", "LOCAL_CACHE_",
	"USE_STATSD", "STATSD_", "USE_DOG_STATSD", "STATS_FLUSH_INTERVAL", "DISABLE_STATS", "EXTRA_TAGS", "TRACING_", "PROMETHEUS_MAPPER_YAML",
	"CONFIG_GRPC_XDS_NODE_METADATA", "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
	"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "XDS_CLIENT_BACKOFF_JITTER", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "RUNTIME_IGNOREDOTFILES", "RUNTIME_WATCH_ROOT",
}

// environment sets flags that the command line does not set.
type environment struct {
	flags  *pflag.FlagSet
	values map[string]string
	err    error // the first error
}

// Environment takes settings from variables, each NAME=VALUE, unless flags set them. An empty variable
// sets nothing. It returns the names of variables that are set and mean nothing here.
func (c *Config) Environment(f *pflag.FlagSet, variablesOfProcess []string) (ignored []string, err error) {
	e := environment{flags: f, values: map[string]string{}}
	for _, v := range variablesOfProcess {
		if name, value, _ := strings.Cut(v, "="); value != "" {
			e.values[name] = value
		}
	}
	f.Visit(func(f *pflag.Flag) { c.given = append(c.given, f.Name) })
	for _, v := range variables {
		if v[1] == "uds" && f.Changed("grpc") {
			continue // the command line has the address of gRPC
		}
		e.set(v[1], v[0], e.values[v[0]])
	}
	e.set("log-level", "LOG_LEVEL", levelName(e.values["LOG_LEVEL"]))
	for _, a := range [][3]string{{"grpc", "GRPC_HOST", "GRPC_PORT"}, {"http", "HOST", "PORT"}, {"debug", "DEBUG_HOST", "DEBUG_PORT"}} {
		e.setAddress(a[0], a[1], a[2])
	}
	if e.is("GRPC_SERVER_USE_TLS", false) {
		e.set("tls-cert", "GRPC_SERVER_TLS_CERT", e.values["GRPC_SERVER_TLS_CERT"])
		e.set("tls-key", "GRPC_SERVER_TLS_KEY", e.values["GRPC_SERVER_TLS_KEY"])
	}
	if !e.is("USE_PROMETHEUS", true) && !f.Changed("metrics") {
		c.Metrics = ""
	}
	e.source(c)
	e.store(&c.Store)
	return e.meaningless(), e.err
}

// source takes the place of the rules from variables, unless the command line has it.
func (e *environment) source(c *Config) {
	switch t := cmp.Or(e.values["CONFIG_TYPE"], "FILE"); {
	case t != "FILE" && t != "GRPC_XDS_SOTW":
		if e.err == nil {
			e.err = fmt.Errorf("CONFIG_TYPE %q: want FILE or GRPC_XDS_SOTW", t)
		}
	case len(c.Rules) > 0 || c.XDS != "":
	case t == "FILE":
		e.files(c)
	default:
		c.XDS = cmp.Or(e.values["CONFIG_GRPC_XDS_SERVER_URL"], "localhost:18000")
	}
	if c.XDS != "" && e.is("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
		e.set("xds-tls", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")
		for _, v := range xdsTLS {
			e.set(v[1], v[0], e.values[v[0]])
		}
	}
}

// files takes the paths of rules from upstream's variables.
func (e *environment) files(c *Config) {
	root, sub, app := e.values["RUNTIME_ROOT"], e.values["RUNTIME_SUBDIRECTORY"], e.values["RUNTIME_APPDIRECTORY"]
	if root+sub+app != "" {
		c.Rules = []string{filepath.Join(cmp.Or(root, "/srv/runtime_data/current"), sub, cmp.Or(app, "config"))}
	}
}

// set gives a flag the value of a variable, if the variable is set and the command line does not set the flag.
func (e *environment) set(flag, variable, value string) {
	if value == "" || e.flags.Changed(flag) || e.err != nil {
		return
	}
	f := e.flags.Lookup(flag)
	if err := f.Value.Set(value); err != nil { // not by e.flags.Set: the command line has not changed it
		e.err = fmt.Errorf("%s %q: %w; see --%s", variable, value, err, flag)
	}
}

// setAddress sets a flag from two variables. A part that neither variable sets stays as it is.
func (e *environment) setAddress(flag, host, port string) {
	if e.values[host] == "" && e.values[port] == "" {
		return
	}
	oldHost, oldPort, _ := net.SplitHostPort(e.flags.Lookup(flag).Value.String())
	e.set(flag, host+" and "+port, net.JoinHostPort(cmp.Or(e.values[host], oldHost), cmp.Or(e.values[port], oldPort)))
}

// is reads a variable that is true or false.
func (e *environment) is(variable string, otherwise bool) bool {
	value := e.values[variable]
	if value == "" {
		return otherwise
	}
	b, err := strconv.ParseBool(value)
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("%s %q: want true or false", variable, value)
	}
	return b
}

// levelName translates the levels of upstream's log to the levels here.
func levelName(level string) string {
	switch level = strings.ToLower(level); level {
	case "trace":
		return "debug"
	case "warning":
		return "warn"
	case "fatal", "panic":
		return "error"
	}
	return level
}

func (e *environment) meaningless() []string {
	var out []string
	for name := range e.values {
		if slices.ContainsFunc(meaningless, func(m string) bool {
			return name == m || strings.HasSuffix(m, "_") && strings.HasPrefix(name, m)
		}) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
