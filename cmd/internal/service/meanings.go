package service

import (
	"fmt"
	"slices"
	"strings"
)

// meanings are flags that mean something only with another one, and whether that is there. On the command line
// they are errors without it: whoever writes --replicas 3 believes that counts are shared.
func (c *Config) meanings() []meaning {
	return []meaning{
		{"redis-type redis-pool-size redis-ca redis-cert redis-key redis-per-second redis-per-second-type store-prefix store-budget on-store-failure store-keys leases replicas store-health",
			"--redis, or REDIS_URL, since counts are in memory without it", c.Store.Redis.On()},
		{"redis-per-second-type", "--redis-per-second", c.Store.PerSecond.On()},
		{"xds-node xds-tls xds-ca xds-san xds-cert xds-key xds-retry xds-retry-max", "--xds", c.XDS != ""},
		{"grpc", "no --uds, which takes its place", c.UDS == "" || c.GRPC == ""},
		{"uds-mode", "--uds", c.UDS != ""},
		{"trusted-proxies client-header require-client-header fail-open headers-draft11", "--http", c.HTTP != ""},
		{"client-header require-client-header", "--trusted-proxies, who are believed", len(c.TrustedProxies) > 0},
		{"limit-header remaining-header reset-header", "--headers", c.Headers},
		{"live-keys debug-hosts", "--debug", c.Debug != ""},
		{"metrics-path metrics-names", "--metrics", c.Metrics != ""},
	}
}

// meaning are the conditions of flags.
type meaning struct {
	flags, want string
	there       bool
}

// checkMeanings refuses flags of the command line that mean nothing. Variables may be there for other services.
func (c *Config) checkMeanings() error {
	for _, m := range c.meanings() {
		for _, flag := range strings.Fields(m.flags) {
			if !m.there && slices.Contains(c.given, flag) {
				return fmt.Errorf("--%s means nothing here: want %s", flag, m.want)
			}
		}
	}
	return nil
}
