package service

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parse reads a command line and an environment.
func parse(args, environment []string) (c *Config, ignored []string, err error) {
	c = new(Config)
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(f)
	if err := f.Parse(args); err != nil {
		return nil, nil, err
	}
	ignored, err = c.Environment(f, environment)
	return c, ignored, err
}

func TestConfig_Defaults(t *testing.T) {
	c, ignored, err := parse([]string{"--rules", "r"}, []string{"PATH=/bin", "HOME=", "SHADOW_MODE="})
	require.NoError(t, err)
	require.NoError(t, c.Check())
	assert.Empty(t, ignored)
	assert.Equal(t, []port{{"grpc", "tcp", ":8081"}, {"http", "tcp", ":8080"}, {"debug", "tcp", "127.0.0.1:6070"}, {"metrics", "tcp", ":9090"}}, c.ports())
	assert.Equal(t, "warn", c.LogLevel)
	assert.False(t, c.Shadow)
}

func xdsOf(c *Config) any { return fmt.Sprint(c.XDS, " ", c.XDSNode, " ", c.Rules, " ", c.XDSTLS) }

func TestConfig_Environment(t *testing.T) {
	for variables, want := range map[[2]string]func(*Config) any{
		{"GRPC_UDS=/run/s", "/run/s"}:                   func(c *Config) any { return c.UDS },
		{"GRPC_PORT=1", ":1"}:                           func(c *Config) any { return c.GRPC },
		{"GRPC_HOST=::1", "[::1]:8081"}:                 func(c *Config) any { return c.GRPC },
		{"HOST=h PORT=2", "h:2"}:                        func(c *Config) any { return c.HTTP },
		{"DEBUG_PORT=3", "127.0.0.1:3"}:                 func(c *Config) any { return c.Debug },
		{"DEBUG_HOST=0.0.0.0", "0.0.0.0:6070"}:          func(c *Config) any { return c.Debug },
		{"PROMETHEUS_ADDR=:4", ":4"}:                    func(c *Config) any { return c.Metrics },
		{"USE_PROMETHEUS=false PROMETHEUS_ADDR=:4", ""}: func(c *Config) any { return c.Metrics },
		{"PROMETHEUS_PATH=/m", "/m"}:                    func(c *Config) any { return c.MetricsPath },
		{"GRPC_SERVER_USE_TLS=1 GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k", "c k"}:   func(c *Config) any { return c.TLSCert + " " + c.TLSKey },
		{"GRPC_SERVER_USE_TLS=false GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k", " "}: func(c *Config) any { return c.TLSCert + " " + c.TLSKey },
		{"GRPC_CLIENT_TLS_CACERT=a GRPC_CLIENT_TLS_SAN=s", "a s"}:                       func(c *Config) any { return c.ClientCA + " " + c.ClientSAN },
		{"GRPC_MAX_CONNECTION_AGE=2h GRPC_MAX_CONNECTION_AGE_GRACE=3m", "2h0m0s 3m0s"}: func(c *Config) any {
			return c.MaxConnectionAge.String() + " " + c.ConnectionEnd.String()
		},
		{"LOG_LEVEL=WARNING", "warn"}:                            func(c *Config) any { return c.LogLevel },
		{"LOG_LEVEL=Trace", "debug"}:                             func(c *Config) any { return c.LogLevel },
		{"LOG_LEVEL=fatal", "error"}:                             func(c *Config) any { return c.LogLevel },
		{"LOG_LEVEL=INFO", "info"}:                               func(c *Config) any { return c.LogLevel },
		{"LOG_FORMAT=json", "json"}:                              func(c *Config) any { return c.Log },
		{"SHADOW_MODE=true", "true"}:                             func(c *Config) any { return c.Shadow },
		{"QUOTA_MODE=true", "true"}:                              func(c *Config) any { return c.Quota },
		{"NEAR_LIMIT_RATIO=0", "0"}:                              func(c *Config) any { return c.NearRatio },
		{"NEAR_LIMIT_RATIO=0.5", "0.5"}:                          func(c *Config) any { return c.NearRatio },
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", "true"}: func(c *Config) any { return c.StopWhenOver },
		{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "true"}:          func(c *Config) any { return c.Headers },
		{"LIMIT_LIMIT_HEADER=L LIMIT_REMAINING_HEADER=R LIMIT_RESET_HEADER=S", "LRS"}: func(c *Config) any {
			return c.LimitHeader + c.RemainingHeader + c.ResetHeader
		},
		{"RESPONSE_DYNAMIC_METADATA=true", "true"}:                                              func(c *Config) any { return c.DynamicMetadata },
		{"MERGE_DOMAIN_CONFIG=true", "true"}:                                                    func(c *Config) any { return c.Merge },
		{"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "true"}:                                     func(c *Config) any { return c.StartWithoutRules },
		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", "true"}:                                func(c *Config) any { return c.HealthyWithRules },
		{"CONFIG_TYPE=FILE RUNTIME_ROOT=/r RUNTIME_SUBDIRECTORY=s", "[/r/s/config]"}:            func(c *Config) any { return c.Rules },
		{"CONFIG_TYPE=GRPC_XDS_SOTW RUNTIME_ROOT=/r", "localhost:18000 default [] {false    }"}: xdsOf,
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=h:1 CONFIG_GRPC_XDS_NODE_ID=n CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a", "h:1 n [] {false    }"}: xdsOf,
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a CONFIG_GRPC_XDS_SERVER_TLS_SAN=s " +
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k", "localhost:18000 default [] {true a c k s}"}: xdsOf,
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=10s XDS_CLIENT_BACKOFF_MAX_INTERVAL=2m", "10s 2m0s"}: func(c *Config) any {
			return c.XDSRetry.String() + " " + c.XDSRetryMax.String()
		},
		{"RUNTIME_SUBDIRECTORY=s RUNTIME_APPDIRECTORY=a", "[/srv/runtime_data/current/s/a]"}: func(c *Config) any { return c.Rules },
	} {
		c, ignored, err := parse(nil, strings.Fields(variables[0]))
		require.NoError(t, err, variables)
		assert.Empty(t, ignored, variables)
		assert.Equal(t, variables[1], fmt.Sprint(want(c)), variables[0])
	}
}

// TestConfig_VariablesAreDocumented: the page's table has each variable that a flag stands for.
func TestConfig_VariablesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../sluiced/REFERENCE.md")
	require.NoError(t, err)
	names := []string{
		"LOG_LEVEL", "GRPC_HOST", "GRPC_PORT", "HOST", "PORT", "DEBUG_HOST", "DEBUG_PORT",
		"GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "USE_PROMETHEUS",
		"BACKEND_TYPE", "REDIS_URL", "REDIS_AUTH", "REDIS_TLS", "REDIS_TIMEOUT", "REDIS_PERSECOND", "EXPIRATION_JITTER_MAX_SECONDS", "LOCAL_CACHE_SIZE_IN_BYTES",
		"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY", "CONFIG_TYPE", "CONFIG_GRPC_XDS_SERVER_URL", "CONFIG_GRPC_XDS_SERVER_USE_TLS",
	}
	for _, v := range slices.Concat(variables, xdsTLS, storeVariables) {
		names = append(names, v[0])
	}
	for _, name := range names {
		assert.Contains(t, string(page), "`"+name+"`")
	}
}

func TestConfig_FlagsWin(t *testing.T) {
	c, _, err := parse(
		[]string{"--rules", "r", "--shadow=false", "--grpc", ":1", "--metrics", ":5", "--log-level", "info", "--near-ratio", "0.8"},
		[]string{"RUNTIME_ROOT=/x", "SHADOW_MODE=true", "GRPC_PORT=9", "USE_PROMETHEUS=false", "LOG_LEVEL=ERROR", "NEAR_LIMIT_RATIO=x"})
	require.NoError(t, err)
	assert.Equal(t, []string{"r"}, c.Rules)
	assert.False(t, c.Shadow)
	assert.Equal(t, ":1 :5 info", c.GRPC+" "+c.Metrics+" "+c.LogLevel)
}

func TestConfig_MeaninglessVariables(t *testing.T) {
	_, ignored, err := parse([]string{"--rules", "r"}, []string{
		"REDIS_PIPELINE_WINDOW=1ms", "REDIS_PIPELINE_LIMIT=5", "MEMCACHE_HOST_PORT=x", "LOCAL_CACHE_SIZE_IN_BYTES=5",
		"USE_STATSD=false", "STATSD_HOST=x", "REDISX=1", "RUNTIME_IGNOREDOTFILES=true", "TRACING_ENABLED=",
	})
	require.NoError(t, err)
	assert.Equal(t, []string{
		"LOCAL_CACHE_SIZE_IN_BYTES", "MEMCACHE_HOST_PORT",
		"REDIS_PIPELINE_LIMIT", "REDIS_PIPELINE_WINDOW", "RUNTIME_IGNOREDOTFILES", "STATSD_HOST", "USE_STATSD",
	}, ignored)
}

func TestConfig_BadEnvironment(t *testing.T) {
	for variables, want := range map[string]string{
		"SHADOW_MODE=perhaps":        `SHADOW_MODE "perhaps": `,
		"GRPC_MAX_CONNECTION_AGE=24": `GRPC_MAX_CONNECTION_AGE "24": `,
		"NEAR_LIMIT_RATIO=much":      `NEAR_LIMIT_RATIO "much": `,
		"GRPC_SERVER_USE_TLS=x":      `GRPC_SERVER_USE_TLS "x": want true or false`,
		"USE_PROMETHEUS=x":           `USE_PROMETHEUS "x": want true or false`,
		"CONFIG_TYPE=CONSUL":         `CONFIG_TYPE "CONSUL": want FILE or GRPC_XDS_SOTW`,
		"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=x XDS_CLIENT_BACKOFF_MAX_INTERVAL=1": `XDS_CLIENT_BACKOFF_MAX_INTERVAL "1": `,
	} {
		_, _, err := parse([]string{"--rules", "r"}, strings.Fields(variables))
		require.ErrorContains(t, err, want)
	}
}

func TestConfig_Check(t *testing.T) {
	for args, want := range map[string]string{
		"":                                                  "no rules: want --rules",
		"--rules=":                                          "no rules: want --rules",
		"--rules r, --rules=,":                              `--rules "": want a file or a directory`,
		"--rules r --metrics-names other":                   `--metrics-names "other": want sluice or upstream`,
		"--rules r --metrics-path m":                        `--metrics-path "m": want a path`,
		"--rules r --metrics-path /{x":                      `--metrics-path "/{x": want a path`,
		"--rules r --log xml":                               `--log "xml": want text or json`,
		"--rules r --log-level loud":                        `--log-level "loud": want debug, info, warn or error`,
		"--rules r --near-ratio -0.1":                       "--near-ratio -0.1: want 0 to 1",
		"--rules r --near-ratio NaN":                        "--near-ratio NaN: want 0 to 1",
		"--rules r --near-ratio 1.1":                        "--near-ratio 1.1: want 0 to 1",
		"--rules r --max-keys 0":                            "--max-keys 0: want at least 1",
		"--rules r --max-value -1":                          "--max-value -1: want at least 1",
		"--rules r --metrics-max-series -1":                 "--metrics-max-series -1: want at least 0",
		"--rules r --drain -1s":                             "--drain -1s: want at least 0",
		"--rules r --state-every 1s":                        "--state-every without --state",
		"--rules r --tls-cert c":                            "one of --tls-cert and --tls-key is missing",
		"--rules r --client-ca c":                           "--client-ca or --client-san without --tls-cert",
		"--rules r --tls-cert c --tls-key k --client-san s": "--client-san without --client-ca",
		"--rules r --grpc=":                                 `--grpc "": want an address, or --uds`,
		"--rules r --grpc 8081":                             `--grpc "8081": want HOST:PORT or :PORT`,
		"--rules r --http :http":                            `--http ":http": want HOST:PORT or :PORT`,
		"--rules r --debug :70000":                          `--debug ":70000": want HOST:PORT or :PORT`,
		"--rules r --xds h:1":                               "--xds and --rules: want one of them",
		"--xds h":                                           `--xds "h": want HOST:PORT`,
		"--xds h:1 --xds-node=":                             `--xds-node "": want the node id`,
		"--xds h:1 --xds-retry 0":                           "--xds-retry 0s and --xds-retry-max 1m0s: want",
		"--xds h:1 --xds-retry 2m":                          "--xds-retry 2m0s and --xds-retry-max 1m0s: want",
		"--xds h:1 --xds-ca x":                              "--xds-key without --xds-tls",
		"--xds h:1 --xds-tls --xds-cert x":                  "one of --xds-cert and --xds-key is missing",
		"--xds h:1 --xds-tls --xds-ca /nowhere":             "--xds-tls: open /nowhere",
		"--rules r --xds-tls":                               "--xds-tls means nothing here: want --xds",
		"--rules r --limit-header x:y":                      `--limit-header "x:y": want the name of a header`,
		"--rules r --rule-header=a:b":                       `--rule-header "a:b": want the name of a header`,
		"--rules r --reset-header=":                         `--reset-header "": want the name of a header`,
	} {
		c, _, err := parse(strings.Fields(args), nil)
		require.NoError(t, err, args)
		assert.ErrorContains(t, c.Check(), want, args)
	}
}
