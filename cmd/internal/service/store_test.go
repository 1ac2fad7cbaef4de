package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-go/sluice/cmd/internal/redisconn"
	"github.com/sluice-go/sluice/internal/test/servers"
)

// TestConfig_Store: upstream's variables name the same servers as flags do, which win.
func TestConfig_Store(t *testing.T) {
	for _, c := range []struct {
		args, variables string
		main, second    redisconn.Config
	}{
		{"", "", redisconn.Config{}, redisconn.Config{}},
		{"", "REDIS_URL=r:1 REDIS_SOCKET_TYPE=tcp REDIS_AUTH=u:p REDIS_POOL_SIZE=7", redisconn.Config{URLs: []string{"r:1"}, Auth: "u:p", PoolSize: 7}, redisconn.Config{}},
		{"", "BACKEND_TYPE=redis REDIS_URL=/a.sock", redisconn.Config{URLs: []string{"/a.sock"}, Unix: true}, redisconn.Config{}},
		{"", "REDIS_URL=m,a:1,b:2 REDIS_TYPE=SENTINEL REDIS_SENTINEL_AUTH=s", redisconn.Config{URLs: []string{"m", "a:1", "b:2"}, Type: "SENTINEL", SentinelAuth: "s"}, redisconn.Config{}},
		{"--redis redis://x", "REDIS_URL=r:1 REDIS_AUTH=p", redisconn.Config{URLs: []string{"redis://x"}, Auth: "p"}, redisconn.Config{}},
		{"", "REDIS_URL=r:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=s:1 REDIS_PERSECOND_AUTH=p", redisconn.Config{URLs: []string{"r:1"}}, redisconn.Config{URLs: []string{"s:1"}, Auth: "p"}},
		{"", "REDIS_URL=r:1 REDIS_PERSECOND_URL=s:1", redisconn.Config{URLs: []string{"r:1"}}, redisconn.Config{}},
		{"", "REDIS_URL=r:1 REDIS_TLS=true REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true", redisconn.Config{URLs: []string{"r:1"}, TLS: true, SkipHostname: true}, redisconn.Config{}},
	} {
		got, _, err := parse(append([]string{"--rules", "r"}, strings.Fields(c.args)...), strings.Fields(c.variables))
		require.NoError(t, err, c.variables)
		require.NoError(t, got.Check(), c.variables)
		require.Equal(t, c.main, got.Store.Redis, c.variables)
		require.Equal(t, c.second, got.Store.PerSecond, c.variables)
	}
}

// TestConfig_BadStore: each mistake is one clear error, which has no password in it.
func TestConfig_BadStore(t *testing.T) {
	for _, c := range [][3]string{
		{"", "BACKEND_TYPE=memcache", "BACKEND_TYPE memcache: there is no memcached here; want redis with REDIS_URL, or no BACKEND_TYPE, to count in memory"},
		{"", "BACKEND_TYPE=etcd", `BACKEND_TYPE "etcd": want redis`},
		{"", "BACKEND_TYPE=redis", "BACKEND_TYPE redis without REDIS_URL"},
		{"", "REDIS_URL=r:1 REDIS_SOCKET_TYPE=udp", `REDIS_SOCKET_TYPE "udp": want tcp or unix`},
		{"", "REDIS_URL=r:1 REDIS_TIMEOUT=10", `REDIS_TIMEOUT "10": want a time such as 10s`},
		{"", "REDIS_URL=r:1 REDIS_PERSECOND=true", "REDIS_PERSECOND without REDIS_PERSECOND_URL"},
		{"", "REDIS_URL=r:1 REDIS_TYPE=x", `--redis: the type "x"; want single, cluster or sentinel`},
		{"--redis redis://u:hidden@:1", "", "--redis: address 1: it has no host"},
		{"--redis r:1 --on-store-failure x", "", `--on-store-failure "x": want local-share, open or closed`},
		{"--redis r:1 --store-keys x", "", `--store-keys "x": want sluice or upstream`},
		{"--redis r:1 --store-keys upstream --on-store-failure local-share", "", "want open or closed"},
		{"--redis r:1 --store-budget 5ns", "", "--store-budget 5ns: want 100us to 1m"},
		{"", "REDIS_URL=r:1 EXPIRATION_JITTER_MAX_SECONDS=x", `EXPIRATION_JITTER_MAX_SECONDS "x": want a number of seconds`},
		{"--redis r:1 --replicas -1", "", "--replicas -1: want a number of processes"},
		{"--redis r:1 --state f", "", "--state with --redis: want one of them"},
		{"--redis-per-second r:1", "", "--redis-per-second"},
	} {
		got, _, err := parse(append([]string{"--rules", "r"}, strings.Fields(c[0])...), strings.Fields(c[1]))
		if err == nil {
			err = got.Check()
		}
		require.ErrorContains(t, err, c[2], "%v", c)
		require.NotContains(t, err.Error(), "hidden")
	}
}

// TestServe_Store: two services with one Redis count together, and go on, each by its share, when it is gone.
func TestServe_Store(t *testing.T) {
	server := servers.StartRedis(t, "--requirepass", "hidden")
	url := "redis://:hidden@" + server.Addr
	args := []string{"--redis", url, "--leases=false", "--store-budget", "5s", "--replicas", "2"}
	args = append(args, "--rules", rulesFile(t, "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 4}}\n"))
	a, b := start(t, args...), start(t, args...)
	both := []*grpc.ClientConn{a.dial(), b.dial()}
	for i, want := range []uint32{3, 2, 1, 0} {
		require.Equal(t, want, ask(t, both[i%2], one("k", "x")).Statuses[0].LimitRemaining)
	}
	require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, both[0], one("k", "x")).OverallCode)
	_, metrics := a.get("metrics", "/metrics")
	for _, line := range []string{`sluice_tier_degraded{limiter="redis"} 0`, `sluice_store_replicas{limiter="redis"} 2`, `sluice_store_unshared_units_total{limiter="redis"} 0`, `sluice_tier_decisions_total{limiter="redis",source="fallback"} 0`} {
		require.Contains(t, metrics, line)
	}
	server.Kill()
	admitted := 0
	for i := range 12 {
		if ask(t, both[i%2], one("k", "y")).OverallCode == pb.RateLimitResponse_OK {
			admitted++
		}
	}
	require.Equal(t, 4, admitted, "each admits its half")
	a.waitLog("the store does not answer")
	_, metrics = a.get("metrics", "/metrics")
	require.Contains(t, metrics, `sluice_tier_degraded{limiter="redis"} 1`)
	require.Regexp(t, `sluice_store_unshared_units_total\{limiter="redis"\} [1-9]`, metrics)
	a.waitLog("which domains are sent refunds")
	code, _ := a.get("http", "/healthcheck")
	require.Equal(t, 200, code, "a replica that can decide is ready")
	require.NotContains(t, a.log.String()+b.log.String(), "hidden")
}

// TestServe_UpstreamKeys: counts are under the names of envoyproxy/ratelimit, whose own processes count there, too.
func TestServe_UpstreamKeys(t *testing.T) {
	server := servers.StartRedis(t)
	rules := rulesFile(t, "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 4}}\n")
	a := start(t, "--redis", server.Addr, "--store-keys", "upstream", "--store-budget", "5s", "--rules", rules)
	conn := a.dial()
	require.EqualValues(t, 3, ask(t, conn, one("k", "x")).Statuses[0].LimitRemaining)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	year := int64(365 * 24 * 3600)
	key := fmt.Sprintf("d_k_x_%d", time.Now().Unix()/year*year)
	require.Equal(t, int64(3), client.IncrBy(t.Context(), key, 2).Val())
	require.EqualValues(t, 0, ask(t, conn, one("k", "x")).Statuses[0].LimitRemaining)
	require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, ask(t, conn, one("k", "x")).OverallCode)
	_, metrics := a.get("metrics", "/metrics")
	for _, line := range []string{`sluice_tier_degraded{limiter="redis"} 0`, `sluice_tier_decisions_total{limiter="redis",source="redis"} 3`, `sluice_store_trips_total{limiter="redis"} 3`} {
		require.Contains(t, metrics, line)
	}
	require.NotRegexp(t, `sluice_store_(owed|leased|replicas)`, metrics)
	server.Kill()
	for range 5 {
		_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), one("k", "x"))
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.NotContains(t, err.Error(), server.Addr, "the log has the rest")
	}
	a.waitLog("the store does not answer")
	require.Regexp(t, "calls are refused, since the store has not answered.*"+server.Addr, a.log.String())
	_, metrics = a.get("metrics", "/metrics")
	for _, line := range []string{`sluice_tier_degraded{limiter="redis"} 1`, `sluice_tier_errors_total{cause="failed",limiter="redis"} 5`, `sluice_store_trips_total{limiter="redis"} 3`} {
		require.Contains(t, metrics, line)
	}
	require.Empty(t, a.lint())
}

// TestServe_UpstreamKeysOpen: calls that no server has answered are admitted, and counted as such.
func TestServe_UpstreamKeysOpen(t *testing.T) {
	rules := rulesFile(t, "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 4}}\n")
	a := start(t, "--redis", "127.0.0.1:1", "--redis-per-second", "127.0.0.1:1", "--store-keys", "upstream", "--on-store-failure", "open", "--rules", rules)
	conn := a.dial()
	for range 3 {
		require.Equal(t, pb.RateLimitResponse_OK, ask(t, conn, one("k", "x")).OverallCode)
	}
	_, metrics := a.get("metrics", "/metrics")
	for _, line := range []string{
		`sluice_store_unshared_units_total{limiter="redis-per-second"} 3`, `sluice_store_unshared_units_total{limiter="redis"} 0`,
		`sluice_tier_decisions_total{limiter="redis-per-second",source="fallback"} 3`,
	} {
		require.Contains(t, metrics, line)
	}
}
